package hostpath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// node is something that exists, held by a descriptor.
type node struct {
	// path is free of symbolic links.
	path string
	mode fs.FileMode
	file *os.File
}

// open follows path's links and opens what it leads to without touching it:
// O_PATH (open(2)) works on sockets, devices and pipes and asks no driver.
// The name is the kernel's own for the descriptor, checked to lead to the same
// file.
func open(path string) (node, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) })
	if err != nil {
		return node{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	n := node{file: os.NewFile(uintptr(fd), path)}
	if err := n.examine(path); err != nil {
		_ = n.Close()
		return node{}, err
	}
	return n, nil
}

func (n *node) examine(path string) error {
	info, err := n.file.Stat()
	if err != nil {
		return err
	}
	n.mode = info.Mode()
	name, err := os.Readlink(n.proc())
	if err != nil { // no /proc: trust the walk, and compare below
		if name, err = filepath.EvalSymlinks(path); err != nil {
			return err
		}
	}
	named, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !os.SameFile(info, named):
		return fmt.Errorf("%s: changed while it was resolved, or not reachable by a path (%s)", path, name)
	case err != nil:
		return err
	}
	n.path = name
	return nil
}

// Close gives the descriptor back.
func (n node) Close() error {
	if n.file == nil {
		return nil
	}
	return n.file.Close()
}

func (n node) proc() string { return "/proc/self/fd/" + strconv.Itoa(int(n.file.Fd())) }

// root opens the folder for making things in it.
func (n node) root() (*os.Root, error) {
	root, err := os.OpenRoot(n.proc())
	if errors.Is(err, fs.ErrNotExist) { // no /proc
		return os.OpenRoot(n.path)
	}
	return root, err
}

// hasLink reports whether the folder has a symbolic link of that name.
func (n node) hasLink(name string) (bool, error) {
	var st unix.Stat_t
	_, err := retry(func() (int, error) {
		return 0, unix.Fstatat(int(n.file.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, &fs.PathError{Op: "fstatat", Path: filepath.Join(n.path, name), Err: err}
	}
	return st.Mode&unix.S_IFMT == unix.S_IFLNK, nil
}

// retry repeats a call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
