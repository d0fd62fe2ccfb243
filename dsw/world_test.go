package dsw

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

func TestNewPodIsWanted(t *testing.T) {
	g := newRig(t)
	g.sync()
	c := g.SetPod(podOf("u1", emptyDir("a"), emptyDir("b")))
	if want := []Unresolved{{"u1", "a"}, {"u1", "b"}}; !slices.Equal(c.Resolve, want) {
		t.Fatalf("to resolve: %v, want %v", c.Resolve, want)
	}
	c = g.run(c)
	if !slices.Contains(c.Volumes, plainID("u1", "a")) || !slices.Contains(c.Volumes, plainID("u1", "b")) {
		t.Errorf("not woken: %v", c.Volumes)
	}
	wish := g.Wish(plainID("u1", "a"), nil)
	if len(wish.Pods) != 1 {
		t.Fatalf("wish: %+v", wish)
	}
	p := wish.Pods[0]
	if p.State != Wanted || p.Volume != plainVolume("u1", "a") || p.Pod == nil || p.Spec.Volume.Name != "a" ||
		!slices.Equal(p.Names, []string{"a"}) || p.Generation == 0 {
		t.Errorf("wish: %+v", p)
	}
	if g.Len() != 2 || len(slices.Collect(g.Volumes())) != 2 {
		t.Errorf("%d volumes, want 2", g.Len())
	}
}

func TestSamePodAgainAsksForNothing(t *testing.T) {
	g := newRig(t)
	pod := podOf("u1", emptyDir("a"))
	g.run(g.SetPod(pod))
	for name, again := range map[string]*v1.Pod{
		"same object": pod,
		"equal copy":  pod.DeepCopy(),
		"only status": edit(pod, func(p *v1.Pod) { p.Status.Phase = v1.PodRunning; p.Labels = map[string]string{"a": "b"} }),
	} {
		if c := g.SetPod(again); !reflect.DeepEqual(c, Change{}) {
			t.Errorf("%s: %+v", name, c)
		}
		if got := g.one(plainID("u1", "a"), plainVolume("u1", "a")); len(got.Names) != 1 || got.Pod != again {
			t.Errorf("%s: names %v, pod is the new one: %v", name, got.Names, got.Pod == again)
		}
	}
}

func TestSharedStorageIsOneVolume(t *testing.T) {
	g := newRig(t)
	g.sync()
	g.api.bind("c1", "pv1", "h")
	g.api.bind("c2", "pv2", "h") // another volume object for the same storage
	g.run(g.SetPod(podOf("u1", claim("a", "c1"), emptyDir("e"))))
	g.run(g.SetPod(podOf("u2", claim("a", "c2"), emptyDir("e"))))
	wish := g.Wish(stagedID("h"), nil)
	if len(wish.Pods) != 2 || wish.Pods[0].Volume != stagedVolume("u1", "pv1") || wish.Pods[1].Volume != stagedVolume("u2", "pv2") {
		t.Fatalf("wish: %+v", wish)
	}
	if g.Len() != 3 {
		t.Errorf("%d volumes, want the shared one and two private ones", g.Len())
	}
	c := g.RemovePod("u1")
	if !slices.Contains(c.Volumes, stagedID("h")) || !slices.Equal(c.Pods, []types.UID{"u1"}) {
		t.Errorf("change: %+v", c)
	}
	g.want(stagedID("h"), stagedVolume("u1", "pv1"), Unwanted)
	g.want(stagedID("h"), stagedVolume("u2", "pv2"), Wanted)
}

func TestTwoNamesForOneClaim(t *testing.T) {
	g := newRig(t)
	g.api.bind("c1", "pv1", "h")
	readOnly := claim("b", "c1")
	readOnly.PersistentVolumeClaim.ReadOnly = true
	writable := claim("d", "c1")
	pod := podOf("u1", writable, readOnly)
	g.run(g.SetPod(pod))
	wish := g.Wish(stagedID("h"), nil)
	if len(wish.Pods) != 1 || !slices.Equal(wish.Pods[0].Names, []string{"b", "d"}) {
		t.Fatalf("wish: %+v", wish)
	}
	if p := wish.Pods[0]; p.Params.ReadOnly || p.Spec.ReadOnly {
		t.Errorf("read-only although one name may write: %+v", p.Params)
	}
	bothRead := edit(pod, func(p *v1.Pod) { p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true })
	g.run(g.SetPod(bothRead))
	if p := g.Wish(stagedID("h"), nil).Pods[0]; !p.Params.ReadOnly || !p.Spec.ReadOnly {
		t.Errorf("writable although no name may write: %+v", p.Params)
	}
	g.run(g.SetPod(edit(bothRead, func(p *v1.Pod) {
		p.Spec.Containers[0].VolumeMounts = p.Spec.Containers[0].VolumeMounts[:1]
	})))
	if p := g.Wish(stagedID("h"), nil).Pods[0]; !slices.Equal(p.Names, []string{"d"}) {
		t.Errorf("names: %v, want only d", p.Names)
	}
	if names := wish.Pods[0].Names; !slices.Equal(names, []string{"b", "d"}) {
		t.Errorf("an earlier answer changed: %v", names)
	}
}

func TestPodStateListsNames(t *testing.T) {
	g := newRig(t)
	g.api.bind("c1", "pv1", "h1")
	g.run(g.SetPod(podOf("u1", claim("a", "c1"), claim("b", "c1"), emptyDir("c"), claim("d", "absent"))))
	g.run(g.SetPod(podOf("u2", emptyDir("x"))))
	s, ok := g.Pod("u1")
	if !ok || s.Pod == nil || len(s.Volumes) != 4 {
		t.Fatalf("state: %+v", s)
	}
	for i, want := range []plugins.PodVolume{stagedVolume("u1", "pv1"), stagedVolume("u1", "pv1"), plainVolume("u1", "c"), {}} {
		v := s.Volumes[i]
		if v.Volume != want || v.Resolved != (i < 3) || (v.Err == nil) != v.Resolved || !v.Mount || v.Device {
			t.Errorf("volume %d: %+v, want %v", i, v, want)
		}
	}
	if !g.HasPod("u2") || g.HasPod("nobody") {
		t.Error("HasPod is wrong about a pod that is told, or about one that is not")
	}
	if s, ok := g.Pod("u2"); !ok || len(s.Volumes) != 1 || s.Volumes[0].Name != "x" {
		t.Errorf("other pod: %+v", s)
	}
	if _, ok := g.Pod("u3"); ok {
		t.Error("an unknown pod is known")
	}
	if id, ok := g.IDOf(stagedVolume("u1", "pv1")); !ok || id != stagedID("h1") {
		t.Errorf("IDOf: %q, %v", id, ok)
	}
	if got := g.PodUIDs(); len(got) != 2 {
		t.Errorf("pods: %v", got)
	}
}

func TestBeforeSyncNothingIsUnwanted(t *testing.T) {
	g := newRig(t)
	ghost, ghostID := plainVolume("gone", "a"), plainID("gone", "a")
	g.want(ghostID, ghost, Unknown)
	g.BeginList()
	g.run(g.SetPod(podOf("u1", emptyDir("a"))))
	g.RemovePod("u1")
	g.want(plainID("u1", "a"), plainVolume("u1", "a"), Unknown)
	g.want(ghostID, ghost, Unknown)
	if c := g.EndList(); !c.All {
		t.Errorf("the first sync does not ask to plan everything: %+v", c)
	}
	g.want(ghostID, ghost, Unwanted)
	g.want(plainID("u1", "a"), plainVolume("u1", "a"), Unwanted)
	g.BeginList()
	if !g.Synced() {
		t.Error("a new list makes the world unsynced")
	}
	g.want(ghostID, ghost, Unwanted)
	if c := g.EndList(); c.All {
		t.Error("a later sync asks to plan everything")
	}
}

func TestListReplacesPods(t *testing.T) {
	g := newRig(t)
	g.run(g.SetPod(podOf("early", emptyDir("a"))))
	g.BeginList()
	g.run(g.SetPod(podOf("u1", emptyDir("a"))))
	g.run(g.SetPod(podOf("u2", emptyDir("a"))))
	c := g.EndList()
	if !slices.Equal(c.Pods, []types.UID{"early"}) || !slices.Equal(c.Volumes, []plugins.VolumeID{plainID("early", "a")}) {
		t.Errorf("change: %+v", c)
	}
	g.BeginList() // fails before its end
	g.SetPod(podOf("u1", emptyDir("a")))
	g.want(plainID("u2", "a"), plainVolume("u2", "a"), Wanted)
	g.BeginList()
	g.SetPod(podOf("u2", emptyDir("a")))
	g.want(plainID("u1", "a"), plainVolume("u1", "a"), Wanted)
	g.EndList()
	g.want(plainID("u1", "a"), plainVolume("u1", "a"), Unwanted)
	g.want(plainID("u2", "a"), plainVolume("u2", "a"), Wanted)
	if c := g.EndList(); !reflect.DeepEqual(c, Change{}) {
		t.Errorf("a second end of a list changes something: %+v", c)
	}
	g.want(plainID("u2", "a"), plainVolume("u2", "a"), Wanted)
}

// The disk holds the names of persistent volumes, the pod those of claims: as
// long as one is not resolved it may be any of what is there.
func TestUnresolvedMakesTheRestOfThePodUnknown(t *testing.T) {
	g := newRig(t)
	g.api.bind("c1", "pv1", "h")
	g.api.fail["pv"] = errors.New("API is down")
	g.BeginList()
	g.run(g.SetPod(podOf("b", claim("data", "c1"), emptyDir("e"))))
	g.EndList()
	g.want(stagedID("h"), stagedVolume("b", "pv1"), Unknown)
	g.want(plainID("b", "old"), plainVolume("b", "old"), Unknown)
	g.want(plainID("b", "e"), plainVolume("b", "e"), Wanted)
	g.want(plainID("other", "e"), plainVolume("other", "e"), Unwanted)
	if why := g.one(stagedID("h"), stagedVolume("b", "pv1")).Why; !strings.Contains(why, "data") || !strings.Contains(why, "API is down") {
		t.Errorf("why: %q", why)
	}

	delete(g.api.fail, "pv")
	c := g.run(Change{Resolve: []Unresolved{{"b", "data"}}})
	if !slices.Equal(c.Pods, []types.UID{"b"}) {
		t.Errorf("what is there of the pod is not planned again: %+v", c)
	}
	g.want(stagedID("h"), stagedVolume("b", "pv1"), Wanted)
	g.want(plainID("b", "old"), plainVolume("b", "old"), Unwanted)
}

func TestNotFoundForPresentPodIsUnknown(t *testing.T) {
	g := newRig(t)
	g.sync()
	g.run(g.SetPod(podOf("u1", claim("a", "absent"))))
	g.want(stagedID("h"), stagedVolume("u1", "pv1"), Unknown)
	if err := g.err("u1", "a"); plugins.ClassOf(err) != plugins.ClassWaiting {
		t.Errorf("error: %v (%s)", err, plugins.ClassOf(err))
	}
	g.RemovePod("u1")
	g.want(stagedID("h"), stagedVolume("u1", "pv1"), Unwanted)
}

func TestFailedRenewalKeepsTheWish(t *testing.T) {
	g := newRig(t)
	g.sync()
	g.api.bind("c1", "pv1", "h")
	g.run(g.SetPod(podOf("u1", claim("a", "c1"))))
	before := g.one(stagedID("h"), stagedVolume("u1", "pv1"))
	for _, err := range []error{errors.New("down"), nil} { // nil: the claim is not found
		g.api.fail["claim"] = err
		delete(g.api.claims, "ns/c1")
		c := g.Touch(claimRef("c1"))
		if !slices.Equal(c.Resolve, []Unresolved{{"u1", "a"}}) {
			t.Fatalf("change: %+v", c)
		}
		g.run(c)
		if got := g.one(stagedID("h"), stagedVolume("u1", "pv1")); !reflect.DeepEqual(got, before) {
			t.Errorf("wish changed: %+v", got)
		}
		if g.err("u1", "a") == nil {
			t.Error("the error is not noted")
		}
		g.want(plainID("u1", "x"), plainVolume("u1", "x"), Unwanted) // nothing is unresolved
	}
	_, pv := g.api.bind("c1", "pv1", "h")
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("5Gi")}
	g.run(g.Touch(claimRef("c1")))
	got := g.one(stagedID("h"), stagedVolume("u1", "pv1"))
	if g.err("u1", "a") != nil || got.Params.Size.String() != "5Gi" || got.Generation != before.Generation {
		t.Errorf("after it works again: %+v, %v", got.Params, g.err("u1", "a"))
	}
}

func TestDroppedNameIsUnwanted(t *testing.T) {
	g := newRig(t)
	g.sync()
	pod := podOf("u1", emptyDir("a"), emptyDir("debug"))
	pod.Spec.Containers[0].VolumeMounts = pod.Spec.Containers[0].VolumeMounts[:1]
	g.run(g.SetPod(pod))
	g.want(plainID("u1", "debug"), plainVolume("u1", "debug"), Unwanted)
	with := edit(pod, func(p *v1.Pod) {
		p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{
			Name: "e", VolumeMounts: []v1.VolumeMount{{Name: "debug"}},
		}}}
	})
	c := g.SetPod(with)
	if !slices.Equal(c.Resolve, []Unresolved{{"u1", "debug"}}) {
		t.Fatalf("change: %+v", c)
	}
	g.run(c)
	g.want(plainID("u1", "debug"), plainVolume("u1", "debug"), Wanted)
	if c := g.SetPod(pod.DeepCopy()); !slices.Equal(c.Volumes, []plugins.VolumeID{plainID("u1", "debug")}) {
		t.Errorf("change: %+v", c)
	}
	g.want(plainID("u1", "debug"), plainVolume("u1", "debug"), Unwanted)
	g.want(plainID("u1", "a"), plainVolume("u1", "a"), Wanted)
}

func TestChangedSourceIsResolvedAgain(t *testing.T) {
	g := newRig(t)
	g.sync()
	pod := podOf("u1", configMap("a", "one"), emptyDir("b"))
	g.run(g.SetPod(pod))
	before := g.one(plainID("u1", "a"), plainVolume("u1", "a"))
	c := g.SetPod(podOf("u1", configMap("a", "two"), emptyDir("b")))
	if !slices.Equal(c.Resolve, []Unresolved{{"u1", "a"}}) {
		t.Fatalf("change: %+v", c)
	}
	g.want(plainID("u1", "a"), plainVolume("u1", "a"), Unknown)
	g.run(c)
	after := g.one(plainID("u1", "a"), plainVolume("u1", "a"))
	if after.Generation <= before.Generation || after.Spec.Volume.ConfigMap.Name != "two" {
		t.Errorf("wish: %+v", after)
	}
	if c := g.Touch(configMapRef("ns", "one")); !reflect.DeepEqual(c, Change{}) {
		t.Errorf("the old object still counts: %+v", c)
	}
}

func TestReturnedPodIsWantedAgain(t *testing.T) {
	g := newRig(t)
	g.sync()
	pod := podOf("u1", configMap("a", "one"))
	g.run(g.SetPod(pod))
	before := g.one(plainID("u1", "a"), plainVolume("u1", "a"))
	g.RemovePod("u1")
	g.want(plainID("u1", "a"), plainVolume("u1", "a"), Unwanted)
	if g.Len() != 0 {
		t.Errorf("%d volumes left", g.Len())
	}
	c := g.SetPod(pod)
	if !slices.Equal(c.Pods, []types.UID{"u1"}) {
		t.Errorf("change: %+v", c)
	}
	g.want(plainID("u1", "a"), plainVolume("u1", "a"), Unknown)
	g.run(c)
	after := g.one(plainID("u1", "a"), plainVolume("u1", "a"))
	if after.State != Wanted || after.Generation <= before.Generation {
		t.Errorf("before %d, after %+v", before.Generation, after)
	}
}

func TestMovedVolumeLeavesItsOldID(t *testing.T) {
	g := newRig(t)
	g.sync()
	g.api.bind("c1", "pv1", "old")
	g.run(g.SetPod(podOf("u1", claim("a", "c1"), claim("b", "c1"))))
	g.api.bind("c1", "pv1", "new")
	c := g.run(g.Touch(pvRef("pv1")))
	for _, id := range []plugins.VolumeID{stagedID("old"), stagedID("new")} {
		if !slices.Contains(c.Volumes, id) {
			t.Errorf("%s is not woken: %v", id, c.Volumes)
		}
	}
	g.want(stagedID("new"), stagedVolume("u1", "pv1"), Wanted)
	g.want(stagedID("old"), stagedVolume("u1", "pv1"), Unwanted)
	if names := g.Wish(stagedID("new"), nil).Pods[0].Names; len(names) != 2 {
		t.Errorf("names: %v", names)
	}
}

func TestSamePlaceOnDiskIsRefused(t *testing.T) {
	g := newRig(t)
	g.sync()
	_, pv := g.api.bind("c1", "x", "h")
	pv.Spec.CSI, pv.Spec.NFS = nil, &v1.NFSVolumeSource{Server: "s", Path: "/p"}
	pod := podOf("u1", emptyDir("x"), claim("y", "c1"))
	g.run(g.SetPod(pod))
	if err := g.err("u1", "y"); plugins.ClassOf(err) != plugins.ClassPermanent {
		t.Errorf("error: %v", err)
	}
	if p := g.Wish(plainID("u1", "x"), nil).Pods; len(p) != 1 || !slices.Equal(p[0].Names, []string{"x"}) {
		t.Errorf("wish: %+v", p)
	}
	g.run(g.SetPod(edit(pod, func(p *v1.Pod) {
		p.Spec.Volumes = p.Spec.Volumes[1:]
		p.Spec.Containers[0].VolumeMounts = p.Spec.Containers[0].VolumeMounts[1:]
	})))
	if err := g.err("u1", "y"); err != nil {
		t.Errorf("the pod changed, and it was not tried again: %v", err)
	}
}

func TestContentOfThePodItself(t *testing.T) {
	labels := func(p *v1.Pod) { p.Labels = map[string]string{"k": "new"} }
	annotations := func(p *v1.Pod) { p.Annotations = map[string]string{"k": "new"} }
	limits := func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse("2")}
	}
	phase := func(p *v1.Pod) { p.Status.Phase = v1.PodRunning }
	ip := func(p *v1.Pod) { p.Status.PodIPs = []v1.PodIP{{IP: "10.0.0.1"}} }
	cpu := downward("v")
	cpu.DownwardAPI.Items = []v1.DownwardAPIVolumeFile{{Path: "cpu", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.cpu"}}}
	projected := v1.Volume{Name: "v"}
	projected.Projected = &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
		{}, {DownwardAPI: &v1.DownwardAPIProjection{Items: downward("", "metadata.labels['k']").DownwardAPI.Items}},
	}}
	for _, tt := range []struct {
		name   string
		volume v1.Volume
		change func(*v1.Pod)
		want   bool
	}{
		{"labels", downward("v", "metadata.labels"), labels, true},
		{"one label", downward("v", "metadata.labels['k']"), labels, true},
		{"labels of annotations", downward("v", "metadata.annotations"), labels, false},
		{"annotations", downward("v", "metadata.name", "metadata.annotations"), annotations, true},
		{"name", downward("v", "metadata.name", "metadata.uid"), annotations, false},
		{"address", downward("v", "status.podIP"), ip, true},
		{"phase", downward("v", "status.podIP", "metadata.labels"), phase, false},
		{"limits", cpu, limits, true},
		{"labels of limits", cpu, labels, false},
		{"projected label", projected, labels, true},
		{"projected label, annotations change", projected, annotations, false},
		{"configMap", configMap("v", "x"), labels, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newRig(t)
			pod := podOf("u1", tt.volume)
			g.run(g.SetPod(pod))
			before := g.one(plainID("u1", "v"), plainVolume("u1", "v")).Generation
			c := g.SetPod(edit(pod, tt.change))
			after := g.one(plainID("u1", "v"), plainVolume("u1", "v")).Generation
			if (after > before) != tt.want || (len(c.Volumes) == 1) != tt.want || len(c.Resolve) > 0 {
				t.Errorf("generation %d, then %d; %+v", before, after, c)
			}
		})
	}
}

func TestWhatTheResolverReadsOfThePod(t *testing.T) {
	for name, change := range map[string]func(*v1.Pod){
		"name":            func(p *v1.Pod) { p.Name = "x" },
		"namespace":       func(p *v1.Pod) { p.Namespace = "x" },
		"service account": func(p *v1.Pod) { p.Spec.ServiceAccountName = "x" },
		"user":            func(p *v1.Pod) { p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: ptr(int64(1))} },
	} {
		g := newRig(t)
		pod := podOf("u1", configMap("a", "x"), emptyDir("b"))
		g.run(g.SetPod(pod))
		before := g.one(plainID("u1", "a"), plainVolume("u1", "a"))
		c := g.SetPod(edit(pod, change))
		after := g.one(plainID("u1", "a"), plainVolume("u1", "a"))
		if len(c.Resolve) != 2 || after.State != Wanted || after.Generation <= before.Generation {
			t.Errorf("%s: %+v, generation %d, then %d", name, c, before.Generation, after.Generation)
		}
	}
}

func TestChangedPodParametersAreResolvedAgain(t *testing.T) {
	g := newRig(t)
	g.api.bind("c1", "pv1", "h")
	pod := podOf("u1", claim("a", "c1"))
	g.run(g.SetPod(pod))
	group := int64(7)
	c := g.SetPod(edit(pod, func(p *v1.Pod) { p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group} }))
	if !slices.Equal(c.Resolve, []Unresolved{{"u1", "a"}}) {
		t.Fatalf("change: %+v", c)
	}
	g.want(stagedID("h"), stagedVolume("u1", "pv1"), Wanted) // meanwhile the old wish stays
	g.run(c)
	if p := g.one(stagedID("h"), stagedVolume("u1", "pv1")).Params; p.FSGroup == nil || *p.FSGroup != 7 {
		t.Errorf("params: %+v", p)
	}
}

func TestAllVolumes(t *testing.T) {
	pod := podOf("u1", emptyDir("used"), emptyDir("unused"))
	pod.Spec.Containers[0].VolumeMounts = pod.Spec.Containers[0].VolumeMounts[:1]
	if c := New(Options{}).SetPod(pod); !slices.Equal(c.Resolve, []Unresolved{{"u1", "used"}}) {
		t.Errorf("change: %+v", c)
	}
	if c := New(Options{AllVolumes: true}).SetPod(pod); !slices.Equal(c.Resolve, []Unresolved{{"u1", "used"}, {"u1", "unused"}}) {
		t.Errorf("with all: %+v", c)
	}
}

func TestOddArguments(t *testing.T) {
	g := newRig(t)
	for _, c := range []Change{
		g.SetPod(nil), g.SetPod(&v1.Pod{}), g.RemovePod("nobody"), g.Touch(plugins.Ref{}),
		g.SetResolved(Task{}, Resolution{}), g.SetFailed(Task{}, nil, nil),
	} {
		if !reflect.DeepEqual(c, Change{}) {
			t.Errorf("change: %+v", c)
		}
	}
	if _, ok := g.Begin(Unresolved{"nobody", "a"}); ok {
		t.Error("a task about nobody")
	}
	g.SetPod(podOf("u1", emptyDir("a")))
	if _, ok := g.Begin(Unresolved{"u1", "b"}); ok {
		t.Error("a task about nothing")
	}
	task, _ := g.Begin(Unresolved{"u1", "a"})
	g.SetResolved(task, Resolution{ID: "x", Spec: &plugins.Spec{}, Volume: plainVolume("u2", "a")})
	if err := g.err("u1", "a"); plugins.ClassOf(err) != plugins.ClassPermanent {
		t.Errorf("a resolution about another pod: %v", err)
	}
	task, _ = g.Begin(Unresolved{"u1", "a"})
	g.SetFailed(task, nil, nil)
	if g.err("u1", "a") == nil {
		t.Error("a failure without reason is no failure")
	}
}
