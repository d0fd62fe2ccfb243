package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
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

// fakePublisher notes what it is told.
type fakePublisher struct {
	mu    sync.Mutex
	told  []string
	infos []NodeInfo
	fail  error
	block bool
}

func (p *fakePublisher) note(ctx context.Context, what string, info NodeInfo) error {
	p.mu.Lock()
	p.told = append(p.told, what)
	p.infos = append(p.infos, info)
	fail, block := p.fail, p.block
	p.mu.Unlock()
	if block {
		<-ctx.Done()
		return ctx.Err()
	}
	return fail
}

func (p *fakePublisher) PublishNodeInfo(ctx context.Context, info NodeInfo) error {
	return p.note(ctx, "publish "+info.Driver+" "+info.ID, info)
}

func (p *fakePublisher) WithdrawNodeInfo(ctx context.Context, driver string) error {
	return p.note(ctx, "withdraw "+driver, NodeInfo{})
}

func (p *fakePublisher) calls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.told...)
}

func (p *fakePublisher) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *fakePublisher) expect(t *testing.T, want ...string) {
	t.Helper()
	untilTrue(t, fmt.Sprintf("the publisher is told %v", want), func() bool { return len(p.calls()) >= len(want) })
	if got := p.calls(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("the publisher was told %v, not %v", got, want)
	}
}

const (
	published1 = "publish " + fakeName + " node-1"
	published2 = "publish " + fakeName + " node-2"
	withdrawn  = "withdraw " + fakeName
)

func isAway(r *running) bool { return r.Status()[0].AwaySince != nil }

func TestGrace(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	s := f.serve(t, path)
	clk, p := testclock.NewFakeClock(time.Unix(1e9, 0)), &fakePublisher{}
	r := runDirectory(t, DriversConfig{Clock: clk, NodeInfo: p, Grace: time.Minute, Endpoints: []Endpoint{{Name: fakeName, Node: path}}})
	r.usable(t)
	p.expect(t, published1)

	s.kill()
	untilTrue(t, "it is away", func() bool { return isAway(r) })
	untilTrue(t, "the keeper waits", clk.HasWaiters)
	clk.Step(time.Minute - time.Second)
	s = f.serve(t, path) // back in time
	untilTrue(t, "it is back", func() bool { return !isAway(r) })
	untilTrue(t, "nothing is due", func() bool { return !clk.HasWaiters() })
	clk.Step(time.Hour)
	p.expect(t, published1)

	s.kill()
	untilTrue(t, "it is away", func() bool { return isAway(r) })
	untilTrue(t, "the keeper waits", clk.HasWaiters)
	clk.Step(time.Minute)
	p.expect(t, published1, withdrawn)
	f.serve(t, path)
	p.expect(t, published1, withdrawn, published1)
	r.stop() // withdraws nothing
	clk.Step(time.Hour)
	p.expect(t, published1, withdrawn, published1)
}

// TestDeregisteredDriverIsWithdrawn has a driver leave for good.
func TestDeregisteredDriverIsWithdrawn(t *testing.T) {
	t.Parallel()
	path := socketIn(t)
	newFake().serve(t, path)
	clk, p := testclock.NewFakeClock(time.Unix(1e9, 0)), &fakePublisher{}
	r := runDirectory(t, DriversConfig{Clock: clk, NodeInfo: p})
	if err := r.Register(t.Context(), registeredAt(path, 1)); err != nil {
		t.Fatal(err)
	}
	p.expect(t, published1)
	r.Deregister(registeredAt(path, 1))
	untilTrue(t, "the keeper waits", clk.HasWaiters)
	if s := r.Status(); len(s) != 1 || s[0].AwaySince == nil {
		t.Errorf("status %+v", s)
	}
	clk.Step(defaultGrace)
	p.expect(t, published1, withdrawn)
	if s := r.Status(); len(s) != 0 {
		t.Errorf("status %+v", s)
	}
}

// TestPublisherThatFails tries again with growing pauses, and holds up no call.
func TestPublisherThatFails(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	f.info.MaxVolumesPerNode = math.MaxInt64
	f.serve(t, path)
	clk, p := testclock.NewFakeClock(time.Unix(1e9, 0)), &fakePublisher{fail: errors.New("no API server")}
	r := runDirectory(t, DriversConfig{Clock: clk, NodeInfo: p, Endpoints: []Endpoint{{Name: fakeName, Node: path}}})
	d := r.usable(t)
	if err := publishOnce(r.ctx, d, "v"); err != nil || d.info.MaxVolumes != math.MaxInt64 {
		t.Error(err, d.info)
	}
	want := []string{published1}
	p.expect(t, want...)
	for _, pause := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		untilTrue(t, "the keeper waits", clk.HasWaiters)
		clk.Step(pause - time.Millisecond)
		p.expect(t, want...)
		untilTrue(t, "the keeper waits", clk.HasWaiters)
		clk.Step(time.Millisecond)
		want = append(want, published1)
		p.expect(t, want...)
	}
	untilTrue(t, "the keeper waits", clk.HasWaiters)
	p.set(func() { p.fail = nil })
	clk.Step(8 * time.Second)
	p.expect(t, append(want, published1)...)
	untilTrue(t, "nothing is due", func() bool { return !clk.HasWaiters() })
	if p.infos[0].MaxVolumes != math.MaxInt32 {
		t.Errorf("published %d volumes", p.infos[0].MaxVolumes)
	}
}

func TestPublisherThatHangs(t *testing.T) {
	t.Parallel()
	path := socketIn(t)
	newFake().serve(t, path)
	p := &fakePublisher{block: true}
	r := runDirectory(t, DriversConfig{NodeInfo: p, Endpoints: []Endpoint{{Name: fakeName, Node: path}}})
	p.expect(t, published1)
	if err := publishOnce(r.ctx, r.usable(t), "v"); err != nil {
		t.Error(err)
	}
	r.stop() // within its time
}

func TestNodeInfoIsRefreshed(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	f.serve(t, path)
	clk, p := testclock.NewFakeClock(time.Unix(1e9, 0)), &fakePublisher{}
	r := runDirectory(t, DriversConfig{Clock: clk, NodeInfo: p, Endpoints: []Endpoint{{Name: fakeName, Node: path}}})
	old := r.usable(t)
	p.expect(t, published1)
	if err := r.refreshNodeInfo(t.Context(), fakeName); err != nil {
		t.Fatal(err)
	}
	if d := r.usable(t); d != old {
		t.Error("nothing changed, but the driver is another")
	}
	for len(r.told) > 0 {
		<-r.told
	}
	f.set(func() { f.info = &csipb.NodeGetInfoResponse{NodeId: "node-2"} })
	if err := r.refreshNodeInfo(t.Context(), fakeName); err != nil {
		t.Fatal(err)
	}
	if d := r.usable(t); d.info.ID != "node-2" || d.generation != old.generation || old.info.ID != "node-1" {
		t.Errorf("node info %+v, before %+v", d.info, old.info)
	}
	if len(r.told) != 1 {
		t.Errorf("%d notices", len(r.told))
	}
	p.expect(t, published1, published2)

	f.set(func() { f.info = &csipb.NodeGetInfoResponse{} })
	if err := r.refreshNodeInfo(t.Context(), fakeName); err == nil || r.usable(t).info.ID != "node-2" {
		t.Errorf("an answer that cannot be used: %v, %+v", err, r.usable(t).info)
	}
	if err := r.refreshNodeInfo(t.Context(), "none.example"); plugins.ClassOf(err) != plugins.ClassWaiting {
		t.Error(err)
	}
}

// TestRefreshesShareAnAnswer has many callers at a time.
func TestRefreshesShareAnAnswer(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	goOn := make(chan struct{})
	f.before = func(_ context.Context, method string) error {
		if method == "NodeGetInfo" && f.count(method) > 1 {
			<-goOn
			return status.Error(codes.Internal, "broken")
		}
		return nil
	}
	f.serve(t, path)
	r := runDirectory(t, DriversConfig{Endpoints: []Endpoint{{Name: fakeName, Node: path}}})
	r.usable(t)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := r.refreshNodeInfo(t.Context(), fakeName); answered(err) != codes.Internal {
				t.Error(err)
			}
		})
	}
	untilTrue(t, "it is asked", func() bool { return f.count("NodeGetInfo") == 2 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.refreshNodeInfo(ctx, fakeName); plugins.ClassOf(err) != plugins.ClassTransient {
		t.Errorf("one who does not wait: %v", err)
	}
	close(goOn)
	wg.Wait()
	if n := f.count("NodeGetInfo"); n > 4 {
		t.Errorf("it was asked %d times", n)
	}
}

func TestUpdatePeriod(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	f.serve(t, path)
	clk := testclock.NewFakeClock(time.Unix(1e9, 0))
	r := runDirectory(t, DriversConfig{Clock: clk, Endpoints: []Endpoint{{Name: fakeName, Node: path}}})
	r.usable(t)
	asked := func(n int) {
		t.Helper()
		untilTrue(t, fmt.Sprintf("it is asked %d times", n), func() bool { return f.count("NodeGetInfo") >= n })
		if got := f.count("NodeGetInfo"); got != n {
			t.Fatalf("asked %d times, not %d", got, n)
		}
	}
	r.setUpdatePeriod(fakeName, 30*time.Second)
	for n := range 3 {
		untilTrue(t, "the keeper waits", clk.HasWaiters)
		clk.Step(30*time.Second - 1)
		untilTrue(t, "the keeper waits", clk.HasWaiters)
		asked(1 + n)
		clk.Step(1)
		asked(2 + n)
	}
	untilTrue(t, "the keeper waits", clk.HasWaiters)
	r.setUpdatePeriod(fakeName, 10*time.Second)
	f.set(func() { f.info = &csipb.NodeGetInfoResponse{NodeId: "node-2"} })
	// The keeper may still be about to see the new period.
	untilTrue(t, "it is asked", func() bool {
		clk.Step(time.Second)
		d, err := r.driver(r.ctx, fakeName)
		return err == nil && d.info.ID == "node-2"
	})
	r.setUpdatePeriod(fakeName, 0)
	untilTrue(t, "nothing is due", func() bool { return !clk.HasWaiters() })
	n := f.count("NodeGetInfo")
	clk.Step(time.Hour)
	asked(n)
	r.setUpdatePeriod("not a name", time.Second)
	r.setUpdatePeriod("none.example", time.Second)
	if s := r.Status(); len(s) != 1 {
		t.Errorf("status %+v", s)
	}
}

func TestHostileNodeInfo(t *testing.T) {
	t.Parallel()
	many := func(n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprint("example.com/k", i)] = "v"
		}
		return m
	}
	cases := map[string]struct {
		id       string
		max      int64
		topology map[string]string
		wrong    string
	}{
		"good":             {id: "n", max: 3, topology: map[string]string{"topology.kubernetes.io/zone": "a-1"}},
		"negative":         {id: "n", max: -5},
		"longest ID":       {id: strings.Repeat("i", 256)},
		"strange ID":       {id: "projects/p/zones/z/é ^"},
		"no ID":            {wrong: "no node ID"},
		"long ID":          {id: strings.Repeat("i", 257), wrong: "257 bytes"},
		"control letters":  {id: "a\nb", wrong: "control"},
		"most segments":    {id: "n", topology: many(64)},
		"too many":         {id: "n", topology: many(65), wrong: "65 topology segments"},
		"bad key":          {id: "n", topology: map[string]string{"a b": "c"}, wrong: "topology key"},
		"empty key":        {id: "n", topology: map[string]string{"": "c"}, wrong: "topology key"},
		"long key":         {id: "n", topology: map[string]string{strings.Repeat("k", 1000): "c"}, wrong: "1000 bytes"},
		"bad value":        {id: "n", topology: map[string]string{"a": "b/c"}, wrong: "topology key a"},
		"long value":       {id: "n", topology: map[string]string{"a": strings.Repeat("v", 64)}, wrong: "topology key a"},
		"control in value": {id: "n", topology: map[string]string{"a": "b\x00"}, wrong: "topology key a"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res := &csipb.NodeGetInfoResponse{NodeId: c.id, MaxVolumesPerNode: c.max}
			if c.topology != nil {
				res.AccessibleTopology = &csipb.Topology{Segments: c.topology}
			}
			info, err := nodeInfoOf(fakeName, res)
			if c.wrong != "" {
				if no := (*refusedError)(nil); !errors.As(err, &no) || !strings.Contains(err.Error(), c.wrong) || len(err.Error()) > 600 || strings.ContainsAny(err.Error(), "\n\x00") {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil || info.ID != c.id || info.MaxVolumes != max(0, c.max) || !maps.Equal(info.Topology, c.topology) {
				t.Errorf("%+v, %v", info, err)
			}
		})
	}
	if info, err := nodeInfoOf(fakeName, nil); err == nil {
		t.Errorf("no answer: %+v", info)
	}
}

// TestHostileDriver registers drivers that answer nonsense.
func TestHostileDriver(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		make  func(*fakeDriver)
		wrong string
	}{
		"long name":     {func(f *fakeDriver) { f.name = strings.Repeat("n", 1<<20) }, "(1048576 bytes)"},
		"strange name":  {func(f *fakeDriver) { f.name = "a\n\x1b[31m" }, `"a\n\x1b[31m"`},
		"no node ID":    {func(f *fakeDriver) { f.info.NodeId = "" }, "no node ID"},
		"no node":       {func(f *fakeDriver) { f.noNode = true }, "NodeGetCapabilities with Unimplemented"},
		"long version":  {func(f *fakeDriver) { f.version = strings.Repeat("v", 1<<16) + "\n" }, ""},
		"capabilities":  {func(f *fakeDriver) { f.nodeCan = manyCapabilities(10_000) }, ""},
		"no info, call": {func(f *fakeDriver) { f.before = unimplemented("NodeGetInfo") }, "NodeGetInfo with Unimplemented"},
		"no name, call": {func(f *fakeDriver) { f.before = unimplemented("GetPluginInfo") }, "GetPluginInfo with Unimplemented"},
		"no probe":      {func(f *fakeDriver) { f.before = unimplemented("Probe") }, ""},
		"no services":   {func(f *fakeDriver) { f.before = unimplemented("GetPluginCapabilities") }, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, f := socketIn(t), newFake()
			c.make(f)
			f.serve(t, path)
			r := runDirectory(t, DriversConfig{})
			err := r.Register(t.Context(), registeredAt(path, 1))
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) || len(err.Error()) > 2048 {
					t.Errorf("error %.300v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			d := r.usable(t)
			if v := r.Status()[0].Instances[0].Version; len(v) > 200 || strings.Contains(v, "\n") || len(d.nodeCan) > maxCapabilities {
				t.Errorf("version %.200q, %d capabilities", v, len(d.nodeCan))
			}
		})
	}
}

func unimplemented(method string) func(context.Context, string) error {
	return func(_ context.Context, m string) error {
		if m == method {
			return status.Error(codes.Unimplemented, "unknown method")
		}
		return nil
	}
}

func manyCapabilities(n int) []csipb.NodeServiceCapability_RPC_Type {
	var list []csipb.NodeServiceCapability_RPC_Type
	for i := range n {
		list = append(list, csipb.NodeServiceCapability_RPC_Type(i-10))
	}
	return list
}

// TestEndpointWithoutNodeInfo tolerates what registration does not.
func TestEndpointWithoutNodeInfo(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	f.before = unimplemented("NodeGetInfo")
	f.serve(t, path)
	p := &fakePublisher{}
	r := runDirectory(t, DriversConfig{NodeInfo: p, Endpoints: []Endpoint{{Name: fakeName, Node: path}}})
	if d := r.usable(t); d.info.ID != "" || d.info.Driver != fakeName {
		t.Errorf("node info %+v", d.info)
	}
	r.stop()
	p.expect(t)
}
