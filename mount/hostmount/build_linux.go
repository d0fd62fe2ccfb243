package hostmount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// Build implements [mount.Builder] for file systems that the kernel mounts
// without a program. A mount that is to be read-only can be written until
// Attach, which makes the mount read-only (not the superblock) in the moment
// before it becomes visible; a file that is still open for writing makes that
// fail with [mount.ErrBusy].
//
// What Root returns keeps the mount busy like any open file: call Close before
// anybody unmounts it.
func (m *Mounter) Build(ctx context.Context, mt mount.Mount) (mount.Detached, error) {
	d, err := m.build(ctx, mt)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", describe(mt), err)
	}
	return d, nil
}

func (m *Mounter) build(ctx context.Context, mt mount.Mount) (*detached, error) {
	mt.Target = "/"
	if err := errors.Join(ctx.Err(), check(mt)); err != nil {
		return nil, err
	}
	readOnly := mt.Options.ReadOnly
	mt.Options.ReadOnly = false
	r, err := translate(mt)
	if err != nil {
		return nil, err
	}
	if m.options.Classic || m.host.noFsopen.Load() || mt.Options.Bind || !r.fits() || needsHelper(mt) {
		return nil, fmt.Errorf("%w: it cannot be made before it is attached", mount.ErrUnsupported)
	}
	fd, err := m.fsmount(r)
	if errors.Is(err, errNoNewAPI) {
		return nil, fmt.Errorf("%w: %w", mount.ErrUnsupported, err)
	}
	if err != nil {
		return nil, err
	}
	return &detached{m: m, what: describe(mt), fd: fd, readOnly: readOnly}, nil
}

// detached is a mount that only we have.
type detached struct {
	m        *Mounter
	what     string
	fd       int
	root     *os.Root // nil until somebody asks for it
	readOnly bool
}

// Root implements [mount.Detached].
func (d *detached) Root() (*os.Root, error) {
	switch {
	case d.root != nil:
		return d.root, nil
	case d.fd < 0:
		return nil, os.ErrClosed
	}
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(d.fd))
	if err != nil {
		return nil, fmt.Errorf("open the root of %s: %w", d.what, err)
	}
	d.root = root
	return root, nil
}

// Fd implements [mount.Opened].
func (d *detached) Fd() int { return d.fd }

// Attach implements [mount.Detached].
func (d *detached) Attach(ctx context.Context, target string) error {
	if err := d.attach(ctx, target); err != nil {
		return fmt.Errorf("attach %s to %s: %w", d.what, target, err)
	}
	return nil
}

func (d *detached) attach(ctx context.Context, target string) error {
	if d.fd < 0 {
		return os.ErrClosed
	}
	err := errors.Join(ctx.Err(), check(mount.Mount{Target: target, FSType: "any"}))
	if err != nil {
		return err
	}
	if err := d.m.fault("mount.before"); err != nil {
		return err
	}
	if d.readOnly {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(d.fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return step("mount_setattr", err)
		}
	}
	done := d.m.host.own.begin(target, false)
	if err := moveMount(d.fd, target); err != nil {
		done(0)
		return err
	}
	done(1)
	return d.m.fault("mount.after")
}

// Close implements [mount.Detached]. Closing again does nothing.
func (d *detached) Close() error {
	if d.fd < 0 {
		return nil
	}
	fd := d.fd
	d.fd = -1
	err := unix.Close(fd)
	if d.root != nil {
		err = errors.Join(err, d.root.Close())
	}
	return err
}
