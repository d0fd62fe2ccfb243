package projection

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// maxRounds bounds how many layers of mounts a teardown takes off.
const maxRounds = 64

// TearDown removes the volume, from its paths alone: every mount on the
// target, mounts of others inside it, then the folder.
func (v *Volume) TearDown(ctx context.Context, req plugins.TearDownRequest) error {
	if err := v.remove(ctx, req.Path, req.Lazy); err != nil {
		return err
	}
	v.renderer.Forget(req.Volume)
	return v.removePrivate(ctx, req.Target)
}

// remove takes one mount after the other off the target, and then the target
// itself. In the common case that is an unmount and a rmdir.
func (v *Volume) remove(ctx context.Context, target string, lazy bool) error {
	how := mount.UnmountOptions{Lazy: lazy}
	if v.cfg.Memory {
		err := v.host.Mounter.Unmount(ctx, target, how)
		if err != nil && !errors.Is(err, mount.ErrBusy) && !errors.Is(err, mount.ErrNotMounted) {
			return err
		}
	}
	for range maxRounds {
		err := v.host.Mounter.RemoveAll(ctx, target)
		if !errors.Is(err, mount.ErrCrossesMount) && !errors.Is(err, mount.ErrBusy) {
			return err
		}
		if err := v.unmount(ctx, target, how); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s is still a mount point after %d unmounts", target, maxRounds)
}

// unmount takes the topmost mount off the target. Mounts inside it, which
// somebody else made, keep it busy and would be deleted through: they go first.
func (v *Volume) unmount(ctx context.Context, target string, how mount.UnmountOptions) error {
	err := v.host.Mounter.Unmount(ctx, target, how)
	if !errors.Is(err, mount.ErrBusy) && !errors.Is(err, mount.ErrNotMounted) {
		return err
	}
	table, tableErr := v.host.Mounter.Table(ctx)
	if tableErr != nil {
		return errors.Join(err, tableErr)
	}
	below := table.Below(target)
	for _, inner := range below {
		e := v.host.Mounter.Unmount(ctx, inner.Target, how)
		if e != nil && !errors.Is(e, mount.ErrNotMounted) {
			return fmt.Errorf("unmount %s, which lies inside: %w", inner.Target, e)
		}
	}
	if len(below) == 0 && errors.Is(err, mount.ErrBusy) {
		return err
	}
	return nil
}

// removePrivate removes the plugin's own folder and what a kubelet keeps about
// such a volume: the mark that its inner emptyDir is ready.
func (v *Volume) removePrivate(ctx context.Context, target plugins.Target) error {
	if target.PrivateDir == "" {
		return nil
	}
	own, name := target.PrivateDir, filepath.Base(target.PrivateDir)
	wrapped := filepath.Join(filepath.Dir(filepath.Dir(own)), "kubernetes.io~empty-dir", "wrapped_"+name)
	for _, dir := range []string{own, wrapped} {
		if err := syscall.Rmdir(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			continue // one call instead of two where there is nothing, as nearly always
		}
		if err := v.host.Mounter.RemoveAll(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}
