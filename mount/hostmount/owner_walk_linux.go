package hostmount

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxOwnOpen is how many folders a walker keeps open on the way down; the
	// others are found again from below.
	maxOwnOpen = 32
	// ownBatch is how many entries of a folder are worth a walker of their own.
	ownBatch = 64
	// maxOwnPath is how much of a path is told.
	maxOwnPath = 1024
)

// place is where a folder or an entry was found. It shares what is above it.
type place struct {
	above *place
	name  string
}

// path spells a place, without the middle if it is long.
func (p *place) path() string {
	var names []string
	for ; p != nil; p = p.above {
		names = append(names, p.name)
	}
	slices.Reverse(names)
	path := strings.Join(names, "/")
	if n := len(path); n > maxOwnPath {
		path = path[:maxOwnPath/2] + "/.../" + path[n-maxOwnPath/2:]
	}
	return path
}

// ownFrame is a folder on a walker's way down, or a part of one.
type ownFrame struct {
	at *place
	// fd is -1 while the folder is not kept open; id then says which it was.
	fd int
	id identity
	// entries are those that were read and not yet looked at.
	entries []dirent
	// end is true when no more are to be read.
	end bool
}

// ownWalker goes through a part of the tree, depth first, in a goroutine of its
// own. It gives parts of what lies before it to idle ones, each with an open
// descriptor, so nothing ever waits in a queue and the descriptors are bounded
// by the walkers.
type ownWalker struct {
	w      *owning
	frames []ownFrame
	buf    []byte
	// seen are the entries that are not yet counted for all.
	seen int64
	// modes is true if the last file needed another mode. The next one will, in
	// all likelihood.
	modes bool
}

// start lets an idle walker, whose buffer is buf, do f, which it closes.
func (w *owning) start(buf []byte, f ownFrame) {
	w.wg.Go(func() {
		if buf == nil {
			buf = make([]byte, ownBuffer)
		}
		x := ownWalker{w: w, frames: []ownFrame{f}, buf: buf}
		for len(x.frames) > 0 && w.goesOn() {
			x.next()
		}
		for _, f := range x.frames {
			closeOpen(f.fd)
		}
		w.entries.Add(x.seen)
		w.idle <- buf
	})
}

// offer gives f to an idle walker, if there is one.
func (w *owning) offer(f ownFrame) bool {
	select {
	case buf := <-w.idle:
		w.start(buf, f)
		return true
	default:
		return false
	}
}

func closeOpen(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// next does one thing with the deepest folder.
func (x *ownWalker) next() {
	f := &x.frames[len(x.frames)-1]
	switch {
	case len(f.entries) > 0:
		e := f.entries[0]
		f.entries = f.entries[1:]
		if child, ok := x.visit(f, e); ok {
			// One that has nothing else before it goes on by itself.
			if len(f.entries) == 0 || !x.w.offer(child) {
				x.push(child)
			}
		}
	case !f.end:
		x.read(f)
		x.share(f)
	default:
		x.leave()
	}
}

// read fetches the next entries of a folder.
func (x *ownWalker) read(f *ownFrame) {
	var n int
	err := retry(func() (err error) { n, err = unix.ReadDirent(f.fd, x.buf); return err })
	if err != nil {
		x.w.note(f.at, err)
	}
	if n <= 0 {
		f.end = true
		return
	}
	f.entries = parseDirents(x.buf[:n])
	x.count(0)
}

// share gives half of the entries that were just read to an idle walker.
func (x *ownWalker) share(f *ownFrame) {
	n := len(f.entries)
	if n < 2*ownBatch || len(x.w.idle) == 0 {
		return
	}
	fd, err := unix.FcntlInt(uintptr(f.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return // it is only slower
	}
	if !x.w.offer(ownFrame{at: f.at, fd: fd, entries: slices.Clone(f.entries[n/2:]), end: true}) {
		closeOpen(fd)
		return
	}
	f.entries = f.entries[:n/2]
}

// visit gives one entry to the group. It returns a folder open for reading.
func (x *ownWalker) visit(f *ownFrame, e dirent) (child ownFrame, isDir bool) {
	at := place{f.at, e.name}
	x.count(1)
	isDir, err := x.entry(f.fd, e, &child)
	if err != nil || isDir {
		kept := at
		x.w.note(&kept, err)
		child.at = &kept
	}
	return child, isDir
}

func (x *ownWalker) entry(dir int, e dirent, child *ownFrame) (isDir bool, err error) {
	w := x.w
	if err := w.m.fault("own.entry"); err != nil {
		return false, err
	}
	if w.alone && !x.modes && e.kind != unix.DT_DIR {
		if done, err := x.byName(dir, e.name); done || err != nil {
			return false, err
		}
	}
	fd, err := w.open(dir, e.name)
	if err != nil {
		if errors.Is(err, unix.EXDEV) { // a mount
			err = nil
		}
		return false, err
	}
	defer closeOpen(fd)
	st, err := fstat(fd)
	if err != nil {
		return false, err
	}
	c := w.changeOf(&st)
	err = w.give(fd, c)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		x.modes = c.chmod
		return false, err
	}
	// Failing to change a folder is no reason to spare what is in it, but one
	// error is enough for it.
	sub, errOpen := reopen(fd)
	if errOpen == nil {
		child.fd, isDir = sub, true
	}
	if err == nil {
		err = errOpen
	}
	return isDir, err
}

// byName gives an entry to the group without opening it, which is possible
// where there are no mounts and the group is all that changes: whatever has the
// name when it is changed is an entry of the folder. A mode, which is made from
// the one that the entry had, must not meet another file.
func (x *ownWalker) byName(dir int, name string) (done bool, err error) {
	var st unix.Stat_t
	err = retry(func() error { return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil || st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return false, err
	}
	c := x.w.changeOf(&st)
	if c.chmod {
		x.modes = true
		return false, nil
	}
	if !c.chown {
		return true, nil
	}
	if err := x.w.m.fault("own.change"); err != nil {
		return false, err
	}
	return true, x.w.chown(dir, name, unix.AT_SYMLINK_NOFOLLOW)
}

// open opens an entry of a folder, be it a link or whatever else, with O_PATH:
// that never waits for anybody, and does nothing to a device. An entry that is
// a mount gives EXDEV.
func (w *owning) open(dir int, name string) (fd int, err error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if !w.m.options.Classic && !w.m.host.noOpenat2.Load() {
		how := unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS}
		err = retry(func() (err error) { fd, err = unix.Openat2(dir, name, &how); return err })
		switch {
		default:
			return fd, err
		case errors.Is(err, unix.ENOSYS):
			w.m.host.noOpenat2.Store(true)
		case errors.Is(err, unix.EPERM): // a system call filter may say so too
		}
	}
	if name == ".." || strings.ContainsRune(name, '/') {
		return -1, unix.EXDEV // no kernel gives such a name
	}
	err = retry(func() (err error) { fd, err = unix.Openat(dir, name, flags, 0); return err })
	if err != nil {
		return -1, err
	}
	id, err := identify(fd)
	switch {
	case err != nil:
		err = errors.New("its mount is not known: " + err.Error()) // never taken for gone
	case id.mount != w.mount:
		err = unix.EXDEV
	default:
		return fd, nil
	}
	closeOpen(fd)
	return -1, err
}

// count counts entries, for all from time to time.
func (x *ownWalker) count(n int64) {
	const often = 32
	if x.seen += n; n == 0 || x.seen >= often {
		x.w.entries.Add(x.seen)
		x.seen = 0
	}
}

// push goes down into a folder.
func (x *ownWalker) push(child ownFrame) {
	if n := len(x.frames); n >= maxOwnOpen {
		x.park(&x.frames[n-maxOwnOpen])
	}
	x.frames = append(x.frames, child)
}

// park closes a folder until the walker comes back to it. How far a folder was
// read cannot be told for sure when it is opened again; so the rest is read
// now, all but folders is done at once, and the folders' names are kept.
func (x *ownWalker) park(f *ownFrame) {
	if f.fd < 0 {
		return
	}
	var folders []dirent
	for x.w.goesOn() {
		if len(f.entries) == 0 {
			if f.end {
				break
			}
			x.read(f)
			continue
		}
		e := f.entries[0]
		f.entries = f.entries[1:]
		if e.kind != unix.DT_DIR && e.kind != unix.DT_UNKNOWN {
			child, isDir := x.visit(f, e)
			if !isDir {
				continue
			}
			closeOpen(child.fd) // became one meanwhile; later again
		}
		folders = append(folders, e)
	}
	f.entries = folders
	var err error
	if f.id, err = identify(f.fd); err != nil {
		x.w.note(f.at, err) // it is not found again then, which is told too
	}
	closeOpen(f.fd)
	f.fd = -1
}

// leave goes up to the folder above the deepest one, which is done.
func (x *ownWalker) leave() {
	n := len(x.frames)
	f := x.frames[n-1]
	x.frames = x.frames[:n-1]
	if n > 1 {
		if above := &x.frames[n-2]; above.fd < 0 {
			if err := above.unpark(f.fd); err != nil {
				// Those above it are closed as well.
				x.w.note(above.at, err)
				x.frames = nil
			}
		}
	}
	closeOpen(f.fd)
}

var errMoved = errors.New("a folder was moved during the walk")

// unpark opens a folder again, from one that lies in it.
func (f *ownFrame) unpark(below int) error {
	fd, err := unix.Openat(below, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return errors.New(errMoved.Error() + ": " + err.Error()) // never taken for gone
	}
	id, err := identify(fd)
	if err != nil || id != f.id {
		closeOpen(fd)
		return errors.Join(err, errMoved)
	}
	f.fd = fd
	return nil
}
