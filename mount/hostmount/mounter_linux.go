package hostmount

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

var (
	_ mount.Mounter    = (*Mounter)(nil)
	_ mount.Builder    = (*Mounter)(nil)
	_ mount.Watcher    = (*Mounter)(nil)
	_ mount.Propagator = (*Mounter)(nil)
	_ mount.Identifier = (*Mounter)(nil)
	_ mount.Resizer    = (*Mounter)(nil)
)

// host is the Linux part of a Mounter.
type host struct {
	// What was found missing is not tried again.
	noFsopen, noSetattr, noOpenat2, noSwapRefused atomic.Bool
	systemd                                       atomic.Int32
	tables                                        tables
	own                                           activity
	buffers                                       sync.Pool
}

// Mount implements [mount.Mounter]. File systems that the kernel mounts by
// itself are mounted by system calls; see [Options] for the others. All flags
// hold from the first moment at which the mount can be seen, for the mounts
// that a recursive bind takes along as well; before Linux 5.12 a bind mount has
// them a moment later. The last component of the target is not followed when
// it is a symbolic link, unless the target is a descriptor (/proc/self/fd/N).
//
// The option noswap of tmpfs is a wish: it is dropped where the kernel does not
// know it, or refuses it to a user namespace.
//
// What the kernel, or mount(8), says about a failure stands in the error,
// without the values of sensitive options.
func (m *Mounter) Mount(ctx context.Context, mt mount.Mount) error {
	if err := m.mount(ctx, mt); err != nil {
		return fmt.Errorf("mount %s on %s: %w", describe(mt), mt.Target, err)
	}
	return nil
}

func (m *Mounter) mount(ctx context.Context, mt mount.Mount) error {
	if err := errors.Join(ctx.Err(), check(mt)); err != nil {
		return err
	}
	r, err := translate(mt)
	if err != nil {
		return err
	}
	if err := m.fault("mount.before"); err != nil {
		return err
	}
	done := m.host.own.begin(mt.Target, mt.Options.Recursive)
	switch {
	case mt.Options.Bind:
		err = m.bind(r)
	case needsHelper(mt):
		err = m.helper(ctx, mt)
	default:
		err = m.mountFS(r)
	}
	if err != nil {
		done(0)
		return err
	}
	done(1)
	return m.fault("mount.after")
}

// describe says what a mount is, without its options.
func describe(m mount.Mount) string {
	if m.Options.Bind {
		return "bind of " + m.Source
	}
	if m.Source == "" || m.Source == m.FSType {
		return m.FSType
	}
	return m.FSType + " " + m.Source
}

// Unmount implements [mount.Mounter], by one umount2(2) in the caller's
// goroutine.
func (m *Mounter) Unmount(ctx context.Context, target string, how mount.UnmountOptions) error {
	if err := m.unmount(ctx, target, how); err != nil {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	return nil
}

func (m *Mounter) unmount(ctx context.Context, target string, how mount.UnmountOptions) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := m.fault("unmount.before"); err != nil {
		return err
	}
	flags := unix.UMOUNT_NOFOLLOW
	if how.Lazy {
		flags |= unix.MNT_DETACH
	}
	if how.Force {
		flags |= unix.MNT_FORCE
	}
	done := m.host.own.begin(target, how.Lazy)
	if err := retry(func() error { return unix.Unmount(target, flags) }); err != nil {
		done(0)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
			return fmt.Errorf("%w: %w", mount.ErrNotMounted, err)
		case errors.Is(err, unix.EBUSY):
			return fmt.Errorf("%w: %w", mount.ErrBusy, err)
		case errors.Is(err, unix.EPERM):
			return fmt.Errorf("%w: %w", mount.ErrUnsupported, err)
		}
		return err
	}
	done(-1)
	return m.fault("unmount.after")
}

// retry repeats a call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// step names the system call that failed and gives the error its class.
func step(call string, err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%w: %s: %w", mount.ErrUnsupported, call, err)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: %s: %w", mount.ErrBusy, call, err)
	}
	return fmt.Errorf("%s: %w", call, err)
}

// byDescriptor reports whether a path names an open descriptor, the one kind
// of symbolic link that is followed as a target.
func byDescriptor(path string) bool {
	return strings.HasPrefix(path, "/proc/self/fd/") && filepath.Dir(path) == "/proc/self/fd"
}
