package hostmount

import (
	"context"
	"fmt"

	mountutils "k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"

	"github.com/volumekit/volumekit/mount"
)

// FormatAndMount mounts the block device m.Source at m.Target, and makes a file
// system of type m.FSType on it first if it holds nothing at all. A device that
// holds another file system, or anything that is not understood, is never
// formatted. A file system that is there is
// checked before (fsck(8)) unless the mount is read-only.
//
// format are arguments for mkfs in addition. The programs end with ctx. It is
// safe to repeat; it must not run twice at a time for one device.
func (m *Mounter) FormatAndMount(ctx context.Context, mt mount.Mount, format ...string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	keep := &keepError{MountUtils: ToMountUtils(func() context.Context { return ctx }, m)}
	safe := mountutils.NewSafeFormatAndMount(keep, ctxExec{m.options.Exec, ctx})
	err := safe.FormatAndMountSensitiveWithFormatOptions(
		mt.Source, mt.Target, mt.FSType, mt.Options.Strings(), mt.Options.Sensitive, format)
	if err != nil && keep.err != nil {
		err = keep.err
	}
	if err != nil {
		return fmt.Errorf("format and mount %s on %s: %w", mt.Source, mt.Target, hide(err, mt.Options))
	}
	return nil
}

// keepError keeps the error of a mount, of which mount-utils passes the text
// alone.
type keepError struct {
	*MountUtils
	err error
}

// MountSensitive implements mount-utils' Interface.
func (k *keepError) MountSensitive(source, target, fstype string, options, sensitive []string) error {
	k.err = k.MountUtils.MountSensitive(source, target, fstype, options, sensitive)
	return k.err
}

// ctxExec ends every program with a context.
type ctxExec struct {
	utilexec.Interface
	ctx context.Context //nolint:containedctx // lives as long as the call
}

// Command implements utilexec.Interface.
func (e ctxExec) Command(cmd string, args ...string) utilexec.Cmd {
	return e.CommandContext(e.ctx, cmd, args...)
}
