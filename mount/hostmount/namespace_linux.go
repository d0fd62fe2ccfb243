package hostmount

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// Namespace implements [mount.Identifier].
func (m *Mounter) Namespace(ctx context.Context) (mount.Namespace, error) {
	if err := ctx.Err(); err != nil {
		return mount.Namespace{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return mount.Namespace{}, fmt.Errorf("boot id: %w", err)
	}
	ns, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return mount.Namespace{}, fmt.Errorf("mount namespace: %w", err)
	}
	return mount.Namespace{BootID: strings.TrimSpace(string(boot)), MountNS: ns}, nil
}

// Propagation implements [mount.Propagator]. Where the kernel lacks statmount(2)
// it reads the mount table anew.
func (m *Mounter) Propagation(ctx context.Context, path string) (mount.Propagation, error) {
	if how, ok := propagationAt(path); ok && !m.options.Classic && ctx.Err() == nil {
		return how, nil
	}
	s, err := m.snapshot(ctx, true)
	if err != nil {
		return "", fmt.Errorf("propagation of %s: %w", path, err)
	}
	mask := unix.STATX_MNT_ID_UNIQUE
	if s.ids == nil { // from text
		mask = unix.STATX_MNT_ID
	}
	st, err := statx(unix.AT_FDCWD, path, mask)
	if err != nil {
		return "", fmt.Errorf("propagation of %s: %w", path, err)
	}
	if st.Mask&uint32(mask) != 0 { //nolint:gosec // a small mask
		for _, e := range s.rows {
			if e.ID == st.Mnt_id {
				return e.Propagation, nil
			}
		}
	}
	if e, ok := enclosing(s.table, path); ok && st.Mask&uint32(mask) == 0 { //nolint:gosec // a small mask
		return e.Propagation, nil
	}
	return "", fmt.Errorf("propagation of %s: its mount is not in the table", path)
}

// propagationAt asks the kernel about one mount, if it can tell.
func propagationAt(path string) (mount.Propagation, bool) {
	st, err := statx(unix.AT_FDCWD, path, unix.STATX_MNT_ID_UNIQUE)
	if err != nil || st.Mask&unix.STATX_MNT_ID_UNIQUE == 0 {
		return "", false
	}
	var s statMounter
	e, err := s.stat(st.Mnt_id)
	return e.Propagation, err == nil
}

// enclosing finds by text the mount on which a path lies.
func enclosing(table mount.Table, path string) (best mount.Entry, ok bool) {
	for _, e := range table {
		if mount.Inside(e.Target, path) && (!ok || len(e.Target) >= len(best.Target)) {
			best, ok = e, true
		}
	}
	return best, ok
}

// MakeShared implements [mount.Propagator].
func (m *Mounter) MakeShared(ctx context.Context, path string) error {
	if err := m.makeShared(ctx, path); err != nil {
		return fmt.Errorf("make %s shared: %w", path, err)
	}
	return nil
}

func (m *Mounter) makeShared(ctx context.Context, path string) error {
	p, err := m.Inspect(ctx, path)
	if err != nil {
		return err
	}
	if !p.Exists {
		return unix.ENOENT
	}
	done := m.host.own.begin(path, true)
	defer done(0)
	if !p.Mounted {
		if err := retry(func() error { return unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, "") }); err != nil {
			return step("bind on itself", err)
		}
	}
	if err := retry(func() error { return unix.Mount("", path, "", unix.MS_SHARED|unix.MS_REC, "") }); err != nil {
		return step("mount", err)
	}
	_, err = m.snapshot(ctx, true) // the change is one in place
	return err
}
