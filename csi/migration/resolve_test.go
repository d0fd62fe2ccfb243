package migration_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/volumekit/volumekit/csi/migration"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/memory"
)

// fake stands for the CSI plugin.
type fake struct{}

func (fake) Name() string { return "kubernetes.io/csi" }

func (fake) Supports(s *plugins.Spec) bool {
	return s != nil && s.PV != nil && s.PV.Spec.CSI != nil || s != nil && s.PV == nil && s.Volume != nil && s.Volume.CSI != nil
}

func (fake) Identify(s *plugins.Spec) (plugins.Identity, error) {
	return plugins.Identity{Storage: s.PV.Spec.CSI.Driver + "^" + s.PV.Spec.CSI.VolumeHandle, Attach: true, Device: true, MountOptions: true}, nil
}

func (fake) SetUp(context.Context, plugins.SetUpRequest) (plugins.SetUpResult, error) {
	return plugins.SetUpResult{}, nil
}
func (fake) TearDown(context.Context, plugins.TearDownRequest) error { return nil }

// switchable is a driver's presence.
type switchable struct{ on atomic.Bool }

func (s *switchable) Installed(string) bool { return s.on.Load() }

const objects = `
metadata: {name: n1, labels: {topology.ebs.csi.aws.com/zone: z1}}
---
metadata: {name: pv-1}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 5Gi}
  claimRef: {namespace: ns, name: c, uid: c-uid}
  mountOptions: [noatime]
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [z1]}]}]}}
  awsElasticBlockStore: {volumeID: "aws://z1/vol-1", fsType: ext4}
status: {phase: Bound}
---
metadata: {namespace: ns, name: c, uid: c-uid}
spec: {volumeName: pv-1, accessModes: [ReadWriteOnce]}
status: {phase: Bound}
---
metadata: {namespace: ns, name: p, uid: u}
spec:
  containers:
  - {name: c, volumeMounts: [{name: claimed, mountPath: /a}, {name: rw, mountPath: /b}, {name: ro, mountPath: /c}, {name: panics, mountPath: /d}]}
  volumes:
  - {name: claimed, persistentVolumeClaim: {claimName: c, readOnly: true}}
  - {name: rw, azureDisk: {diskName: d, diskURI: /subscriptions/s/d}}
  - {name: ro, azureDisk: {diskName: d, diskURI: /subscriptions/s/d, readOnly: true}}
  - {name: panics, vsphereVolume: {volumePath: p, storagePolicyName: gold}}
`

func setUp(t *testing.T, config migration.Config) (*dsw.Resolver, *v1.Pod) {
	t.Helper()
	store := memory.NewStore()
	parts := strings.Split(objects, "---\n")
	pod := &v1.Pod{}
	for i, object := range []runtime.Object{&v1.Node{}, &v1.PersistentVolume{}, &v1.PersistentVolumeClaim{}, pod} {
		if err := yaml.UnmarshalStrict([]byte(parts[i]), object); err != nil {
			t.Fatal(err)
		}
		if err := store.Apply(object); err != nil {
			t.Fatal(err)
		}
	}
	registry, err := plugins.NewRegistry(fake{})
	if err != nil {
		t.Fatal(err)
	}
	translator, err := migration.New(config)
	if err != nil {
		t.Fatal(err)
	}
	host := store.Host(plugins.Layout{Root: "/r"}, mounttest.New(mounttest.Options{}))
	host.NodeName = "n1"
	return &dsw.Resolver{Host: host, Registry: registry, Translator: translator}, pod
}

// TestResolve sees translated volumes through the resolver.
func TestResolve(t *testing.T) {
	t.Parallel()
	r, pod := setUp(t, migration.Config{})
	resolve := func(name string) dsw.Resolution {
		t.Helper()
		res, err := r.Resolve(t.Context(), pod, name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return res
	}
	res := resolve("claimed")
	if got := fmt.Sprint(res.ID, " ", res.Volume, " ", res.Params.ReadOnly, " ", res.Params.Size, " ", res.Spec.MountOptions()); got !=
		"kubernetes.io/csi/ebs.csi.aws.com^vol-1 u/kubernetes.io/csi/pv-1 true 5Gi [noatime]" {
		t.Error(got)
	}
	if !res.Spec.Migrated || res.Spec.Volume != nil || res.Spec.Claim == nil {
		t.Errorf("%+v", res.Spec)
	}
	// Two names of one disk: one volume, and readOnly stays with each name.
	rw, ro := resolve("rw"), resolve("ro")
	if rw.ID != "kubernetes.io/csi/disk.csi.azure.com^/subscriptions/s/d" || rw.Volume.Name != "~subscriptions~s~d" {
		t.Error(rw.ID, rw.Volume)
	}
	if rw.ID != ro.ID || rw.Volume != ro.Volume || rw.Params.ReadOnly || !ro.Params.ReadOnly {
		t.Error(rw.Volume, rw.Params, ro.Volume, ro.Params)
	}
	if !rw.Spec.Migrated || rw.Spec.Volume == nil || rw.Spec.Volume.Name != "rw" {
		t.Errorf("an inline volume cannot be told from one behind a claim: %+v", rw.Spec)
	}
	if _, err := r.Resolve(t.Context(), pod, "panics"); plugins.ClassOf(err) != plugins.ClassPermanent {
		t.Error(err)
	}
}

// TestResolveWaits resolves a volume once its driver has come.
func TestResolveWaits(t *testing.T) {
	t.Parallel()
	drivers := &switchable{}
	r, pod := setUp(t, migration.Config{Policy: migration.WhenInstalled, Drivers: drivers})
	world := dsw.New(dsw.Options{})
	world.SetPod(pod)
	resolve := func(name string) error {
		task, ok := world.Begin(dsw.Unresolved{Pod: pod.UID, Name: name})
		if !ok {
			t.Fatalf("no task for %s", name)
		}
		res, err := r.Resolve(t.Context(), pod, name)
		if err != nil {
			world.SetFailed(task, err, res.SpecRefs)
		} else {
			world.SetResolved(task, res)
		}
		return err
	}
	for _, name := range []string{"claimed", "rw"} {
		if err := resolve(name); plugins.ClassOf(err) != plugins.ClassWaiting {
			t.Fatal(err)
		}
	}
	drivers.on.Store(true)
	for driver, name := range map[string]string{"ebs.csi.aws.com": "claimed", "disk.csi.azure.com": "rw"} {
		change := world.Touch(plugins.Ref{Kind: plugins.KindDriverSocket, Name: driver})
		if len(change.Resolve) != 1 || change.Resolve[0].Name != name {
			t.Errorf("%s wakes %v", driver, change.Resolve)
		}
		if err := resolve(name); err != nil {
			t.Error(err)
		}
	}
}
