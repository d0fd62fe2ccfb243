package registration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/volumekit/volumekit/csi/registration/registrationtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait: far above what any takes on a busy machine.
const patience = 20 * time.Second

// call is one call of a handler, entered when it returned.
type call struct {
	verb string // "register", "deregister"
	Instance
}

func (c call) String() string {
	return fmt.Sprintf("%s %s %s", c.verb, c.Name, filepath.Base(c.Socket))
}

// recorder is a Handler that remembers.
type recorder struct {
	calls chan call

	mu         sync.Mutex
	validate   func(Info) error
	register   func(context.Context, Instance) error
	deregister func(Instance)
	live       map[uint64]Instance
	wrong      []string // breaches of the contract
	busy       map[string]bool
}

func newRecorder() *recorder {
	return &recorder{calls: make(chan call, 1<<12), live: map[uint64]Instance{}, busy: map[string]bool{}}
}

// enter notes overlapping calls for one path.
func (h *recorder) enter(path string) (leave func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.busy[path] {
		h.wrong = append(h.wrong, "calls overlap for "+path)
	}
	h.busy[path] = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.busy[path] = false
	}
}

func (h *recorder) Validate(info Info) error {
	h.mu.Lock()
	f := h.validate
	h.mu.Unlock()
	if f != nil {
		return f(info)
	}
	return nil
}

func (h *recorder) Register(ctx context.Context, i Instance) error {
	leave := h.enter(i.Socket)
	defer leave()
	h.mu.Lock()
	f := h.register
	h.mu.Unlock()
	if f != nil {
		if err := f(ctx, i); err != nil {
			return err
		}
	}
	h.mu.Lock()
	h.live[i.Generation] = i
	h.mu.Unlock()
	h.calls <- call{"register", i}
	return nil
}

func (h *recorder) Deregister(i Instance) {
	h.mu.Lock()
	f := h.deregister
	h.mu.Unlock()
	if f != nil {
		f(i)
	}
	h.mu.Lock()
	if was, ok := h.live[i.Generation]; !ok || !was.equal(i.Info) || was.Socket != i.Socket || was.File != i.File {
		h.wrong = append(h.wrong, "deregistered what is not registered: "+i.Name+" "+i.Socket)
	}
	delete(h.live, i.Generation)
	h.mu.Unlock()
	h.calls <- call{"deregister", i}
}

func (h *recorder) set(f func(h *recorder)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(h)
}

func (h *recorder) next(t *testing.T) call {
	t.Helper()
	select {
	case c := <-h.calls:
		return c
	case <-time.After(patience):
		t.Fatal("no call of the handler")
		return call{}
	}
}

// expect takes the next calls, given as "register name socket".
func (h *recorder) expect(t *testing.T, want ...string) (got []call) {
	t.Helper()
	for _, w := range want {
		c := h.next(t)
		if c.String() != w {
			t.Fatalf("handler call %q, want %q", c, w)
		}
		got = append(got, c)
	}
	return got
}

func (h *recorder) none(t *testing.T) {
	t.Helper()
	select {
	case c := <-h.calls:
		t.Fatalf("unexpected handler call: %s", c)
	default:
	}
}

// bench is a running watcher on a folder.
type bench struct {
	t       *testing.T
	dir     string
	csi     *recorder
	w       *Watcher
	changed chan struct{}
	updates atomic.Int64
	stop    func()
}

// setUp makes a watcher that is not running yet.
func setUp(t *testing.T, adjust ...func(*Config)) *bench {
	t.Helper()
	b := &bench{t: t, dir: filepath.Join(shortDir(t), "reg"), csi: newRecorder(), changed: make(chan struct{}, 1)}
	config := Config{Dir: b.dir, Create: true, Handlers: map[string]Handler{CSIPlugin: b.csi}, RescanPeriod: rarely()}
	for _, f := range adjust {
		f(&config)
	}
	w, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	w.changed = func() {
		b.updates.Add(1)
		select {
		case b.changed <- struct{}{}:
		default:
		}
	}
	b.w, b.dir = w, config.Dir
	return b
}

// run starts a watcher and waits for its first look.
func begin(t *testing.T, adjust ...func(*Config)) *bench {
	t.Helper()
	b := setUp(t, adjust...)
	b.start()
	b.wait("the first look", func(s Status) bool { return !s.Folder.LastLook.IsZero() })
	return b
}

func (b *bench) start() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.w.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				b.t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			b.t.Error("Run does not end")
		}
		for _, wrong := range b.csi.wrong {
			b.t.Error(wrong)
		}
	})
	b.t.Cleanup(b.stop)
}

// wait waits for a status.
func (b *bench) wait(what string, is func(Status) bool) Status {
	b.t.Helper()
	late := time.After(patience)
	for {
		s := b.w.Status()
		if is(s) {
			return s
		}
		select {
		case <-b.changed:
		case <-late:
			b.t.Fatalf("no %s; the status is %+v", what, s)
		}
	}
}

func (b *bench) waitState(path string, state State) Socket {
	b.t.Helper()
	var found Socket
	b.wait(string(state)+" for "+path, func(s Status) bool {
		var ok bool
		found, ok = find(s, path)
		return ok && found.State == state
	})
	return found
}

func find(s Status, path string) (Socket, bool) {
	for _, one := range s.Sockets {
		if one.Path == path {
			return one, true
		}
	}
	return Socket{}, false
}

func (b *bench) path(elem ...string) string {
	return filepath.Join(append([]string{b.dir}, elem...)...)
}

// shortDir is a folder whose sockets' paths are short.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "reg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func mkdir(t testing.TB, path string) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o750); err != nil {
		t.Fatal(err)
	}
	return path
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// info is a CSI driver's.
func info(name string) Info {
	return Info{Type: CSIPlugin, Name: name, Endpoint: "/csi/" + name + ".sock", Versions: []string{"1.0.0"}}
}

func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q does not say %q", text, p)
		}
	}
}

// rarely is a period in which no test ends, so that what passes was noticed;
// where nothing can be noticed it is short.
func rarely() time.Duration {
	if runtime.GOOS == "linux" {
		return time.Hour
	}
	return 20 * time.Millisecond
}

// plugin starts a plugin that ends with the test.
func plugin(t testing.TB, path string, i Info) *registrationtest.Plugin {
	t.Helper()
	p, err := registrationtest.Start(path, registrationtest.Info(i))
	must(t, err)
	t.Cleanup(p.Kill)
	return p
}

// told takes the plugin's next notice.
func told(t *testing.T, p *registrationtest.Plugin) registrationtest.Notice {
	t.Helper()
	select {
	case n := <-p.Told():
		return n
	case <-time.After(patience):
		t.Fatal("the plugin is told nothing")
		return registrationtest.Notice{}
	}
}

func welcome(t *testing.T, p *registrationtest.Plugin) {
	t.Helper()
	if n := told(t, p); !n.Registered || n.Error != "" {
		t.Fatalf("the plugin is told %+v", n)
	}
}

func refused(t *testing.T, p *registrationtest.Plugin, parts ...string) {
	t.Helper()
	n := told(t, p)
	if n.Registered {
		t.Fatal("the plugin is told that it is registered")
	}
	has(t, n.Error, parts...)
}

// deaf is a socket on which nobody listens any more.
func deaf(t testing.TB, path string) {
	t.Helper()
	l, err := registrationtest.Listen(path)
	must(t, err)
	must(t, l.Close())
}
