package registration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/volumekit/volumekit/csi/registration/registrationtest"
)

var errNo = errors.New("no room for it")

func hasty(c *Config) { c.BackoffMin, c.BackoffMax = 5*time.Millisecond, 20*time.Millisecond }

func TestUnknownType(t *testing.T) {
	b := begin(t, func(c *Config) { c.Handlers[DRAPlugin] = newRecorder() })
	i := info("d")
	i.Type = "Novel\u00a0Plugin"
	odd := plugin(t, b.path("odd"), i)
	refused(t, odd, "Novel", "characters")
	i.Type = "NovelPlugin"
	p := plugin(t, b.path("s"), i)
	refused(t, p, `"NovelPlugin"`, "CSIPlugin, DRAPlugin")
	s := b.waitState(b.path("s"), Failed)
	if s.Registered || s.Info.Type != "NovelPlugin" {
		t.Errorf("%+v", s)
	}
	b.csi.none(t)
}

func TestHandlersByType(t *testing.T) {
	device, dra := newRecorder(), newRecorder()
	b := begin(t, func(c *Config) { c.Handlers[DevicePlugin], c.Handlers[DRAPlugin] = device, dra })
	for kind, h := range map[string]*recorder{CSIPlugin: b.csi, DevicePlugin: device, DRAPlugin: dra} {
		p := plugin(t, b.path(kind), Info{Type: kind, Name: "n", Versions: []string{"v1.DRAPlugin"}})
		c := h.expect(t, "register n "+kind)[0]
		if c.Endpoint != p.Path() {
			t.Errorf("an empty endpoint is the socket itself, got %q", c.Endpoint)
		}
		welcome(t, p)
		p.Stop()
		h.expect(t, "deregister n "+kind)
	}
}

func TestRefusedByTheHandler(t *testing.T) {
	b := setUp(t, hasty)
	b.csi.validate = func(i Info) error { return fmt.Errorf("%s: %w", i.Versions[0], errNo) }
	b.start()
	b.wait("the first look", func(s Status) bool { return s.Folder.Exists })
	p := plugin(t, b.path("s"), info("d"))
	refused(t, p, "validate plugin d", "1.0.0", errNo.Error())
	b.csi.set(func(h *recorder) {
		h.validate = nil
		h.register = func(context.Context, Instance) error {
			return fmt.Errorf("%w\n%s", errNo, strings.Repeat("\xff", 1<<20))
		}
	})
	for {
		n := told(t, p)
		if !strings.Contains(n.Error, "register plugin d") {
			continue
		}
		if n.Registered || len(n.Error) > maxText+3 || strings.Contains(n.Error, "\n") {
			t.Errorf("told %+v", n)
		}
		break
	}
	b.csi.none(t)
	b.csi.set(func(h *recorder) { h.register = nil })
	b.csi.expect(t, "register d s")
}

func TestNoticeNotTaken(t *testing.T) {
	b := setUp(t, hasty)
	mkdir(t, b.dir)
	p, err := registrationtest.StartHeld(b.path("s"), registrationtest.Info(info("d")))
	must(t, err)
	t.Cleanup(p.Kill)
	p.FailNotice(2, status.Error(codes.Unavailable, "busy"))
	p.Release()
	b.start()
	got := b.csi.expect(t, "register d s", "deregister d s", "register d s", "deregister d s", "register d s")
	for i := range 2 {
		if got[2*i].Generation != got[2*i+1].Generation {
			t.Errorf("registered %d, deregistered %d", got[2*i].Generation, got[2*i+1].Generation)
		}
	}
	welcome(t, p)
	b.waitState(b.path("s"), Registered)
	b.csi.none(t)
}

// mute accepts connections and never says a word.
func mute(t testing.TB, path string) {
	t.Helper()
	l, err := registrationtest.Listen(path)
	must(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var conns []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			conns = append(conns, c)
		}
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
}

func TestHungPluginsHoldUpNobody(t *testing.T) {
	b := setUp(t, func(c *Config) { c.MaxParallel = 4 })
	mkdir(t, b.dir)
	mute(t, b.path("1"))
	held, err := registrationtest.StartHeld(b.path("2"), registrationtest.Info(info("d")))
	must(t, err)
	t.Cleanup(held.Kill)
	inRegister := make(chan struct{})
	b.csi.register = func(ctx context.Context, i Instance) error {
		if i.Name != "slow" {
			return nil
		}
		close(inRegister)
		<-ctx.Done()
		return ctx.Err()
	}
	plugin(t, b.path("3"), info("slow"))
	b.start()
	<-inRegister
	for i := range 5 {
		name := fmt.Sprintf("d%d", i)
		plugin(t, b.path(name), info(name))
		b.csi.expect(t, "register "+name+" "+name)
	}
	begun := time.Now()
	b.stop()
	if took := time.Since(begun); took > 4*time.Second {
		t.Errorf("Run took %v to end", took)
	}
}

func TestAtMostSoManyAtATime(t *testing.T) {
	b := setUp(t, func(c *Config) { c.MaxParallel = 3 })
	mkdir(t, b.dir)
	inside, free := make(chan struct{}, 100), make(chan struct{})
	b.csi.register = func(ctx context.Context, _ Instance) error {
		inside <- struct{}{}
		select {
		case <-free:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	for i := range 10 {
		plugin(t, b.path(fmt.Sprint(i)), info("d"))
	}
	b.start()
	for range 3 { // parallel, or this hangs
		<-inside
	}
	s := b.wait("all sockets", func(s Status) bool { return len(s.Sockets) == 10 })
	asked := 0
	for _, one := range s.Sockets {
		if one.State != Registering {
			t.Errorf("%+v", one)
		}
		if one.NextTry.IsZero() {
			asked++
		}
	}
	if asked != 3 || len(inside) != 0 {
		t.Errorf("%d at a time", asked)
	}
	close(free)
	for range 10 {
		b.csi.next(t)
	}
}

func TestSocketGoesWhileAsked(t *testing.T) {
	b := begin(t)
	path := b.path("s")
	p, err := registrationtest.StartHeld(path, registrationtest.Info(info("d")))
	must(t, err)
	t.Cleanup(p.Kill)
	select {
	case <-p.Asking():
	case <-time.After(patience):
		t.Fatal("the plugin is not asked")
	}
	must(t, os.Remove(path))
	b.wait("no socket", func(s Status) bool { return len(s.Sockets) == 0 })
	b.csi.none(t)
}

func TestSocketGoesWhileRegistered(t *testing.T) {
	for _, c := range []struct {
		takes bool
		next  string
	}{{true, "d"}, {true, "e"}, {false, "d"}, {false, "e"}} {
		b := setUp(t)
		inside := make(chan struct{})
		b.csi.register = func(ctx context.Context, _ Instance) error {
			b.csi.set(func(h *recorder) { h.register = nil }) // only the first
			close(inside)
			<-ctx.Done()
			if c.takes {
				return nil
			}
			return ctx.Err()
		}
		b.start()
		b.wait("the folder", func(s Status) bool { return s.Folder.Exists })
		plugin(t, b.path("s"), info("d"))
		<-inside
		p := remake(t, b.path("s"), info(c.next))
		want := []string{"register " + c.next + " s"}
		if c.takes { // too late, and yet without a gap
			want = []string{"register d s", "register " + c.next + " s", "deregister d s"}
		}
		got := b.csi.expect(t, want...)
		welcome(t, p)
		b.waitState(b.path("s"), Registered)
		b.csi.none(t)
		if c.takes && (got[0].Generation != got[2].Generation || got[0].File.Same(got[1].File)) {
			t.Errorf("%+v", got)
		}
		b.stop()
	}
}

// hereafter is a fake clock near the files' own times.
func hereafter(d time.Duration) *clocktesting.FakeClock {
	return clocktesting.NewFakeClock(time.Now().Add(d))
}

func TestBackoffOfAStaleSocket(t *testing.T) {
	clock := hereafter(time.Minute)
	b := setUp(t, func(c *Config) { c.Clock, c.RescanPeriod = clock, 1000*time.Hour })
	mkdir(t, b.dir)
	path := b.path("s")
	deaf(t, path)
	b.start()
	for n, most := range []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond} {
		var s Socket
		b.wait("the attempt", func(all Status) bool {
			s, _ = find(all, path)
			return s.Attempts == n+1
		})
		pause := s.NextTry.Sub(clock.Now())
		if s.State != Stale || pause > most || pause < most*4/5 {
			t.Errorf("after attempt %d: %s, next in %v; want at most %v", n+1, s.State, pause, most)
		}
		clock.Step(pause)
	}
	// A new file is tried at once, however long the pause was.
	b.wait("the fifth attempt", func(all Status) bool { return all.Sockets[0].Attempts == 5 })
	remake(t, path, info("d"))
	b.wait("the new file", func(all Status) bool {
		clock.Step(noticePause)
		return all.Sockets[0].State == Registered
	})
}

func TestChangedModeIsTriedAtOnce(t *testing.T) {
	b := begin(t, func(c *Config) { c.BackoffMin = time.Hour })
	p, err := registrationtest.StartHeld(b.path("s"), registrationtest.Info(info("d")))
	must(t, err)
	t.Cleanup(p.Kill)
	p.FailInfo(1, status.Error(codes.PermissionDenied, "no"))
	p.Release()
	b.waitState(b.path("s"), Failed)
	must(t, os.Chmod(b.path("s"), 0o600))
	b.csi.expect(t, "register d s")
	b.waitState(b.path("s"), Registered)
	// It is the same file still.
	must(t, os.Chmod(b.path("s"), 0o660))
	plugin(t, b.path("t"), info("t"))
	b.csi.expect(t, "register t t")
	b.csi.none(t)
}

// The server dies and comes back behind the very same file: its listening
// socket was kept by someone else, as with socket activation.
func TestServerComesBackBehindTheSameFile(t *testing.T) {
	b := begin(t, hasty)
	path := b.path("s")
	l, err := registrationtest.Listen(path)
	must(t, err)
	file, err := l.(*net.UnixListener).File()
	must(t, err)
	t.Cleanup(func() { file.Close() })
	p := registrationtest.Serve(l, path, registrationtest.Info(info("d")))
	first := b.csi.expect(t, "register d s")[0]
	welcome(t, p)
	again := func(i Info) *registrationtest.Plugin {
		b.waitState(path, Registered)
		p.Kill()
		b.waitState(path, Stale)
		l, err := net.FileListener(file)
		must(t, err)
		p = registrationtest.Serve(l, path, registrationtest.Info(i))
		t.Cleanup(p.Kill)
		return p
	}
	welcome(t, again(info("d")))
	if s := b.waitState(path, Registered); s.Generation != first.Generation {
		t.Errorf("registered %d, now %d", first.Generation, s.Generation)
	}
	b.csi.none(t)
	changed := info("d")
	changed.Versions = []string{"1.1.0"}
	welcome(t, again(changed))
	got := b.csi.expect(t, "register d s", "deregister d s")
	if got[1].Generation != first.Generation || got[0].Versions[0] != "1.1.0" {
		t.Errorf("%+v", got)
	}
}

func TestDeadServerStaysRegisteredWhileItsSocketIsThere(t *testing.T) {
	b := begin(t, hasty)
	path := b.path("s")
	p := plugin(t, path, info("d"))
	b.csi.expect(t, "register d s")
	b.waitState(path, Registered)
	p.Kill()
	s := b.waitState(path, Stale)
	if !s.Registered || s.LastError == "" {
		t.Errorf("%+v", s)
	}
	b.wait("a few attempts", func(s Status) bool { return s.Sockets[0].Attempts > 3 })
	b.csi.none(t)
	must(t, os.Remove(path))
	b.csi.expect(t, "deregister d s")
}

func TestDialSocket(t *testing.T) {
	dir := shortDir(t)
	ctx := context.Background()
	path := filepath.Join(dir, "s")
	if _, err := DialSocket(ctx, path); !errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrUnavailable) {
		t.Errorf("no file: %v", err)
	}
	deaf(t, path)
	begun := time.Now()
	_, err := DialSocket(ctx, path)
	if !errors.Is(err, ErrUnavailable) || time.Since(begun) > time.Second {
		t.Errorf("nobody listens: %v", err)
	}
	has(t, err.Error(), path)
}

// The file goes and is back before what its going began has ended.
func TestAwayAndBack(t *testing.T) {
	b := begin(t, func(c *Config) { c.BackoffMin = time.Hour })
	path, away := b.path("s"), b.path(".away")
	trip := func() {
		must(t, os.Rename(path, away))
		b.wait("no socket", func(s Status) bool { return len(s.Sockets) == 0 })
		must(t, os.Rename(away, path))
		b.wait("the socket", func(s Status) bool { return len(s.Sockets) == 1 })
	}
	var inside chan struct{}
	free := make(chan error)
	blocked := func(context.Context, Instance) error {
		close(inside)
		return <-free
	}
	inside = make(chan struct{})
	b.csi.set(func(h *recorder) { h.register = blocked })
	p := plugin(t, path, info("d"))
	<-inside
	trip()
	b.csi.set(func(h *recorder) { h.register = nil })
	free <- errNo // it had gone: no failure, no pause
	b.csi.expect(t, "register d s")
	welcome(t, p)
	b.waitState(path, Registered)

	must(t, os.Rename(path, away))
	b.csi.expect(t, "deregister d s")
	inside = make(chan struct{})
	b.csi.set(func(h *recorder) { h.register = blocked })
	must(t, os.Rename(away, path))
	<-inside
	trip()
	free <- nil // the registration holds, the plugin is told when it is back
	first := b.csi.expect(t, "register d s")[0]
	welcome(t, p)
	b.waitState(path, Registered)
	b.csi.none(t)
	b.csi.set(func(h *recorder) { h.register = nil })

	inside = make(chan struct{})
	b.csi.set(func(h *recorder) {
		h.deregister = func(Instance) {
			close(inside)
			<-free
		}
	})
	must(t, os.Rename(path, away))
	<-inside
	must(t, os.Rename(away, path))
	b.wait("the socket", func(s Status) bool { return len(s.Sockets) == 1 })
	b.csi.none(t)
	b.csi.set(func(h *recorder) { h.deregister = nil })
	free <- nil
	got := b.csi.expect(t, "deregister d s", "register d s")
	if got[0].Generation != first.Generation {
		t.Errorf("%+v", got)
	}
	b.waitState(path, Registered)
}
