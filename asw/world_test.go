package asw_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/plugins"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// podVolume is a pod volume that is present.
func podVolume(id plugins.VolumeID, pod types.UID, name string) asw.PodVolume {
	return asw.PodVolume{Volume: plugins.PodVolume{Pod: pod, Plugin: "p/x", Name: name}, ID: id, State: asw.Present}
}

var remote = plugins.Identity{Storage: "s", Attach: true, Device: true}

// staged returns a world with the volume "v" attached and its device mounted.
func staged(t testing.TB) *asw.World {
	t.Helper()
	w := asw.New()
	must(t, w.SetAttachment("v", asw.Attachment{State: asw.Present, Identity: remote, DevicePath: "/dev/sda"}))
	must(t, w.SetDevice("v", asw.Device{State: asw.Present, Path: "/global", Params: plugins.Params{SELinuxLabel: "l"}}))
	return w
}

func TestAVolumesLife(t *testing.T) {
	w := staged(t)
	spec := &plugins.Spec{}
	pv := podVolume("v", "pod-1", "data")
	must(t, w.SetPodVolume(pv))
	w.SetIdentity("v", plugins.Identity{}, spec)
	want := asw.Volume{
		ID: "v", Identity: remote, Spec: spec, Attachment: asw.Present, Device: asw.Present, DevicePath: "/dev/sda",
		DeviceMountPath: "/global", DeviceParams: plugins.Params{SELinuxLabel: "l"}, Pods: []asw.PodVolume{pv},
	}
	if got, ok := w.Volume("v"); !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got, ok := w.PodVolume(pv.Volume); !ok || !reflect.DeepEqual(got, pv) {
		t.Errorf("PodVolume: %+v", got)
	}
	if got := w.Pod("pod-1"); len(got) != 1 || !reflect.DeepEqual(got[0], pv) {
		t.Errorf("Pod: %+v", got)
	}
	if got := w.InUse(); !slices.Equal(got, []plugins.VolumeID{"v"}) {
		t.Errorf("InUse: %v", got)
	}
	w.RemovePodVolume(pv.Volume)
	w.RemovePodVolume(pv.Volume)
	must(t, w.SetDevice("v", asw.Device{State: asw.Uncertain}))
	if got, _ := w.Volume("v"); got.DeviceMountPath != "/global" || got.DeviceParams.SELinuxLabel != "l" {
		t.Errorf("an uncertain device lost its place: %+v", got)
	}
	must(t, w.SetDevice("v", asw.Device{State: asw.Absent}))
	if got, _ := w.Volume("v"); got.DeviceMountPath != "" || got.DeviceParams.SELinuxLabel != "" || got.DevicePath != "/dev/sda" {
		t.Errorf("after unmounting the device: %+v", got)
	}
	if len(w.InUse()) != 1 {
		t.Error("an attached volume is not in use")
	}
	must(t, w.SetAttachment("v", asw.Attachment{State: asw.Absent}))
	if _, ok := w.Volume("v"); ok || len(w.InUse()) > 0 || len(w.Pod("pod-1")) > 0 {
		t.Error("the volume is still known")
	}
	if v, p := w.Len(); v+p != 0 {
		t.Errorf("Len: %d, %d", v, p)
	}
}

func TestAbsentOfNothing(t *testing.T) {
	w := asw.New()
	must(t, w.SetAttachment("v", asw.Attachment{State: asw.Absent, Identity: remote}))
	must(t, w.SetDevice("v", asw.Device{State: asw.Absent, Identity: remote}))
	pv := podVolume("v", "u", "n")
	pv.State = asw.Absent
	must(t, w.SetPodVolume(pv))
	w.SetIdentity("v", remote, nil)
	if v, p := w.Len(); v+p != 0 {
		t.Errorf("Len: %d, %d", v, p)
	}
}

func TestImpossible(t *testing.T) {
	pv := podVolume("v", "u", "n")
	uncertain := pv
	uncertain.State = asw.Uncertain
	for name, tc := range map[string]struct {
		before func(*asw.World) error
		change func(*asw.World) error
	}{
		"detached under a device": {
			func(*asw.World) error { return nil },
			func(w *asw.World) error { return w.SetAttachment("v", asw.Attachment{State: asw.Absent}) },
		},
		"device gone under a pod": {
			func(w *asw.World) error { return w.SetPodVolume(pv) },
			func(w *asw.World) error { return w.SetDevice("v", asw.Device{State: asw.Absent}) },
		},
		"device gone under an uncertain pod": {
			func(w *asw.World) error { return w.SetPodVolume(uncertain) },
			func(w *asw.World) error { return w.SetDevice("v", asw.Device{State: asw.Absent}) },
		},
		"pod without a device": {
			func(w *asw.World) error { return w.SetDevice("v", asw.Device{State: asw.Absent}) },
			func(w *asw.World) error { return w.SetPodVolume(pv) },
		},
		"detached under a pod": {
			func(w *asw.World) error {
				identity := plugins.Identity{Storage: "s", Attach: true}
				return errors.Join(
					w.SetAttachment("a", asw.Attachment{State: asw.Present, Identity: identity}),
					w.SetPodVolume(podVolume("a", "u", "other")))
			},
			func(w *asw.World) error { return w.SetAttachment("a", asw.Attachment{State: asw.Absent}) },
		},
		"device of a volume that is not attached": {
			func(*asw.World) error { return nil },
			func(w *asw.World) error {
				return w.SetDevice("new", asw.Device{State: asw.Uncertain, Identity: remote})
			},
		},
		"moved to another volume": {
			func(w *asw.World) error { return w.SetPodVolume(pv) },
			func(w *asw.World) error {
				moved := pv
				moved.ID = "w"
				return w.SetPodVolume(moved)
			},
		},
		"removed from another volume": {
			func(w *asw.World) error { return w.SetPodVolume(pv) },
			func(w *asw.World) error {
				moved := pv
				moved.ID, moved.State = "w", asw.Absent
				return w.SetPodVolume(moved)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := staged(t)
			must(t, tc.before(w))
			before := dump(w)
			if err := tc.change(w); !errors.Is(err, asw.ErrImpossible) {
				t.Errorf("error %v", err)
			}
			if got := dump(w); !reflect.DeepEqual(got, before) {
				t.Errorf("changed to %+v\nfrom %+v", got, before)
			}
		})
	}
}

// dump is everything in the world, by id.
func dump(w *asw.World) map[plugins.VolumeID]asw.Volume {
	all := map[plugins.VolumeID]asw.Volume{}
	for id := range w.Volumes() {
		all[id], _ = w.Volume(id)
	}
	return all
}

func TestSnapshotsStay(t *testing.T) {
	w := asw.New()
	pv := podVolume("v", "u", "b")
	pv.Names, pv.Undo = []string{"two", "one"}, plugins.Undo{"k": "v"}
	must(t, w.SetPodVolume(pv))
	pv.Names[0], pv.Undo["k"] = "changed", "changed"
	first, _ := w.Volume("v")
	must(t, w.SetPodVolume(podVolume("v", "u", "a")))
	second, _ := w.Volume("v")
	other := podVolume("v", "u", "b")
	other.State = asw.Uncertain
	must(t, w.SetPodVolume(other))
	w.RemovePodVolume(podVolume("v", "u", "a").Volume)
	if len(first.Pods) != 1 || first.Pods[0].Volume.Name != "b" || !slices.Equal(first.Pods[0].Names, []string{"one", "two"}) || first.Pods[0].Undo["k"] != "v" {
		t.Errorf("first: %+v", first.Pods)
	}
	if len(second.Pods) != 2 || second.Pods[0].Volume.Name != "a" || second.Pods[1].State != asw.Present {
		t.Errorf("second: %+v", second.Pods)
	}
	_ = append(first.Pods, podVolume("v", "x", "x")) // must not reach the world
	if got, _ := w.Volume("v"); len(got.Pods) != 1 || got.Pods[0].State != asw.Uncertain {
		t.Errorf("now: %+v", got.Pods)
	}
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestChanged(t *testing.T) {
	w := staged(t)
	pv := podVolume("v", "u", "n")
	for name, change := range map[string]func(){
		"set":     func() { must(t, w.SetPodVolume(pv)) },
		"replace": func() { must(t, w.SetPodVolume(pv)) },
		"remove":  func() { must(t, w.SetPodVolume(pv)); w.RemovePodVolume(pv.Volume) },
	} {
		ch, same := w.Changed("u"), w.Changed("u")
		if closed(ch) || ch != same {
			t.Errorf("%s: closed before it, or not shared", name)
		}
		change()
		if !closed(ch) {
			t.Errorf("%s: not told", name)
		}
	}
	ch := w.Changed("u")
	must(t, w.SetDevice("v", asw.Device{State: asw.Uncertain}))
	w.RemovePodVolume(podVolume("v", "u", "nothing").Volume)
	if closed(ch) {
		t.Error("told although no pod volume changed")
	}
	must(t, w.SetPodVolume(pv))
	ch = w.Changed("u")
	pv.ID = "w"
	if err := w.SetPodVolume(pv); err == nil || closed(ch) {
		t.Error("told of a change that was refused")
	}
}

func TestLoad(t *testing.T) {
	w := asw.New()
	a, b := podVolume("v1", "u", "b"), podVolume("v1", "u", "a")
	a.State, b.State = asw.Uncertain, asw.Uncertain
	gone := podVolume("v1", "u", "gone")
	gone.State = asw.Absent
	stolen := podVolume("v2", "u", "a")
	err := w.Load([]asw.Volume{
		{ID: "v1", Device: asw.Uncertain, Identity: remote, Undo: plugins.Undo{"k": "v"}, Pods: []asw.PodVolume{a, gone, b}},
		{ID: "v2", Attachment: asw.Uncertain, Pods: []asw.PodVolume{stolen}},
		{ID: "v1", Attachment: asw.Present},
		{ID: "nothing"},
	})
	if !errors.Is(err, asw.ErrImpossible) {
		t.Errorf("error %v", err)
	}
	v1, _ := w.Volume("v1")
	want := asw.Volume{ID: "v1", Device: asw.Uncertain, Identity: remote, Undo: plugins.Undo{"k": "v"}, Pods: []asw.PodVolume{b, a}}
	if !reflect.DeepEqual(v1, want) {
		t.Errorf("v1: %+v", v1)
	}
	if v2, ok := w.Volume("v2"); !ok || len(v2.Pods) > 0 {
		t.Errorf("v2: %+v", v2)
	}
	if volumes, pods := w.Len(); volumes != 2 || pods != 2 {
		t.Errorf("Len: %d, %d", volumes, pods)
	}
}

// TestWalksSeeEverything: a walk in parts sees each volume that stays exactly
// once, whatever comes and goes meanwhile.
func TestWalksSeeEverything(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 50 {
		w := asw.New()
		set := func(n int, p asw.Presence) {
			must(t, w.SetAttachment(plugins.VolumeID(fmt.Sprint(n)), asw.Attachment{State: p}))
		}
		const stay = 500 // even numbers stay
		for n := range 2 * stay {
			set(n, asw.Present)
		}
		seen := map[plugins.VolumeID]int{}
		ids := make([]plugins.VolumeID, 0, 300+random.IntN(100))
		steps := 0
		for after, more := uint64(0), true; more; more = after != 0 {
			ids, after = w.Slice(after, ids)
			for _, id := range ids {
				seen[id]++
			}
			for range random.IntN(400) {
				set(1+2*random.IntN(stay), asw.Presence(random.IntN(2)))
			}
			if steps++; steps > 3000 {
				t.Fatal("the walk does not end")
			}
		}
		for n := 0; n < 2*stay; n += 2 {
			if seen[plugins.VolumeID(fmt.Sprint(n))] != 1 {
				t.Fatalf("round %d: %d seen %d times", round, n, seen[plugins.VolumeID(fmt.Sprint(n))])
			}
		}
	}
}

func TestVolumesStops(t *testing.T) {
	w := staged(t)
	must(t, w.SetPodVolume(podVolume("other", "u", "n")))
	count := 0
	for id := range w.Volumes() {
		count++
		w.Volume(id) // the world may be used
		break
	}
	if count != 1 {
		t.Errorf("%d", count)
	}
	count = 0
	for range w.Volumes() {
		must(t, w.SetAttachment(plugins.VolumeID(fmt.Sprint("new-", count)), asw.Attachment{State: asw.Present}))
		count++
	}
	if count != 2 {
		t.Errorf("a walk of 2 volumes saw %d", count)
	}
}

// TestModel does random things and compares with a model that is too simple to
// be wrong.
func TestModel(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	w := asw.New()
	model := map[plugins.PodVolume]asw.PodVolume{}
	for step := range 20_000 {
		v := plugins.PodVolume{
			Pod:    types.UID([]string{"a", "a-b", "a.c", "b"}[random.IntN(4)]),
			Plugin: []string{"p/x", "p/x-y", "p/x."}[random.IntN(3)],
			Name:   []string{"n", "n-", "m"}[random.IntN(3)],
		}
		pv := asw.PodVolume{Volume: v, ID: plugins.VolumeID(v.Plugin), State: asw.Presence(random.IntN(3)), MountID: uint64(step)}
		must(t, w.SetPodVolume(pv))
		if model[v] = pv; pv.State == asw.Absent {
			delete(model, v)
		}
		if step%50 > 0 {
			continue
		}
		byID := map[plugins.VolumeID][]asw.PodVolume{}
		byPod := map[types.UID][]asw.PodVolume{}
		for _, pv := range model {
			byID[pv.ID] = append(byID[pv.ID], pv)
			byPod[pv.Volume.Pod] = append(byPod[pv.Volume.Pod], pv)
		}
		byString := func(a, b asw.PodVolume) int { return cmp.Compare(a.Volume.String(), b.Volume.String()) }
		for id, list := range byID {
			slices.SortFunc(list, byString)
			if got, _ := w.Volume(id); !reflect.DeepEqual(got.Pods, list) {
				t.Fatalf("%s: %v\nwant %v", id, got.Pods, list)
			}
		}
		for uid, list := range byPod {
			slices.SortFunc(list, byString)
			if w.HasPod(uid) != (len(list) > 0) {
				t.Fatalf("HasPod(%s) with %d volumes: %v", uid, len(list), len(list) == 0)
			}
			if got := w.Pod(uid); !reflect.DeepEqual(got, list) {
				t.Fatalf("%s: %v\nwant %v", uid, got, list)
			}
		}
		if volumes, pods := w.Len(); volumes != len(byID) || pods != len(model) {
			t.Fatalf("Len: %d, %d, want %d, %d", volumes, pods, len(byID), len(model))
		}
	}
}

// TestConcurrent lets readers look at snapshots while writers change what they
// were taken of; the race detector is the judge.
func TestConcurrent(t *testing.T) {
	w := asw.New()
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			uid := types.UID(fmt.Sprint("pod-", g))
			for n := range 500 {
				pv := podVolume("shared", uid, fmt.Sprint("n", n%5))
				if n%3 == 0 {
					w.RemovePodVolume(pv.Volume)
				} else if err := w.SetPodVolume(pv); err != nil {
					t.Error(err)
				}
			}
		})
		all.Go(func() {
			for range 500 {
				v, _ := w.Volume("shared")
				for i := range v.Pods {
					if v.Pods[i].ID != "shared" {
						t.Error("a torn pod volume")
					}
				}
				for id := range w.Volumes() {
					_ = id
				}
				_ = w.Pod("pod-0")
				_ = w.Changed("pod-1")
				_ = w.InUse()
			}
		})
	}
	all.Wait()
}

// filled returns a world of n volumes of one pod volume each, four a pod.
func filled(t testing.TB, n int) *asw.World {
	w := asw.New()
	for i := range n {
		uid := types.UID(fmt.Sprintf("pod-%d", i/4))
		pv := podVolume(plugins.VolumeID(fmt.Sprintf("p/x/%s-%d", uid, i)), uid, fmt.Sprint("volume-", i))
		must(t, w.SetPodVolume(pv))
	}
	return w
}

func TestAllocations(t *testing.T) {
	w := filled(t, 2000)
	ids := make([]plugins.VolumeID, 0, 256)
	for name, tc := range map[string]struct {
		limit float64
		do    func()
	}{
		"Volume":  {0, func() { w.Volume("p/x/pod-10-40") }},
		"Pod":     {1, func() { w.Pod("pod-10") }},
		"Slice":   {0, func() { w.Slice(0, ids) }},
		"Volumes": {2, func() { w.Volumes()(func(plugins.VolumeID) bool { return true }) }},
	} {
		if got := testing.AllocsPerRun(100, tc.do); got > tc.limit {
			t.Errorf("%s: %v allocations, want at most %v", name, got, tc.limit)
		}
	}
}

const many = 20_000

func BenchmarkVolume(b *testing.B) {
	w := filled(b, many)
	b.ReportAllocs()
	for b.Loop() {
		w.Volume("p/x/pod-2500-10000")
	}
}

func BenchmarkPod(b *testing.B) {
	w := filled(b, many)
	b.ReportAllocs()
	for b.Loop() {
		w.Pod("pod-2500")
	}
}

func BenchmarkSlice256(b *testing.B) {
	w := filled(b, many)
	ids := make([]plugins.VolumeID, 0, 256)
	var after uint64
	b.ReportAllocs()
	for b.Loop() {
		ids, after = w.Slice(after, ids)
	}
}

func BenchmarkVolumes(b *testing.B) {
	w := filled(b, many)
	b.ReportAllocs()
	for b.Loop() {
		for id := range w.Volumes() {
			_ = id
		}
	}
}

// BenchmarkSetAndRemove is the world's part of one set-up and tear-down.
func BenchmarkSetAndRemove(b *testing.B) {
	w := filled(b, many)
	pv := podVolume("p/x/new", "new", "n")
	b.ReportAllocs()
	for b.Loop() {
		must(b, w.SetPodVolume(pv))
		w.Volume(pv.ID)
		pv.State = asw.Present
		must(b, w.SetPodVolume(pv))
		w.Volume(pv.ID)
		w.RemovePodVolume(pv.Volume)
	}
}

// BenchmarkSharedByMany adds pods to one volume that is looked at each time.
func BenchmarkSharedByMany(b *testing.B) {
	w := asw.New()
	for i := range 1000 {
		must(b, w.SetPodVolume(podVolume("v", types.UID(fmt.Sprintf("pod-%04d", i)), "n")))
	}
	pv := podVolume("v", "pod-0500", "n")
	b.ReportAllocs()
	for b.Loop() {
		must(b, w.SetPodVolume(pv))
		w.Volume("v")
	}
}

func volumeNamed(name string) *v1.Volume { return &v1.Volume{Name: name} }
