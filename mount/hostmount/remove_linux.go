package hostmount

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

const (
	// maxOpen is how many folders are kept open on the way down; the others
	// are found again from below.
	maxOpen = 32
	// maxErrors is how many failures are told one by one.
	maxErrors = 8
	// direntBuffer is how many bytes of a folder are read at once.
	direntBuffer = 8 << 10
)

// RemoveAll implements [mount.Mounter]. It stops at the first mount it meets.
// Other failures (a file that is immutable, a folder of somebody else) do not
// keep it from removing what can be removed. Folders whose permission bits shut
// out their owner are opened for it first.
//
// It never enters what somebody puts in the place of a folder meanwhile: each
// folder is opened by name below the one before it, without following a
// symbolic link, and only if it lies on the same mount. The first one is found
// by a path on which no symbolic link is followed either.
func (m *Mounter) RemoveAll(ctx context.Context, path string) error {
	if err := m.removeAll(ctx, path); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

func (m *Mounter) removeAll(ctx context.Context, path string) error {
	path = filepath.Clean(path)
	if !filepath.IsAbs(path) || path == "/" || strings.ContainsRune(path, 0) {
		return errors.New("only an absolute path below the root can be removed")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := m.fault("remove.entry"); err != nil {
		return err
	}
	r := remover{m: m, ctx: ctx, dir: filepath.Dir(path)}
	name := filepath.Base(path)
	var err error
	if r.parent, err = m.openPlainly(r.dir); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return err
	}
	defer func() { _ = unix.Close(r.parent) }()
	err = unlinkat(r.parent, name, unix.AT_REMOVEDIR)
	if errors.Is(err, unix.ENOTDIR) {
		err = unlinkat(r.parent, name, 0)
	}
	switch {
	case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST), errors.Is(err, unix.EISDIR):
		return r.run(name)
	case errors.Is(err, unix.EBUSY):
		return busy(r.parent, name, path)
	}
	return err
}

func unlinkat(dir int, name string, flags int) error {
	return retry(func() error { return unix.Unlinkat(dir, name, flags) })
}

// busy says why something cannot be removed that is in use.
func busy(dir int, name, path string) error {
	st, err := statx(dir, name, unix.STATX_TYPE)
	known := err == nil && st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0
	if known && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return fmt.Errorf("%s: %w: %w", path, mount.ErrBusy, unix.EBUSY)
	}
	return crosses(path)
}

func crosses(path string) error {
	return fmt.Errorf("%w: %s: %w", mount.ErrCrossesMount, path, mount.ErrBusy)
}

// remover is one walk. Its frames are the folders from the top down to the one
// that is being emptied.
type remover struct {
	m   *Mounter
	ctx context.Context //nolint:containedctx // lives as long as the call
	// dir is the folder that holds the top, for messages; parent is open on it.
	dir    string
	parent int
	frames []frame
	buf    []byte
	errs   []error
	failed int
}

// frame is one folder that is being emptied.
type frame struct {
	name string
	// fd is -1 while the folder is not kept open; id then says which it was.
	fd int
	id identity
	// entries are those that were read and not yet looked at.
	entries []dirent
	// short is true if the last reading returned less than it could have.
	short, end bool
	// removed is true if this pass over the folder removed something.
	removed bool
	// left are the names that could not be removed.
	left map[string]struct{}
	// opened is true if the permission bits were changed.
	opened bool
}

// fatal is an error that ends the walk.
type fatal struct{ error }

func (f fatal) Unwrap() error { return f.error }

func (r *remover) run(name string) (err error) {
	defer func() {
		for _, f := range r.frames {
			r.close(f.fd)
		}
	}()
	r.buf = r.m.host.buffer()
	defer r.m.host.release(r.buf)
	err = r.folder(r.parent, name)
	for err == nil && len(r.frames) > 0 {
		if err = r.ctx.Err(); err == nil {
			err = r.next()
		}
	}
	if err != nil {
		r.errs = append([]error{err}, r.errs...)
	}
	if r.failed > maxErrors {
		r.errs = append(r.errs, fmt.Errorf("and %d more", r.failed-maxErrors))
	}
	return errors.Join(r.errs...)
}

func (r *remover) close(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// next does one thing with the deepest folder: look at an entry, read more of
// them, or leave it.
func (r *remover) next() error {
	f := &r.frames[len(r.frames)-1]
	if len(f.entries) == 0 {
		// A short reading was the last one in all likelihood: rmdir will tell.
		if f.end || (f.short && len(f.left) == 0) {
			return r.leave()
		}
		return r.read(f)
	}
	e := f.entries[0]
	f.entries = f.entries[1:]
	if _, known := f.left[e.name]; known {
		return nil
	}
	if err := r.m.fault("remove.entry"); err != nil {
		return err
	}
	err := r.entry(f, e)
	if errors.Is(err, unix.EACCES) && r.open(f) {
		err = r.entry(f, e)
	}
	return r.note(e.name, err)
}

// note remembers that an entry of the deepest folder, or of the one in which a
// folder was just opened, could not be removed.
func (r *remover) note(name string, err error) error {
	var end fatal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &end):
		return end.error
	}
	r.frames[len(r.frames)-1].leaveOut(name)
	if r.failed++; r.failed <= maxErrors {
		r.errs = append(r.errs, fmt.Errorf("%s: %w", r.path(name), err))
	}
	return nil
}

// path names an entry of the deepest folder.
func (r *remover) path(name string) string {
	elements := []string{r.dir}
	for _, f := range r.frames {
		elements = append(elements, f.name)
	}
	return filepath.Join(append(elements, name)...)
}

// read fetches the next entries of a folder.
func (r *remover) read(f *frame) error {
	var n int
	err := retry(func() (err error) { n, err = unix.ReadDirent(f.fd, r.buf); return err })
	if err != nil {
		f.end = true
		return r.note(".", err)
	}
	if n == 0 {
		f.end = true
		return nil
	}
	f.short = n < len(r.buf)/2
	f.entries = parseDirents(r.buf[:n])
	return nil
}

// entry removes one entry, or opens it as a folder.
func (r *remover) entry(f *frame, e dirent) error {
	dir := e.kind == unix.DT_DIR
	for range 4 { // its kind may be unknown, or change under us
		flags := 0
		if dir {
			flags = unix.AT_REMOVEDIR
		}
		err := retry(func() error { return unix.Unlinkat(f.fd, e.name, flags) })
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			f.removed = true
			return nil
		case errors.Is(err, unix.EISDIR):
			dir = true
		case errors.Is(err, unix.ENOTDIR):
			dir = false
		case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
			if err := r.folder(f.fd, e.name); !errors.Is(err, unix.ENOTDIR) {
				return err
			}
			dir = false
		case errors.Is(err, unix.EBUSY):
			return r.busy(f.fd, e.name)
		default:
			return err
		}
	}
	return unix.EAGAIN
}

// busy ends the walk if it is a mount that cannot be removed.
func (r *remover) busy(dir int, name string) error {
	err := busy(dir, name, r.path(name))
	if errors.Is(err, mount.ErrCrossesMount) {
		return fatal{err}
	}
	return err
}

// folder goes down into a folder.
func (r *remover) folder(dir int, name string) error {
	fd, err := r.m.openBelow(dir, name)
	if errors.Is(err, unix.EXDEV) {
		return fatal{crosses(r.path(name))}
	}
	if err != nil {
		return err
	}
	if n := len(r.frames); n >= maxOpen {
		if err := r.frames[n-maxOpen].park(); err != nil {
			r.close(fd)
			return err
		}
	}
	r.frames = append(r.frames, frame{name: name, fd: fd})
	return nil
}

// park closes a folder until the walk comes back to it.
func (f *frame) park() (err error) {
	if f.fd < 0 {
		return nil
	}
	if f.id, err = identify(f.fd); err != nil {
		return err
	}
	_ = unix.Close(f.fd)
	f.fd = -1
	return nil
}

// leave removes the deepest folder, which is empty as far as we know, and goes
// up to the one above.
func (r *remover) leave() error {
	n := len(r.frames)
	f := &r.frames[n-1]
	above := r.parent
	if n > 1 {
		if err := r.frames[n-2].unpark(f.fd); err != nil {
			return fmt.Errorf("%s: %w", r.path(".."), err)
		}
		above = r.frames[n-2].fd
	}
	var err error
	if len(f.left) == 0 {
		err = retry(func() error { return unix.Unlinkat(above, f.name, unix.AT_REMOVEDIR) })
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			if again, err := f.again(); again || err != nil {
				return err
			}
		}
	}
	r.close(f.fd)
	name, told := f.name, len(f.left) > 0
	r.frames = r.frames[:n-1]
	if errors.Is(err, unix.EBUSY) {
		err = r.busy(above, name)
	}
	switch {
	case told && n > 1:
		r.frames[n-2].leaveOut(name)
		return nil
	case told || errors.Is(err, unix.ENOENT):
		return nil
	case n > 1:
		return r.left(name, err)
	}
	var end fatal
	if errors.As(err, &end) {
		return end.error
	}
	return err
}

// left is called after a folder was removed, or not, in the now deepest one.
func (r *remover) left(name string, err error) error {
	f := &r.frames[len(r.frames)-1]
	if errors.Is(err, unix.EACCES) && r.open(f) {
		err = retry(func() error { return unix.Unlinkat(f.fd, name, unix.AT_REMOVEDIR) })
	}
	f.removed = f.removed || err == nil
	return r.note(name, err)
}

// leaveOut remembers that an entry cannot be removed.
func (f *frame) leaveOut(name string) {
	if f.left == nil {
		f.left = map[string]struct{}{}
	}
	f.left[name] = struct{}{}
}

// again reports whether it is worth to read on: there was more than the first
// reading gave, or something came meanwhile.
func (f *frame) again() (bool, error) {
	if !f.end {
		f.short = false
		return true, nil
	}
	if !f.removed {
		return false, nil
	}
	f.removed, f.end, f.short = false, false, false
	_, err := unix.Seek(f.fd, 0, unix.SEEK_SET)
	return true, err
}

// unpark opens a folder again, from one that lies in it.
func (f *frame) unpark(below int) error {
	if f.fd >= 0 {
		return nil
	}
	fd, err := unix.Openat(below, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	id, err := identify(fd)
	if err != nil || id != f.id {
		_ = unix.Close(fd)
		return errors.Join(err, errors.New("a folder was moved while it was being removed"))
	}
	// What was read before stays; the rest is read from the start.
	f.fd, f.end, f.short = fd, false, false
	return nil
}

// open gives the owner of a folder the permission to empty it.
func (r *remover) open(f *frame) bool {
	if f.opened {
		return false
	}
	f.opened = true
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return false
	}
	return unix.Fchmod(f.fd, st.Mode&0o7777|0o700) == nil
}
