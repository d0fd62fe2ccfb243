package mounttest

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/volumekit/volumekit/mount"
)

// maxMounts ends the growth of the table by recursive bind mounts, which is
// exponential under shared propagation.
const maxMounts = 250

// view answers, from one table, which operations both kinds of mounter can do
// alike.
type view struct {
	subject Subject
	table   mount.Table
	byID    map[uint64]mount.Entry
	// on finds a mount by the one that it lies on and its target.
	on map[step]mount.Entry
}

type step struct {
	parent uint64
	target string
}

func newView(ctx context.Context, s Subject) (*view, error) {
	table, err := s.Mounter.Table(ctx)
	if err != nil {
		return nil, err
	}
	v := &view{subject: s, table: table, byID: map[uint64]mount.Entry{}, on: map[step]mount.Entry{}}
	for _, e := range table {
		v.byID[e.ID] = e
		v.on[step{e.Parent, e.Target}] = e
	}
	return v, nil
}

// place says which mount shows the path, and what it is inside the file
// system. It goes down the tree of mounts: the table also lists those that
// others cover.
func (v *view) place(rel string) (on mount.Entry, inFS string) {
	p := v.subject.path(rel)
	prefixes := []string{p}
	for q := p; q != filepath.Dir(q); q = filepath.Dir(q) {
		prefixes = append(prefixes, filepath.Dir(q))
	}
	slices.Reverse(prefixes)
	on, _ = v.table.At(prefixes[0])
	for _, q := range prefixes {
		for e, ok := v.on[step{on.ID, q}]; ok; e, ok = v.on[step{on.ID, q}] {
			on = e
		}
	}
	return on, path.Join(on.Root, filepath.ToSlash(strings.TrimPrefix(p, on.Target)))
}

func (v *view) readOnly(rel string) bool {
	on, _ := v.place(rel)
	return on.ReadOnly
}

// elsewhere reports whether what is mounted at rel would have to be seen there
// and not in another mount that shows the same folder.
func (v *view) elsewhere(rel string) bool {
	on, inFS := v.place(rel)
	if on.Propagation == mount.Shared {
		return false
	}
	for _, e := range v.table {
		if e.ID != on.ID && e.Device == on.Device && mount.Inside(e.Root, inFS) {
			return true
		}
	}
	return false
}

// covered returns the mounts that lie on folders at or below inFS of a file
// system, whichever mount of it they lie on.
func (v *view) covered(device, inFS string) []mount.Entry {
	var list []mount.Entry
	for _, e := range v.table {
		parent, ok := v.byID[e.Parent]
		if !ok || parent.Device != device {
			continue
		}
		at := path.Join(parent.Root, filepath.ToSlash(strings.TrimPrefix(e.Target, parent.Target)))
		if mount.Inside(inFS, at) {
			list = append(list, e)
		}
	}
	return list
}

// bindable refuses bind mounts that need mounts shown at one place and not at
// another, and those into themselves.
func (v *view) bindable(from, to string, recursive bool) bool {
	if len(v.table) > maxMounts {
		return false
	}
	on, inFS := v.place(from)
	if (!recursive || on.Propagation != mount.Shared) && len(v.covered(on.Device, inFS)) > 0 {
		return false
	}
	source, err := os.Stat(v.subject.path(from))
	if err != nil {
		return true // an error on both sides
	}
	for p := v.subject.path(to); p != v.subject.Dir; p = filepath.Dir(p) {
		if info, err := os.Stat(p); err == nil && os.SameFile(info, source) && (p != v.subject.path(to) || from != to) {
			return false
		}
	}
	return !v.shows(v.subject.path(from), v.subject.path(to))
}

// shows reports whether the folder of target is seen somewhere below dir.
func (v *view) shows(dir, target string) bool {
	want, err := os.Stat(target)
	if err != nil || !want.IsDir() {
		return false
	}
	var walk func(p string, depth int) bool
	walk = func(p string, depth int) bool {
		list, err := os.ReadDir(p)
		if err != nil {
			return false
		}
		for _, entry := range list {
			name := filepath.Join(p, entry.Name())
			info, err := os.Stat(name)
			if err != nil || !info.IsDir() {
				continue
			}
			if os.SameFile(info, want) && name != target || depth < maxDepth && walk(name, depth+1) {
				return true
			}
		}
		return false
	}
	return walk(dir, 0)
}

// removable refuses to remove what is mounted elsewhere, or lies below a mount
// that is seen elsewhere.
func (v *view) removable(rel string) bool {
	on, inFS := v.place(rel)
	if on.ReadOnly {
		return false
	}
	if on.Target == v.subject.path(rel) {
		// A mount point, which is refused. Linux would rather say that what it
		// lies on is read-only, if it is.
		return !v.readOnly(filepath.Dir(rel))
	}
	for _, e := range v.table {
		if e.Device == on.Device && mount.Inside(inFS, e.Root) {
			return false
		}
	}
	for _, e := range v.covered(on.Device, inFS) {
		if e.Parent != on.ID {
			return false
		}
	}
	return true
}
