package projection

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// place is one real folder outside of the version folders: the volume's top,
// and the way to each nested mount point. Everything else that a pod sees is a
// link into "..data".
type place struct {
	dir   string // "." or a clean path
	names []visible
}

// visible is what has to be seen at a place.
type visible struct {
	name string
	text string // of the link, "" for a real folder
}

func (v visible) compare(name string) int { return strings.Compare(v.name, name) }

// add adds what is not there yet. It comes sorted, but for the folders.
func (p *place) add(v visible) {
	n := len(p.names)
	if n == 0 || p.names[n-1].name < v.name {
		p.names = append(p.names, v)
		return
	}
	if at, there := slices.BinarySearchFunc(p.names, v.name, visible.compare); !there {
		p.names = slices.Insert(p.names, at, v)
	}
}

func (p *place) has(name string) bool {
	_, there := slices.BinarySearchFunc(p.names, name, visible.compare)
	return there
}

// places derives what has to be visible, parents first. Without nested mount
// points that is a single place. With them, the folders on the way are real,
// so that a mount on one survives the switch to a new version, and the files
// beside it are linked one by one.
func (t *Tree) places() []*place {
	top := &place{dir: ".", names: make([]visible, 0, len(t.files))}
	list := []*place{top}
	if len(t.points) == 0 {
		for i := range t.files {
			first, _, _ := strings.Cut(t.files[i].name, "/")
			top.add(visible{first, dataLink + "/" + first})
		}
		return list
	}
	byDir := map[string]*place{".": top}
	for _, point := range t.MountPoints() {
		for i := range len(point) + 1 {
			if i < len(point) && point[i] != '/' || byDir[point[:i]] != nil {
				continue
			}
			dir := point[:i]
			byDir[path.Dir(dir)].add(visible{name: path.Base(dir)})
			byDir[dir] = &place{dir: dir}
			list = append(list, byDir[dir])
		}
	}
	for i := range t.files {
		p, rest := top, t.files[i].name
		for {
			first, after, deeper := strings.Cut(rest, "/")
			next := byDir[path.Join(p.dir, first)]
			if !deeper || next == nil {
				p.add(visible{first, p.prefix() + path.Join(p.dir, first)})
				break
			}
			p, rest = next, after
		}
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
func makeVisible(p *place, at folder, have names) error {
	var errs []error
	for _, v := range p.names {
		if err := makeName(at, v.name, v.text, have[v.name]); err != nil {
			errs = append(errs, fmt.Errorf("make %s: %w", path.Join(p.dir, v.name), err))
		}
	}
	return errors.Join(errs...)
}

// makeName brings one name to a link with this text, or to a folder where the
// text is empty. there tells whether the name exists.
func makeName(at folder, name, text string, there bool) error {
	if there {
		now, err := at.readlink(name)
		switch {
		case err == nil && text != "" && now == text:
			return nil
		case err == nil && text != "":
			return replaceLink(at, name, text)
		case err != nil && text == "":
			if at.isFolder(name) {
				return nil
			}
		}
		// A file, a link where a folder belongs, or an empty folder. A folder
		// that is not empty stays, and fails.
		if err := at.remove(name); err != nil {
			return err
		}
	}
	if text != "" {
		return at.symlink(text, name)
	}
	if err := at.mkdir(name, dirMode); err != nil {
		return err
	}
	return at.chmodIn(name, dirMode) // whatever the umask: pods of any user pass here
}

// replaceLink renames a new link over the wrong one: at no moment is the name
// missing.
func replaceLink(at folder, name, text string) error {
	if err := removeIfThere(at, tempLink); err != nil {
		return err
	}
	if err := at.symlink(text, tempLink); err != nil {
		return err
	}
	return at.rename(tempLink, name)
}

// hideGone removes the links of files that are no more. What is not a link of
// ours is left alone.
func hideGone(p *place, at folder, have names) error {
	var errs []error
	for name := range have {
		if p.has(name) || strings.HasPrefix(name, "..") && p.dir == "." {
			continue
		}
		text, err := at.readlink(name)
		if err != nil || !strings.HasPrefix(text, p.prefix()) {
			continue
		}
		if err := removeIfThere(at, name); err != nil {
			errs = append(errs, fmt.Errorf("remove link %s: %w", path.Join(p.dir, name), err))
		}
	}
	return errors.Join(errs...)
}

// names are those in a folder. Their types are not among them: those would cost
// a system call each on some file systems.
type names map[string]bool

func removeIfThere(at folder, name string) error {
	if err := at.remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
