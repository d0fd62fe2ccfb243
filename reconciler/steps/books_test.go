package steps_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

func TestWhatIsRecorded(t *testing.T) {
	r := newRig(t)
	w := wish{pod: "pod", volume: "vol", identity: plugins.Identity{
		Storage: "storage", Attach: true, Device: true, Durable: true, Parallel: true, Undo: plugins.Undo{"id": "1", "old": "x"},
	}}
	r.want(w)
	r.plugin.device = plugins.DeviceResult{DevicePath: "/dev/fake", Undo: plugins.Undo{"lun": "7", "old": "y"}}
	r.must(w.key(reconciler.Attach))
	r.must(w.key(reconciler.MountDevice))
	r.must(w.key(reconciler.SetUp))
	node, _ := r.journal.get(journal.Key{ID: w.id()})
	pod, _ := r.journal.get(recordKey(w.key(reconciler.SetUp)))
	path, _ := r.plugin.DeviceMountPath(w.spec())
	if !node.Attach || !node.Device || node.DevicePath != "/dev/fake" || node.DeviceMountPath != path || node.Storage != "storage" {
		t.Errorf("node-wide: %+v", node)
	}
	if pod.Pod.Name != "pod" || pod.Names[0] != "vol" || pod.DeviceMountPath != path || !pod.Attach || !pod.Device {
		t.Errorf("pod: %+v", pod)
	}
	for _, rec := range []journal.Record{node, pod} {
		if !rec.Durable || !rec.Parallel || rec.Undo["lun"] != "7" || rec.Undo["id"] != "1" || rec.Undo["old"] != "y" {
			t.Errorf("record: %+v", rec)
		}
	}
	if q := r.plugin.setUps[0]; q.Undo["lun"] != "7" || q.DevicePath != "/dev/fake" || q.DeviceMountPath != path || q.Again {
		t.Errorf("request: %+v", q)
	}
	r.unwant(w)
	r.must(w.key(reconciler.TearDown))
	if q := r.plugin.tearDown[0]; q.Undo["lun"] != "7" || q.DeviceMountPath != path || q.Volume != w.podVolume() || q.Path != r.host.Layout.PodVolume(w.podVolume()) {
		t.Errorf("request: %+v", q)
	}
	r.must(w.key(reconciler.UnmountDevice))
	// An agent that dies here has only to detach.
	if node, _ = r.journal.get(journal.Key{ID: w.id()}); !node.Attach || node.Device || node.DeviceMountPath != "" || node.Undo["lun"] != "7" {
		t.Errorf("after the unmounting: %+v", node)
	}
	r.must(w.key(reconciler.Detach))
	q := r.plugin.devices[len(r.plugin.devices)-1]
	if q.Undo["lun"] != "7" || q.Spec == nil || q.DevicePath != "/dev/fake" {
		t.Errorf("request: %+v", q)
	}
	for _, op := range r.journal.log {
		if !strings.HasSuffix(op, " durable") {
			t.Errorf("journal: %v", r.journal.log)
			break
		}
	}
	r.settle(w)
}

// A record of an earlier process may hold what this one's plugin does not say.
func TestUndoOfAnEarlierProcessIsKept(t *testing.T) {
	r := newRig(t)
	w := simple("pod", "vol")
	w.identity.Undo = plugins.Undo{"new": "1", "both": "new"}
	r.want(w)
	err := r.actual.Load([]asw.Volume{{ID: w.id(), Pods: []asw.PodVolume{{
		Volume: w.podVolume(), State: asw.Uncertain, Found: true, Undo: plugins.Undo{"old": "1", "both": "old"},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	r.must(w.key(reconciler.SetUp))
	rec, _ := r.journal.get(recordKey(w.key(reconciler.SetUp)))
	entry, _ := r.actual.PodVolume(w.podVolume())
	for _, undo := range []plugins.Undo{rec.Undo, entry.Undo, r.plugin.setUps[0].Undo} {
		if undo["old"] != "1" || undo["new"] != "1" || undo["both"] != "old" {
			t.Errorf("undo: %v", undo)
		}
	}
	if !r.plugin.setUps[0].Again || entry.Found {
		t.Errorf("again %v, found %v", r.plugin.setUps[0].Again, entry.Found)
	}
}

func TestStepsThatNoLongerFitDoNothing(t *testing.T) {
	r := newRig(t)
	w := simple("pod", "vol")
	r.want(w)
	r.must(w.key(reconciler.SetUp))
	calls := len(r.plugin.calls)
	for _, lazy := range []bool{false, true} {
		for _, kind := range []reconciler.Kind{reconciler.Attach, reconciler.MountDevice, reconciler.SetUp, reconciler.Expand, reconciler.Refresh,
			reconciler.TearDown, reconciler.UnmountDevice, reconciler.Detach, "dance"} {
			if err := r.exec.Do(context.Background(), reconciler.Step{Key: w.key(kind), Lazy: lazy}); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
	}
	if len(r.plugin.calls) != calls || r.state(w.key(reconciler.SetUp)) != asw.Present {
		t.Errorf("calls: %v", r.plugin.calls)
	}
}

func TestPluginsThatLackAPart(t *testing.T) {
	r := newRig(t)
	r.build(bare(r.plugin))
	size, more := resource.MustParse("1Gi"), resource.MustParse("2Gi")
	w := wish{pod: "pod", volume: "vol", plugin: "test.io/bare", params: plugins.Params{Size: &size}}
	r.want(w)
	r.must(w.key(reconciler.SetUp))
	// What cannot be refreshed is up to date.
	r.desired.Touch(plugins.Ref{Kind: "Secret", Namespace: "ns", Name: "content"})
	r.must(w.key(reconciler.Refresh))
	if r.planned(w.key(reconciler.Refresh)) {
		t.Error("a refresh is planned for ever")
	}
	w.params.Size = &more
	r.want(w)
	if err := r.do(w.key(reconciler.Expand)); plugins.ClassOf(err) != plugins.ClassUnsupported {
		t.Errorf("expand: %v", err)
	}
	r.settle(w)
	for _, identity := range []plugins.Identity{{Storage: "s", Attach: true}, {Storage: "s", Device: true}} {
		kind := reconciler.Attach
		if identity.Device {
			kind = reconciler.MountDevice
		}
		w := wish{pod: "pod", volume: "vol", plugin: "test.io/bare", identity: identity}
		r.want(w)
		if err := r.do(w.key(kind)); plugins.ClassOf(err) != plugins.ClassUnsupported {
			t.Errorf("%s: %v", kind, err)
		}
		r.settle(w)
	}
	w = wish{pod: "pod", volume: "vol", plugin: "test.io/bare", block: true}
	r.want(w)
	if err := r.do(w.key(reconciler.SetUp)); plugins.ClassOf(err) != plugins.ClassUnsupported {
		t.Errorf("block: %v", err)
	}
	r.settle(w)
	w = wish{pod: "pod", volume: "vol", plugin: "test.io/gone"}
	r.want(w)
	if err := r.do(w.key(reconciler.SetUp)); plugins.ClassOf(err) != plugins.ClassUnsupported || !errors.Is(err, plugins.ErrNoPlugin) {
		t.Errorf("no plugin: %v", err)
	}
	r.settle(w)
}

func TestExpansionThatFallsShortIsNoSuccess(t *testing.T) {
	r := newRig(t)
	w := r.arrange(reconciler.Expand, false, present)
	less := resource.MustParse("1536Mi")
	r.plugin.size = less
	if err := r.do(w.key(reconciler.Expand)); plugins.ClassOf(err) != plugins.ClassTransient {
		t.Errorf("error: %v", err)
	}
	if entry, _ := r.actual.PodVolume(w.podVolume()); entry.Params.Size.Cmp(less) != 0 || entry.State != asw.Present {
		t.Errorf("entry: %+v", entry)
	}
	r.plugin.size = resource.MustParse("2Gi")
	r.must(w.key(reconciler.Expand))
	if r.planned(w.key(reconciler.Expand)) {
		t.Error("still planned")
	}
}

func TestExpansionThatIsNotForThisNodeCountsAsDone(t *testing.T) {
	r := newRig(t)
	w := r.arrange(reconciler.Expand, false, present)
	r.plugin.size = resource.Quantity{}
	events := len(r.events.List())
	r.must(w.key(reconciler.Expand))
	if entry, _ := r.actual.PodVolume(w.podVolume()); entry.Params.Size.Cmp(resource.MustParse("2Gi")) != 0 {
		t.Errorf("entry: %+v", entry)
	}
	if r.planned(w.key(reconciler.Expand)) || len(r.events.List()) != events {
		t.Errorf("planned %v, events %v", r.planned(w.key(reconciler.Expand)), r.events.List())
	}
}

func TestRefresh(t *testing.T) {
	touch := plugins.Ref{Kind: "Secret", Namespace: "ns", Name: "content"}
	at := time.Now().Add(time.Hour)
	r := newRig(t)
	w := simple("pod", "vol")
	r.want(w)
	r.plugin.result = func(_ plugins.SetUpRequest, got *plugins.SetUpResult) {
		got.Content = plugins.Content{Version: "v1", Changed: []string{"a"}}
	}
	r.must(w.key(reconciler.SetUp))
	r.desired.Touch(touch)
	r.plugin.content = plugins.Content{Version: "v2", Changed: []string{"b"}, RefreshAt: at}
	r.must(w.key(reconciler.Refresh))
	entry, _ := r.actual.PodVolume(w.podVolume())
	if entry.ContentVersion != "v2" || !entry.RefreshAt.Equal(at) || len(r.contents) != 2 || r.contents[1].Version != "v2" {
		t.Errorf("%+v, told %v", entry, r.contents)
	}
	// A source that changes during the refresh makes another one due.
	r.desired.Touch(touch)
	r.plugin.hook("refresh", func(context.Context) error { r.desired.Touch(touch); return nil })
	r.must(w.key(reconciler.Refresh))
	r.plugin.hook("refresh", nil)
	if !r.planned(w.key(reconciler.Refresh)) {
		t.Error("the change during the refresh is lost")
	}
	// An entry that vanishes meanwhile stays away.
	r.plugin.hook("refresh", func(context.Context) error { r.actual.RemovePodVolume(w.podVolume()); return nil })
	r.must(w.key(reconciler.Refresh))
	if r.state(w.key(reconciler.SetUp)) != asw.Absent {
		t.Error("the entry came back")
	}
}

func TestRefreshOfALostVolumeBringsItBack(t *testing.T) {
	for name, lose := range map[string]func(r *rig, path string) error{
		"unmounted": func(r *rig, path string) error { return r.plugin.unmount(path) },
		"folder left": func(r *rig, path string) error {
			return errors.Join(r.plugin.unmount(path), os.Mkdir(path, 0o700))
		},
		"dead":        func(r *rig, path string) error { return r.mounts.Corrupt(path, syscall.ENOTCONN) },
		"folder gone": func(r *rig, path string) error { return r.plugin.unmount(path) },
		"not lost":    func(*rig, string) error { return nil },
		"not known":   func(r *rig, _ string) error { r.mounts.Fail(mounttest.OpInspect, "vol", errors.New("no")); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			w := simple("pod", "vol")
			r.want(w)
			r.plugin.result = func(_ plugins.SetUpRequest, got *plugins.SetUpResult) { got.Mounted = name != "folder gone" }
			r.must(w.key(reconciler.SetUp))
			r.desired.Touch(plugins.Ref{Kind: "Secret", Namespace: "ns", Name: "content"})
			if err := lose(r, r.host.Layout.PodVolume(w.podVolume())); err != nil {
				t.Fatal(err)
			}
			r.plugin.fail("refresh", plugins.Uncertain(errors.New("the mount is gone")))
			if err := r.do(w.key(reconciler.Refresh)); plugins.ClassOf(err) != plugins.ClassUncertain {
				t.Errorf("error: %v", err)
			}
			if lost := name[:3] != "not"; r.planned(w.key(reconciler.SetUp)) != lost {
				t.Errorf("state %v", r.state(w.key(reconciler.SetUp)))
			}
		})
	}
}
