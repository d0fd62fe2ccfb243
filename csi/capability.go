package csi

import (
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
)

// accessModeOf is the one access mode of the CSI spec for the set of modes that
// a persistent volume has; none means ReadWriteOnce, which inline volumes have.
// It is the same for the controller's side and the node's, each with what it
// can: the kubelet takes the first mode of the list instead, by which a volume
// may be attached for writers and staged for readers.
//
// multiWriter is the capability SINGLE_NODE_MULTI_WRITER of the service that is
// called. Without it a driver knows one writer on a node only as
// SINGLE_NODE_WRITER (KEP-2485).
func accessModeOf(modes []v1.PersistentVolumeAccessMode, multiWriter bool) (csipb.VolumeCapability_AccessMode_Mode, error) {
	var once, pod, readers, writers bool
	for _, m := range modes {
		switch m {
		case v1.ReadWriteOnce:
			once = true
		case v1.ReadWriteOncePod:
			pod = true
		case v1.ReadOnlyMany:
			readers = true
		case v1.ReadWriteMany:
			writers = true
		default:
			return 0, plugins.Permanentf("access mode %q is not known", shorten(string(m), 64))
		}
	}
	switch {
	case pod && (once || readers || writers):
		return 0, plugins.Permanentf("access modes %v: ReadWriteOncePod has to be the only one; remove it or the others", modes)
	case writers:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, nil
	case once && readers:
		return 0, plugins.Permanentf("access modes %v: a CSI volume is either for one node that writes or for many that read; "+
			"keep ReadWriteOnce or ReadOnlyMany alone in the persistent volume", modes)
	case readers:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, nil
	case !multiWriter:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, nil
	case pod:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, nil
	}
	return csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, nil
}

// capabilityOf is the volume capability of a spec with a csi source. fsType,
// flags and group, the volume_mount_group, are of volumes with a file system
// alone. The type of the file system is exactly what the source says, so that an
// empty one leaves the choice to the driver.
func capabilityOf(
	spec *plugins.Spec, fsType string, mode csipb.VolumeCapability_AccessMode_Mode, flags []string, group string,
) *csipb.VolumeCapability {
	c := &csipb.VolumeCapability{AccessMode: &csipb.VolumeCapability_AccessMode{Mode: mode}}
	if spec.Mode() == v1.PersistentVolumeBlock {
		c.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
		return c
	}
	c.AccessType = &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{
		FsType: fsType, MountFlags: slices.Clone(flags), VolumeMountGroup: group,
	}}
	return c
}
