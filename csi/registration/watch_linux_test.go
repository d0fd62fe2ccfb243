package registration

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/csi/registration/registrationtest"
)

// Paths around and beyond sun_path, with long names of folders and of sockets.
func TestLongPaths(t *testing.T) {
	b := begin(t)
	for _, length := range []int{103, 104, 107, 108, 109, 300} {
		dir := b.dir
		for len(dir)+120 < length {
			dir = filepath.Join(dir, strings.Repeat("d", 50))
		}
		name := strings.Repeat("s", min(length-len(dir)-1, 80))
		for len(dir)+1+len(name) < length {
			more := length - len(dir) - 1 - len(name)
			if more < 2 { // a separator and at least one letter
				name = name[:len(name)-1]
				continue
			}
			dir = filepath.Join(dir, strings.Repeat("e", min(more-1, 100)))
		}
		mkdir(t, dir)
		path := filepath.Join(dir, name)
		if len(path) != length {
			t.Fatalf("made a path of %d bytes, not %d", len(path), length)
		}
		p := plugin(t, path, Info{Type: CSIPlugin, Name: "d", Versions: []string{"1.0.0"}})
		if c := b.csi.expect(t, "register d "+name)[0]; c.Endpoint != path || c.Socket != path {
			t.Errorf("%d bytes: %+v", length, c.Instance)
		}
		welcome(t, p)
		p.Stop()
		b.csi.expect(t, "deregister d "+name)
	}
}

func TestLongNameOfASocket(t *testing.T) {
	dir := shortDir(t)
	p := plugin(t, filepath.Join(dir, "s"), info("d"))
	long := filepath.Join(dir, strings.Repeat("n", 255))
	must(t, os.Rename(p.Path(), long))
	conn, err := DialSocket(context.Background(), long)
	must(t, err)
	must(t, conn.Close())
	p.Kill()
	if _, err := DialSocket(context.Background(), long); !errors.Is(err, ErrUnavailable) {
		t.Errorf("nobody listens: %v", err)
	}
	must(t, os.Remove(long))
	if _, err := DialSocket(context.Background(), long); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// The file is there from bind on, but connections are refused until listen.
func TestBoundButNotListening(t *testing.T) {
	b := begin(t, func(c *Config) { c.BackoffMin = time.Hour })
	path := b.path("s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	file := os.NewFile(uintptr(fd), "socket")
	defer file.Close()
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	s := Socket{}
	b.wait("an early attempt", func(all Status) bool {
		s, _ = find(all, path)
		return s.Attempts > 0
	})
	if s.State != Registering || s.LastError == "" {
		t.Errorf("before listen: %+v", s)
	}
	begun := time.Now()
	must(t, unix.Listen(fd, 16))
	l, err := net.FileListener(file)
	must(t, err)
	p := registrationtest.Serve(l, path, registrationtest.Info(info("d")))
	t.Cleanup(p.Kill)
	b.csi.expect(t, "register d s")
	t.Logf("registered %v after listen", time.Since(begun))
}

// A listener that accepts nobody, and whose queue is full.
func TestFullQueue(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	must(t, unix.Listen(fd, 0))
	for range 10 {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		conn, err := DialSocket(ctx, path)
		cancel()
		if err != nil {
			if !errors.Is(err, ErrUnavailable) {
				t.Errorf("full queue: %v", err)
			}
			return
		}
		defer conn.Close()
	}
	t.Error("the queue is never full")
}

func TestIdentify(t *testing.T) {
	dir := shortDir(t)
	path := filepath.Join(dir, "s")
	deaf(t, path)
	id, socket, err := identify(path)
	must(t, err)
	if !socket || id.Inode == 0 || id.Changed.IsZero() {
		t.Errorf("%+v, socket: %v", id, socket)
	}
	must(t, os.Symlink(path, path+".link"))
	linked, socket, err := identify(path + ".link")
	if err != nil || !socket || linked != id {
		t.Errorf("through a link: %+v, %v, %v", linked, socket, err)
	}
	if _, socket, err = identify(dir); err != nil || socket {
		t.Errorf("a folder: socket %v, %v", socket, err)
	}
	if !id.Birth.IsZero() {
		must(t, os.Chmod(path, 0o600))
		if again, _, _ := identify(path); !again.Same(id) {
			t.Errorf("a change of mode makes another file: %+v, %+v", id, again)
		}
	}
}

// source is a source of notices in the hands of a test.
type source struct {
	mu     sync.Mutex
	notice func()
	err    error // of add below the folder
	added  map[string]string
	looks  int
	lost   uint64
	closed int
}

func (s *source) open(notice func()) (events, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notice, s.added = notice, map[string]string{}
	return s, nil
}

func (s *source) add(dir, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil && name == "" {
		return s.err
	}
	s.added[dir] = name
	return nil
}

func (s *source) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
}

func (s *source) overflows() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

func (s *source) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
}

func (s *source) set(f func(s *source)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *source) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looks
}

// injected is a bench whose notices and time are the test's.
func injected(t *testing.T) (*bench, *source, func(time.Duration)) {
	t.Helper()
	clock := hereafter(0)
	b := setUp(t, func(c *Config) { c.Clock, c.RescanPeriod = clock, 10*time.Second })
	src := &source{}
	b.w.open = src.open
	b.start()
	b.wait("the first look", func(s Status) bool { return !s.Folder.LastLook.IsZero() })
	return b, src, clock.Step
}

func (b *bench) nextLook(after Status) Status {
	b.t.Helper()
	return b.wait("the next look", func(s Status) bool { return s.Folder.LastLook.After(after.Folder.LastLook) })
}

func TestRescanFindsWhatWasNotNoticed(t *testing.T) {
	b, _, step := injected(t)
	p := plugin(t, b.path("s"), info("d"))
	step(9 * time.Second)
	b.csi.none(t)
	step(time.Second)
	b.csi.expect(t, "register d s")
	must(t, os.RemoveAll(b.dir))
	mkdir(t, b.dir)
	plugin(t, b.path("t"), info("e"))
	step(10 * time.Second)
	got := map[string]bool{b.csi.next(t).String(): true, b.csi.next(t).String(): true}
	if !got["deregister d s"] || !got["register e t"] {
		t.Errorf("after the folder was made anew: %v", got)
	}
	p.Kill()
}

func TestOverflow(t *testing.T) {
	b, src, step := injected(t)
	plugin(t, b.path("s"), info("d"))
	// The kernel has lost everything but the fact.
	src.set(func(s *source) { s.lost++ })
	src.notice()
	// The notice is taken up before the step or after; both lead to a look.
	b.wait("a look", func(s Status) bool {
		step(noticePause)
		return s.Folder.Overflows == 1
	})
	b.csi.expect(t, "register d s")
}

func TestStormOfNoticesIsOneLook(t *testing.T) {
	b, src, step := injected(t)
	before := b.w.Status()
	looks := src.count()
	updates := b.updates.Load()
	for range 10000 {
		src.notice()
		runtime.Gosched() // they could be taken up
	}
	if n := b.updates.Load() - updates; n > 10 {
		t.Errorf("10,000 notices are taken up %d times", n)
	}
	if n := src.count(); n != looks {
		t.Errorf("%d looks without a pause", n-looks)
	}
	b.wait("a look", func(s Status) bool {
		step(noticePause)
		return s.Folder.LastLook.After(before.Folder.LastLook)
	})
	for range 100 { // what is left of the storm
		step(noticePause)
	}
	if n := src.count(); n == looks || n > looks+2 {
		t.Errorf("%d looks for one storm", n-looks)
	}
}

func TestWatchLimit(t *testing.T) {
	b, src, step := injected(t)
	before := b.w.Status()
	if before.Folder.Watch != Notified {
		t.Fatalf("%+v", before.Folder)
	}
	src.set(func(s *source) { s.err = fmt.Errorf("watch it: %w", limitHint(unix.ENOSPC)) })
	step(10 * time.Second)
	s := b.nextLook(before)
	if s.Folder.Watch != Periodic {
		t.Errorf("%+v", s.Folder)
	}
	has(t, s.Folder.WatchProblem, "max_user_watches")
	plugin(t, b.path("s"), info("d"))
	step(10 * time.Second)
	b.csi.expect(t, "register d s")

	s = b.w.Status()
	src.set(func(s *source) { s.err = errBroken })
	step(10 * time.Second)
	s = b.nextLook(s)
	src.set(func(src *source) {
		if src.closed != 1 || s.Folder.Watch != Periodic {
			t.Errorf("a broken source is closed %d times, %+v", src.closed, s.Folder)
		}
		src.err = nil
	})
	step(10 * time.Second)
	s = b.nextLook(s)
	if s.Folder.Watch != Notified || s.Folder.WatchProblem != "" {
		t.Errorf("%+v", s.Folder)
	}
}

func event(wd int32, mask uint32, name string) []byte {
	padded := make([]byte, (len(name)+16)/16*16)
	copy(padded, name)
	if name == "" {
		padded = nil
	}
	buf := binary.NativeEndian.AppendUint32(nil, uint32(wd))
	buf = binary.NativeEndian.AppendUint32(buf, mask)
	buf = binary.NativeEndian.AppendUint32(buf, 0)
	buf = binary.NativeEndian.AppendUint32(buf, uint32(len(padded)))
	return append(buf, padded...)
}

func TestWhichEventsMatter(t *testing.T) {
	for what, c := range map[string]struct {
		buf  []byte
		want bool
	}{
		"a new name":          {event(1, unix.IN_CREATE, "s.sock"), true},
		"a hidden name":       {event(1, unix.IN_CREATE, ".s.sock"), false},
		"the folder itself":   {event(1, unix.IN_DELETE_SELF, ""), true},
		"above, our name":     {event(2, unix.IN_CREATE, "reg"), true},
		"above, another name": {event(2, unix.IN_CREATE, "pods"), false},
		"above itself":        {event(2, unix.IN_MOVE_SELF, ""), true},
		"an old watch":        {event(3, unix.IN_CREATE, "s.sock"), false},
		"an old watch's end":  {event(3, unix.IN_IGNORED, ""), false},
		"a watch's end":       {event(1, unix.IN_IGNORED, ""), true},
		"overflow":            {event(-1, unix.IN_Q_OVERFLOW, ""), true},
		"cut short":           {event(3, unix.IN_CREATE, "s.sock")[:24], true},
		"two":                 {append(event(2, unix.IN_CREATE, "pods"), event(1, unix.IN_DELETE, "x")...), true},
		"nothing":             {nil, false},
	} {
		e := &inotify{watches: map[int32]*watch{1: {}, 2: {name: "reg"}}}
		if got := e.matter(c.buf); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
		if lost := e.overflows() > 0; lost != (what == "overflow") {
			t.Errorf("%s: lost is %v", what, lost)
		}
	}
}

// Watches of folders that have gone elsewhere are taken back.
func TestWatchesAreTakenBack(t *testing.T) {
	dir := shortDir(t)
	src, err := openEvents(func() {})
	must(t, err)
	defer src.close()
	e := src.(*inotify)
	sub := mkdir(t, filepath.Join(dir, "sub"))
	must(t, e.add(dir, ""))
	must(t, e.add(sub, ""))
	e.sweep()
	must(t, e.add(dir, ""))
	e.sweep()
	e.mu.Lock()
	n := len(e.watches)
	e.mu.Unlock()
	if n != 1 {
		t.Errorf("%d watches", n)
	}
	if err := e.add(filepath.Join(dir, "none"), ""); !gone(err) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

// Many sockets at once, created and removed faster than they are looked at.
func TestRealStorm(t *testing.T) {
	b := begin(t)
	for i := range 2000 {
		path := b.path(fmt.Sprint("storm", i%50))
		l, err := registrationtest.Listen(path)
		must(t, err)
		must(t, l.Close())
		must(t, os.Remove(path))
	}
	plugin(t, b.path("s"), info("d"))
	b.csi.expect(t, "register d s")
	b.wait("only the plugin", func(s Status) bool { return len(s.Sockets) == 1 && s.Sockets[0].State == Registered })
}

func TestNoDescriptorStays(t *testing.T) {
	b := begin(t)
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(entries)
	}
	cycle := func() {
		p := plugin(t, b.path("s"), info("d"))
		b.csi.expect(t, "register d s")
		b.waitState(b.path("s"), Registered)
		p.Stop()
		b.csi.expect(t, "deregister d s")
	}
	cycle()
	before := count()
	for range 50 {
		cycle()
	}
	if now := count(); now > before+2 { // one connection may be on its way out
		t.Errorf("%d descriptors were open, now %d", before, now)
	}
}

func TestLooksTakeAPartOfTheTime(t *testing.T) {
	b := setUp(t)
	r := newRun(b.w)
	begun := time.Now()
	at := func(ms int) time.Time { return begun.Add(time.Duration(ms) * time.Millisecond) }
	r.scanning, r.scanBegun = true, begun
	r.apply(survey{}, at(100))
	r.notice(at(150))
	if !r.scanAt.Equal(at(500)) {
		t.Errorf("after a look of 100 ms there is one %v later", r.scanAt.Sub(at(100)))
	}
	r.scanning, r.scanBegun = true, at(500)
	r.apply(survey{}, at(5500))
	r.notice(at(5600))
	if !r.scanAt.Equal(at(6500)) {
		t.Errorf("after a look of 5 s there is one %v later", r.scanAt.Sub(at(5500)))
	}
}
