package mounttest

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/volumekit/volumekit/mount"
)

// filesystem is what can be mounted, any number of times. Paths inside are
// written with slashes and without a leading one; "" is its root.
type filesystem struct {
	id          uint64
	typ, source string
	host        bool   // the real tree that holds Options.Dir
	kept        bool   // outlives its last mount
	home        string // where its root really is while it is in the stash
	place       *dentry
	refs        int // mounts and open Detached
}

// dentry is a path inside a file system, through whichever mount it is seen.
type dentry struct {
	fs  *filesystem
	rel string
}

// mounted is one mount, as in struct mount of the kernel.
type mounted struct {
	id       uint64
	fs       *filesystem
	root     string // the path inside fs that it shows
	parent   *mounted
	at       string // the path inside parent.fs that it covers
	target   string // as the table shows it
	group    *group // nil for a private mount
	readOnly bool
	ground   bool // made by MakeShared
	corrupt  error
}

// group is a peer group: what is mounted below one member appears below all.
type group struct{ members []*mounted }

// spot is a path as one mount shows it.
type spot struct {
	mount *mounted
	rel   string
}

// isRoot reports whether s is the root of a mount that somebody made.
func (s spot) isRoot() bool { return s.mount.parent != nil && s.rel == s.mount.root }

// tree is the mount tree and what is shown of it. Its owner serialises calls.
type tree struct {
	options Options
	dir     string // Options.Dir inside the host file system
	prefix  string // what the host's paths begin with
	lastID  uint64
	fsCount uint64
	stashed int
	mounts  []*mounted // in mount order; the first is the host's
	// children finds what is mounted at a spot, bottoms what covers a dentry
	// directly, that is without being stacked on another mount's root.
	children map[spot]*mounted
	bottoms  map[dentry][]*mounted
	storage  map[[2]string]*filesystem // by type and source
	shown    map[dentry]*shown
	covers   map[dentry]string // where a covered thing lies in the stash
	moved    []dentry          // whose real path changed since links were checked
}

func newTree(options Options) *tree {
	t := &tree{
		options: options, children: map[spot]*mounted{}, bottoms: map[dentry][]*mounted{},
		storage: map[[2]string]*filesystem{}, shown: map[dentry]*shown{}, covers: map[dentry]string{},
	}
	base := &mounted{fs: t.newFS("host", "host"), target: string(filepath.Separator)}
	base.fs.host = true
	if volume := filepath.VolumeName(options.Dir); volume != "" {
		base.target = volume + `\`
	} else {
		t.prefix = "/"
	}
	t.dir = hostRel(options.Dir)
	if !options.Private {
		base.group = &group{}
	}
	t.hook(base)
	return t
}

// hostRel turns a path of the platform into one inside the host file system.
func hostRel(p string) string {
	return strings.TrimPrefix(filepath.ToSlash(filepath.Clean(p)), "/")
}

func (t *tree) newFS(typ, source string) *filesystem {
	t.fsCount++
	return &filesystem{id: t.fsCount, typ: typ, source: source}
}

// inside reports whether rel is root or lies below.
func inside(root, rel string) bool {
	n := len(root)
	return n == 0 || strings.HasPrefix(rel, root) && (len(rel) == n || rel[n] == '/')
}

func parentOf(rel string) string {
	if i := strings.LastIndexByte(rel, '/'); i >= 0 {
		return rel[:i]
	}
	return ""
}

// cross goes from a covered spot to what lies on top of it.
func (t *tree) cross(s spot) spot {
	for child := t.children[s]; child != nil; child = t.children[s] {
		s = spot{child, child.root}
	}
	return s
}

// up goes to the folder that holds s.
func up(s spot) spot {
	for s.isRoot() {
		s = spot{s.mount.parent, s.mount.at}
	}
	return spot{s.mount, parentOf(s.rel)}
}

// lookup finds what a path leads to. Symbolic links on the way are followed, a
// last one only if follow is set.
func (t *tree) lookup(p string, follow bool) (spot, os.FileInfo, error) {
	if t.options.Dir == "" || !filepath.IsAbs(t.options.Dir) {
		return spot{}, nil, errNoDir
	}
	if !filepath.IsAbs(p) {
		return spot{}, nil, &fs.PathError{Op: "lookup", Path: p, Err: syscall.EINVAL}
	}
	s := spot{mount: t.mounts[0]}
	todo := strings.Split(hostRel(p), "/")
	for links := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			s = t.cross(up(s))
			continue
		}
		if s.mount.corrupt != nil {
			return spot{}, nil, &fs.PathError{Op: "lookup", Path: p, Err: s.mount.corrupt}
		}
		next := spot{s.mount, path.Join(s.rel, name)}
		to, err := t.link(next, len(todo) == 0 && !follow)
		if err != nil {
			return spot{}, nil, &fs.PathError{Op: "lookup", Path: p, Err: err}
		}
		if to == "" {
			s = t.cross(next)
			continue
		}
		if links++; links > 40 {
			return spot{}, nil, &fs.PathError{Op: "lookup", Path: p, Err: syscall.ELOOP}
		}
		if filepath.IsAbs(to) {
			s = spot{mount: t.mounts[0]}
		}
		todo = append(strings.Split(strings.TrimPrefix(filepath.ToSlash(to), "/"), "/"), todo...)
	}
	info, err := os.Lstat(t.real(s.mount.fs, s.rel))
	if err != nil {
		err = &fs.PathError{Op: "lookup", Path: p, Err: cause(err)}
	}
	return s, info, err
}

// lost finds a mount whose target the program has deleted, which it could not
// on a kernel.
func (t *tree) lost(target string, err error) (spot, error) {
	target = filepath.Clean(target)
	for _, one := range slices.Backward(t.mounts[1:]) {
		if one.target == target {
			return spot{one, one.root}, nil
		}
	}
	return spot{}, err
}

// link returns where the symbolic link at s leads, "" if there is something
// else or a link that shall not be followed. What leads to Options.Dir is taken
// as it is spelled.
func (t *tree) link(s spot, last bool) (string, error) {
	if s.mount.parent == nil && inside(s.rel, t.dir) {
		return "", nil
	}
	real := t.real(s.mount.fs, s.rel)
	info, err := os.Lstat(real)
	if err != nil {
		return "", cause(err)
	}
	if last || info.Mode()&fs.ModeSymlink == 0 {
		return "", nil
	}
	return os.Readlink(real)
}

// cause strips the path, which would be one in the stash.
func cause(err error) error {
	if pe, ok := err.(*fs.PathError); ok { //nolint:errorlint // straight from package os
		return pe.Err
	}
	return err
}

// writable looks up a target that is to be mounted on. It may be a symbolic
// link only as the name of a descriptor.
func (t *tree) writable(target string) (spot, error) {
	s, info, err := t.lookup(target, filepath.Dir(target) == "/proc/self/fd")
	switch {
	case err != nil:
		return s, err
	case info.Mode()&fs.ModeSymlink != 0:
		return s, syscall.ELOOP
	}
	return s, t.within(s)
}

// within refuses what does not belong to the test.
func (t *tree) within(s spot) error {
	if s.mount.parent == nil && !inside(t.dir, s.rel) {
		return fmt.Errorf("%w: outside of %s", mount.ErrUnsupported, t.options.Dir)
	}
	return nil
}

// mountFS mounts a new file system, or kept storage once more.
func (t *tree) mountFS(mo mount.Mount, dest spot) error {
	f, err := t.open(mo)
	if err != nil {
		return err
	}
	err = t.attachFS(f, mo.Options, dest)
	if err != nil {
		_ = t.discard(f)
	}
	return err
}

func (t *tree) attachFS(f *filesystem, o mount.Options, dest spot) error {
	info, err := os.Lstat(t.real(dest.mount.fs, dest.rel))
	if err == nil && !info.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return cause(err)
	}
	return t.attach([]*mounted{{fs: f, readOnly: o.ReadOnly}}, dest)
}

// bind shows what is at mo.Source at dest too.
func (t *tree) bind(mo mount.Mount, dest spot) error {
	from, info, err := t.lookup(mo.Source, true)
	if err != nil {
		return err
	}
	at, err := os.Lstat(t.real(dest.mount.fs, dest.rel))
	if err == nil && at.IsDir() != info.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return cause(err)
	}
	top := &mounted{fs: from.mount.fs, root: from.rel, group: from.mount.group, readOnly: from.mount.readOnly, corrupt: from.mount.corrupt}
	list := []*mounted{top}
	if mo.Options.Recursive {
		list = append(list, t.copyBelow(from.mount, top)...)
	}
	if mo.Options.ReadOnly {
		for _, one := range list {
			one.readOnly = true
		}
	}
	return t.attach(list, dest)
}

// copyBelow copies what is mounted on old, as far as its copy shows it.
func (t *tree) copyBelow(old, twin *mounted) []*mounted {
	var list []*mounted
	for _, child := range t.mounts {
		if child.parent != old || !inside(twin.root, child.at) {
			continue
		}
		c := child.twin()
		c.parent, c.at = twin, child.at
		list = append(append(list, c), t.copyBelow(child, c)...)
	}
	return list
}

// twin is a mount of the same, in the same peer group, not yet in the tree.
func (m *mounted) twin() *mounted {
	return &mounted{fs: m.fs, root: m.root, group: m.group, readOnly: m.readOnly, corrupt: m.corrupt}
}

// stacked reports whether m lies on the root of another mount.
func (m *mounted) stacked() bool {
	return m.parent != nil && m.parent.parent != nil && m.at == m.parent.root
}

// placeOf returns the dentry at which m, or what it is stacked on, is seen.
func (t *tree) placeOf(m *mounted) dentry {
	for m.stacked() {
		m = m.parent
	}
	return dentry{m.parent.fs, m.at}
}

// hook adds a new mount.
func (t *tree) hook(m *mounted) {
	t.lastID++
	m.id = t.lastID
	m.fs.refs++
	t.mounts = append(t.mounts, m)
	if m.group != nil {
		m.group.members = append(m.group.members, m)
	}
	if m.parent != nil {
		m.target = filepath.Join(m.parent.target, filepath.FromSlash(strings.TrimPrefix(m.at, m.parent.root)))
		t.rehook(m)
	}
}

// rehook puts m at its parent.
func (t *tree) rehook(m *mounted) {
	t.children[spot{m.parent, m.at}] = m
	if !m.stacked() {
		d := dentry{m.parent.fs, m.at}
		t.bottoms[d] = append(t.bottoms[d], m)
	}
}

// unhook takes m off its parent.
func (t *tree) unhook(m *mounted) {
	delete(t.children, spot{m.parent, m.at})
	d := dentry{m.parent.fs, m.at}
	t.bottoms[d] = slices.DeleteFunc(t.bottoms[d], func(x *mounted) bool { return x == m })
	if len(t.bottoms[d]) == 0 {
		delete(t.bottoms, d)
	}
}

// forget drops a mount for good.
func (t *tree) forget(m *mounted) {
	m.fs.refs--
	same := func(x *mounted) bool { return x == m }
	t.mounts = slices.DeleteFunc(t.mounts, same)
	if m.group != nil {
		m.group.members = slices.DeleteFunc(m.group.members, same)
	}
}

func (t *tree) table() mount.Table {
	table := make(mount.Table, len(t.mounts))
	for i, one := range t.mounts {
		table[i] = one.entry()
	}
	return table
}

func (m *mounted) entry() mount.Entry {
	e := mount.Entry{
		ID: m.id, Device: fmt.Sprintf("0:%d", m.fs.id), Root: "/" + m.root, Target: m.target,
		FSType: m.fs.typ, Source: m.fs.source, ReadOnly: m.readOnly, Propagation: mount.Private,
	}
	if m.parent != nil {
		e.Parent = m.parent.id
	}
	if m.group != nil {
		e.Propagation = mount.Shared
	}
	return e
}
