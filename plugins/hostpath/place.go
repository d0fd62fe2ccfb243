package hostpath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// place is what a path led to: something open, and the elements that are
// missing below it, none of which is a symbolic link.
type place struct {
	node
	missing []string
}

// full is the resolved path.
func (p place) full() string {
	return filepath.Join(append([]string{p.path}, p.missing...)...)
}

// resolve opens path or its deepest ancestor that exists. A path that cannot be
// examined is an error, and so is a link that leads to nothing: where it leads
// is not ours to make.
func resolve(path string) (place, error) {
	rest := filepath.Clean(path)
	var missing []string
	for {
		n, err := open(rest)
		switch {
		case err == nil:
			p := place{node: n, missing: missing}
			if err := p.checkMissing(path); err != nil {
				_ = p.Close()
				return place{}, err
			}
			return p, nil
		case !errors.Is(err, fs.ErrNotExist):
			return place{}, err
		}
		parent, name := filepath.Split(rest)
		if name == "" {
			return place{}, err
		}
		missing = append([]string{name}, missing...)
		rest = filepath.Clean(parent)
	}
}

func (p place) checkMissing(path string) error {
	if len(p.missing) == 0 {
		return nil
	}
	switch isLink, err := p.hasLink(p.missing[0]); {
	case err != nil:
		return err
	case isLink:
		return fmt.Errorf("%s: the symbolic link %s leads to nothing", path, filepath.Join(p.path, p.missing[0]))
	}
	return nil
}

// makeFolders makes the missing elements as folders with mode 0755, each
// relative to the one before it, and returns where they are.
func makeFolders(p place) (place, error) {
	root, err := p.root()
	if err != nil {
		return place{}, err
	}
	defer func() { _ = root.Close() }()
	for _, name := range p.missing {
		next, err := makeFolder(root, name)
		if err != nil {
			return place{}, err
		}
		_ = root.Close()
		root = next
	}
	return reopen(p)
}

func makeFolder(root *os.Root, name string) (*os.Root, error) {
	const mode = 0o755
	err := root.Mkdir(name, mode)
	made := err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) { // somebody else made it just now
		return nil, err
	}
	next, err := root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	err = sameFolder(root, next, name)
	if err == nil && made { // the umask may have cut it
		err = next.Chmod(".", mode)
	}
	if err != nil {
		_ = next.Close()
		return nil, err
	}
	return next, nil
}

// sameFolder makes sure that name itself is what was opened, not a link that
// somebody put in its place.
func sameFolder(parent, opened *os.Root, name string) error {
	named, err := parent.Lstat(name)
	if err != nil {
		return err
	}
	info, err := opened.Stat(".")
	if err != nil {
		return err
	}
	if !os.SameFile(named, info) {
		return fmt.Errorf("%s was replaced while it was made", filepath.Join(parent.Name(), name))
	}
	return nil
}

// makeFile makes an empty file with mode 0644 in a folder that exists.
func makeFile(p place) (place, error) {
	const mode = 0o644
	if len(p.missing) > 1 {
		return place{}, fmt.Errorf("%s: its folder does not exist", p.full())
	}
	root, err := p.root()
	if err != nil {
		return place{}, err
	}
	defer func() { _ = root.Close() }()
	f, err := root.OpenFile(p.missing[0], os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if errors.Is(err, fs.ErrExist) { // somebody else made it just now
		return reopen(p)
	}
	if err != nil {
		return place{}, err
	}
	err = errors.Join(f.Chmod(mode), f.Close())
	if err != nil {
		return place{}, err
	}
	return reopen(p)
}

// reopen opens what was made at p and makes sure that it is where p said, so
// that nobody has put a link in the way.
func reopen(p place) (place, error) {
	want := p.full()
	n, err := open(want)
	if err != nil {
		return place{}, err
	}
	if n.path != want {
		_ = n.Close()
		return place{}, fmt.Errorf("%s was changed while it was made: it leads to %s now", want, n.path)
	}
	return place{node: n}, nil
}

// typeName names a type of file for a message.
func typeName(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a folder"
	case mode.IsRegular():
		return "a regular file"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeCharDevice != 0:
		return "a character device"
	case mode&fs.ModeDevice != 0:
		return "a block device"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	}
	return "a special file (" + strings.TrimSpace(mode.Type().String()) + ")"
}
