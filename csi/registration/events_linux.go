package registration

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// treeMask is for the watched folder and those below it. A change of mode
	// or owner counts: it may let us connect.
	treeMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
	// aboveMask is for the folder in which the watched one is, or will be.
	aboveMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
)

// inotify implements events, see inotify(7).
type inotify struct {
	file   *os.File
	raw    func(func(fd uintptr)) error
	notice func()
	ended  chan struct{}

	mu      sync.Mutex
	watches map[int32]*watch
	lost    uint64
	broken  error
}

// watch is one watched folder. name is empty for one of the tree.
type watch struct {
	name  string
	added bool
}

func openEvents(notice func()) (events, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify_init1: %w", limitHint(err))
	}
	file := os.NewFile(uintptr(fd), "inotify")
	sc, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("inotify: %w", err)
	}
	e := &inotify{file: file, raw: sc.Control, notice: notice, ended: make(chan struct{}), watches: map[int32]*watch{}}
	go e.read()
	return e, nil
}

func (e *inotify) add(dir, name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.broken != nil {
		return e.broken
	}
	mask := uint32(treeMask)
	if name != "" {
		mask = aboveMask | unix.IN_MASK_ADD
	}
	var wd int
	var err error
	if cerr := e.raw(func(fd uintptr) { wd, err = unix.InotifyAddWatch(int(fd), dir, mask) }); cerr != nil {
		return fmt.Errorf("watch %s: %w", dir, cerr)
	}
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, limitHint(err))
	}
	w := e.watches[int32(wd)] //nolint:gosec // the kernel's watch descriptors are int32
	if w == nil {
		w = &watch{name: name}
		e.watches[int32(wd)] = w //nolint:gosec // as above
	}
	// What is both in the tree and above it counts as of the tree.
	if !w.added || name == "" {
		w.name = name
	}
	w.added = true
	return nil
}

func (e *inotify) sweep() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for wd, w := range e.watches {
		if w.added {
			w.added = false
			continue
		}
		delete(e.watches, wd)
		_ = e.raw(func(fd uintptr) {
			_, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) //nolint:gosec // gone by itself, at worst
		})
	}
}

func (e *inotify) overflows() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lost
}

func (e *inotify) close() {
	_ = e.file.Close()
	<-e.ended
}

// read tells of notices until the file is closed.
func (e *inotify) read() {
	defer close(e.ended)
	buf := make([]byte, 64<<10)
	for {
		n, err := e.file.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			e.mu.Lock()
			e.broken = fmt.Errorf("read inotify: %w: %w", errBroken, err)
			e.mu.Unlock()
			e.notice()
			return
		}
		if e.matter(buf[:n]) {
			e.notice()
		}
	}
}

// matter reports whether one of the events may have changed what there is to
// find.
func (e *inotify) matter(buf []byte) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	yes := false
	for len(buf) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(buf)) //nolint:gosec // struct inotify_event
		mask := binary.NativeEndian.Uint32(buf[4:])
		size := binary.NativeEndian.Uint32(buf[12:])
		buf = buf[unix.SizeofInotifyEvent:]
		if int(size) > len(buf) {
			return true
		}
		name, _, _ := bytes.Cut(buf[:size], []byte{0})
		buf = buf[size:]
		yes = e.one(wd, mask, string(name)) || yes
	}
	return yes
}

func (e *inotify) one(wd int32, mask uint32, name string) bool {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		e.lost++
		return true
	}
	w := e.watches[wd]
	if mask&unix.IN_IGNORED != 0 {
		delete(e.watches, wd)
		return w != nil
	}
	switch {
	case w == nil:
		return false
	case name == "": // the folder itself
		return true
	case w.name != "":
		return w.name == name
	}
	return !strings.HasPrefix(name, ".")
}

// limitHint says what the two most likely errors mean.
func limitHint(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%w (fs.inotify.max_user_watches is reached)", err)
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%w (fs.inotify.max_user_instances or the limit of open files is reached)", err)
	}
	return err
}
