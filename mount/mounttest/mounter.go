package mounttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/volumekit/volumekit/mount"
)

// Options configure [New].
type Options struct {
	// Dir is the folder below which everything is mounted and removed; the
	// test owns it (testing.T.TempDir). Required: nothing outside is ever
	// touched. Symbolic links in it are not resolved, so targets appear in the
	// table as the test spells them.
	Dir string
	// Stash is a folder on the same file system for what mounts cover and for
	// file systems that are mounted nowhere. It must not lie where the tested
	// program lists or removes. Empty means Dir with ".stash" appended. It is
	// made when first needed and is empty again once nothing is mounted
	// (content of file systems that outlive their mounts apart). Remove it as
	// well as Dir.
	Stash string
	// Private makes mounts private from the start. The default is shared, as
	// on nearly every host.
	Private bool
	// NoBuild makes [Mounter.Build] answer as a kernel without fsopen(2) does.
	NoBuild bool
	// Namespace is what [Mounter.Namespace] says first. The zero value stands
	// for a fixed made-up one.
	Namespace mount.Namespace
}

// Mounter imitates a kernel's mounts; see the package comment for how. It
// implements [mount.Mounter], [mount.Builder], [mount.Watcher],
// [mount.Resizer], [mount.Propagator], [mount.Identifier] and [mount.Owner]. Its
// zero value is not usable; make one with [New]. All methods are safe for concurrent use.
type Mounter struct {
	options Options
	faults  faults

	mu        sync.Mutex // guards what follows; held during file operations
	tree      *tree
	busy      map[string]int
	namespace mount.Namespace
	boots     int
	watchers  map[chan struct{}]bool
	groups    map[dentry]int64
}

var (
	_ mount.Mounter    = (*Mounter)(nil)
	_ mount.Builder    = (*Mounter)(nil)
	_ mount.Watcher    = (*Mounter)(nil)
	_ mount.Propagator = (*Mounter)(nil)
	_ mount.Identifier = (*Mounter)(nil)
	_ mount.Resizer    = (*Mounter)(nil)
)

// errNoDir is what every change gets where Options.Dir is missing.
var errNoDir = errors.New("mounttest: Options.Dir is required and must be absolute")

// New returns a mounter with nothing mounted. It does no I/O; what is wrong
// with options is said by the first call that needs them.
func New(options Options) *Mounter {
	if options.Dir != "" {
		options.Dir = filepath.Clean(options.Dir)
		if options.Stash == "" {
			options.Stash = options.Dir + ".stash"
		}
	}
	if options.Namespace == (mount.Namespace{}) {
		options.Namespace = mount.Namespace{BootID: bootID(0), MountNS: "mnt:[4026531841]"}
	}
	return &Mounter{
		options: options, namespace: options.Namespace, tree: newTree(options),
		busy: map[string]int{}, watchers: map[chan struct{}]bool{},
		groups: map[dentry]int64{},
	}
}

func bootID(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// Mount implements [mount.Mounter]. Besides bind mounts it takes every type of
// file system. The content of tmpfs, ramfs and hugetlbfs ends with the last
// mount; that of all others (ext4, nfs, made-up names) is kept by type and
// source, so that what was written once is there when the same source is
// mounted again, even after [Mounter.Reboot].
func (m *Mounter) Mount(ctx context.Context, mo mount.Mount) error {
	return m.do(ctx, Call{Op: OpMount, Target: mo.Target, Mount: mo}, func() error { return m.mount(mo) })
}

func (m *Mounter) mount(mo mount.Mount) error {
	if err := checkMount(mo); err != nil {
		return fmt.Errorf("mount %s at %s: %w", describe(mo), mo.Target, err)
	}
	dest, err := m.tree.writable(mo.Target)
	if err == nil && mo.Options.Bind {
		err = m.tree.bind(mo, dest)
	} else if err == nil {
		err = m.tree.mountFS(mo, dest)
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w", describe(mo), mo.Target, err)
	}
	return nil
}

func describe(mo mount.Mount) string {
	if mo.Options.Bind {
		return "bind of " + mo.Source
	}
	return mo.FSType
}

// checkMount finds what no kernel would take.
func checkMount(mo mount.Mount) error {
	switch o := mo.Options; {
	case !filepath.IsAbs(mo.Target):
		return fmt.Errorf("%w: target is not absolute", mount.ErrBadOption)
	case o.Recursive && !o.Bind:
		return fmt.Errorf("%w: recursive without bind", mount.ErrBadOption)
	case o.Bind && !filepath.IsAbs(mo.Source):
		return fmt.Errorf("%w: source of a bind mount is not absolute", mount.ErrBadOption)
	case !o.Bind && mo.FSType == "":
		return fmt.Errorf("%w: neither bind nor a file system's type", mount.ErrBadOption)
	case mo.FSType != "tmpfs":
		return nil
	}
	for _, option := range slices.Concat(mo.Options.Data, mo.Options.Sensitive) {
		key, _, _ := strings.Cut(option, "=")
		if !slices.Contains([]string{
			"size", "mode", "uid", "gid", "nr_inodes", "nr_blocks", "noswap", "huge",
			"mpol", "inode32", "inode64", "context", "fscontext", "defcontext", "rootcontext",
		}, key) {
			return fmt.Errorf("%w: tmpfs has no option %q", mount.ErrBadOption, key)
		}
	}
	return nil
}

// Unmount implements [mount.Mounter]. A target held by [Mounter.Busy], or with
// mounts below it, is busy; a lazy unmount takes those below along.
func (m *Mounter) Unmount(ctx context.Context, target string, how mount.UnmountOptions) error {
	return m.do(ctx, Call{Op: OpUnmount, Target: target, Unmount: how}, func() error { return m.unmount(target, how) })
}

func (m *Mounter) unmount(target string, how mount.UnmountOptions) error {
	s, _, err := m.tree.lookup(target, false)
	if errors.Is(err, fs.ErrNotExist) {
		s, err = m.tree.lost(target, err)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("unmount %s: %w: %w", target, mount.ErrNotMounted, err)
	case err != nil:
		return fmt.Errorf("unmount %s: %w", target, err)
	case !s.isRoot():
		return fmt.Errorf("unmount %s: %w", target, mount.ErrNotMounted)
	}
	set, busy := m.tree.unmountSet(s.mount, how.Lazy)
	for _, u := range set {
		busy = busy || m.busy[u.target] > 0
	}
	if busy && !how.Lazy {
		return fmt.Errorf("unmount %s: %w", target, mount.ErrBusy)
	}
	if err := m.tree.remove(set); err != nil {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	return nil
}

// Inspect implements [mount.Mounter].
func (m *Mounter) Inspect(ctx context.Context, path string) (point mount.Point, err error) {
	err = m.do(ctx, Call{Op: OpInspect, Target: path}, func() (err error) {
		point, err = m.inspect(path)
		return err
	})
	return point, err
}

func (m *Mounter) inspect(path string) (mount.Point, error) {
	s, info, err := m.tree.lookup(path, false)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return mount.Point{}, nil
	case err != nil:
		return mount.Point{}, fmt.Errorf("inspect %s: %w", path, err)
	}
	point := mount.Point{
		Exists: true, Mounted: s.isRoot(), IsDir: info.IsDir(), MountID: s.mount.id,
		ReadOnly: s.mount.readOnly, Corrupt: s.mount.corrupt,
	}
	if !s.mount.fs.host {
		point.FSType = s.mount.fs.typ
	}
	return point, nil
}

// Table implements [mount.Mounter]. Its first entry stands for the file system
// that holds Options.Dir.
func (m *Mounter) Table(ctx context.Context) (table mount.Table, err error) {
	err = m.do(ctx, Call{Op: OpTable}, func() error {
		table = m.tree.table()
		return nil
	})
	return table, err
}

// RemoveAll implements [mount.Mounter]. Where it meets a mount it has removed
// nothing at all.
func (m *Mounter) RemoveAll(ctx context.Context, path string) error {
	return m.do(ctx, Call{Op: OpRemoveAll, Target: path}, func() error { return m.removeAll(path) })
}

func (m *Mounter) removeAll(path string) error {
	s, _, err := m.tree.lookup(path, false)
	missing := errors.Is(err, fs.ErrNotExist)
	if err == nil {
		err = m.tree.removable(s)
	}
	if err == nil || missing {
		err = m.linkOnWay(path)
	}
	if err == nil && !missing {
		err = m.tree.removeTree(s)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// linkOnWay refuses a path that leads through a symbolic link below
// Options.Dir. What is missing is for others to find.
func (m *Mounter) linkOnWay(path string) error {
	way, err := filepath.Rel(m.options.Dir, filepath.Dir(path))
	if err != nil || !filepath.IsLocal(way) {
		return nil
	}
	at := m.options.Dir
	for name := range strings.SplitSeq(way, string(filepath.Separator)) {
		at = filepath.Join(at, name)
		_, info, err := m.tree.lookup(at, false)
		if err != nil {
			return nil
		}
		if info.Mode()&fs.ModeSymlink != 0 && at != m.options.Dir {
			return fmt.Errorf("%w: %s is a symbolic link", mount.ErrNotConfined, at)
		}
	}
	return nil
}

// Resize implements [mount.Resizer]. Nothing here is ever full, so it only
// checks that a tmpfs is mounted there.
func (m *Mounter) Resize(ctx context.Context, target string, bytes int64) error {
	return m.do(ctx, Call{Op: OpResize, Target: target, Bytes: bytes}, func() error {
		if err := m.resize(target, bytes); err != nil {
			return fmt.Errorf("resize %s: %w", target, err)
		}
		return nil
	})
}

func (m *Mounter) resize(target string, bytes int64) error {
	s, _, err := m.tree.lookup(target, false)
	switch {
	case bytes <= 0:
		return fmt.Errorf("%w: a size of %d bytes", mount.ErrBadOption, bytes)
	case errors.Is(err, fs.ErrNotExist), err == nil && !s.isRoot():
		return mount.ErrNotMounted
	case err == nil && s.mount.fs.typ != "tmpfs":
		return fmt.Errorf("%w: a file system of type %s", mount.ErrUnsupported, s.mount.fs.typ)
	}
	return err
}

// do is the gate of every call: it logs, sets off faults, and runs f under the
// lock.
func (m *Mounter) do(ctx context.Context, call Call, f func() error) error {
	err := ctx.Err()
	if err == nil {
		err = m.faults.before(ctx, call)
	}
	if err == nil {
		m.mu.Lock()
		err = f()
		m.mu.Unlock()
		if err == nil {
			err = m.faults.after(call)
		}
	}
	call.Err = err
	m.faults.log(call)
	return err
}

// Busy makes the mounts at target busy, as an open file would: until as many
// calls of [Mounter.Free], an unmount that is not lazy gets [mount.ErrBusy].
// Nothing need be mounted there yet.
func (m *Mounter) Busy(target string) { m.hold(target, 1) }

// Free takes one [Mounter.Busy] back.
func (m *Mounter) Free(target string) { m.hold(target, -1) }

func (m *Mounter) hold(target string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	target = filepath.Clean(target)
	if m.busy[target] += n; m.busy[target] <= 0 {
		delete(m.busy, target)
	}
}

// Corrupt makes the topmost mount at target answer with why, as a dead NFS
// server or FUSE daemon does (syscall.ENOTCONN): Inspect reports it, and paths
// behind it cannot be looked up. A nil why heals it; so does unmounting. Where
// nothing is mounted the error wraps [mount.ErrNotMounted].
func (m *Mounter) Corrupt(target string, why error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, _, err := m.tree.lookup(target, false)
	if err != nil || !s.isRoot() {
		return fmt.Errorf("corrupt %s: %w", target, mount.ErrNotMounted)
	}
	s.mount.corrupt = why
	return nil
}

// Leftovers returns what is mounted now, in mount order, for a test that wants
// nothing left. What MakeShared had to mount is not among it.
func (m *Mounter) Leftovers() []mount.Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	var left []mount.Entry
	for _, one := range m.tree.mounts[1:] {
		if !one.ground {
			left = append(left, one.entry())
		}
	}
	return left
}

// stashed lists what lies in the stash, for this package's tests.
func (m *Mounter) stashed() ([]os.DirEntry, error) {
	list, err := os.ReadDir(m.options.Stash)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return list, err
}
