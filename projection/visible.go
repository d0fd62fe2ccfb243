package projection

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// place is one real folder outside of the version folders: the volume's top,
// and the way to each nested mount point. Everything else that a pod sees is a
// link into "..data".
type place struct {
	dir   string            // "." or a clean path
	names map[string]string // name -> link text, "" for a real folder
	order []string          // the names, sorted
}

// places derives what has to be visible, parents first. Without nested mount
// points that is a single place. With them, the folders on the way are real,
// so that a mount on one survives the switch to a new version, and the files
// beside it are linked one by one.
func (t *Tree) places() []*place {
	top := &place{dir: ".", names: map[string]string{}}
	list := []*place{top}
	byDir := map[string]*place{".": top}
	for _, point := range t.MountPoints() {
		for i := range len(point) + 1 {
			if i < len(point) && point[i] != '/' || byDir[point[:i]] != nil {
				continue
			}
			dir := point[:i]
			byDir[path.Dir(dir)].names[path.Base(dir)] = ""
			byDir[dir] = &place{dir: dir, names: map[string]string{}}
			list = append(list, byDir[dir])
		}
	}
	for name := range t.files {
		p, rest := top, name
		for {
			first, after, deeper := strings.Cut(rest, "/")
			next := byDir[path.Join(p.dir, first)]
			if !deeper || next == nil {
				p.names[first] = p.prefix() + path.Join(p.dir, first)
				break
			}
			p, rest = next, after
		}
	}
	for _, p := range list {
		for name := range p.names {
			p.order = append(p.order, name)
		}
		slices.Sort(p.order)
	}
	return list
}

// prefix is how every link of this place begins.
func (p *place) prefix() string {
	up := 0
	if p.dir != "." {
		up = strings.Count(p.dir, "/") + 1
	}
	return strings.Repeat("../", up) + dataLink + "/"
}

// makeVisible creates what is missing at a place and repairs what is wrong.
func makeVisible(p *place, root *os.Root, have map[string]fs.FileMode) error {
	var errs []error
	for _, name := range p.order {
		if err := makeName(root, name, p.names[name], have); err != nil {
			errs = append(errs, fmt.Errorf("make %s: %w", path.Join(p.dir, name), err))
		}
	}
	return errors.Join(errs...)
}

// makeName brings one name to a link with this text, or to a folder where the
// text is empty.
func makeName(root *os.Root, name, text string, have map[string]fs.FileMode) error {
	kind, there := have[name]
	switch {
	case !there:
	case text == "" && kind.IsDir():
		return nil
	case text != "" && kind == fs.ModeSymlink:
		if now, err := root.Readlink(name); err == nil && now == text {
			return nil
		}
		// Renamed over the wrong one: at no moment is the name missing.
		if err := removeIfThere(root, tempLink); err != nil {
			return err
		}
		if err := root.Symlink(text, tempLink); err != nil {
			return err
		}
		return root.Rename(tempLink, name)
	default: // a file, or an empty folder: what is not empty stays and fails
		if err := root.Remove(name); err != nil {
			return err
		}
	}
	if text == "" {
		return root.Mkdir(name, dirMode)
	}
	return root.Symlink(text, name)
}

// hideGone removes the links of files that are no more. What is not a link of
// ours is left alone.
func hideGone(p *place, root *os.Root, have map[string]fs.FileMode) error {
	var errs []error
	for name, kind := range have {
		if _, wanted := p.names[name]; wanted || kind != fs.ModeSymlink || name == dataLink {
			continue
		}
		text, err := root.Readlink(name)
		if err == nil && strings.HasPrefix(text, p.prefix()) {
			err = root.Remove(name)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove link %s: %w", path.Join(p.dir, name), err))
		}
	}
	return errors.Join(errs...)
}

// list returns the names in a folder with their types. Names that vanish
// meanwhile are left out.
func list(root *os.Root) (map[string]fs.FileMode, error) {
	dir, err := root.OpenFile(".", os.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, err
	}
	entries, err := dir.ReadDir(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return nil, err
	}
	have := make(map[string]fs.FileMode, len(entries))
	for _, e := range entries {
		have[e.Name()] = e.Type()
	}
	return have, nil
}

func removeIfThere(root *os.Root, name string) error {
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
