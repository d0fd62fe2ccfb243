package csitest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// mounted reports whether something is mounted at a path, statx(2).
func mounted(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, &st)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return false, errors.New("this kernel does not say what is a mount point, it is older than 5.8")
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// notEmpty reports whether a folder was not removed because of what is in it.
func notEmpty(err error) bool { return errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) }

// flagOf are the mount flags that mount(2) has bits for.
func flagOf(option string) (bit uintptr, known bool) {
	switch option {
	case "ro":
		return unix.MS_RDONLY, true
	case "nosuid":
		return unix.MS_NOSUID, true
	case "nodev":
		return unix.MS_NODEV, true
	case "noexec":
		return unix.MS_NOEXEC, true
	case "noatime":
		return unix.MS_NOATIME, true
	case "nodiratime":
		return unix.MS_NODIRATIME, true
	case "relatime":
		return unix.MS_RELATIME, true
	case "strictatime":
		return unix.MS_STRICTATIME, true
	case "sync":
		return unix.MS_SYNCHRONOUS, true
	case "rw", "defaults", "suid", "dev", "exec", "async":
		return 0, true
	default:
		return 0, false
	}
}

// mountFlags parts a capability's mount flags in bits and data.
func mountFlags(options []string) (flags uintptr, data []string, err error) {
	for _, o := range options {
		if strings.ContainsAny(o, ",\x00") {
			return 0, nil, invalid("a mount flag has a comma or a zero byte in it")
		}
		bit, known := flagOf(o)
		if !known {
			data = append(data, o)
		}
		flags |= bit
	}
	return flags, data, nil
}

func mountNew(source, target, kind string, flags uintptr, data []string) error {
	if err := unix.Mount(source, target, kind, flags, strings.Join(data, ",")); err != nil {
		return fmt.Errorf("mount %s at %s: %w", kind, target, err)
	}
	return nil
}

// bind mounts a folder or file in another place.
func bind(source, target string, flags uintptr) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", source, target, err)
	}
	if flags == 0 {
		return nil
	}
	return restrict(target, flags, false)
}

// restrict gives a mount further flags.
func restrict(target string, flags uintptr, readonly bool) error {
	// Those that belong to a mount, not to its file system.
	flags &= unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME | unix.MS_RELATIME
	if readonly {
		flags |= unix.MS_RDONLY
	}
	if flags == 0 {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(target, &st); err != nil {
		return &fs.PathError{Op: "statfs", Path: target, Err: err}
	}
	// In a user namespace flags that are there must stay, mount_namespaces(7).
	have := int64(st.Flags) //nolint:unconvert // narrower on other architectures
	for is, bit := range map[int64]uintptr{
		unix.ST_RDONLY: unix.MS_RDONLY, unix.ST_NOSUID: unix.MS_NOSUID, unix.ST_NODEV: unix.MS_NODEV,
		unix.ST_NOEXEC: unix.MS_NOEXEC, unix.ST_NOATIME: unix.MS_NOATIME, unix.ST_NODIRATIME: unix.MS_NODIRATIME, unix.ST_RELATIME: unix.MS_RELATIME,
	} {
		if have&is != 0 {
			flags |= bit
		}
	}
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""); err != nil {
		return fmt.Errorf("remount %s: %w", target, err)
	}
	return nil
}

// unmountAll unmounts everything at a path.
func unmountAll(path string) error {
	for {
		there, err := mounted(path)
		if err != nil || !there {
			return err
		}
		if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}

// resizeTmpfs gives a tmpfs another size, and leaves all else of it and of its
// mounts as it is, which a remount would not.
func resizeTmpfs(path string, bytes int64) (err error) {
	fd, err := unix.Fspick(unix.AT_FDCWD, path, unix.FSPICK_CLOEXEC|unix.FSPICK_NO_AUTOMOUNT)
	if err == nil {
		defer func() { _ = unix.Close(fd) }()
		if err = unix.FsconfigSetString(fd, "size", strconv.FormatInt(bytes, 10)); err == nil {
			err = unix.FsconfigReconfigure(fd)
		}
	}
	if err != nil {
		return fmt.Errorf("resize tmpfs at %s: %w", path, err)
	}
	return nil
}

// setGroup lets a group read and write a volume, and gives it what is made
// there.
func setGroup(path, group string) error {
	if group == "" {
		return nil
	}
	gid, err := strconv.ParseUint(group, 10, 32)
	if err != nil {
		return invalid("volume_mount_group is no number")
	}
	if err := os.Chown(path, -1, int(gid)); err != nil {
		return err
	}
	return os.Chmod(path, 0o770|fs.ModeSetgid)
}

// usageAt measures a mounted file system.
func usageAt(path string) ([]*csi.VolumeUsage, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	block := uint64(st.Bsize)                                      //nolint:gosec // not negative
	number := func(n uint64) int64 { return int64(min(n, 1<<62)) } //nolint:gosec // bounded
	return []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: number(st.Blocks * block), Available: number(st.Bavail * block), Used: number((st.Blocks - st.Bfree) * block)},
		{Unit: csi.VolumeUsage_INODES, Total: number(st.Files), Available: number(st.Ffree), Used: number(st.Files - st.Ffree)},
	}, nil
}
