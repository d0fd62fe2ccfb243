package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// owner is who gives the files of a volume to the pod's fsGroup, nil where that is
// not ours to do.
func (p *Plugin) owner(pub *publication) (mount.Owner, error) {
	if pub.req.Params.FSGroup == nil || !ownedHere(pub) {
		return nil, nil
	}
	owner, ok := p.host.Mounter.(mount.Owner)
	if !ok {
		return nil, plugins.Unsupported(fmt.Errorf("the pod's fsGroup is to own the volume, which this mounter (%T) cannot do", p.host.Mounter))
	}
	return owner, nil
}

// own gives the files of a published volume to the pod's fsGroup.
func (p *Plugin) own(ctx context.Context, owner mount.Owner, pub *publication) error {
	if owner == nil {
		return nil
	}
	group := *pub.req.Params.FSGroup
	err := owner.SetGroup(ctx, pub.request.TargetPath, mount.Ownership{
		Group: group, OnRootMismatch: pub.req.Params.FSGroupOnRootMismatch, Progress: p.ownProgress(pub),
	})
	if err == nil {
		return nil
	}
	// The volume is published whatever is wrong with its files.
	err = plugins.Uncertain(fmt.Errorf("give the volume to group %d: %w", group, err))
	if errors.Is(err, mount.ErrBadOption) || errors.Is(err, mount.ErrNotConfined) || errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EINVAL) {
		return plugins.Paced(slow, err)
	}
	return err
}

// ownProgressEvery is how often a pod is told how far the change of its volume's
// owner has come.
const ownProgressEvery = 30 * time.Second

// ownProgress tells the pod of a change that takes long.
func (p *Plugin) ownProgress(pub *publication) func(done int64) {
	told := p.host.Time().Now()
	return func(done int64) {
		if now := p.host.Time().Now(); now.Sub(told) >= ownProgressEvery {
			told = now
			p.host.Event(pub.req.Object, v1.EventTypeNormal, reasonOwnerChanging,
				fmt.Sprintf("volume %s is being given to the pod's fsGroup: %d files so far", pub.req.Volume.Name, done))
		}
	}
}

const reasonOwnerChanging = "VolumePermissionChangeInProgress"

// ownedHere decides whether the files are re-owned on the node: the driver's
// policy says that they may be, and the driver does not do it itself
// (KEP-1682, KEP-2317).
func ownedHere(pub *publication) bool {
	if pub.driver.nodeCan.has(canMountGroup) || pub.request.Readonly {
		return false
	}
	switch pub.info.FSGroupPolicy {
	case storagev1.NoneFSGroupPolicy:
		return false
	case storagev1.FileFSGroupPolicy:
		return true
	}
	return pub.fsType != "" && (pub.ephemeral || slices.ContainsFunc(pub.req.Spec.AccessModes(), func(m v1.PersistentVolumeAccessMode) bool {
		return m == v1.ReadWriteOnce || m == v1.ReadWriteOncePod
	}))
}
