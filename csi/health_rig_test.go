package csi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/memory"
)

// healthRig is the plugin with drivers that tell the health they are told to. It
// lives in a bubble of testing/synctest.
type healthRig struct {
	*testing.T
	*Plugin
	events  *memory.Recorder
	sink    *healthSink
	mu      sync.Mutex
	drivers map[string]*healthDriver
	cancel  context.CancelFunc
	ended   chan error
}

func (r *healthRig) driver(_ context.Context, name string) (*driver, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.drivers[name]; d != nil {
		return d.d, nil
	}
	return nil, plugins.WaitFor(socketRef(name), nil)
}

func (r *healthRig) controllerOf(ctx context.Context, name string) (*driver, error) {
	return r.driver(ctx, name)
}

// Status lists the drivers, as [Drivers] does.
func (r *healthRig) Status() []DriverStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []DriverStatus
	for name := range r.drivers {
		list = append(list, DriverStatus{Name: name})
	}
	return list
}

// becomes replaces a driver by another one.
func (r *healthRig) becomes(name string, change func(*driver)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := *r.drivers[name].d
	next.nodeCan = maps.Clone(next.nodeCan)
	change(&next)
	r.drivers[name].d = &next
}

// swap puts a driver in place of another; nil takes it away.
func (r *healthRig) swap(name string, to *healthDriver) (was *healthDriver) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was, r.drivers[name] = r.drivers[name], to
	return was
}

type healthDriver struct {
	csipb.NodeClient
	d *driver

	mu      sync.Mutex
	volumes map[string]*csipb.VolumeHealth
	storage *csipb.NodeGetStorageHealthResponse
	stats   *csipb.NodeGetVolumeStatsResponse
	asked   []*csipb.NodeGetVolumeHealthRequest
	err     error
	hang    bool
	busy    int
	most    int
}

// set changes what the driver tells.
func (h *healthDriver) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

// begin counts a call, and hangs if it is to.
func (h *healthDriver) begin(ctx context.Context) error {
	h.mu.Lock()
	h.busy++
	h.most = max(h.most, h.busy)
	hang, err := h.hang, h.err
	h.mu.Unlock()
	defer h.set(func() { h.busy-- })
	if hang {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	return err
}

func (h *healthDriver) NodeGetVolumeHealth(ctx context.Context, r *csipb.NodeGetVolumeHealthRequest, _ ...grpc.CallOption) (*csipb.NodeGetVolumeHealthResponse, error) {
	if err := h.begin(ctx); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, r)
	return &csipb.NodeGetVolumeHealthResponse{VolumeHealth: h.volumes[r.VolumeId]}, nil
}

func (h *healthDriver) NodeGetStorageHealth(ctx context.Context, _ *csipb.NodeGetStorageHealthRequest, _ ...grpc.CallOption) (*csipb.NodeGetStorageHealthResponse, error) {
	if err := h.begin(ctx); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.storage, nil
}

func (h *healthDriver) NodeGetVolumeStats(ctx context.Context, _ *csipb.NodeGetVolumeStatsRequest, _ ...grpc.CallOption) (*csipb.NodeGetVolumeStatsResponse, error) {
	if err := h.begin(ctx); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stats, nil
}

// healthSink keeps what it is told.
type healthSink struct {
	mu   sync.Mutex
	told []string
}

func (s *healthSink) VolumeHealth(_ context.Context, v plugins.PodVolume, pod plugins.PodRef, faults []plugins.Fault) {
	s.tell(fmt.Sprintf("%s of %s", v.Name, pod.Name), faults)
}

func (s *healthSink) StorageHealth(_ context.Context, driver string, faults []plugins.Fault) {
	s.tell(driver, faults)
}

func (s *healthSink) tell(what string, faults []plugins.Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, strings.TrimSpace(what+": "+faultText(faults)))
}

// took returns what was told since it was called last, sorted.
func (s *healthSink) took() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.told
	s.told = nil
	slices.Sort(list)
	return strings.Join(list, "; ")
}

func faultText(faults []plugins.Fault) string {
	var list []string
	for _, f := range faults {
		list = append(list, f.Status+"/"+f.Reason+"/"+f.Message)
	}
	return strings.Join(list, ", ")
}

const healthPeriod = time.Minute

// onHealth runs a test with drivers "a" and "b" that have the capabilities, and
// a published volume "va" and "vb" of each.
func onHealth(t *testing.T, config Health, can []csipb.NodeServiceCapability_RPC_Type, test func(r *healthRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &healthRig{T: t, events: memory.NewRecorder(0), sink: &healthSink{}, drivers: map[string]*healthDriver{}, ended: make(chan error, 1)}
		host := memory.NewStore().Host(plugins.Layout{Root: t.TempDir()}, mounttest.New(mounttest.Options{}))
		host.Events = r.events
		config.Sink = r.sink
		p, err := New(Config{Host: host, Drivers: NewDrivers(DriversConfig{}), Health: config})
		if err != nil {
			t.Fatal(err)
		}
		r.Plugin, p.drivers = p, r
		for _, name := range []string{"a", "b"} {
			h := &healthDriver{volumes: map[string]*csipb.VolumeHealth{}, storage: &csipb.NodeGetStorageHealthResponse{}}
			h.d = &driver{name: name, node: h, calls: newCalls(nil, false), nodeCan: capabilities[csipb.NodeServiceCapability_RPC_Type]{}}
			for _, c := range can {
				h.d.nodeCan.add(c)
			}
			r.drivers[name] = h
			r.has(name, "v"+name)
		}
		ctx, cancel := context.WithCancel(t.Context())
		r.cancel = cancel
		go func() { r.ended <- p.watchHealth(ctx) }()
		defer func() {
			cancel()
			if err := <-r.ended; err != nil {
				t.Errorf("watch: %v", err)
			}
		}()
		test(r)
	})
}

var allHealth = []csipb.NodeServiceCapability_RPC_Type{canStage, canVolumeHealth, canStorageHealth}

// has publishes a healthy volume.
func (r *healthRig) has(driver, volume string) plugins.PodVolume {
	v := plugins.PodVolume{Pod: "uid", Plugin: Name, Name: volume}
	r.remember(v, published{
		source: source{driver: driver, handle: "h-" + volume}, target: "/t/" + volume, staging: "/s/" + volume,
		pod: plugins.PodRef{Namespace: "ns", Name: "pod", UID: "uid"},
	})
	r.tells(driver, volume)
	return v
}

func fault(kind csipb.VolumeHealthErrorType, reason, message string) *csipb.VolumeHealth_VolumeHealthEntry {
	return &csipb.VolumeHealth_VolumeHealthEntry{Status: kind, Reason: reason, Message: message}
}

// tells sets what a driver tells of a volume.
func (r *healthRig) tells(driver, volume string, faults ...*csipb.VolumeHealth_VolumeHealthEntry) {
	h := r.drivers[driver]
	h.set(func() { h.volumes["h-"+volume] = &csipb.VolumeHealth{VolumeId: "h-" + volume, HealthStatuses: faults} })
}

// pass lets a period pass, in no time.
func (r *healthRig) pass() {
	time.Sleep(healthPeriod)
	synctest.Wait()
}

func (r *healthRig) want(what, got, want string) {
	r.Helper()
	if got != want {
		r.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func (r *healthRig) reasons() string {
	var list []string
	for _, e := range r.events.List() {
		list = append(list, e.Type+" "+e.Reason+" "+e.Object.Name)
	}
	return strings.Join(list, "; ")
}

func (r *healthRig) known(volume string) string {
	r.Helper()
	faults, err := r.Health(context.Background(), plugins.Target{Volume: plugins.PodVolume{Pod: "uid", Plugin: Name, Name: volume}})
	if err != nil {
		r.Error(err)
	}
	return faultText(faults)
}
