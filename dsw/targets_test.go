package dsw

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

func TestWishMergesWhatIsThere(t *testing.T) {
	g := newRig(t)
	g.sync()
	g.api.bind("c1", "pv1", "h")
	g.run(g.SetPod(podOf("m", claim("a", "c1"))))
	g.run(g.SetPod(podOf("p", claim("a", "absent"))))
	there := []plugins.PodVolume{
		stagedVolume("z", "pv1"), stagedVolume("m", "pv1"), stagedVolume("p", "pv1"), stagedVolume("a", "pv9"), stagedVolume("z", "pv1"),
	}
	wish := g.Wish(stagedID("h"), there)
	var got []string
	for _, p := range wish.Pods {
		got = append(got, string(p.Volume.Pod)+" "+p.State.String())
		if (p.Spec != nil) != (p.State == Wanted) || (p.Why != "") == (p.State == Wanted) {
			t.Errorf("%+v", p)
		}
	}
	if want := []string{"a unwanted", "m wanted", "p unknown", "z unwanted"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if !slices.IsSortedFunc(wish.Pods, func(a, b PodWish) int { return strings.Compare(a.Volume.String(), b.Volume.String()) }) {
		t.Error("not sorted")
	}
	if empty := g.Wish("test.io/staged/none", nil); empty.Pods != nil || empty.ID != "test.io/staged/none" {
		t.Errorf("wish of nothing: %+v", empty)
	}
}

// TestReadOnlyIsSettledFirst: whether the pod may write is known only when all
// names with the same claim are resolved. Else what is live after a restart
// would be taken down under its containers.
func TestReadOnlyIsSettledFirst(t *testing.T) {
	reads := claim("reads", "c1")
	reads.PersistentVolumeClaim.ReadOnly = true
	more := claim("more", "c1")
	more.PersistentVolumeClaim.ReadOnly = true
	id, at := stagedID("h"), stagedVolume("p", "pv1")
	begin := func(pod *v1.Pod) (*rig, Change) {
		g := newRig(t)
		g.sync()
		g.api.bind("c1", "pv1", "h")
		g.SetPod(pod)
		return g, g.resolve(Unresolved{"p", "reads"})
	}
	g, _ := begin(podOf("p", reads, claim("writes", "c1")))
	if w := g.one(id, at); w.State != Unknown || !strings.Contains(w.Why, "writes") || w.Spec != nil {
		t.Errorf("%+v", w)
	}
	if c := g.resolve(Unresolved{"p", "writes"}); !slices.Contains(c.Volumes, id) {
		t.Errorf("not woken: %+v", c)
	}
	if w := g.one(id, at); w.State != Wanted || w.Params.ReadOnly || len(w.Names) != 2 {
		t.Errorf("%+v", w)
	}

	g, _ = begin(podOf("p", reads, claim("writes", "c1")))
	for name, pod := range map[string]*v1.Pod{"the name goes": podOf("p", reads), "the name is another's": podOf("p", reads, emptyDir("writes"))} {
		if c := g.SetPod(pod); !slices.Contains(c.Volumes, id) {
			t.Errorf("%s: not woken: %+v", name, c)
		}
		if w := g.one(id, at); w.State != Wanted || !w.Params.ReadOnly {
			t.Errorf("%s: %+v", name, w)
		}
		g.SetPod(podOf("p", reads, claim("writes", "c1")))
		g.want(id, at, Unknown)
	}

	// None of these says anything about writing.
	g, _ = begin(podOf("p", reads, more, claim("other", "c2"), emptyDir("e")))
	g.want(id, at, Wanted)
}

func TestComparePodVolumes(t *testing.T) {
	names := []string{"", "a", "a-b", "a.b", "a0", "ab", "b"}
	var all []plugins.PodVolume
	for _, uid := range names {
		for _, plugin := range []string{"x.io/a", "x.io/a-b", "x.io/a0"} {
			for _, name := range names {
				all = append(all, plugins.PodVolume{Pod: types.UID(uid), Plugin: plugin, Name: name})
			}
		}
	}
	for _, a := range all {
		for _, b := range all {
			if got, want := comparePodVolumes(a, b), strings.Compare(a.String(), b.String()); got != want {
				t.Fatalf("%q, %q: %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestSliceVisitsWhatStays(t *testing.T) {
	g := newRig(t)
	uids := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	for _, uid := range uids {
		g.run(g.SetPod(podOf(uid, emptyDir("v"))))
	}
	for _, gone := range uids {
		seen, cursor := []plugins.VolumeID{}, 0
		for round := 0; ; round++ {
			seen, cursor = g.Slice(seen, cursor, 3)
			if cursor == 0 {
				break
			}
			if round == 0 {
				g.RemovePod(types.UID(gone))
				g.run(g.SetPod(podOf("new-"+gone, emptyDir("v"))))
			}
		}
		for _, uid := range uids {
			if uid != gone && !slices.Contains(seen, plainID(uid, "v")) {
				t.Errorf("%s was missed when %s went: %v", uid, gone, seen)
			}
		}
		g.run(g.SetPod(podOf(gone, emptyDir("v"))))
		g.RemovePod(types.UID("new-" + gone))
	}
	for range g.Volumes() {
		g.RemovePod("a") // no lock is held
		break
	}
}
