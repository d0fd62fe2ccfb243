package dsw

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"go.uber.org/goleak"

	"github.com/volumekit/volumekit/plugins"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plain provides every inline volume but CSI, and NFS persistent volumes, each
// private to its pod, without mount options or block devices.
type plain struct{}

func (plain) Name() string { return "test.io/plain" }

func (plain) Supports(s *plugins.Spec) bool {
	if s.PV != nil {
		return s.PV.Spec.NFS != nil
	}
	return s.Volume.CSI == nil
}

func (plain) Identify(s *plugins.Spec) (plugins.Identity, error) {
	if s.Volume != nil && s.Volume.HostPath != nil && s.Volume.HostPath.Path == "malformed" {
		return plugins.Identity{}, errors.New("path is malformed")
	}
	id := plugins.Identity{}
	if s.PV != nil {
		id.Storage = s.PV.Spec.NFS.Server + s.PV.Spec.NFS.Path
	}
	return id, nil
}

func (plain) SetUp(context.Context, plugins.SetUpRequest) (plugins.SetUpResult, error) {
	return plugins.SetUpResult{}, nil
}
func (plain) TearDown(context.Context, plugins.TearDownRequest) error { return nil }

func (plain) References(s *plugins.Spec, pod *v1.Pod) []plugins.Ref {
	if s.Volume != nil && s.Volume.ConfigMap != nil {
		return []plugins.Ref{configMapRef(pod.Namespace, s.Volume.ConfigMap.Name)}
	}
	return nil
}

// staged provides CSI volumes: shared, with a device mount, mount options and
// block devices.
type staged struct{}

func (staged) Name() string { return "test.io/staged" }

func (staged) Supports(s *plugins.Spec) bool {
	if s.PV != nil {
		return s.PV.Spec.CSI != nil
	}
	return s.Volume.CSI != nil
}

func (staged) Identify(s *plugins.Spec) (plugins.Identity, error) {
	if s.PV == nil {
		return plugins.Identity{}, nil
	}
	return plugins.Identity{Storage: s.PV.Spec.CSI.VolumeHandle, Device: true, MountOptions: true}, nil
}

func (staged) SetUp(context.Context, plugins.SetUpRequest) (plugins.SetUpResult, error) {
	return plugins.SetUpResult{}, nil
}
func (staged) TearDown(context.Context, plugins.TearDownRequest) error { return nil }

func (staged) MapDevice(context.Context, plugins.SetUpRequest) (plugins.MapResult, error) {
	return plugins.MapResult{}, nil
}
func (staged) UnmapDevice(context.Context, plugins.TearDownRequest) error { return nil }

// api is a host source whose reads can be made to fail.
type api struct {
	mu     sync.Mutex
	claims map[string]*v1.PersistentVolumeClaim // by namespace/name
	pvs    map[string]*v1.PersistentVolume
	node   *v1.Node
	fail   map[string]error // by kind
	reads  int
}

func (a *api) Claim(_ context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reads++
	if err := a.fail["claim"]; err != nil {
		return nil, err
	}
	if c := a.claims[namespace+"/"+name]; c != nil {
		return c, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("persistentvolumeclaims"), name)
}

func (a *api) PersistentVolume(_ context.Context, name string) (*v1.PersistentVolume, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reads++
	if err := a.fail["pv"]; err != nil {
		return nil, err
	}
	if pv := a.pvs[name]; pv != nil {
		return pv, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("persistentvolumes"), name)
}

func (a *api) Node(context.Context) (*v1.Node, error) {
	a.reads++
	return a.node, a.fail["node"]
}

// bind adds a claim and a CSI persistent volume bound to each other.
func (a *api) bind(claim, pv, handle string) (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	c := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: claim, UID: types.UID("claim-" + claim)},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: pv},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	}
	p := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pv}}
	p.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: handle}
	p.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ns", Name: claim, UID: c.UID}
	p.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	a.claims["ns/"+claim], a.pvs[pv] = c, p
	return c, p
}

func newAPI() *api {
	return &api{
		claims: map[string]*v1.PersistentVolumeClaim{}, pvs: map[string]*v1.PersistentVolume{},
		fail: map[string]error{}, node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a", "cpus": "8"}}},
	}
}

func (a *api) resolver(tb testing.TB) *Resolver {
	tb.Helper()
	registry, err := plugins.NewRegistry(plain{}, staged{})
	if err != nil {
		tb.Fatal(err)
	}
	return &Resolver{
		Host:     &plugins.VolumeHost{NodeName: "n1", Claims: a, PersistentVolumes: a, Node: a},
		Registry: registry,
	}
}

// podOf makes a pod with the given volumes, all mounted by one container.
func podOf(uid string, volumes ...v1.Volume) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-" + uid, UID: types.UID(uid)}}
	pod.Spec.Volumes = volumes
	pod.Spec.Containers = []v1.Container{{Name: "c"}}
	for _, v := range volumes {
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: v.Name})
	}
	return pod
}

// edit returns a changed copy.
func edit(pod *v1.Pod, change func(*v1.Pod)) *v1.Pod {
	pod = pod.DeepCopy()
	change(pod)
	return pod
}

func emptyDir(name string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}
}

func configMap(name, object string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
		LocalObjectReference: v1.LocalObjectReference{Name: object},
	}}}
}

func claim(name, object string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: object}}}
}

func downward(name string, paths ...string) v1.Volume {
	source := &v1.DownwardAPIVolumeSource{}
	for i, path := range paths {
		source.Items = append(source.Items, v1.DownwardAPIVolumeFile{Path: strconv.Itoa(i), FieldRef: &v1.ObjectFieldSelector{FieldPath: path}})
	}
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{DownwardAPI: source}}
}

func configMapRef(namespace, name string) plugins.Ref {
	return plugins.Ref{Kind: plugins.KindConfigMap, Namespace: namespace, Name: name}
}

func claimRef(name string) plugins.Ref {
	return plugins.Ref{Kind: plugins.KindClaim, Namespace: "ns", Name: name}
}

func pvRef(name string) plugins.Ref {
	return plugins.Ref{Kind: plugins.KindPersistentVolume, Name: name}
}

func plainID(uid, name string) plugins.VolumeID {
	spec := &plugins.Spec{Volume: &v1.Volume{Name: name}}
	return plugins.VolumeIDOf("test.io/plain", plugins.Identity{}, spec, types.UID(uid))
}

func stagedID(handle string) plugins.VolumeID { return plugins.VolumeID("test.io/staged/" + handle) }

func plainVolume(uid, name string) plugins.PodVolume {
	return plugins.PodVolume{Pod: types.UID(uid), Plugin: "test.io/plain", Name: name}
}

func stagedVolume(uid, name string) plugins.PodVolume {
	return plugins.PodVolume{Pod: types.UID(uid), Plugin: "test.io/staged", Name: name}
}

// rig is a world with a resolver, driven by hand.
type rig struct {
	t testing.TB
	*World
	api *api
	r   *Resolver
}

func newRig(t testing.TB) *rig {
	a := newAPI()
	return &rig{t: t, World: New(Options{}), api: a, r: a.resolver(t)}
}

// run resolves what a change asks for until nothing is asked for, at most a
// few rounds, and returns all changes together.
func (g *rig) run(c Change) Change {
	g.t.Helper()
	sum, todo := c, c.Resolve
	for round := 0; len(todo) > 0; round++ {
		if round == 5 {
			g.t.Fatal("resolving does not come to an end")
		}
		var next []Unresolved
		for _, u := range todo {
			c := g.resolve(u)
			sum.Volumes = append(sum.Volumes, c.Volumes...)
			sum.Pods = append(sum.Pods, c.Pods...)
			next = append(next, c.Resolve...)
		}
		todo = next
	}
	return sum
}

func (g *rig) resolve(u Unresolved) Change {
	g.t.Helper()
	task, ok := g.Begin(u)
	if !ok {
		return Change{}
	}
	return g.finish(task)
}

func (g *rig) sync() { g.BeginList(); g.EndList() }

// one is the wish for one pod volume, as if the actual state had it.
func (g *rig) one(id plugins.VolumeID, v plugins.PodVolume) PodWish {
	g.t.Helper()
	wish := g.Wish(id, []plugins.PodVolume{v})
	i := slices.IndexFunc(wish.Pods, func(p PodWish) bool { return p.Volume == v })
	if i < 0 {
		g.t.Fatalf("wish of %s has no %s: %+v", id, v, wish.Pods)
	}
	return wish.Pods[i]
}

func (g *rig) want(id plugins.VolumeID, v plugins.PodVolume, want State) {
	g.t.Helper()
	if got := g.one(id, v); got.State != want {
		g.t.Errorf("%s under %s is %s (%s), want %s", v, id, got.State, got.Why, want)
	}
}

func (g *rig) err(uid, name string) error {
	g.t.Helper()
	s, _ := g.Pod(types.UID(uid))
	for _, v := range s.Volumes {
		if v.Name == name {
			return v.Err
		}
	}
	g.t.Fatalf("pod %s has no volume %s: %+v", uid, name, s)
	return nil
}
