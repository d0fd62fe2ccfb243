package hostmount

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// openBelow opens a folder by its name in another one. It follows no symbolic
// link, and gives EXDEV if the folder is a mount, ENOTDIR if it is no folder.
func (m *Mounter) openBelow(dir int, name string) (int, error) {
	fd, err := m.openat(dir, name, unix.O_RDONLY)
	if errors.Is(err, unix.EACCES) {
		if m.openUp(dir, name) {
			fd, err = m.openat(dir, name, unix.O_RDONLY)
		}
	}
	if errors.Is(err, unix.ELOOP) {
		err = unix.ENOTDIR
	}
	return fd, err
}

// openUp gives the owner of a folder the permission to read and empty it.
func (m *Mounter) openUp(dir int, name string) bool {
	fd, err := m.openat(dir, name, unix.O_PATH)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&0o700 == 0o700 {
		return false
	}
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), st.Mode&0o7777|0o700) == nil
}

func (m *Mounter) openat(dir int, name string, flags int) (fd int, err error) {
	flags |= unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if !m.options.Classic && !m.host.noOpenat2.Load() {
		how := unix.OpenHow{
			Flags:   uint64(flags), //nolint:gosec // small flags
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
		}
		err = retry(func() (err error) { fd, err = unix.Openat2(dir, name, &how); return err })
		switch {
		default:
			return fd, err
		case errors.Is(err, unix.ENOSYS):
			m.host.noOpenat2.Store(true)
		case errors.Is(err, unix.EPERM): // a system call filter may say so too
		}
	}
	return openatClassic(dir, name, flags)
}

// openatClassic compares mounts after it opened the folder.
func openatClassic(dir int, name string, flags int) (fd int, err error) {
	err = retry(func() (err error) { fd, err = unix.Openat(dir, name, flags, 0); return err })
	if err != nil {
		return -1, err
	}
	above, err := identify(dir)
	if err == nil {
		var id identity
		if id, err = identify(fd); err == nil && id.mount == above.mount {
			return fd, nil
		}
	}
	_ = unix.Close(fd)
	if err != nil {
		return -1, err
	}
	return -1, unix.EXDEV
}

// identity tells folders apart, also those of one file system seen through two
// mounts.
type identity struct {
	major, minor uint32
	inode, mount uint64
}

func identify(fd int) (identity, error) {
	st, err := statx(fd, "", unix.STATX_INO|unix.STATX_MNT_ID_UNIQUE)
	if err != nil {
		return identity{}, err
	}
	id := identity{st.Dev_major, st.Dev_minor, st.Ino, st.Mnt_id}
	if st.Mask&(unix.STATX_MNT_ID|unix.STATX_MNT_ID_UNIQUE) == 0 {
		id.mount, err = mountIDOf(fd)
	}
	return id, err
}

// mountIDOf reads the mount's id where statx(2) does not tell it (before 5.8).
func mountIDOf(fd int) (id uint64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "mnt_id: %d", &id); err == nil {
			return id, nil
		}
	}
	return 0, errors.New("the kernel does not tell the mount of a descriptor")
}

// dirent is one entry of a folder; kind is DT_*.
type dirent struct {
	name string
	kind byte
}

// parseDirents reads struct linux_dirent64 as getdents(2) gives it, without
// "." and "..".
func parseDirents(buf []byte) []dirent {
	const atLength, atKind, atName = 16, 18, 19
	entries := make([]dirent, 0, 8)
	for len(buf) > atName {
		length := int(binary.NativeEndian.Uint16(buf[atLength:]))
		if length <= atName || length > len(buf) {
			break
		}
		name := buf[atName:length]
		for i, c := range name {
			if c == 0 {
				name = name[:i]
				break
			}
		}
		if s := string(name); s != "." && s != ".." {
			entries = append(entries, dirent{s, buf[atKind]})
		}
		buf = buf[length:]
	}
	return entries
}

// buffer lends a buffer for reading folders.
func (h *host) buffer() []byte {
	if b, ok := h.buffers.Get().(*[]byte); ok {
		return *b
	}
	return make([]byte, direntBuffer)
}

func (h *host) release(b []byte) { h.buffers.Put(&b) }

// openPlainly opens the folder at an absolute path, following no symbolic link
// on the way. A link gives an error that wraps mount.ErrNotConfined and names
// it, what is missing or no folder gives ENOENT.
func (m *Mounter) openPlainly(path string) (fd int, err error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	if !m.options.Classic && !m.host.noOpenat2.Load() {
		how := unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_SYMLINKS}
		err = retry(func() (err error) { fd, err = unix.Openat2(unix.AT_FDCWD, path, &how); return err })
		switch {
		default:
			return fd, err
		case errors.Is(err, unix.ENOTDIR):
			return -1, unix.ENOENT
		case errors.Is(err, unix.ELOOP): // slower, to name it
		case errors.Is(err, unix.ENOSYS):
			m.host.noOpenat2.Store(true)
		case errors.Is(err, unix.EPERM): // a system call filter may say so too
		}
	}
	return openPlainlyClassic(path)
}

// openPlainlyClassic goes component by component.
func openPlainlyClassic(path string) (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	dir, err := unix.Open("/", flags, 0)
	if err != nil {
		return -1, err
	}
	at := ""
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if name == "" { // the path is that of the root
			break
		}
		at += "/" + name
		var next int
		err := retry(func() (err error) { next, err = unix.Openat(dir, name, flags, 0); return err })
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			err = notFolder(dir, name, at)
		}
		_ = unix.Close(dir)
		if err != nil {
			return -1, err
		}
		dir = next
	}
	return dir, nil
}

// notFolder tells a link from other things that are no folder.
func notFolder(dir int, name, path string) error {
	st, err := statx(dir, name, unix.STATX_TYPE)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return fmt.Errorf("%w: %s is a symbolic link", mount.ErrNotConfined, path)
	}
	return unix.ENOENT
}
