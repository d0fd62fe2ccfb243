//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package journal

import (
	"errors"
	"os"
	"syscall"
)

// identity tells files apart. While a file is open no other one gets its
// number.
type identity struct{ dev, ino uint64 }

func identify(f *os.File) (identity, error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return identity{}, err
	}
	var st syscall.Stat_t
	cerr := conn.Control(func(fd uintptr) { err = syscall.Fstat(int(fd), &st) })
	return identityOf(&st), errors.Join(cerr, err)
}

// hasName reports whether an open file has a name still.
func hasName(f *os.File) bool {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	var st syscall.Stat_t
	cerr := conn.Control(func(fd uintptr) { err = syscall.Fstat(int(fd), &st) })
	return cerr == nil && err == nil && st.Nlink > 0
}

// isAt reports whether a name leads to the file, and not through a link.
func (id identity) isAt(path string) bool {
	var st syscall.Stat_t
	for {
		err := syscall.Lstat(path, &st)
		if !errors.Is(err, syscall.EINTR) {
			return err == nil && identityOf(&st) == id
		}
	}
}

func identityOf(st *syscall.Stat_t) identity {
	return identity{uint64(st.Dev), uint64(st.Ino)} //nolint:gosec,unconvert // of other types elsewhere
}
