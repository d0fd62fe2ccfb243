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
// automount. It takes what the kernel knows, without asking a server that may
// be dead: of the mount and the kind of a file the kernel knows enough.
func statx(dir int, path string, mask int) (st unix.Statx_t, err error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
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
		p.FSType = fsName(int64(st.Type))                //nolint:unconvert // its width depends on the architecture
		p.ReadOnly = int64(st.Flags)&unix.ST_RDONLY != 0 //nolint:unconvert // likewise
	case p.Mounted && dead(err):
		p.Corrupt = err
	}
	return p
}

// fsName names the file systems that statfs(2) identifies beyond doubt.
func fsName(magic int64) string {
	for _, f := range [...]struct {
		magic uint32
		name  string
	}{
		{unix.TMPFS_MAGIC, "tmpfs"},
		{unix.HUGETLBFS_MAGIC, "hugetlbfs"},
		{unix.EXT4_SUPER_MAGIC, "ext4"}, // ext2 and ext3 are mounted by the same driver
		{unix.XFS_SUPER_MAGIC, "xfs"},
		{unix.BTRFS_SUPER_MAGIC, "btrfs"},
		{unix.OVERLAYFS_SUPER_MAGIC, "overlay"},
		{unix.NFS_SUPER_MAGIC, "nfs"},
		{unix.FUSE_SUPER_MAGIC, "fuse"},
		{unix.PROC_SUPER_MAGIC, "proc"},
		{unix.SYSFS_MAGIC, "sysfs"},
		{unix.RAMFS_MAGIC, "ramfs"},
		{unix.SQUASHFS_MAGIC, "squashfs"},
		{unix.EROFS_SUPER_MAGIC_V1, "erofs"},
		{unix.CIFS_SUPER_MAGIC, "cifs"},
		{unix.SMB2_SUPER_MAGIC, "smb3"},
		{unix.CEPH_SUPER_MAGIC, "ceph"},
		{unix.MSDOS_SUPER_MAGIC, "vfat"},
		{unix.ISOFS_SUPER_MAGIC, "iso9660"},
		{unix.CGROUP2_SUPER_MAGIC, "cgroup2"},
	} {
		if f.magic == uint32(magic) { //nolint:gosec // magic numbers have 32 bits
			return f.name
		}
	}
	return ""
}
