package csi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/volumekit/volumekit/csi/registration"
	"github.com/volumekit/volumekit/plugins"
)

func TestWrongDriver(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	f.name = "impostor.example"
	f.serve(t, path)
	r := runDirectory(t, DriversConfig{})
	err := r.Register(t.Context(), registeredAt(path, 1))
	if err == nil || !strings.Contains(err.Error(), fakeName) || !strings.Contains(err.Error(), "impostor.example") {
		t.Errorf("registered: %v", err)
	}
	if s := r.Status(); len(s) != 0 {
		t.Errorf("status %+v", s)
	}
	if err := r.Add(t.Context(), Endpoint{Name: fakeName, Node: path}); err == nil || !strings.Contains(err.Error(), "impostor.example") {
		t.Errorf("added: %v", err)
	}
	if n := f.count("NodeGetInfo") + f.count("NodeGetCapabilities"); n != 0 {
		t.Errorf("the wrong driver was asked %d questions", n)
	}
}

// TestRightDriverAfterTheWrong replaces an impostor at an endpoint.
func TestRightDriverAfterTheWrong(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	f.name = "impostor.example"
	s := f.serve(t, path)
	r := runDirectory(t, DriversConfig{Endpoints: []Endpoint{{Name: fakeName, Node: path}}})
	untilTrue(t, "it is refused", func() bool { return r.Status()[0].Instances[0].State == DriverRefused })
	if _, err := r.driver(r.ctx, fakeName); plugins.ClassOf(err) != plugins.ClassWaiting || !strings.Contains(err.Error(), "impostor.example") {
		t.Error(err)
	}
	s.kill()
	newFake().serve(t, path)
	r.usable(t)
}

func TestDriverThatIsNotReady(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	f.ready = wrapperspb.Bool(false)
	f.before = func(_ context.Context, method string) error {
		if method == "Probe" && f.count(method) == 1 {
			return status.Error(codes.Unavailable, "starting")
		}
		return nil
	}
	f.serve(t, path)
	r := runDirectory(t, DriversConfig{})
	result := make(chan error, 1)
	go func() { result <- r.Register(t.Context(), registeredAt(path, 1)) }()
	untilTrue(t, "it was asked again", func() bool { return f.count("Probe") > 2 })
	if f.count("NodeGetInfo") != 0 || r.Installed(fakeName) {
		t.Error("it is used before it is ready")
	}
	if s := r.Status()[0].Instances[0]; s.State != DriverAsking || !strings.Contains(s.LastError, "not ready") {
		t.Errorf("status %+v", s)
	}
	f.set(func() { f.ready = wrapperspb.Bool(true) })
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	r.usable(t)
	if n := f.count("GetPluginInfo"); n != 1 {
		t.Errorf("GetPluginInfo was called %d times", n)
	}
}

// TestTwoInstances has a newer driver beside an older one, and takes either
// away.
func TestTwoInstances(t *testing.T) {
	t.Parallel()
	for _, first := range []int{0, 1} {
		t.Run(fmt.Sprintf("remove %d first", first), func(t *testing.T) {
			t.Parallel()
			r := runDirectory(t, DriversConfig{})
			var fakes []*fakeDriver
			var servers []*fakeServer
			var all []registration.Instance
			uses := func(want int) {
				t.Helper()
				d, err := r.driver(r.ctx, fakeName)
				if err != nil || d.info.ID != fmt.Sprint("node-", want) {
					t.Fatalf("it is not number %d that is used: %+v, %v", want, d, err)
				}
			}
			for n := range 2 {
				f := newFake()
				f.info.NodeId = fmt.Sprint("node-", n)
				path := socketIn(t)
				fakes, servers = append(fakes, f), append(servers, f.serve(t, path))
				all = append(all, registeredAt(path, uint64(n+1)))
				if err := r.Register(t.Context(), all[n]); err != nil {
					t.Fatal(err)
				}
				uses(n)
			}
			if s := r.Status(); len(s) != 1 || len(s[0].Instances) != 2 || !s[0].Instances[0].Node || s[0].Instances[1].Node {
				t.Errorf("status %+v", s)
			}
			servers[1].kill()
			untilTrue(t, "the older is used", func() bool {
				d, err := r.driver(r.ctx, fakeName)
				return err == nil && d.info.ID == "node-0"
			})
			fakes[1].serve(t, all[1].Endpoint)
			untilTrue(t, "the newer is used again", func() bool {
				d, err := r.driver(r.ctx, fakeName)
				return err == nil && d.info.ID == "node-1"
			})
			stranger := all[0]
			stranger.Generation = 77
			r.Deregister(stranger) // nobody
			r.Deregister(all[first])
			uses(1 - first)
			r.Deregister(all[first])
			uses(1 - first)
			r.Deregister(all[1-first])
			if _, err := r.driver(r.ctx, fakeName); plugins.ClassOf(err) != plugins.ClassWaiting || r.Installed(fakeName) {
				t.Errorf("both are gone: %v", err)
			}
		})
	}
}

func TestNodeInfoThatFailsFirst(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	f.before = func(_ context.Context, method string) error {
		if method == "NodeGetInfo" && f.count(method) < 4 {
			return status.Error(codes.Internal, "no metadata service yet")
		}
		return nil
	}
	f.serve(t, path)
	r := runDirectory(t, DriversConfig{})
	if err := r.Register(t.Context(), registeredAt(path, 1)); err != nil {
		t.Fatal(err)
	}
	r.usable(t)
	if f.count("NodeGetInfo") != 4 || f.count("NodeGetCapabilities") != 1 || f.count("GetPluginInfo") != 1 {
		t.Errorf("calls %v", f.calls)
	}
}

// TestRegisterGivesUp ends the context of a registration: nothing of it stays.
func TestRegisterGivesUp(t *testing.T) {
	t.Parallel()
	path, f := socketIn(t), newFake()
	f.before = func(_ context.Context, method string) error {
		if method == "NodeGetInfo" {
			return status.Error(codes.Internal, "no metadata service")
		}
		return nil
	}
	f.serve(t, path)
	r := runDirectory(t, DriversConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- r.Register(ctx, registeredAt(path, 1)) }()
	untilTrue(t, "it fails", func() bool { return f.count("NodeGetInfo") > 1 })
	if r.Installed(fakeName) {
		t.Error("it is used without node info")
	}
	cancel()
	err := <-result
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "no metadata service") {
		t.Errorf("error %v", err)
	}
	if s := r.Status(); len(s) != 0 {
		t.Errorf("status %+v", s)
	}
	n := f.count("NodeGetInfo")
	r.stop()
	if f.count("NodeGetInfo") > n+1 {
		t.Error("it was asked on")
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	good := registeredAt("/run/csi.sock", 1).Info
	cases := map[string]struct {
		change func(*registration.Info)
		ok     bool
	}{
		"good":            {func(*registration.Info) {}, true},
		"newer versions":  {func(i *registration.Info) { i.Versions = []string{"2.0.0", "1.13.0", "nonsense"} }, true},
		"no version 1":    {func(i *registration.Info) { i.Versions = []string{"0.3.0", "2.0.0"} }, false},
		"no versions":     {func(i *registration.Info) { i.Versions = nil }, false},
		"bad name":        {func(i *registration.Info) { i.Name = "a/b" }, false},
		"other type":      {func(i *registration.Info) { i.Type = registration.DRAPlugin }, false},
		"no endpoint":     {func(i *registration.Info) { i.Endpoint = "" }, false},
		"network":         {func(i *registration.Info) { i.Endpoint = "tcp://10.0.0.1:1" }, false},
		"relative":        {func(i *registration.Info) { i.Endpoint = "csi.sock" }, false},
		"control letters": {func(i *registration.Info) { i.Endpoint = "/run/\x00" }, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			info := good
			c.change(&info)
			if err := NewDrivers(DriversConfig{}).Validate(info); (err == nil) != c.ok {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	cases := map[string]string{
		"":                              "",
		"/a/b.sock":                     "/a/b.sock",
		"unix:///a/b.sock":              "/a/b.sock",
		"unix:/a/b.sock":                "/a/b.sock",
		"/a//b/../c":                    "/a/c",
		"unix://a/b":                    "!",
		"unix:b":                        "!",
		"unix-abstract:/a":              "!",
		"dns:///a":                      "!",
		"http://a":                      "!",
		"a":                             "!",
		"@abstract":                     "!",
		"unix:":                         "!",
		"/" + strings.Repeat("a", 5000): "!",
	}
	for address, want := range cases {
		got, err := socketPath(address)
		if want == "!" {
			if plugins.ClassOf(err) != plugins.ClassPermanent {
				t.Errorf("%.40q gives %q, %v", address, got, err)
			}
		} else if err != nil || got != want {
			t.Errorf("%.40q gives %q, %v", address, got, err)
		}
	}
}
