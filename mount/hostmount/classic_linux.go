package hostmount

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// classicFS mounts a file system with mount(2).
func (m *Mounter) classicFS(r request) error {
	var list, withoutWishes []string
	for _, p := range r.params {
		if !p.listed() {
			return fmt.Errorf("%w: the value of %s holds a comma, which this kernel cannot take", mount.ErrBadOption, p.key)
		}
		if !p.wished || !m.host.noSwapRefused.Load() {
			list = append(list, p.String())
		}
		if !p.wished {
			withoutWishes = append(withoutWishes, p.String())
		}
	}
	target, err := openTarget(r.Target)
	if err != nil {
		return err
	}
	defer func() { _ = target.Close() }()
	call := func(list []string) error {
		data := strings.Join(list, ",")
		return retry(func() error { return unix.Mount(r.Source, descriptorPath(target), r.FSType, r.flags, data) })
	}
	err = call(list)
	if errors.Is(err, unix.EINVAL) && len(withoutWishes) < len(list) {
		if err = call(withoutWishes); err == nil {
			m.host.noSwapRefused.Store(true)
		}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%w: unknown file system: %w", mount.ErrUnsupported, err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: %w", mount.ErrBadOption, err)
	}
	return step("mount", err)
}

// openTarget opens a mount target without following a symbolic link.
func openTarget(path string) (*os.File, error) {
	flags := unix.O_PATH | unix.O_CLOEXEC
	if !byDescriptor(path) {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Open(path, flags, 0)
	if err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	return os.NewFile(uintptr(fd), path), nil //nolint:gosec // a descriptor
}

func descriptorPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) } //nolint:gosec // a descriptor

// classicBind binds with mount(2), which takes flags in a second call only.
// That call must repeat the flags that are there: in a user namespace they are
// locked, and elsewhere it would take them away.
func (m *Mounter) classicBind(r request) error {
	target, err := openTarget(r.Target)
	if err != nil {
		return err
	}
	defer func() { _ = target.Close() }()
	flags := uintptr(unix.MS_BIND)
	if r.Options.Recursive {
		flags |= unix.MS_REC
	}
	if err := retry(func() error { return unix.Mount(r.Source, descriptorPath(target), "", flags, "") }); err != nil {
		return step("mount", err)
	}
	if r.flags == 0 {
		return nil
	}
	if err := m.flagAll(r); err != nil {
		undo := unix.Unmount(r.Target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		return errors.Join(err, undo)
	}
	return nil
}

// flagAll gives a fresh bind mount its flags, and those that came along.
func (m *Mounter) flagAll(r request) error {
	paths := []string{r.Target}
	if r.Options.Recursive {
		table, err := readMountinfo()
		if err != nil {
			return err
		}
		for _, e := range table.Below(r.Target) {
			paths = append(paths, e.Target)
		}
	}
	for _, path := range paths {
		var st unix.Statfs_t
		if err := retry(func() error { return unix.Statfs(path, &st) }); err != nil {
			return fmt.Errorf("statfs: %w", err)
		}
		flags := unix.MS_REMOUNT | unix.MS_BIND | r.flags | presentFlags(&st)
		if err := retry(func() error { return unix.Mount("", path, "", flags, "") }); err != nil {
			return step("remount with flags", err)
		}
	}
	return nil
}

// presentFlags are the per-mount flags of mount(2) that statfs(2) reports.
func presentFlags(st *unix.Statfs_t) (flags uintptr) {
	for _, f := range []struct {
		st int64
		ms uintptr
	}{
		{unix.ST_RDONLY, unix.MS_RDONLY},
		{unix.ST_NOSUID, unix.MS_NOSUID},
		{unix.ST_NODEV, unix.MS_NODEV},
		{unix.ST_NOEXEC, unix.MS_NOEXEC},
		{unix.ST_NOATIME, unix.MS_NOATIME},
		{unix.ST_NODIRATIME, unix.MS_NODIRATIME},
		{unix.ST_RELATIME, unix.MS_RELATIME},
		{stNoSymfollow, unix.MS_NOSYMFOLLOW},
	} {
		if int64(st.Flags)&f.st != 0 { //nolint:unconvert // its width depends on the architecture
			flags |= f.ms
		}
	}
	return flags
}

// stNoSymfollow is ST_NOSYMFOLLOW of linux/statfs.h.
const stNoSymfollow = 0x2000
