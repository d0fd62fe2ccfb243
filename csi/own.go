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
		Group: group, OnRootMismatch: pub.req.Params.FSGroupOnRootMismatch,
	})
	if err != nil {
		return plugins.Uncertain(fmt.Errorf("give the volume to group %d: %w", group, err))
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
