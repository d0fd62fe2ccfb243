package csi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	testclock "k8s.io/utils/clock/testing"

	"github.com/volumekit/volumekit/plugins"
)

// handshakeCalls are the calls at the beginning of a connection.
var handshakeCalls = []string{"GetPluginInfo", "Probe", "GetPluginCapabilities", "NodeGetCapabilities", "NodeGetInfo"}

func TestDriverIsAskedOncePerConnection(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	f.nodeCan = []csipb.NodeServiceCapability_RPC_Type{canStage, canExpand, 200}
	f.info.AccessibleTopology = &csipb.Topology{Segments: map[string]string{"example.com/zone": "a"}}
	f.serve(t, path)
	r := runDirectory(t, DriversConfig{Endpoints: []Endpoint{{Name: fakeName, Node: "unix://" + path}}})
	d := r.usable(t)
	for range 5 {
		again, err := r.driver(r.ctx, fakeName)
		if err != nil || again != d {
			t.Fatalf("another driver: %p, %p, %v", d, again, err)
		}
		if err := publishOnce(r.ctx, d, "v"); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range handshakeCalls {
		if n := f.count(m); n != 1 {
			t.Errorf("%s was called %d times", m, n)
		}
	}
	if n := f.count("ControllerGetCapabilities"); n != 0 {
		t.Errorf("a service that was not announced was called %d times", n)
	}
	if !d.nodeCan.has(canStage) || !d.nodeCan.has(canExpand) || !d.nodeCan.has(200) || d.nodeCan.has(canStats) || d.nodeCan.has(0) {
		t.Errorf("capabilities %v", d.nodeCan)
	}
	want := NodeInfo{Driver: fakeName, ID: "node-1", MaxVolumes: 8, Topology: map[string]string{"example.com/zone": "a"}}
	if !d.info.equal(want) {
		t.Errorf("node info %+v", d.info)
	}
	if !r.Installed(fakeName) || r.Installed("other") {
		t.Error("what is installed")
	}
	s := r.Status()
	if len(s) != 1 || len(s[0].Instances) != 1 {
		t.Fatalf("status %+v", s)
	}
	if i := s[0].Instances[0]; i.Endpoint != path || i.State != DriverReady || i.Version != "1.2.3" || !i.Node || i.Controller || i.Generation != 1 || i.LastError != "" {
		t.Errorf("instance %+v", i)
	}
	if got := fmt.Sprint(s[0].NodeCapabilities); got != "[200 EXPAND_VOLUME STAGE_UNSTAGE_VOLUME]" {
		t.Error(got)
	}
	if s[0].Node == nil || !s[0].Node.equal(want) || s[0].AwaySince != nil {
		t.Errorf("status %+v", s[0])
	}
}

// TestWhyThereIsNoDriver checks the errors of drivers that are not there: they
// wait for the driver, and say what is.
func TestWhyThereIsNoDriver(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	f.serve(t, path).kill() // the socket stays
	alive := socketIn(t)
	other := newFake()
	other.name = "other.example"
	other.serve(t, alive)
	r := runDirectory(t, DriversConfig{Endpoints: []Endpoint{{Name: fakeName, Node: path}, {Name: "other.example", Node: "unix:" + alive}}})
	untilTrue(t, "the other is there", func() bool { return r.Installed("other.example") })
	expect := func(name string, ref plugins.Ref, parts ...string) {
		t.Helper()
		_, err := r.driver(r.ctx, name)
		if plugins.ClassOf(err) != plugins.ClassWaiting {
			t.Fatalf("error %v is %v", err, plugins.ClassOf(err))
		}
		if refs := plugins.WaitsFor(err); len(refs) != 1 || refs[0] != ref {
			t.Errorf("it waits for %v", refs)
		}
		for _, p := range parts {
			if !strings.Contains(err.Error(), p) {
				t.Errorf("error %q does not say %q", err, p)
			}
		}
	}
	expect(fakeName, plugins.Ref{Kind: plugins.KindDriverSocket, Name: fakeName}, fakeName, path, "nobody listens")
	expect("none.example", plugins.Ref{Kind: plugins.KindDriverSocket, Name: "none.example"}, "none.example", "not registered", fakeName, path, "other.example", alive)
	if _, err := r.driver(r.ctx, "../../etc"); plugins.ClassOf(err) != plugins.ClassPermanent {
		t.Errorf("hostile name: %v", err)
	}
	if r.Installed(fakeName) {
		t.Error("a dead driver is installed")
	}
	began := time.Now()
	expect(fakeName, plugins.Ref{Kind: plugins.KindDriverSocket, Name: fakeName}, "nobody listens")
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("a driver that is long gone was waited for %v", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.driver(ctx, fakeName); plugins.ClassOf(err) != plugins.ClassWaiting {
		t.Error(err)
	}
}

func TestRunAgain(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	f.serve(t, path)
	d := NewDrivers(DriversConfig{})
	if err := d.Add(t.Context(), Endpoint{Name: fakeName, Node: path}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.driver(t.Context(), fakeName); plugins.ClassOf(err) != plugins.ClassWaiting || !strings.Contains(err.Error(), "does not run") {
		t.Errorf("before Run: %v", err)
	}
	var last uint64
	for range 3 {
		r := startDirectory(t, d)
		found := r.usable(t)
		if found.generation <= last {
			t.Errorf("generation %d after %d", found.generation, last)
		}
		last = found.generation
		if err := d.Run(t.Context()); !errors.Is(err, errRunsTwice) {
			t.Errorf("twice at a time: %v", err)
		}
		r.stop()
	}
	bad := NewDrivers(DriversConfig{Endpoints: []Endpoint{{Name: "x", Node: "tcp://127.0.0.1:80"}}})
	if err := bad.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "unix socket") {
		t.Errorf("an endpoint that cannot be used: %v", err)
	}
}

func TestControllers(t *testing.T) {
	t.Parallel()
	publishes := []csipb.ControllerServiceCapability_RPC_Type{csipb.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	has := []csipb.PluginCapability_Service_Type{csipb.PluginCapability_Service_CONTROLLER_SERVICE}
	controller := func() *fakeDriver {
		f := newFake()
		f.services, f.ctlCan = has, publishes
		return f
	}
	t.Run("own endpoint", func(t *testing.T) {
		t.Parallel()
		node, ctl := socketIn(t), socketIn(t)
		n, c := newFake(), controller()
		n.services, c.noNode = has, true
		n.serve(t, node)
		c.serve(t, ctl)
		r := runDirectory(t, DriversConfig{})
		if err := r.Add(t.Context(), Endpoint{Name: fakeName, Node: node, Controller: ctl}); err != nil {
			t.Fatal(err)
		}
		d, err := r.controllerOf(r.ctx, fakeName)
		if err != nil || d.controller == nil || d.node != nil || d.endpoint != ctl || !d.controllerCan.has(publishes[0]) || d.info.ID != "node-1" {
			t.Errorf("controller %+v, %v", d, err)
		}
		if d := r.usable(t); d.controller != nil || d.endpoint != node {
			t.Errorf("node %+v", d)
		}
		if n.count("ControllerGetCapabilities") != 0 || c.count("NodeGetInfo") != 0 || c.count("ControllerGetCapabilities") != 1 {
			t.Errorf("calls %v and %v", n.calls, c.calls)
		}
		r.Remove(Endpoint{Name: fakeName, Node: "unix://" + node, Controller: "unix://" + ctl})
		if _, err := r.controllerOf(r.ctx, fakeName); plugins.ClassOf(err) != plugins.ClassWaiting {
			t.Error(err)
		}
	})
	t.Run("controller alone", func(t *testing.T) {
		t.Parallel()
		ctl, c := socketIn(t), controller()
		c.noNode = true
		c.serve(t, ctl)
		r := runDirectory(t, DriversConfig{Endpoints: []Endpoint{{Name: fakeName, Controller: ctl}}})
		untilTrue(t, "there is a controller", func() bool {
			_, err := r.controllerOf(r.ctx, fakeName)
			return err == nil
		})
		if _, err := r.driver(r.ctx, fakeName); plugins.ClassOf(err) != plugins.ClassWaiting || r.Installed(fakeName) {
			t.Errorf("a controller is taken for a node service: %v", err)
		}
	})
	t.Run("same endpoint", func(t *testing.T) {
		t.Parallel()
		path, f := socketIn(t), controller()
		f.serve(t, path)
		r := runDirectory(t, DriversConfig{})
		if err := r.Register(t.Context(), registeredAt(path, 1)); err != nil {
			t.Fatal(err)
		}
		d, err := r.controllerOf(r.ctx, fakeName)
		if err != nil || d != r.usable(t) {
			t.Errorf("%+v, %v", d, err)
		}
		if got := fmt.Sprint(r.Status()[0].ControllerCapabilities); got != "[PUBLISH_UNPUBLISH_VOLUME]" {
			t.Error(got)
		}
	})
	t.Run("announced, not served", func(t *testing.T) {
		t.Parallel()
		path, f := socketIn(t), controller()
		f.noController = true
		f.serve(t, path)
		r := runDirectory(t, DriversConfig{})
		if err := r.Register(t.Context(), registeredAt(path, 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.controllerOf(r.ctx, fakeName); plugins.ClassOf(err) != plugins.ClassWaiting || !strings.Contains(err.Error(), "without the service") {
			t.Error(err)
		}
	})
	t.Run("required, not announced", func(t *testing.T) {
		t.Parallel()
		path, f := socketIn(t), newFake()
		f.serve(t, path)
		r := runDirectory(t, DriversConfig{})
		if err := r.Add(t.Context(), Endpoint{Name: fakeName, Node: path, Controller: path}); err == nil || !strings.Contains(err.Error(), "does not announce a controller") {
			t.Error(err)
		}
		if f.count("ControllerGetCapabilities") != 0 {
			t.Error("a service that was not announced was called")
		}
	})
	t.Run("answers later", func(t *testing.T) {
		t.Parallel()
		path, f := socketIn(t), controller()
		f.before = func(_ context.Context, method string) error {
			if method == "ControllerGetCapabilities" && f.count(method) == 1 {
				return status.Error(codes.Internal, "cloud is away")
			}
			return nil
		}
		f.serve(t, path)
		clk := testclock.NewFakeClock(time.Unix(1e9, 0))
		r := runDirectory(t, DriversConfig{Clock: clk})
		if err := r.Register(t.Context(), registeredAt(path, 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := r.controllerOf(r.ctx, fakeName); plugins.ClassOf(err) != plugins.ClassWaiting || !strings.Contains(err.Error(), "cloud is away") {
			t.Error(err)
		}
		clk.Step(againEvery)
		untilTrue(t, "the controller has answered", func() bool {
			_, err := r.controllerOf(r.ctx, fakeName)
			return err == nil
		})
	})
}

// TestCapabilitiesAreAskedAgain has a driver deny what it announced.
func TestCapabilitiesAreAskedAgain(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	f.serve(t, path)
	clk := testclock.NewFakeClock(time.Unix(1e9, 0))
	r := runDirectory(t, DriversConfig{Clock: clk, Endpoints: []Endpoint{{Name: fakeName, Node: path}}})
	d := r.usable(t)
	deny := func() {
		t.Helper()
		_, err := call(r.ctx, d, nodeStage, "v", &csipb.NodeStageVolumeRequest{VolumeId: "v"}, d.node.NodeStageVolume)
		if plugins.ClassOf(err) != plugins.ClassUnsupported {
			t.Fatal(err)
		}
	}
	f.set(func() { f.nodeCan = nil })
	deny()
	// Whoever asks for the driver now gets it as it is now.
	if now, err := r.driver(r.ctx, fakeName); err != nil || now.nodeCan.has(canStage) || now.generation != d.generation {
		t.Errorf("driver %+v, %v", now, err)
	}
	for range 20 {
		deny()
	}
	if n := f.count("NodeGetCapabilities"); n != 2 {
		t.Errorf("asked %d times within a moment", n)
	}
	f.set(func() { f.nodeCan = []csipb.NodeServiceCapability_RPC_Type{canStage} })
	clk.Step(againEvery)
	deny()
	untilTrue(t, "the capabilities are those of now", func() bool {
		now, err := r.driver(r.ctx, fakeName)
		return err == nil && now.nodeCan.has(canStage) && now.generation == d.generation
	})
	if n := f.count("NodeGetCapabilities"); n != 3 {
		t.Errorf("asked %d times", n)
	}
	if !d.nodeCan.has(canStage) {
		t.Error("a driver was changed that had been given out")
	}
}

func TestNoticesAreCancelled(t *testing.T) {
	t.Parallel()
	d := NewDrivers(DriversConfig{})
	inside, goOn := make(chan struct{}), make(chan struct{})
	cancel := d.Subscribe(func(plugins.Ref) {
		close(inside)
		<-goOn
	})
	var wg sync.WaitGroup
	wg.Go(func() { d.notices.tell(socketRef("a")) })
	<-inside
	cancelled := make(chan struct{})
	wg.Go(func() {
		cancel()
		close(cancelled)
	})
	select {
	case <-cancelled:
		t.Error("cancelled under a call")
	case <-time.After(20 * time.Millisecond):
	}
	close(goOn)
	<-cancelled
	wg.Wait()
	cancel()
	d.notices.tell(socketRef("a")) // would close a closed channel
}
