package hostmount

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// Inspect implements [mount.Mounter] with one statx(2) and one statfs(2), and
// for a mount a second statx(2) that proves that both saw the same one. Only
// where the file system is dead, or the kernel is older than 5.8, the mount
// table is asked as well; path must be free of symbolic links then.
//
// FSType is set for the common file systems and empty for others.
func (m *Mounter) Inspect(ctx context.Context, path string) (mount.Point, error) {
	if err := ctx.Err(); err != nil {
		return mount.Point{}, fmt.Errorf("inspect %s: %w", path, err)
	}
	st, err := look(path)
	for {
		switch {
		case err == nil:
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
			return mount.Point{}, nil
		case dead(err):
			return m.inspectDead(ctx, path, err)
		default:
			return mount.Point{}, fmt.Errorf("inspect %s: %w", path, err)
		}
		kind := st.Mode & unix.S_IFMT
		p := mount.Point{Exists: true, IsDir: kind == unix.S_IFDIR, MountID: st.Mnt_id}
		if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
			return m.inspectOld(ctx, path, p)
		}
		p.Mounted = st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
		if kind == unix.S_IFLNK { // statfs would follow it
			return p, nil
		}
		p = statfsInto(p, path)
		before := st.Mnt_id
		if !p.Mounted || p.Corrupt != nil {
			return p, nil
		}
		if st, err = look(path); err == nil && st.Mnt_id == before {
			return p, nil
		}
		if ctx.Err() != nil {
			return mount.Point{}, fmt.Errorf("inspect %s: %w", path, ctx.Err())
		}
	}
}

func look(path string) (unix.Statx_t, error) {
	return statx(unix.AT_FDCWD, path, unix.STATX_TYPE|unix.STATX_MNT_ID_UNIQUE)
}

// statx looks at a path and follows neither a symbolic link at its end nor an
// automount.
func statx(dir int, path string, mask int) (st unix.Statx_t, err error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	err = retry(func() error { return unix.Statx(dir, path, flags, mask, &st) })
	return st, err
}

// dead reports whether err is how a file system answers whose server or daemon
// is gone. A FUSE file system of another user answers EACCES, even to root.
func dead(err error) bool {
	for _, e := range []unix.Errno{
		unix.ENOTCONN, unix.ESTALE, unix.EIO, unix.EHOSTDOWN, unix.EHOSTUNREACH, unix.ETIMEDOUT,
		unix.ECONNABORTED, unix.ECONNREFUSED, unix.ECONNRESET, unix.ESHUTDOWN, unix.EREMOTEIO,
		unix.EKEYEXPIRED, unix.ENETDOWN, unix.EACCES, unix.EPERM,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// inspectDead finds out whether it is a mount at path that is dead, or one
// further up. The kernel answers without asking the file system if nothing but
// what it knows itself is wanted.
func (m *Mounter) inspectDead(ctx context.Context, path string, cause error) (mount.Point, error) {
	p := mount.Point{Exists: true, Mounted: true, IsDir: true, Corrupt: cause}
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	err := retry(func() error { return unix.Statx(unix.AT_FDCWD, path, flags, 0, &st) })
	if err == nil && st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
			return mount.Point{}, fmt.Errorf("inspect %s: %w", path, cause)
		}
		if st.Mask&unix.STATX_TYPE != 0 {
			p.IsDir = st.Mode&unix.S_IFMT == unix.S_IFDIR
		}
	}
	table, err := m.Table(ctx)
	if err != nil {
		return mount.Point{}, err
	}
	e, mounted := table.At(filepath.Clean(path))
	if !mounted {
		return mount.Point{}, fmt.Errorf("inspect %s: %w", path, cause)
	}
	p.MountID, p.FSType, p.ReadOnly = e.ID, e.FSType, e.ReadOnly
	return p, nil
}

// inspectOld answers from the mount table, for kernels before 5.8.
func (m *Mounter) inspectOld(ctx context.Context, path string, p mount.Point) (mount.Point, error) {
	table, err := m.Table(ctx)
	if err != nil {
		return mount.Point{}, err
	}
	e, mounted := table.At(filepath.Clean(path))
	if p.Mounted = mounted; mounted {
		p.MountID = e.ID
	}
	return statfsInto(p, path), nil
}

// statfsInto adds what statfs(2) knows. It follows a symbolic link that is put
// in the place of path meanwhile; no more than a wrong answer comes of it,
// which is outdated like any.
func statfsInto(p mount.Point, path string) mount.Point {
	var st unix.Statfs_t
	err := retry(func() error { return unix.Statfs(path, &st) })
	switch {
	case err == nil:
		p.FSType = fsNames(int64(st.Type))               //nolint:unconvert // its width depends on the architecture
		p.ReadOnly = int64(st.Flags)&unix.ST_RDONLY != 0 //nolint:unconvert // likewise
	case p.Mounted && dead(err):
		p.Corrupt = err
	}
	return p
}

// fsNames names the file systems that statfs(2) identifies beyond doubt.
func fsNames(magic int64) string {
	switch uint32(magic) { //nolint:gosec // magic numbers have 32 bits
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.HUGETLBFS_MAGIC:
		return "hugetlbfs"
	case unix.EXT4_SUPER_MAGIC: // ext2 and ext3 are mounted by the same driver
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay"
	case unix.NFS_SUPER_MAGIC:
		return "nfs"
	case unix.FUSE_SUPER_MAGIC:
		return "fuse"
	case unix.PROC_SUPER_MAGIC:
		return "proc"
	case unix.SYSFS_MAGIC:
		return "sysfs"
	case unix.RAMFS_MAGIC:
		return "ramfs"
	case unix.SQUASHFS_MAGIC:
		return "squashfs"
	case unix.EROFS_SUPER_MAGIC_V1:
		return "erofs"
	case unix.CIFS_SUPER_MAGIC:
		return "cifs"
	case unix.SMB2_SUPER_MAGIC:
		return "smb3"
	case unix.CEPH_SUPER_MAGIC:
		return "ceph"
	case unix.MSDOS_SUPER_MAGIC:
		return "vfat"
	case unix.ISOFS_SUPER_MAGIC:
		return "iso9660"
	case unix.CGROUP2_SUPER_MAGIC:
		return "cgroup2"
	}
	return ""
}
