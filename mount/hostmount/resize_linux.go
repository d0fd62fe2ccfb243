package hostmount

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// Resize implements [mount.Resizer] by fspick(2) and fsconfig(2), before Linux
// 5.2 by a remount. tmpfs(5) says how far down a size can go.
func (m *Mounter) Resize(ctx context.Context, target string, bytes int64) error {
	if err := m.resize(ctx, target, bytes); err != nil {
		return fmt.Errorf("resize %s: %w", target, err)
	}
	return nil
}

func (m *Mounter) resize(ctx context.Context, target string, bytes int64) error {
	if bytes <= 0 { // no limit at all, for a tmpfs
		return fmt.Errorf("%w: a size of %d bytes", mount.ErrBadOption, bytes)
	}
	point, err := m.Inspect(ctx, target)
	switch {
	case err != nil:
		return err
	case !point.Mounted:
		return mount.ErrNotMounted
	case point.Corrupt != nil:
		return point.Corrupt
	case point.FSType != "tmpfs":
		return fmt.Errorf("%w: a file system of type %s", mount.ErrUnsupported, point.FSType)
	}
	size := strconv.FormatInt(bytes, 10)
	if !m.options.Classic && !m.host.noFsopen.Load() {
		err := reconfigure(target, "size", size)
		if !errors.Is(err, errNoNewAPI) {
			return err
		}
	}
	return remount(target, "size="+size)
}

// reconfigure changes one option of the file system that is mounted on target.
func reconfigure(target, key, value string) error {
	fs, err := unix.Fspick(unix.AT_FDCWD, target, unix.FSPICK_CLOEXEC|unix.FSPICK_SYMLINK_NOFOLLOW|unix.FSPICK_NO_AUTOMOUNT)
	switch {
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM): // mount(2) will tell
		return errNoNewAPI
	case err != nil:
		return step("fspick", err)
	}
	defer func() { _ = unix.Close(fs) }()
	if err := unix.FsconfigSetString(fs, key, value); err != nil {
		return withMessage(fs, badOption(key, err), mount.Options{})
	}
	if err := retry(func() error { return unix.FsconfigReconfigure(fs) }); err != nil {
		return withMessage(fs, step("reconfigure", err), mount.Options{})
	}
	return nil
}

// remount does the same by mount(2), which takes what is not said again away:
// the flags of the mount have to be said.
func remount(target, data string) error {
	dir, err := openTarget(target)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(int(dir.Fd()), &st) }); err != nil {
		return fmt.Errorf("statfs: %w", err)
	}
	flags := uintptr(unix.MS_REMOUNT)
	for _, f := range []struct {
		st int64
		ms uintptr
	}{
		{unix.ST_RDONLY, unix.MS_RDONLY}, {unix.ST_NOSUID, unix.MS_NOSUID}, {unix.ST_NODEV, unix.MS_NODEV},
		{unix.ST_NOEXEC, unix.MS_NOEXEC}, {unix.ST_SYNCHRONOUS, unix.MS_SYNCHRONOUS}, {unix.ST_NOATIME, unix.MS_NOATIME},
		{unix.ST_NODIRATIME, unix.MS_NODIRATIME}, {unix.ST_RELATIME, unix.MS_RELATIME},
	} {
		if int64(st.Flags)&f.st != 0 { //nolint:unconvert // of another type elsewhere
			flags |= f.ms
		}
	}
	if err := retry(func() error { return unix.Mount("", descriptorPath(dir), "", flags, data) }); err != nil {
		return step("remount", err)
	}
	return nil
}
