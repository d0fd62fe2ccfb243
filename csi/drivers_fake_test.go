package csi

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/volumekit/volumekit/csi/registration"
	"github.com/volumekit/volumekit/plugins"
)

const fakeName = "fake.volumekit.example"

// fakeDriver answers what its fields say. Fields other than those under mu are
// set before it serves.
type fakeDriver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedNodeServer
	csipb.UnimplementedControllerServer

	name, version string
	services      []csipb.PluginCapability_Service_Type
	noNode        bool
	noController  bool
	// before is called at the beginning of each call.
	before func(ctx context.Context, method string) error

	mu      sync.Mutex
	ready   *wrapperspb.BoolValue
	info    *csipb.NodeGetInfoResponse
	nodeCan []csipb.NodeServiceCapability_RPC_Type
	ctlCan  []csipb.ControllerServiceCapability_RPC_Type
	calls   map[string]int
}

func newFake() *fakeDriver {
	return &fakeDriver{
		name: fakeName, version: "1.2.3",
		info:    &csipb.NodeGetInfoResponse{NodeId: "node-1", MaxVolumesPerNode: 8},
		nodeCan: []csipb.NodeServiceCapability_RPC_Type{canStage},
		calls:   map[string]int{},
	}
}

func (f *fakeDriver) count(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[method]
}

func (f *fakeDriver) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeDriver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: f.name, VendorVersion: f.version}, nil
}

func (f *fakeDriver) GetPluginCapabilities(context.Context, *csipb.GetPluginCapabilitiesRequest) (*csipb.GetPluginCapabilitiesResponse, error) {
	res := &csipb.GetPluginCapabilitiesResponse{Capabilities: []*csipb.PluginCapability{{}}}
	for _, s := range f.services {
		res.Capabilities = append(res.Capabilities, &csipb.PluginCapability{
			Type: &csipb.PluginCapability_Service_{Service: &csipb.PluginCapability_Service{Type: s}},
		})
	}
	return res, nil
}

func (f *fakeDriver) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &csipb.ProbeResponse{Ready: f.ready}, nil
}

func (f *fakeDriver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.info, nil
}

func (f *fakeDriver) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (*csipb.NodeGetCapabilitiesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	res := &csipb.NodeGetCapabilitiesResponse{Capabilities: []*csipb.NodeServiceCapability{{}}}
	for _, c := range f.nodeCan {
		res.Capabilities = append(res.Capabilities, &csipb.NodeServiceCapability{
			Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return res, nil
}

func (f *fakeDriver) ControllerGetCapabilities(context.Context, *csipb.ControllerGetCapabilitiesRequest) (*csipb.ControllerGetCapabilitiesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	res := &csipb.ControllerGetCapabilitiesResponse{}
	for _, c := range f.ctlCan {
		res.Capabilities = append(res.Capabilities, &csipb.ControllerServiceCapability{
			Type: &csipb.ControllerServiceCapability_Rpc{Rpc: &csipb.ControllerServiceCapability_RPC{Type: c}},
		})
	}
	return res, nil
}

func (f *fakeDriver) NodePublishVolume(context.Context, *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	return &csipb.NodePublishVolumeResponse{}, nil
}

func (f *fakeDriver) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	method := filepath.Base(info.FullMethod)
	f.mu.Lock()
	f.calls[method]++
	f.mu.Unlock()
	if f.before != nil {
		if err := f.before(ctx, method); err != nil {
			return nil, err
		}
	}
	return handle(ctx, req)
}

// fakeServer is one life of a fake driver.
type fakeServer struct {
	grpc *grpc.Server
	wg   sync.WaitGroup
}

// serve serves at path, in the place of what is there, until stop or the end of
// the test.
func (f *fakeDriver) serve(t testing.TB, path string) *fakeServer {
	t.Helper()
	_ = os.Remove(path)
	l, err := listenAt(path)
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeServer{grpc: grpc.NewServer(grpc.UnaryInterceptor(f.intercept))}
	csipb.RegisterIdentityServer(s.grpc, f)
	if !f.noNode {
		csipb.RegisterNodeServer(s.grpc, f)
	}
	if !f.noController {
		csipb.RegisterControllerServer(s.grpc, f)
	}
	s.wg.Go(func() { _ = s.grpc.Serve(l) })
	t.Cleanup(s.kill)
	return s
}

// listenAt listens at a path of any length, and leaves the socket at the end, as
// a killed driver does.
func listenAt(path string) (net.Listener, error) {
	short := path
	if len(path) > 100 {
		folder, err := os.Open(filepath.Dir(path))
		if err != nil {
			return nil, err
		}
		defer folder.Close()
		short = filepath.Join("/proc/self/fd", itoa(folder.Fd()), filepath.Base(path))
	}
	l, err := net.Listen("unix", short)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.New("no unix listener")
	}
	u.SetUnlinkOnClose(false)
	return u, nil
}

func (s *fakeServer) kill() {
	s.grpc.Stop()
	s.wg.Wait()
}

// socketIn is a path for a socket.
func socketIn(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// running is a directory that runs.
type running struct {
	*Drivers
	ctx  context.Context
	stop func()
	// told gets a value after notices.
	told chan plugins.Ref
}

// runDirectory runs a directory until the end of the test.
func runDirectory(t testing.TB, c DriversConfig) *running {
	t.Helper()
	return startDirectory(t, NewDrivers(c))
}

func startDirectory(t testing.TB, d *Drivers) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{Drivers: d, ctx: t.Context(), told: make(chan plugins.Ref, 10_000)}
	unsubscribe := d.Subscribe(func(ref plugins.Ref) { r.told <- ref })
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(5 * time.Second):
			t.Error("Run does not end")
		}
		unsubscribe()
	})
	t.Cleanup(r.stop)
	untilTrue(t, "it runs", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.spawn != nil
	})
	return r
}

// untilTrue waits for a condition.
func untilTrue(t testing.TB, what string, holds func() bool) {
	t.Helper()
	end := time.After(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("it did not come to pass: %s", what)
		}
	}
}

// usable waits for the fake driver.
func (r *running) usable(t testing.TB) *driver {
	t.Helper()
	var found *driver
	untilTrue(t, "the driver can be used", func() bool {
		var err error
		found, err = r.driver(r.ctx, fakeName)
		return err == nil
	})
	return found
}

// publishOnce makes a call about a volume.
func publishOnce(ctx context.Context, d *driver, volume string) error {
	_, err := call(ctx, d, nodePublish, volume, &csipb.NodePublishVolumeRequest{VolumeId: volume}, d.node.NodePublishVolume)
	return err
}

// registeredAt is an instance as a watcher hands it over.
func registeredAt(path string, generation uint64) registration.Instance {
	return registration.Instance{
		Info: registration.Info{
			Type: registration.CSIPlugin, Name: fakeName, Endpoint: path, Versions: []string{"1.0.0"},
		},
		Socket: "/registry/" + fakeName + "-reg.sock", Generation: generation,
	}
}

func itoa(n uintptr) string { return strconv.FormatUint(uint64(n), 10) }
