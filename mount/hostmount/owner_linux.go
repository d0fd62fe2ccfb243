package hostmount

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

var _ mount.Owner = (*Mounter)(nil)

const (
	// ownInterval is the time between two calls of Ownership.Progress.
	ownInterval = time.Second
	// maxOwnErrors is how many failures are told one by one.
	maxOwnErrors = 8
	// maxOwnThreads is the most that Ownership.Parallel gives.
	maxOwnThreads = 256
	// ownBuffer is how many bytes of a folder are read at once.
	ownBuffer = 32 << 10
)

// SetGroup implements [mount.Owner] by descriptors: every entry is opened with
// O_PATH by its name in the folder that holds it, without following a symbolic
// link and only if it lies on the mount of root; what is then looked at and
// changed is the file that was opened, whatever its name stands for meanwhile.
// No file is opened for reading but folders.
//
// The rights given are those that the kubelet gives: 0660 to files and 0770 to
// folders, read-only 0440 and 0550. A change of the group makes the kernel
// clear set-user-ID and set-group-ID of a program (chown(2)); they are set
// again.
//
// A file system that is read-only, and a group without a number in this user
// namespace, end the walk at the first entry that would have to be changed.
func (m *Mounter) SetGroup(ctx context.Context, root string, o mount.Ownership) error {
	if err := m.setGroup(ctx, root, o); err != nil {
		return fmt.Errorf("give %q to group %d: %w", root, o.Group, err)
	}
	return nil
}

func (m *Mounter) setGroup(ctx context.Context, root string, o mount.Ownership) error {
	if o.Group < 0 || o.Group >= math.MaxUint32 {
		return fmt.Errorf("%w: no number of a group", mount.ErrBadOption)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	fd, err := m.openOwned(filepath.Clean(root))
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	w := newOwning(ctx, m, root, o)
	st, err := fstat(fd)
	switch {
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return fmt.Errorf("%w: it is a symbolic link", mount.ErrNotConfined)
	case o.OnRootMismatch && w.fits(&st):
		return nil
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return w.tree(fd, &st)
	}
	w.entries.Add(1)
	err = w.give(fd, w.changeOf(&st))
	w.report()
	return err
}

// openOwned opens what is at an absolute path, following no link. A link at its
// end is opened itself.
func (m *Mounter) openOwned(path string) (fd int, err error) {
	if !filepath.IsAbs(path) || path == "/" || strings.ContainsRune(path, 0) {
		return -1, errors.New("only an absolute path below the root can be given away")
	}
	dir, err := m.openPlainly(filepath.Dir(path))
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(dir) }()
	err = retry(func() (err error) {
		fd, err = unix.Openat(dir, filepath.Base(path), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

func fstat(fd int) (st unix.Stat_t, err error) {
	err = retry(func() error { return unix.Fstat(fd, &st) })
	return st, err
}

// owning is one call of SetGroup.
type owning struct {
	m    *Mounter
	ctx  context.Context //nolint:containedctx // lives as long as the call
	root string
	o    mount.Ownership
	gid  uint32
	// files and folders are the bits that are added.
	files, folders uint32
	// mount is what is walked on.
	mount uint64
	// alone is true if nobody else can mount anything on it.
	alone bool

	entries, failed atomic.Int64
	noFchmodat2     atomic.Bool
	// idle holds the buffers of the walkers that do not run.
	idle chan []byte
	wg   sync.WaitGroup
	// ended is closed when the walk cannot go on; fatal says why.
	ended chan struct{}

	mu    sync.Mutex // guards what follows
	first []error
	fatal error
}

func newOwning(ctx context.Context, m *Mounter, root string, o mount.Ownership) *owning {
	w := &owning{
		m: m, ctx: ctx, root: root, o: o, gid: uint32(o.Group), //nolint:gosec // checked
		files: 0o660, folders: 0o770 | unix.S_ISGID, ended: make(chan struct{}),
	}
	if o.ReadOnly {
		w.files, w.folders = 0o440, 0o550|unix.S_ISGID
	}
	return w
}

// fits reports whether a file has what it would be given.
func (w *owning) fits(st *unix.Stat_t) bool {
	bits := w.files
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		bits = w.folders
	}
	return st.Gid == w.gid && st.Mode&bits == bits
}

// tree walks the folder that fd is open on, and then changes that.
func (w *owning) tree(fd int, before *unix.Stat_t) error {
	dir, err := w.openRoot(fd, before)
	if err != nil {
		return err
	}
	if dir, err = w.isolate(dir); err != nil {
		return err
	}
	threads := w.o.Parallel
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	threads = min(threads, maxOwnThreads)
	w.idle = make(chan []byte, threads)
	for range threads {
		w.idle <- nil // made by the first walker that has it
	}
	w.start(<-w.idle, ownFrame{at: &place{name: w.root}, fd: dir})
	w.await()
	defer w.report()
	if w.fatal != nil {
		return errors.Join(w.fatal, w.failures())
	}
	w.entries.Add(1)
	if err := w.finish(fd, before); err != nil {
		return errors.Join(err, w.failures())
	}
	return w.failures()
}

// openRoot opens the root for reading. If it is going to change its group, it
// is first made to look to nobody as if its content were theirs.
func (w *owning) openRoot(fd int, st *unix.Stat_t) (int, error) {
	mode := st.Mode & 0o7777
	if st.Gid != w.gid && mode&unix.S_ISGID != 0 {
		mode &^= unix.S_ISGID
		if err := w.chmod(fd, mode); err != nil {
			return -1, err
		}
	}
	dir, err := reopen(fd)
	if errors.Is(err, unix.EACCES) && mode&0o700 != 0o700 {
		if err := w.chmod(fd, mode&^unix.S_ISGID|0o700); err != nil {
			return -1, err
		}
		dir, err = reopen(fd)
	}
	return dir, err
}

// reopen opens for reading a folder that is open.
func reopen(fd int) (dir int, err error) {
	err = retry(func() (err error) {
		dir, err = unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	return dir, err
}

// finish changes the root, when all below it is done. If something failed
// there, and the root was not as it should be before, it is usable but does not
// look done.
func (w *owning) finish(fd int, before *unix.Stat_t) error {
	if w.failed.Load() == 0 {
		st, err := fstat(fd)
		if err != nil {
			return err
		}
		return w.give(fd, w.changeOf(&st))
	}
	if w.fits(before) {
		return nil
	}
	if err := w.chown(fd, "", unix.AT_EMPTY_PATH); err != nil {
		return err
	}
	return w.chmod(fd, (before.Mode&0o7777|w.folders)&^unix.S_ISGID)
}

// change is what has to be done to a file.
type change struct {
	chown, chmod bool
	// mode is the one that chmod sets.
	mode uint32
}

func (w *owning) changeOf(st *unix.Stat_t) change {
	kind, mode := st.Mode&unix.S_IFMT, st.Mode&0o7777
	c := change{chown: st.Gid != w.gid, mode: mode | w.files}
	cleared := uint32(unix.S_ISUID | unix.S_ISGID) // by chown
	switch kind {
	case unix.S_IFCHR, unix.S_IFBLK:
		return change{}
	case unix.S_IFLNK:
		return c
	case unix.S_IFDIR:
		c.mode, cleared = mode|w.folders, 0
	}
	c.chmod = c.mode != mode || (c.chown && mode&cleared != 0)
	return c
}

// give changes one file that is open, as far as it has to be changed.
func (w *owning) give(fd int, c change) error {
	if !c.chown && !c.chmod {
		return nil
	}
	if err := w.m.fault("own.change"); err != nil {
		return err
	}
	if c.chown {
		if err := w.chown(fd, "", unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if c.chmod {
		return w.chmod(fd, c.mode)
	}
	return nil
}

// fatalError is one that every other entry would meet too.
type fatalError struct{ error }

func (f fatalError) Unwrap() error { return f.error }

func (w *owning) chown(fd int, name string, flags int) error {
	err := retry(func() error { return unix.Fchownat(fd, name, -1, int(w.gid), flags) })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL):
		return fatalError{fmt.Errorf("chown: the group has no number in this user namespace: %w", err)}
	case errors.Is(err, unix.EROFS):
		return fatalError{fmt.Errorf("chown: %w", err)}
	}
	return fmt.Errorf("chown: %w", err)
}

// chmod sets the mode of what a descriptor is open on, which may be one of
// O_PATH: by fchmodat2(2), before Linux 6.6 by way of /proc.
func (w *owning) chmod(fd int, mode uint32) error {
	if !w.m.options.Classic && !w.noFchmodat2.Load() {
		err := retry(func() error { return unix.Fchmodat(fd, "", mode, unix.AT_EMPTY_PATH) })
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EROFS):
			return fatalError{fmt.Errorf("chmod: %w", err)}
		case errors.Is(err, unix.EOPNOTSUPP): // ENOSYS, to package unix
			w.noFchmodat2.Store(true)
		case errors.Is(err, unix.EPERM): // a system call filter may say so too
		default:
			return fmt.Errorf("chmod: %w", err)
		}
	}
	err := retry(func() error { return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode) })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT): // not the file: that is open
		return errors.New("chmod: /proc is needed and not mounted")
	case errors.Is(err, unix.EROFS):
		return fatalError{fmt.Errorf("chmod: %w", err)}
	}
	return fmt.Errorf("chmod: %w", err)
}

// await waits for the walkers and reports progress meanwhile.
func (w *owning) await() {
	if w.o.Progress == nil {
		w.wg.Wait()
		return
	}
	done := make(chan struct{})
	go func() {
		w.wg.Wait()
		close(done)
	}()
	ticker := w.m.options.Clock.NewTicker(ownInterval)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C():
			w.report()
		}
	}
}

func (w *owning) report() {
	if w.o.Progress != nil {
		w.o.Progress(w.entries.Load())
	}
}

// note remembers that an entry failed. One that is gone did not.
func (w *owning) note(at *place, err error) {
	if err == nil || errors.Is(err, unix.ENOENT) {
		return
	}
	err = fmt.Errorf("%q: %w", at.path(), err)
	if errors.As(err, new(fatalError)) {
		w.end(err)
		return
	}
	w.failed.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.first) < maxOwnErrors {
		w.first = append(w.first, err)
	}
}

// end ends the walk.
func (w *owning) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fatal == nil {
		w.fatal = err
		close(w.ended)
	}
}

// goesOn reports whether the walk goes on.
func (w *owning) goesOn() bool {
	select {
	case <-w.ended:
		return false
	case <-w.ctx.Done():
		w.end(w.ctx.Err())
		return false
	default:
		return true
	}
}

func (w *owning) failures() error {
	failed := w.failed.Load()
	if failed == 0 {
		return nil
	}
	return &mount.OwnershipError{Entries: w.entries.Load(), Failed: failed, First: w.first}
}
