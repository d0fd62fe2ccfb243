//go:build !linux

package hostpath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// node is something that exists. Where there is no O_PATH it is held by its
// path alone, which was checked twice.
type node struct {
	// path is free of symbolic links.
	path string
	mode fs.FileMode
}

func open(path string) (node, error) {
	name, err := filepath.EvalSymlinks(path)
	if err != nil {
		return node{}, err
	}
	info, err := os.Lstat(name)
	if err != nil {
		return node{}, err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return node{}, fmt.Errorf("%s: changed while it was resolved", path)
	}
	return node{path: name, mode: info.Mode()}, nil
}

// Close does nothing.
func (n node) Close() error { return nil }

func (n node) root() (*os.Root, error) { return os.OpenRoot(n.path) }

func (n node) hasLink(name string) (bool, error) {
	info, err := os.Lstat(filepath.Join(n.path, name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	}
	return info.Mode()&fs.ModeSymlink != 0, nil
}
