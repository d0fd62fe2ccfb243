package csi

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/plugins"
)

// What can be seen of a published volume without its driver.
const (
	statusInaccessible = "Inaccessible"
	reasonDeviceGone   = "DeviceLost"
	reasonMountGone    = "MountLost"
	reasonMountDead    = "MountDead"
)

// lookAt returns what is wrong with a published volume as far as the node can
// see it.
func (p *Plugin) lookAt(ctx context.Context, at published) []plugins.Fault {
	point, err := p.host.Mounter.Inspect(ctx, at.target)
	fault := func(reason, format string, args ...any) []plugins.Fault {
		return []plugins.Fault{{Status: statusInaccessible, Reason: reason, Message: fmt.Sprintf(format, args...)}}
	}
	switch {
	case err != nil:
		return nil // it cannot be seen, which is no fault of the volume
	case point.Corrupt != nil:
		return fault(reasonMountDead, "the file system at %s does not answer: %v", at.target, point.Corrupt)
	case at.block && (!point.Exists || isBlockDevice(at.target) != nil):
		return fault(reasonDeviceGone, "the block device at %s is gone", at.target)
	case !point.Exists || at.mounted && !point.Mounted:
		return fault(reasonMountGone, "the mount at %s is gone", at.target)
	}
	return nil
}
