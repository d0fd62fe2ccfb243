package mounttest

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/volumekit/volumekit/mount"
)

// How a mount is shown at its place.
type kind int

const (
	// nothing: the place shows itself (a bind of a folder onto itself), or the
	// mount is not put up yet.
	nothing kind = iota
	// moved: the file system's folder was renamed to the place.
	moved
	// symlink leads to the content.
	symlink
	// hardlink is the file.
	hardlink
)

// shown is what a place shows now.
type shown struct {
	dentry // whose content
	kind   kind
	link   string
}

// real is where a dentry can be found by ordinary file operations.
func (t *tree) real(f *filesystem, rel string) string {
	for p := rel; ; p = parentOf(p) {
		if cover, ok := t.covers[dentry{f, p}]; ok {
			return filepath.Join(cover, filepath.FromSlash(rel[len(p):]))
		}
		if p == "" {
			return t.join(f, rel)
		}
	}
}

func (t *tree) join(f *filesystem, rel string) string {
	switch {
	case f.host:
		return filepath.FromSlash(t.prefix + rel)
	case f.place != nil:
		return filepath.Join(t.placePath(*f.place), filepath.FromSlash(rel))
	}
	return filepath.Join(f.home, filepath.FromSlash(rel))
}

// placePath is the name under which d is seen from outside, whatever covers it.
func (t *tree) placePath(d dentry) string {
	return filepath.Join(t.real(d.fs, parentOf(d.rel)), path.Base(d.rel))
}

// stash returns a new name in the stash.
func (t *tree) stash(what string) (string, error) {
	if err := os.MkdirAll(t.options.Stash, 0o700); err != nil {
		return "", fmt.Errorf("stash: %w", err)
	}
	t.stashed++
	return filepath.Join(t.options.Stash, strconv.Itoa(t.stashed)+"-"+what), nil
}

// open returns the file system that mo describes.
func (t *tree) open(mo mount.Mount) (*filesystem, error) {
	kept := !slices.Contains([]string{"tmpfs", "ramfs", "hugetlbfs"}, mo.FSType)
	key := [2]string{mo.FSType, mo.Source}
	if f := t.storage[key]; kept && f != nil {
		return f, nil
	}
	f := t.newFS(mo.FSType, mo.Source)
	f.kept = kept
	if err := t.makeHome(f, mo.Options); err != nil {
		return nil, err
	}
	if kept {
		t.storage[key] = f
	}
	return f, nil
}

// makeHome makes the folder of a new file system and obeys the options of
// tmpfs that show.
func (t *tree) makeHome(f *filesystem, o mount.Options) error {
	mode, uid, gid := uint64(0o777)|1<<9, -1, -1
	if f.kept {
		mode = 0o755
	}
	for _, option := range slices.Concat(o.Data, o.Sensitive) {
		key, value, _ := strings.Cut(option, "=")
		var err error
		switch key {
		case "mode":
			mode, err = strconv.ParseUint(value, 8, 12)
		case "uid":
			uid, err = strconv.Atoi(value)
		case "gid":
			gid, err = strconv.Atoi(value)
		}
		if err != nil {
			return fmt.Errorf("%w: %s of %s is no number", mount.ErrBadOption, key, f.typ)
		}
	}
	home, err := t.stash(f.typ)
	if err != nil {
		return err
	}
	if err := os.Mkdir(home, 0o700); err != nil {
		return err
	}
	f.home = home
	perm := fs.FileMode(mode & 0o777)
	for bit, flag := range map[uint64]fs.FileMode{0o1000: fs.ModeSticky, 0o2000: fs.ModeSetgid, 0o4000: fs.ModeSetuid} {
		if mode&bit != 0 {
			perm |= flag
		}
	}
	if uid >= 0 || gid >= 0 {
		_ = os.Lchown(home, uid, gid) // an ordinary user may not, and tests run as one
	}
	return os.Chmod(home, perm)
}

// discard removes a file system that nobody can reach any more.
func (t *tree) discard(f *filesystem) error {
	if f.host || f.kept || f.refs > 0 || f.home == "" {
		return nil
	}
	home := f.home
	f.home = ""
	defer t.tidy()
	return os.RemoveAll(home)
}

// tidy removes the stash when it is empty.
func (t *tree) tidy() { _ = os.Remove(t.options.Stash) }

// top returns what the place d has to show, nil for itself uncovered.
func (t *tree) top(d dentry) *dentry {
	bottoms := t.bottoms[d]
	if len(bottoms) == 0 {
		return nil
	}
	m := bottoms[len(bottoms)-1]
	s := t.cross(spot{m, m.root})
	return &dentry{s.mount.fs, s.mount.root}
}

// render makes the places in touched show what they have to.
func (t *tree) render(touched map[dentry]bool) error {
	places := slices.SortedFunc(maps.Keys(touched), func(a, b dentry) int {
		return cmp.Or(cmp.Compare(b.fs.id, a.fs.id), cmp.Compare(len(b.rel), len(a.rel)))
	})
	for _, d := range places {
		s, want := t.shown[d], t.top(d)
		if s == nil || want != nil && *want == s.dentry {
			continue
		}
		if err := t.takeDown(d, s); err != nil {
			return err
		}
	}
	slices.Reverse(places)
	for _, d := range places {
		want := t.top(d)
		var err error
		switch {
		case want == nil || *want == d:
			err = t.uncover(d)
			delete(t.shown, d)
		case t.shown[d] == nil:
			err = t.cover(d)
		}
		if err == nil && want != nil && t.shown[d] == nil {
			err = t.putUp(d, *want)
		}
		if err != nil {
			return err
		}
	}
	return t.relink()
}

// takeDown clears the place d. What it covers stays in the stash.
func (t *tree) takeDown(d dentry, s *shown) error {
	delete(t.shown, d)
	switch s.kind {
	case moved:
		home, err := t.stash(s.fs.typ)
		if err != nil {
			return err
		}
		at := t.placePath(d)
		s.fs.place, s.fs.home = nil, home
		t.moved = append(t.moved, dentry{s.fs, ""})
		if err := os.Rename(at, home); errors.Is(err, fs.ErrNotExist) {
			return os.Mkdir(home, 0o755) // the tested program deleted it
		} else if err != nil {
			return err
		}
	case symlink, hardlink:
		if err := os.Remove(t.placePath(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	case nothing:
	}
	return nil
}

// cover puts aside what is at d.
func (t *tree) cover(d dentry) error {
	if _, is := t.covers[d]; is {
		return nil
	}
	to, err := t.stash("covered")
	if err != nil {
		return err
	}
	if err := os.Rename(t.placePath(d), to); err != nil {
		return fmt.Errorf("put aside what is at the target: %w", err)
	}
	t.covers[d] = to
	t.moved = append(t.moved, d)
	return nil
}

// uncover brings back what cover put aside.
func (t *tree) uncover(d dentry) error {
	from, is := t.covers[d]
	if !is {
		return nil
	}
	delete(t.covers, d)
	t.moved = append(t.moved, d)
	err := os.Rename(from, t.placePath(d))
	if errors.Is(err, fs.ErrNotExist) {
		return os.RemoveAll(from) // the tested program deleted the folder above
	}
	return err
}

// putUp shows content at the place d, which is free.
func (t *tree) putUp(d, content dentry) error {
	s := &shown{dentry: content}
	t.shown[d] = s
	if content == d {
		return nil
	}
	at := t.placePath(d)
	f := content.fs
	if content.rel == "" && !f.host && f.place == nil && !t.shownIn(d.fs, f) {
		if err := os.Rename(f.home, at); err != nil {
			return err
		}
		s.kind, f.place = moved, &d
		t.moved = append(t.moved, dentry{f, ""})
		return nil
	}
	from := t.real(f, content.rel)
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if !info.IsDir() && os.Link(from, at) == nil {
		s.kind = hardlink
		return nil
	}
	s.kind, s.link = symlink, from
	if err := os.Symlink(from, at); err != nil {
		return fmt.Errorf("%w: %w", mount.ErrUnsupported, err)
	}
	return nil
}

// shownIn reports whether f is outer or is shown somewhere in it.
func (t *tree) shownIn(f, outer *filesystem) bool {
	for f != outer {
		if f.place == nil {
			return false
		}
		f = f.place.fs
	}
	return true
}

// relink renews the symbolic links whose target has another path now.
func (t *tree) relink() error {
	for len(t.moved) > 0 {
		changed := t.moved
		t.moved = nil
		for d, s := range t.shown {
			if s.kind != symlink || !slices.ContainsFunc(changed, func(c dentry) bool { return depends(s.dentry, c) }) {
				continue
			}
			promote := s.rel == "" && !s.fs.host && s.fs.place == nil
			if !promote && t.real(s.fs, s.rel) == s.link {
				continue
			}
			if err := t.takeDown(d, s); err != nil {
				return err
			}
			if err := t.putUp(d, s.dentry); err != nil {
				return err
			}
		}
	}
	return nil
}

// depends reports whether the real path of d changes with that of c.
func depends(d, c dentry) bool {
	for {
		if d.fs == c.fs && inside(c.rel, d.rel) {
			return true
		}
		if d.fs.place == nil {
			return false
		}
		d = *d.fs.place
	}
}

// removable refuses what RemoveAll must leave alone.
func (t *tree) removable(s spot) error {
	if err := t.within(s); err != nil {
		return err
	}
	if s.isRoot() {
		return fmt.Errorf("%w: %s", mount.ErrCrossesMount, s.mount.target)
	}
	elsewhere := ""
	for _, one := range t.mounts {
		switch {
		case one.parent == nil || one.parent.fs != s.mount.fs || !inside(s.rel, one.at):
		case one.parent == s.mount:
			return fmt.Errorf("%w: %s", mount.ErrCrossesMount, one.target)
		default:
			elsewhere = one.target
		}
	}
	if elsewhere != "" {
		return fmt.Errorf("%w: the folder carries %s", mount.ErrBusy, elsewhere)
	}
	if s.mount.readOnly {
		return syscall.EROFS
	}
	return nil
}

// removeTree removes what is at s. Bind mounts of it go on with something of
// their own.
func (t *tree) removeTree(s spot) error {
	touched := map[dentry]bool{}
	orphans := map[string]*filesystem{}
	for _, one := range t.mounts[1:] {
		if one.fs != s.mount.fs || !inside(s.rel, one.root) {
			continue
		}
		if orphans[one.root] == nil {
			orphan, err := t.orphan(dentry{one.fs, one.root})
			if err != nil {
				return err
			}
			orphans[one.root] = orphan
		}
		one.fs.refs--
		one.fs, one.root = orphans[one.root], ""
		one.fs.refs++
		touched[t.placeOf(one)] = true
	}
	if err := os.RemoveAll(t.real(s.mount.fs, s.rel)); err != nil {
		return err
	}
	return t.render(touched)
}

// orphan makes a file system of what only mounts know by now: an empty folder,
// or the file.
func (t *tree) orphan(d dentry) (*filesystem, error) {
	home, err := t.stash("removed")
	if err != nil {
		return nil, err
	}
	f := t.newFS(d.fs.typ, d.fs.source)
	f.home = home
	from := t.real(d.fs, d.rel)
	info, err := os.Lstat(from)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return f, os.Mkdir(home, 0o755)
	}
	return f, os.Rename(from, home)
}
