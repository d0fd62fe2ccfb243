package projection

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// tmpfsSize bounds a volume's tmpfs. Only what is written takes memory, and
// only this package writes; the bound is there so that a mistake cannot use up
// the node. Two versions have to fit, and content may grow while the volume
// lives, so there is a floor well above what an API object can hold (1 MiB).
// What the content takes has been in this process's memory once already, so a
// multiple of it is in proportion to the node. Growth beyond that moves the
// bound, see makeRoom.
func tmpfsSize(tree *Tree) int64 { return max(256<<20, 8*tree.Size()) }

// makeRoom moves the bound of a volume's tmpfs that is full, so that tree fits
// beside what is there. cause is the error that said so.
func (v *Volume) makeRoom(ctx context.Context, target string, tree *Tree, cause error) error {
	resizer, ok := v.host.Mounter.(mount.Resizer)
	err := mount.ErrUnsupported
	if ok {
		err = resizer.Resize(ctx, target, tmpfsSize(tree))
	}
	if err == nil {
		return nil
	}
	return plugins.Transient(fmt.Errorf("%w: the tmpfs at %s has to grow for %d bytes of content, which the mounter could not do (%w); "+
		"a new mount, after the volume is torn down, would be large enough", cause, target, tree.Size(), err))
}

func (v *Volume) tmpfs(target string, tree *Tree) mount.Mount {
	return mount.Mount{
		Source: "tmpfs", Target: target, FSType: "tmpfs",
		Options: mount.Options{
			// Not noexec: pods run scripts from such volumes.
			NoSuid: true, NoDev: true,
			Data: []string{fmt.Sprintf("size=%d", tmpfsSize(tree)), "mode=0755"},
		},
	}
}

// mountNew mounts a tmpfs with the content at target. Where the mounter can,
// the content is complete before anyone can see the mount.
func (v *Volume) mountNew(ctx context.Context, target string, tree *Tree) (WriteResult, error) {
	m := v.tmpfs(target, tree)
	if builder, ok := v.host.Mounter.(mount.Builder); ok {
		wrote, err := v.build(ctx, builder, m, tree)
		if !errors.Is(err, mount.ErrUnsupported) {
			return wrote, err
		}
	}
	err := v.withoutSwap(m, func(m mount.Mount) error { return v.host.Mounter.Mount(ctx, m) })
	if err != nil {
		return WriteResult{}, err
	}
	wrote, err := v.fillMount(ctx, target, tree)
	if err != nil {
		undo := v.host.Mounter.Unmount(context.WithoutCancel(ctx), target, mount.UnmountOptions{})
		err = errors.Join(err, undo)
	}
	return wrote, err
}

func (v *Volume) fillMount(ctx context.Context, target string, tree *Tree) (WriteResult, error) {
	top, err := openFolder(target)
	if err != nil {
		return WriteResult{}, err
	}
	defer func() { _ = top.close() }()
	return v.writer(&top, true).Write(ctx, tree)
}

func (v *Volume) build(ctx context.Context, builder mount.Builder, m mount.Mount, tree *Tree) (WriteResult, error) {
	var built mount.Detached
	err := v.withoutSwap(m, func(m mount.Mount) (err error) {
		built, err = builder.Build(ctx, m)
		return err
	})
	if err != nil {
		return WriteResult{}, err
	}
	wrote, err := v.fillBuilt(ctx, built, tree)
	if err == nil {
		err = built.Attach(ctx, m.Target)
	}
	return wrote, errors.Join(err, built.Close())
}

// withoutSwap mounts with the option noswap (tmpfs(5), since Linux 6.4), and
// without it where the kernel or the user namespace does not allow it. Which
// is the case is found by trying.
func (v *Volume) withoutSwap(m mount.Mount, do func(mount.Mount) error) error {
	if v.noSwap.Load() {
		return do(m)
	}
	wish := m
	wish.Options.Data = append(slices.Clone(m.Options.Data), "noswap")
	err := do(wish)
	for _, refusal := range []error{mount.ErrBadOption, mount.ErrUnsupported, syscall.EINVAL, syscall.EPERM} {
		if errors.Is(err, refusal) {
			if err = do(m); err == nil {
				v.noSwap.Store(true)
			}
			return err
		}
	}
	return err
}

// fillBuilt writes into a file system that nobody sees yet.
func (v *Volume) fillBuilt(ctx context.Context, built mount.Detached, tree *Tree) (WriteResult, error) {
	top, err := folderIn(built)
	if err != nil {
		return WriteResult{}, err
	}
	defer func() { _ = top.close() }()
	return v.writer(&top, true).Write(ctx, tree)
}
