package csi

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/memory"
)

const gib = int64(1) << 30

// growthRig is the plugin with one published volume, sources in memory, and a
// driver that does as it is told.
type growthRig struct {
	*testing.T
	*Plugin
	store  *memory.Store
	events *memory.Recorder
	fake   *growthDriver
	pv     *v1.PersistentVolume
	claim  *v1.PersistentVolumeClaim
	pod    *v1.Pod
}

// growthDriver imitates the driver, and the directory that finds it.
type growthDriver struct {
	csipb.NodeClient
	csipb.ControllerClient
	d *driver

	mu        sync.Mutex
	calls     []string
	node      *csipb.NodeExpandVolumeRequest
	control   *csipb.ControllerExpandVolumeRequest
	nodeErr   error
	ctrlErr   error
	nodeReply csipb.NodeExpandVolumeResponse
	ctrlReply csipb.ControllerExpandVolumeResponse
	missing   error
}

func (f *growthDriver) driver(context.Context, string) (*driver, error) { return f.d, f.missing }

func (f *growthDriver) controllerOf(context.Context, string) (*driver, error) { return f.d, f.missing }

func (f *growthDriver) NodeExpandVolume(_ context.Context, r *csipb.NodeExpandVolumeRequest, _ ...grpc.CallOption) (*csipb.NodeExpandVolumeResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls, f.node = append(f.calls, "node"), r
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: f.nodeReply.CapacityBytes}, f.nodeErr
}

func (f *growthDriver) ControllerExpandVolume(_ context.Context, r *csipb.ControllerExpandVolumeRequest, _ ...grpc.CallOption) (*csipb.ControllerExpandVolumeResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls, f.control = append(f.calls, "controller"), r
	return &csipb.ControllerExpandVolumeResponse{
		CapacityBytes: f.ctrlReply.CapacityBytes, NodeExpansionRequired: f.ctrlReply.NodeExpansionRequired,
	}, f.ctrlErr
}

// took returns the calls since it was called last.
func (f *growthDriver) took() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.calls
	f.calls = nil
	return strings.Join(list, " ")
}

func size(bytes int64) *resource.Quantity { q := quantityOf(bytes); return &q }

func storageList(bytes int64) v1.ResourceList {
	return v1.ResourceList{storage: quantityOf(bytes)}
}

// newGrowthRig has a volume of 1 GiB, in which the storage has grown to 2 and
// the node is to do its part.
func newGrowthRig(t *testing.T, change ...func(*growthRig)) *growthRig {
	t.Helper()
	r := &growthRig{T: t, store: memory.NewStore(), events: memory.NewRecorder(0)}
	root := t.TempDir()
	host := r.store.Host(plugins.Layout{Root: root}, mounttest.New(mounttest.Options{Dir: root}))
	host.NodeName, host.Events = "node", r.events
	p, err := New(Config{Host: host, Drivers: NewDrivers(DriversConfig{}), Expansion: Expansion{Claims: r.store}})
	if err != nil {
		t.Fatal(err)
	}
	r.Plugin, r.fake = p, &growthDriver{}
	r.fake.d = &driver{
		name: "d", node: r.fake, controller: r.fake, calls: newCalls(nil, false),
		nodeCan:       capabilities[csipb.NodeServiceCapability_RPC_Type]{canStage: {}, canExpand: {}},
		controllerCan: capabilities[csipb.ControllerServiceCapability_RPC_Type]{canExpandStorage: {}},
		expansion:     capabilities[csipb.PluginCapability_VolumeExpansion_Type]{expandsOnline: {}},
	}
	p.drivers = r.fake
	r.pv = &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: v1.PersistentVolumeSpec{
			Capacity: storageList(2 * gib), AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, MountOptions: []string{"noatime"},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: "d", VolumeHandle: "h", FSType: "xfs",
				NodeExpandSecretRef:       &v1.SecretReference{Namespace: "ns", Name: "node-secret"},
				ControllerExpandSecretRef: &v1.SecretReference{Namespace: "ns", Name: "controller-secret"},
			}},
		},
	}
	r.claim = &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim", UID: "claim-uid"},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "pv", Resources: v1.VolumeResourceRequirements{Requests: storageList(2 * gib)}},
		Status: v1.PersistentVolumeClaimStatus{
			Capacity: storageList(gib), AllocatedResources: storageList(2 * gib),
			AllocatedResourceStatuses: map[v1.ResourceName]v1.ClaimResourceStatus{storage: v1.PersistentVolumeClaimNodeResizePending},
			Conditions: []v1.PersistentVolumeClaimCondition{
				{Type: v1.PersistentVolumeClaimFileSystemResizePending, Status: v1.ConditionTrue},
				{Type: "example.com/Other", Status: v1.ConditionTrue},
			},
		},
	}
	r.pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "pod-uid"}}
	for _, f := range change {
		f(r)
	}
	for name, value := range map[string]string{"node-secret": "node-password", "controller-secret": "controller-password"} {
		r.apply(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string][]byte{"key": []byte(value)}})
	}
	r.apply(r.claim)
	r.publish("pod-uid")
	return r
}

func (r *growthRig) apply(object runtime.Object) {
	r.Helper()
	if err := r.store.Apply(object); err != nil {
		r.Fatal(err)
	}
}

func (r *growthRig) volume(pod string) plugins.PodVolume {
	return plugins.PodVolume{Pod: types.UID(pod), Plugin: Name, Name: "pv"}
}

// publish says that the volume is published, for the first time or anew.
func (r *growthRig) publish(pod string) {
	r.remember(r.volume(pod), published{source: source{driver: "d", handle: "h"}, target: "/t"})
}

// now is the claim as it is.
func (r *growthRig) now() *v1.PersistentVolumeClaim {
	r.Helper()
	c, err := r.store.Claim(context.Background(), "ns", "claim")
	if err != nil {
		r.Fatal(err)
	}
	return c
}

// request asks for the size that the resolver would find.
func (r *growthRig) request(pod string) plugins.SetUpRequest {
	r.Helper()
	spec := &plugins.Spec{PV: r.pv, Claim: r.now()}
	v := r.volume(pod)
	req := plugins.SetUpRequest{
		Target: plugins.Target{Volume: v, Path: r.host.Layout.PodVolume(v)}, Spec: spec, Object: r.pod, DeviceMountPath: "/staging",
	}
	capacity := r.pv.Spec.Capacity[storage]
	req.Params.Size = &capacity
	if more := r.config.Expansion.wished(spec); more != nil {
		req.Params.Size = more
	}
	return req
}

func (r *growthRig) expand() (resource.Quantity, error) {
	r.Helper()
	return r.Expand(context.Background(), r.request("pod-uid"))
}

// state is what the claim says of its size.
func (r *growthRig) state() string {
	r.Helper()
	c := r.now()
	text := fmt.Sprintf("%d", c.Status.Capacity.Storage().Value()/gib)
	if s := c.Status.AllocatedResourceStatuses[storage]; s != "" {
		text += " " + string(s)
	}
	for _, one := range c.Status.Conditions {
		if one.Type != "example.com/Other" {
			text += " +" + string(one.Type)
		}
	}
	return text
}

func (r *growthRig) reasons() string {
	var list []string
	for _, e := range r.events.List() {
		list = append(list, e.Object.Kind+"/"+e.Reason)
	}
	return strings.Join(list, " ")
}

func (r *growthRig) want(what, got, want string) {
	r.Helper()
	if got != want {
		r.Errorf("%s: got %q, want %q", what, got, want)
	}
}
