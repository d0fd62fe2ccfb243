package dsw

import (
	"errors"
	"reflect"
	"slices"
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
)

// begin begins the one task that c asks for.
func (g *rig) begin(u Unresolved) Task {
	g.t.Helper()
	task, ok := g.Begin(u)
	if !ok {
		g.t.Fatalf("%v cannot be begun", u)
	}
	return task
}

// finish resolves with what the API says now.
func (g *rig) finish(task Task) Change {
	g.t.Helper()
	res, err := g.r.Resolve(g.t.Context(), task.Pod, task.Name)
	if err != nil {
		return g.SetFailed(task, err, res.SpecRefs)
	}
	return g.SetResolved(task, res)
}

func TestOutcomeOfAnOlderPodIsDropped(t *testing.T) {
	g := newRig(t)
	u := Unresolved{"u1", "a"}
	g.SetPod(podOf("u1", configMap("a", "one")))
	for _, again := range []func(Task) Change{
		g.finish,
		func(task Task) Change { return g.SetFailed(task, errors.New("late"), nil) },
	} {
		task := g.begin(u)
		g.SetPod(podOf("u1", configMap("a", "two")))
		if c := again(task); !slices.Equal(c.Resolve, []Unresolved{u}) || len(c.Volumes) > 0 {
			t.Errorf("change: %+v", c)
		}
		if g.err("u1", "a") != nil || g.Len() != 0 {
			t.Error("the outcome counted")
		}
		task = g.begin(u)
		g.RemovePod("u1")
		g.SetPod(podOf("u1", configMap("a", "one"))) // the same pod again is another life of it
		if c := again(task); !slices.Equal(c.Resolve, []Unresolved{u}) || g.Len() != 0 {
			t.Errorf("change: %+v", c)
		}
	}
	task := g.begin(u)
	g.RemovePod("u1")
	if c := g.finish(task); !reflect.DeepEqual(c, Change{}) {
		t.Errorf("the pod is gone: %+v", c)
	}
}

func TestLaterTaskCounts(t *testing.T) {
	g := newRig(t)
	g.api.bind("c1", "pv1", "old")
	u := Unresolved{"u1", "a"}
	g.SetPod(podOf("u1", claim("a", "c1")))
	first := g.begin(u)
	old, err := g.r.Resolve(t.Context(), first.Pod, first.Name)
	if err != nil {
		t.Fatal(err)
	}
	g.api.bind("c1", "pv1", "new")
	second := g.begin(u)
	g.finish(second)
	if c := g.SetResolved(first, old); !reflect.DeepEqual(c, Change{}) {
		t.Errorf("change: %+v", c)
	}
	if c := g.SetFailed(first, errors.New("late"), nil); !reflect.DeepEqual(c, Change{}) || g.err("u1", "a") != nil {
		t.Errorf("change: %+v", c)
	}
	g.want(stagedID("new"), stagedVolume("u1", "pv1"), Wanted)
}

// What a task depends on is known only at its end: a notice that came before
// must not be lost.
func TestNoticeDuringTask(t *testing.T) {
	for _, tt := range []struct {
		name    string
		notices []plugins.Ref
		again   bool
	}{
		{"none", nil, false},
		{"claim", []plugins.Ref{claimRef("c1")}, true},
		{"all claims", []plugins.Ref{{Kind: plugins.KindClaim}}, true},
		{"all claims of the namespace", []plugins.Ref{{Kind: plugins.KindClaim, Namespace: "ns"}}, true},
		{"all claims of another namespace", []plugins.Ref{{Kind: plugins.KindClaim, Namespace: "other"}}, false},
		{"another claim", []plugins.Ref{claimRef("c2"), {Kind: plugins.KindSecret, Namespace: "ns", Name: "c1"}}, false},
		{"among others", []plugins.Ref{claimRef("c2"), claimRef("c1"), claimRef("c3")}, true},
	} {
		for _, failing := range []bool{false, true} {
			t.Run(tt.name+map[bool]string{true: ", fails"}[failing], func(t *testing.T) {
				g := newRig(t)
				if !failing {
					g.api.bind("c1", "pv1", "h")
				}
				u := Unresolved{"u1", "a"}
				g.SetPod(podOf("u1", claim("a", "c1")))
				g.Touch(claimRef("c1")) // before it begins
				task := g.begin(u)
				for _, n := range tt.notices {
					if c := g.Touch(n); !reflect.DeepEqual(c, Change{}) {
						t.Errorf("a second task at the same time is asked for: %+v", c)
					}
				}
				c := g.finish(task)
				if want := tt.again; slices.Contains(c.Resolve, u) != want {
					t.Errorf("again: %v, want %v", c.Resolve, want)
				}
				// Now it is known, and a notice asks at once.
				if c := g.Touch(claimRef("c1")); !slices.Equal(c.Resolve, []Unresolved{u}) {
					t.Errorf("change: %+v", c)
				}
				task = g.begin(u)
				g.Touch(claimRef("c1"))
				if c := g.finish(task); !slices.Contains(c.Resolve, u) {
					t.Errorf("a notice during the second task is lost: %+v", c)
				}
				if c := g.finish(g.begin(u)); slices.Contains(c.Resolve, u) {
					t.Errorf("asked for without a notice: %+v", c)
				}
			})
		}
	}
}

// A notice about what the last outcome depended on counts also if the next one
// does not say that it depends on it.
func TestNoticeDuringTaskAboutEarlierOutcome(t *testing.T) {
	g := newRig(t)
	u := Unresolved{"u1", "a"}
	g.SetPod(podOf("u1", claim("a", "c1")))
	g.finish(g.begin(u))
	task := g.begin(u)
	g.Touch(claimRef("c1"))
	if c := g.SetFailed(task, errors.New("gave up"), nil); !slices.Equal(c.Resolve, []Unresolved{u}) {
		t.Errorf("change: %+v", c)
	}
}

func TestManyNoticesDuringTask(t *testing.T) {
	g := newRig(t)
	g.api.bind("c1", "pv1", "h")
	u := Unresolved{"u1", "a"}
	g.SetPod(podOf("u1", claim("a", "c1"), emptyDir("b")))
	task, inline := g.begin(u), g.begin(Unresolved{"u1", "b"})
	for i := range 4 * maxNotices {
		g.Touch(claimRef("other-" + strconv.Itoa(i)))
	}
	if c := g.finish(inline); len(c.Resolve) > 0 {
		t.Errorf("what depends on nothing is resolved again: %+v", c)
	}
	if n := len(g.notices.list); n > maxNotices {
		t.Errorf("%d notices are kept", n)
	}
	if c := g.finish(task); !slices.Contains(c.Resolve, u) {
		t.Errorf("forgotten notices do not count as missed: %+v", c)
	}
	g.RemovePod("u1")
	g.Touch(claimRef("x"))
	if g.notices.users != 0 || len(g.notices.list) != 0 {
		t.Errorf("notices are kept for nobody: %+v", g.notices)
	}
}

func TestTouch(t *testing.T) {
	g := newRig(t)
	g.api.bind("c1", "pv1", "h1")
	g.run(g.SetPod(podOf("u1", configMap("a", "one"), configMap("b", "two"), claim("c", "c1"))))
	g.run(g.SetPod(podOf("u2", configMap("a", "one"), claim("c", "absent"))))
	g.run(g.SetPod(podOf("u3", emptyDir("a"))))
	ids := func(list ...plugins.VolumeID) []plugins.VolumeID { return list }
	one1, two1, one2 := plainID("u1", "a"), plainID("u1", "b"), plainID("u2", "a")
	for _, tt := range []struct {
		ref     plugins.Ref
		volumes []plugins.VolumeID
		resolve []Unresolved
	}{
		{configMapRef("ns", "one"), ids(one1, one2), nil},
		{configMapRef("ns", "two"), ids(two1), nil},
		{configMapRef("ns", "three"), nil, nil},
		{configMapRef("other", "one"), nil, nil},
		{configMapRef("ns", ""), ids(one1, two1, one2), nil},
		{configMapRef("other", ""), nil, nil},
		{configMapRef("", ""), ids(one1, two1, one2), nil},
		{plugins.Ref{Kind: plugins.KindSecret}, nil, nil},
		{claimRef("c1"), nil, []Unresolved{{"u1", "c"}}},
		{pvRef("pv1"), nil, []Unresolved{{"u1", "c"}}},
		{claimRef("absent"), nil, []Unresolved{{"u2", "c"}}},
		{plugins.Ref{Kind: plugins.KindClaim}, nil, []Unresolved{{"u1", "c"}, {"u2", "c"}}},
	} {
		t.Run(tt.ref.String(), func(t *testing.T) {
			before := map[plugins.VolumeID]uint64{}
			for id := range g.Volumes() {
				before[id] = g.Wish(id, nil).Pods[0].Generation
			}
			c := g.Touch(tt.ref)
			slices.Sort(c.Volumes)
			slices.Sort(tt.volumes)
			slices.SortFunc(c.Resolve, func(a, b Unresolved) int { return len(a.Pod) - len(b.Pod) + int(a.Pod[1]) - int(b.Pod[1]) })
			if !slices.Equal(c.Volumes, tt.volumes) || !slices.Equal(c.Resolve, tt.resolve) {
				t.Errorf("change: %+v", c)
			}
			for id, old := range before {
				if got := g.Wish(id, nil).Pods[0].Generation; (got > old) != slices.Contains(tt.volumes, id) {
					t.Errorf("%s: generation %d, then %d", id, old, got)
				}
			}
		})
	}
}

func TestReferenceToAnyObjectOfAKind(t *testing.T) {
	g := newRig(t)
	g.SetPod(podOf("u1", emptyDir("a")))
	task := g.begin(Unresolved{"u1", "a"})
	res, err := g.r.Resolve(t.Context(), task.Pod, task.Name)
	if err != nil {
		t.Fatal(err)
	}
	res.ContentRefs = []plugins.Ref{{Kind: plugins.KindTrustBundle}, {Kind: plugins.KindSecret, Namespace: "ns"}}
	g.SetResolved(task, res)
	for ref, want := range map[plugins.Ref]int{
		{Kind: plugins.KindTrustBundle, Name: "x"}:                 1,
		{Kind: plugins.KindTrustBundle}:                            1,
		{Kind: plugins.KindSecret, Namespace: "ns", Name: "x"}:     1,
		{Kind: plugins.KindSecret, Namespace: "ns"}:                1,
		{Kind: plugins.KindSecret}:                                 1,
		{Kind: plugins.KindSecret, Namespace: "other", Name: "x"}:  0,
		{Kind: plugins.KindConfigMap, Namespace: "ns", Name: "xy"}: 0,
	} {
		if c := g.Touch(ref); len(c.Volumes) != want {
			t.Errorf("%s: %+v, want %d", ref, c, want)
		}
	}
}

// A failure is tried again when what it waits for changes, whether or not the
// caller says so.
func TestFailureDependsOnWhatItWaitsFor(t *testing.T) {
	g := newRig(t)
	u := Unresolved{"u1", "a"}
	g.SetPod(podOf("u1", claim("a", "c1")))
	node := plugins.Ref{Kind: plugins.KindNode, Name: "n1"}
	g.SetFailed(g.begin(u), plugins.WaitFor(node, errors.New("label")), []plugins.Ref{claimRef("c1")})
	for _, ref := range []plugins.Ref{node, claimRef("c1")} {
		if c := g.Touch(ref); !slices.Equal(c.Resolve, []Unresolved{u}) {
			t.Errorf("%s: %+v", ref, c)
		}
	}
	g.api.bind("c1", "pv1", "h")
	g.finish(g.begin(u))
	if c := g.Touch(node); !reflect.DeepEqual(c, Change{}) {
		t.Errorf("the failure is over: %+v", c)
	}
	g.RemovePod("u1")
	if len(g.refs) != 0 || len(g.volumes) != 0 || len(g.order) != 0 || len(g.pods) != 0 {
		t.Errorf("something is left: %v %v %v %v", g.refs, g.volumes, g.order, g.pods)
	}
}

func TestFailedVolumeIsTriedAgainWithThePod(t *testing.T) {
	g := newRig(t)
	bad := v1.Volume{Name: "a", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "malformed"}}}
	pod := podOf("u1", bad, emptyDir("b"))
	g.run(g.SetPod(pod))
	if plugins.ClassOf(g.err("u1", "a")) != plugins.ClassPermanent {
		t.Errorf("error: %v", g.err("u1", "a"))
	}
	if c := g.SetPod(pod.DeepCopy()); !slices.Equal(c.Resolve, []Unresolved{{"u1", "a"}}) {
		t.Errorf("change: %+v", c)
	}
	if c := g.SetPod(podOf("u1", emptyDir("a"), emptyDir("b"))); !slices.Equal(c.Resolve, []Unresolved{{"u1", "a"}}) {
		t.Errorf("change: %+v", c)
	}
}
