package emptydir

import (
	"context"
	"errors"
	"fmt"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// maxRounds bounds how often mounts are taken off before TearDown gives up for
// this time: somebody mounts as fast as they are unmounted.
const maxRounds = 64

// TearDown removes the volume. What others mounted inside it (a container with
// bidirectional propagation, an administrator) is unmounted, never deleted;
// with Lazy, detached. It needs the paths alone. The mount table is read only
// where a mount lies inside the volume.
func (p *Plugin) TearDown(ctx context.Context, req plugins.TearDownRequest) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	// The kubelet's mark that the volume is complete goes first, as there.
	if err := p.host.Mounter.RemoveAll(ctx, req.PrivateDir); err != nil {
		return err
	}
	var err error
	for range maxRounds {
		err = p.host.Mounter.RemoveAll(ctx, req.Path)
		if err == nil || (!errors.Is(err, mount.ErrCrossesMount) && !errors.Is(err, mount.ErrBusy)) {
			return err
		}
		if err := p.unmount(ctx, req); err != nil {
			return err
		}
		if err := p.host.Faults.At(FaultUnmounted); err != nil {
			return err
		}
	}
	return fmt.Errorf("mounts keep appearing on %s: %w", req.Path, err)
}

// unmount takes one mount off the target, or where that cannot be, all that
// are below it.
func (p *Plugin) unmount(ctx context.Context, req plugins.TearDownRequest) error {
	how := mount.UnmountOptions{Lazy: req.Lazy}
	var busy error
	if !req.Lazy { // a lazy unmount would take along, unseen, what lies below
		switch err := p.host.Mounter.Unmount(ctx, req.Path, how); {
		case err == nil:
			return nil
		case errors.Is(err, mount.ErrBusy):
			busy = err
		case !errors.Is(err, mount.ErrNotMounted):
			return err
		}
	}
	table, err := p.host.Mounter.Table(ctx)
	if err != nil {
		return err
	}
	below := table.Below(req.Path)
	if len(below) == 0 && busy != nil {
		return busy
	}
	for _, e := range below {
		err := p.host.Mounter.Unmount(ctx, e.Target, how)
		if err != nil && !errors.Is(err, mount.ErrNotMounted) {
			return fmt.Errorf("unmount %s, which lies inside the volume: %w", e.Target, err)
		}
	}
	if !req.Lazy {
		return nil
	}
	if err := p.host.Mounter.Unmount(ctx, req.Path, how); err != nil && !errors.Is(err, mount.ErrNotMounted) {
		return err
	}
	return nil
}
