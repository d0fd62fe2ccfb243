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
func makeVisible(p *place, at folder, have names) error {
	var errs []error
	for _, name := range p.order {
		if err := makeName(at, name, p.names[name], have[name]); err != nil {
			errs = append(errs, fmt.Errorf("make %s: %w", path.Join(p.dir, name), err))
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
		if _, wanted := p.names[name]; wanted || strings.HasPrefix(name, "..") && p.dir == "." {
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
