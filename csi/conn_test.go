package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/plugins"
)

// TestDriverComesBack restarts a driver behind the same path: whoever waits is
// told soon, and what the driver announces now counts.
func TestDriverComesBack(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	s := f.serve(t, path)
	r := runDirectory(t, DriversConfig{Endpoints: []Endpoint{{Name: fakeName, Node: path}}})
	old := r.usable(t)
	var times []time.Duration
	for n := range 10 {
		s.kill()
		untilTrue(t, "the loss is noticed", func() bool { return r.Status()[0].Instances[0].State != DriverReady })
		for len(r.told) > 0 {
			<-r.told
		}
		if err := publishOnce(r.ctx, old, "v"); plugins.ClassOf(err) != plugins.ClassWaiting {
			t.Fatalf("a call on a lost connection: %v is %v", err, plugins.ClassOf(err))
		}
		f = newFake()
		f.nodeCan = []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_Type(100 + n)}
		began := time.Now()
		s = f.serve(t, path)
		select {
		case ref := <-r.told:
			if ref != socketRef(fakeName) {
				t.Fatalf("notice of %v", ref)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("no notice")
		}
		times = append(times, time.Since(began))
		d, err := r.driver(r.ctx, fakeName)
		if err != nil {
			t.Fatalf("after the notice: %v", err)
		}
		if d.generation <= old.generation || !d.nodeCan.has(csipb.NodeServiceCapability_RPC_Type(100+n)) {
			t.Fatalf("generation %d after %d, capabilities %v", d.generation, old.generation, d.nodeCan)
		}
		if !r.Installed(fakeName) {
			t.Fatal("not installed")
		}
		old = d
	}
	slices.Sort(times)
	if median := times[len(times)/2]; median > 100*time.Millisecond {
		t.Errorf("the notice took %v, median %v", times, median)
	}
}

// TestCallsWaitOutARestart has a driver gone for a moment: a call that needs it
// waits instead of failing.
func TestCallsWaitOutARestart(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	s := f.serve(t, path)
	r := runDirectory(t, DriversConfig{Endpoints: []Endpoint{{Name: fakeName, Node: path}}})
	old := r.usable(t)
	s.kill()
	untilTrue(t, "the loss is noticed", func() bool { return r.Status()[0].Instances[0].State != DriverReady })
	found := make(chan error, 1)
	go func() {
		d, err := r.driver(r.ctx, fakeName)
		if err == nil && d.generation == old.generation {
			err = errors.New("the old connection was given out")
		}
		found <- err
	}()
	f.serve(t, path)
	if err := <-found; err != nil {
		t.Error(err)
	}
}

// TestManyRestartsUnderCalls kills a driver again and again while volumes are
// published: each call works, or is known not to have been made, or uncertain.
// Nothing is left behind.
func TestManyRestartsUnderCalls(t *testing.T) {
	path, f := socketIn(t), newFake()
	s := f.serve(t, path)
	d := NewDrivers(DriversConfig{Endpoints: []Endpoint{{Name: fakeName, Node: path}}})
	d.lookEvery = 2 * time.Millisecond
	r := startDirectory(t, d)
	r.usable(t)
	restart := func() {
		s.kill()
		untilTrue(t, "the loss is noticed", func() bool { return r.Status()[0].Instances[0].State != DriverReady })
		s = f.serve(t, path)
		r.usable(t)
	}
	restart()
	files, routines := openDescriptors(t), runtime.NumGoroutine()
	var done, doubtful, unsent atomic.Int64
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for w := range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				d, err := r.driver(ctx, fakeName)
				if err == nil {
					err = publishOnce(ctx, d, fmt.Sprint(w))
				}
				switch class := plugins.ClassOf(err); {
				case ctx.Err() != nil:
				case class == plugins.ClassNone:
					done.Add(1)
				case class == plugins.ClassWaiting:
					unsent.Add(1)
				case class == plugins.ClassUncertain && answered(err) == codes.Unavailable:
					doubtful.Add(1)
				default:
					t.Errorf("%v is %v", err, class)
				}
			}
		})
	}
	const restarts = 100
	for range restarts {
		restart()
	}
	cancel()
	wg.Wait()
	t.Logf("%d calls done, %d doubtful, %d not made", done.Load(), doubtful.Load(), unsent.Load())
	// A call may be written before the end of the socket is read.
	if done.Load() == 0 || doubtful.Load() > 2*8*restarts {
		t.Error("too few calls were done, or too many are doubtful")
	}
	for _, m := range handshakeCalls {
		if n := f.count(m); n > restarts+10 {
			t.Errorf("%s was called %d times", m, n)
		}
	}
	for range 200 - restarts {
		restart()
	}
	untilTrue(t, fmt.Sprintf("as many files (%d) and goroutines (%d) as before", files, routines), func() bool {
		return openDescriptors(t) <= files && runtime.NumGoroutine() <= routines+1
	})
}

func openDescriptors(t testing.TB) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("needs /proc: ", err)
	}
	return len(list)
}

// TestHungDriver has one driver that does not answer: the others do not mind,
// and Run ends at once.
func TestHungDriver(t *testing.T) {
	t.Parallel()
	hung, path := socketIn(t), socketIn(t)
	h := newFake()
	h.name = "hung.example"
	h.before = func(ctx context.Context, _ string) error {
		<-ctx.Done()
		return ctx.Err()
	}
	h.serve(t, hung)
	f := newFake()
	block := make(chan struct{})
	f.before = func(ctx context.Context, method string) error {
		if method == "NodePublishVolume" {
			close(block)
			<-ctx.Done()
		}
		return ctx.Err()
	}
	f.serve(t, path)
	r := runDirectory(t, DriversConfig{Endpoints: []Endpoint{{Name: "hung.example", Node: hung}, {Name: fakeName, Node: path}}})
	d := r.usable(t)
	untilTrue(t, "the other hangs", func() bool { return h.count("GetPluginInfo") == 1 })
	result := make(chan error, 1)
	go func() { result <- publishOnce(r.ctx, d, "v") }()
	<-block
	r.stop()
	if err := <-result; plugins.ClassOf(err) != plugins.ClassUncertain {
		t.Errorf("a call that was cut off: %v is %v", err, plugins.ClassOf(err))
	}
	for _, name := range []string{fakeName, "none.example"} {
		if _, err := r.driver(r.ctx, name); plugins.ClassOf(err) != plugins.ClassWaiting || !strings.Contains(err.Error(), "does not run") {
			t.Errorf("after the end: %v", err)
		}
	}
	if err := publishOnce(r.ctx, d, "v"); plugins.ClassOf(err) != plugins.ClassWaiting {
		t.Errorf("a call after the end: %v", err)
	}
	if err := r.Register(r.ctx, registeredAt(path, 1)); err == nil {
		t.Error("registered after the end")
	}
}

// TestCallOutlivesItsRegistration deregisters an instance, or ends its server
// gracefully, under a call.
func TestCallOutlivesItsRegistration(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"deregister", "graceful stop"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			path, f := socketIn(t), newFake()
			begun, goOn := make(chan struct{}), make(chan struct{})
			f.before = func(_ context.Context, method string) error {
				if method == "NodePublishVolume" {
					close(begun)
					<-goOn
				}
				return nil
			}
			s := f.serve(t, path)
			r := runDirectory(t, DriversConfig{})
			if err := r.Register(t.Context(), registeredAt(path, 1)); err != nil {
				t.Fatal(err)
			}
			d := r.usable(t)
			result := make(chan error, 1)
			go func() { result <- publishOnce(r.ctx, d, "v") }()
			<-begun
			var wg sync.WaitGroup
			if how == "deregister" {
				r.Deregister(registeredAt(path, 1))
			} else {
				wg.Go(s.grpc.GracefulStop)
			}
			untilTrue(t, "it is not ready any more", func() bool {
				st := r.Status()
				return len(st[0].Instances) == 0 || st[0].Instances[0].State != DriverReady
			})
			if how == "graceful stop" {
				newFake().serve(t, path)
				r.usable(t)
			}
			if err := publishOnce(r.ctx, d, "w"); plugins.ClassOf(err) != plugins.ClassWaiting {
				t.Errorf("a new call on the old connection: %v", err)
			}
			close(goOn)
			if err := <-result; err != nil {
				t.Errorf("the call that was under way: %v", err)
			}
			wg.Wait()
			if n := f.count("NodePublishVolume"); n != 1 {
				t.Errorf("the old driver got %d calls", n)
			}
		})
	}
}

func TestLongPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(socketIn(t))
	for range 4 {
		dir = filepath.Join(dir, strings.Repeat("d", 60))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "csi.sock")
	newFake().serve(t, path)
	r := runDirectory(t, DriversConfig{})
	if err := r.Register(t.Context(), registeredAt(path, 1)); err != nil {
		t.Fatal(err)
	}
	if err := publishOnce(r.ctx, r.usable(t), "v"); err != nil {
		t.Error(err)
	}
}

// TestInterceptors checks that the embedder's see each call that is made, and
// none that is not.
func TestInterceptors(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	s := f.serve(t, path)
	var seen atomic.Int64
	count := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		seen.Add(1)
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	r := runDirectory(t, DriversConfig{
		Interceptors: []grpc.UnaryClientInterceptor{count, count},
		Endpoints:    []Endpoint{{Name: fakeName, Node: path}},
	})
	d := r.usable(t)
	if err := publishOnce(r.ctx, d, "v"); err != nil || seen.Load() != 2*int64(len(handshakeCalls)+1) {
		t.Errorf("%d calls seen, %v", seen.Load(), err)
	}
	s.kill()
	untilTrue(t, "the loss is noticed", func() bool { return r.Status()[0].Instances[0].State != DriverReady })
	before := seen.Load()
	if err := publishOnce(r.ctx, d, "v"); err == nil || seen.Load() != before {
		t.Errorf("%d calls seen after %d, %v", seen.Load(), before, err)
	}
}

// TestRequestsAreLoggedWithoutSecrets looks at the log of everything.
func TestRequestsAreLoggedWithoutSecrets(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	f.before = func(_ context.Context, method string) error {
		if method == "NodePublishVolume" && f.count(method) == 1 {
			return status.Error(codes.Internal, "bad password "+theSecret)
		}
		return nil
	}
	f.serve(t, path)
	var mu sync.Mutex
	var text strings.Builder
	log := funcr.New(func(prefix, args string) {
		mu.Lock()
		defer mu.Unlock()
		text.WriteString(prefix + args + "\n")
	}, funcr.Options{Verbosity: 10})
	r := runDirectory(t, DriversConfig{Log: log, Endpoints: []Endpoint{{Name: fakeName, Node: path}}})
	d := r.usable(t)
	req := &csipb.NodePublishVolumeRequest{VolumeId: "the-volume", Secrets: map[string]string{"password": theSecret}}
	for want := range 2 {
		_, err := call(r.ctx, d, nodePublish, "the-volume", req, d.node.NodePublishVolume)
		if (err == nil) != (want == 1) {
			t.Error(err)
		}
	}
	r.stop()
	mu.Lock()
	defer mu.Unlock()
	if got := text.String(); strings.Contains(got, theSecret) || !strings.Contains(got, "the-volume") || !strings.Contains(got, "Internal") || !strings.Contains(got, "CSI reply") {
		t.Error(got)
	}
}
