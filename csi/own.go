package csi

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// own gives the files of a volume to the pod's fsGroup where that is ours to
// do.
func (p *Plugin) own(ctx context.Context, pub *publication) error {
	group := pub.req.Params.FSGroup
	if group == nil || !ownedHere(pub) {
		return nil
	}
	owner, ok := p.host.Mounter.(mount.Owner)
	if !ok {
		return plugins.Unsupported(fmt.Errorf("the pod's fsGroup is to own the volume, which this mounter (%T) cannot do", p.host.Mounter))
	}
	err := owner.SetGroup(ctx, pub.request.TargetPath, mount.Ownership{
		Group: *group, OnRootMismatch: pub.req.Params.FSGroupOnRootMismatch,
	})
	if err != nil {
		return plugins.Uncertain(fmt.Errorf("give the volume to group %d: %w", *group, err))
	}
	return nil
}

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
