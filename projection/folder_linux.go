package projection

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// folder is an open folder. Its methods take names of what is right in it,
// never paths, and follow no link: so nothing leads out of it. [os.Root]
// promises the same for paths and costs twice as much, most of all for files,
// which package os tries to poll.
type folder struct {
	fd int
	// of keeps the descriptor open that the folder borrows; nil for its own.
	of io.Closer
}

const openPlain = unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK // a FIFO in a file's place does not block

// openFolder opens a folder by its path, whose last element is no link.
func openFolder(path string) (folder, error) { return folderAt(unix.AT_FDCWD, path) }

func folderAt(dir int, name string) (folder, error) {
	fd, err := openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|openPlain, 0)
	return folder{fd: fd}, err
}

// folderOf is the folder of a root.
func folderOf(root *os.Root) (folder, error) {
	file, err := root.OpenFile(".", os.O_RDONLY|unix.O_DIRECTORY|openFlags, 0)
	if err != nil {
		return folder{}, err
	}
	return folder{fd: int(file.Fd()), of: file}, nil
}

// folderIn is the top folder of a file system that is mounted nowhere yet.
func folderIn(d mount.Detached) (folder, error) {
	if open, ok := d.(mount.Opened); ok {
		return folder{fd: open.Fd(), of: io.NopCloser(nil)}, nil
	}
	root, err := d.Root()
	if err != nil {
		return folder{}, err
	}
	return folderOf(root)
}

func (f folder) close() error {
	if f.of != nil {
		return f.of.Close()
	}
	return unix.Close(f.fd)
}

func (f folder) open(name string) (folder, error) { return folderAt(f.fd, name) }

func (f folder) mkdir(name string, mode fs.FileMode) error {
	return failed("mkdir", name, retried(func() error { return unix.Mkdirat(f.fd, name, uint32(mode)) }))
}

func (f folder) symlink(text, name string) error {
	return failed("symlink", name, retried(func() error { return unix.Symlinkat(text, f.fd, name) }))
}

func (f folder) rename(from, to string) error {
	return failed("rename", from, retried(func() error { return unix.Renameat(f.fd, from, f.fd, to) }))
}

func (f folder) readlink(name string) (string, error) {
	for room := make([]byte, 128); ; room = make([]byte, 2*len(room)) {
		n := 0
		err := retried(func() (err error) { n, err = unix.Readlinkat(f.fd, name, room); return err })
		if err != nil || n < len(room) {
			return string(room[:max(n, 0)]), failed("readlink", name, err)
		}
	}
}

// remove removes a file, a link or an empty folder.
func (f folder) remove(name string) error {
	err := retried(func() error { return unix.Unlinkat(f.fd, name, 0) })
	if err == nil {
		return nil
	}
	asFolder := retried(func() error { return unix.Unlinkat(f.fd, name, unix.AT_REMOVEDIR) })
	if !errors.Is(asFolder, unix.ENOTDIR) {
		err = asFolder
	}
	return failed("remove", name, err)
}

func (f folder) isFolder(name string) bool {
	var st unix.Stat_t
	err := retried(func() error { return unix.Fstatat(f.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

func (f folder) stat() (about, error) { return statOf(f.fd) }

func (f folder) chmod(mode fs.FileMode) error { return chmodOf(f.fd, mode) }

// chmodIn changes the mode of a folder in it.
func (f folder) chmodIn(name string, mode fs.FileMode) error {
	sub, err := f.open(name)
	if err != nil {
		return err
	}
	return errors.Join(sub.chmod(mode), sub.close())
}

func (f folder) sync() error { return syncOf(f.fd) }

// names lists what is in it.
func (f folder) names() (names, error) {
	if _, err := unix.Seek(f.fd, 0, io.SeekStart); err != nil { // it may have been read before
		return nil, failed("read folder", ".", err)
	}
	have := make(names)
	room := make([]byte, 4<<10)
	for {
		n := 0
		err := retried(func() (err error) { n, err = unix.Getdents(f.fd, room); return err })
		if err != nil || n <= 0 {
			return have, failed("read folder", ".", err)
		}
		_, _, list := unix.ParseDirent(room[:n], -1, nil)
		for _, name := range list {
			have[name] = true
		}
	}
}

// create makes a file, which must not be there.
func (f folder) create(name string, mode fs.FileMode) (file, error) {
	fd, err := openAt(f.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|openPlain, uint32(mode.Perm()))
	return file{fd}, err
}

// openFile opens a file to be read.
func (f folder) openFile(name string) (file, error) {
	fd, err := openAt(f.fd, name, unix.O_RDONLY|openPlain, 0)
	return file{fd}, err
}

// file is an open file.
type file struct{ fd int }

func (f file) write(data []byte) error {
	for len(data) > 0 {
		n := 0
		if err := retried(func() (err error) { n, err = unix.Write(f.fd, data); return err }); err != nil {
			return failed("write", "file", err)
		}
		data = data[n:]
	}
	return nil
}

func (f file) read(to []byte) (n int, err error) {
	err = retried(func() (err error) { n, err = unix.Read(f.fd, to); return err })
	return n, failed("read", "file", err)
}

func (f file) stat() (about, error)         { return statOf(f.fd) }
func (f file) chown(uid, gid int) error     { return unix.Fchown(f.fd, uid, gid) }
func (f file) chmod(mode fs.FileMode) error { return chmodOf(f.fd, mode) }
func (f file) sync() error                  { return syncOf(f.fd) }
func (f file) close() error                 { return unix.Close(f.fd) }

func openAt(dir int, name string, flags int, mode uint32) (fd int, err error) {
	err = retried(func() (err error) { fd, err = unix.Openat(dir, name, flags, mode); return err })
	return fd, failed("open", name, err)
}

func statOf(fd int) (about, error) {
	var st unix.Stat_t
	if err := retried(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return about{}, failed("stat", "it", err)
	}
	return about{
		perm: fs.FileMode(st.Mode & 0o777), regular: st.Mode&(unix.S_IFMT|0o7000) == unix.S_IFREG,
		setgid: st.Mode&unix.S_ISGID != 0, size: st.Size, owner: owner{int64(st.Uid), int64(st.Gid)},
	}, nil
}

func chmodOf(fd int, mode fs.FileMode) error {
	bits := uint32(mode.Perm())
	if mode&fs.ModeSetgid != 0 {
		bits |= unix.S_ISGID
	}
	return failed("chmod", "it", retried(func() error { return unix.Fchmod(fd, bits) }))
}

func syncOf(fd int) error {
	return failed("sync", "it", retried(func() error { return unix.Fsync(fd) }))
}

func retried(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func failed(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}
