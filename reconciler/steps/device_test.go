package steps_test

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

func TestDeviceOfSeveralPods(t *testing.T) {
	r := newRig(t)
	identity := plugins.Identity{Storage: "storage", Attach: true, Device: true, Durable: true}
	pods := []wish{
		{pod: "a", volume: "vol", identity: identity, params: plugins.Params{SELinuxLabel: "one"}},
		{pod: "b", volume: "vol", identity: identity, params: plugins.Params{SELinuxLabel: "one"}},
		{pod: "c", volume: "vol", identity: identity, params: plugins.Params{SELinuxLabel: "two"}},
	}
	for _, w := range pods {
		r.want(w)
	}
	size := resource.MustParse("3Gi")
	r.plugin.device.Size = &size
	r.must(pods[0].key(reconciler.Attach))
	r.must(pods[0].key(reconciler.MountDevice))
	req := r.plugin.devices[1]
	var names []string
	for _, p := range req.Pods {
		names = append(names, p.Name)
	}
	// The first pod leads; c, whose label cannot be had, is held by the plan.
	if !slices.Equal(names, []string{"a", "b", "c"}) || req.Params.SELinuxLabel != "one" || req.Spec == nil {
		t.Errorf("request: %+v", req)
	}
	v, _ := r.actual.Volume(pods[0].id())
	if v.DeviceParams.SELinuxLabel != "one" || v.DeviceParams.Size.Cmp(size) != 0 {
		t.Errorf("device: %+v", v.DeviceParams)
	}
	r.must(pods[0].key(reconciler.SetUp))
	r.must(pods[1].key(reconciler.SetUp))
	r.must(pods[2].key(reconciler.SetUp)) // does not fit, so nothing happens
	if r.state(pods[2].key(reconciler.SetUp)) != asw.Absent {
		t.Error("c was set up on a device with another label")
	}
	// Events of the device go to all pods that wait for it.
	if got := len(r.events.List()); got != 5 { // attached: 3, mounted: 2
		t.Errorf("%d events: %v", got, r.events.List())
	}
	r.unwant(pods[0])
	r.must(pods[0].key(reconciler.TearDown))
	if r.planned(pods[0].key(reconciler.UnmountDevice)) {
		t.Error("the device goes under b")
	}
	// When b goes too, the device is made anew for c: undone as it was made.
	r.unwant(pods[1])
	r.must(pods[1].key(reconciler.TearDown))
	r.must(pods[2].key(reconciler.UnmountDevice))
	last := r.plugin.devices[len(r.plugin.devices)-1]
	if last.Params.SELinuxLabel != "one" || last.Path != req.Path {
		t.Errorf("undone as %+v", last)
	}
	if rec, _ := r.journal.get(journal.Key{ID: pods[0].id()}); !rec.Attach || rec.Device {
		t.Errorf("record: %+v", rec)
	}
	r.must(pods[2].key(reconciler.MountDevice))
	r.must(pods[2].key(reconciler.SetUp))
	if last := r.plugin.devices[len(r.plugin.devices)-1]; last.Params.SELinuxLabel != "two" {
		t.Errorf("made as %+v", last)
	}
	r.settle(pods[2])
}

// A device mount that fails without a trace leaves the record that its
// attachment needs.
func TestFailedDeviceMountKeepsTheAttachmentsRecord(t *testing.T) {
	r := newRig(t)
	w := wish{pod: "pod", volume: "vol", identity: plugins.Identity{Storage: "s", Attach: true, Device: true}}
	r.want(w)
	r.plugin.device = plugins.DeviceResult{DevicePath: "/dev/fake", Undo: plugins.Undo{"lun": "7"}}
	r.must(w.key(reconciler.Attach))
	check := func(what string) {
		t.Helper()
		rec, ok := r.journal.get(journal.Key{ID: w.id()})
		if !ok || !rec.Attach || rec.Device || rec.DeviceMountPath != "" || rec.Undo["lun"] != "7" || rec.DevicePath != "/dev/fake" {
			t.Errorf("%s: record %v, %+v", what, ok, rec)
		}
		if v, _ := r.actual.Volume(w.id()); v.Attachment != asw.Present || v.Device != asw.Absent || v.DeviceMountPath != "" {
			t.Errorf("%s: %+v", what, v)
		}
	}
	check("attached")
	r.plugin.fail("mountDevice", plugins.Transientf("busy"))
	if err := r.do(w.key(reconciler.MountDevice)); plugins.ClassOf(err) != plugins.ClassTransient {
		t.Errorf("error: %v", err)
	}
	check("failed")
	r.plugin.hook("mountDevice", nil)
	r.journal.wrote = func() error { r.journal.wrote = nil; return errDisk }
	if err := r.do(w.key(reconciler.MountDevice)); plugins.ClassOf(err) != plugins.ClassTransient {
		t.Errorf("error: %v", err)
	}
	check("not recorded")
	r.settle(w)
}

// What a device mount found out is recorded before it counts.
func TestDeviceResultIsRecordedBeforeItCounts(t *testing.T) {
	for _, kind := range []reconciler.Kind{reconciler.Attach, reconciler.MountDevice} {
		r := newRig(t)
		w := wish{pod: "pod", volume: "vol", identity: plugins.Identity{Storage: "s", Attach: kind == reconciler.Attach, Device: kind != reconciler.Attach}}
		r.want(w)
		r.plugin.device = plugins.DeviceResult{Undo: plugins.Undo{"lun": "7"}}
		puts := 0
		r.journal.put = func(journal.Record) error {
			if puts++; puts == 2 {
				return errDisk
			}
			return nil
		}
		if err := r.do(w.key(kind)); plugins.ClassOf(err) != plugins.ClassUncertain || r.state(w.key(kind)) != asw.Uncertain {
			t.Errorf("%s: %v, %v", kind, err, r.state(w.key(kind)))
		}
		r.must(w.key(kind))
		if rec, _ := r.journal.get(journal.Key{ID: w.id()}); rec.Undo["lun"] != "7" {
			t.Errorf("%s: %+v", kind, rec)
		}
		r.settle(w)
	}
}

// What is staged stays where it was staged, also where the plugin of today
// would stage elsewhere.
func TestStagedStaysWhereItIs(t *testing.T) {
	r := newRig(t)
	w := wish{pod: "pod", volume: "vol", identity: plugins.Identity{Storage: "s", Device: true}}
	old := r.host.Layout.PluginDir("test.io/fake") + "/old/place"
	err := r.actual.Load([]asw.Volume{{ID: w.id(), Identity: w.identity, Device: asw.Uncertain, DeviceMountPath: old,
		Pods: []asw.PodVolume{{Volume: w.podVolume(), State: asw.Uncertain, Found: true}}}})
	if err != nil {
		t.Fatal(err)
	}
	r.want(w)
	// Pods that use it make a failure say nothing about what is left.
	r.plugin.fail("mountDevice", plugins.Transientf("busy"))
	if err := r.do(w.key(reconciler.MountDevice)); plugins.ClassOf(err) != plugins.ClassTransient || r.state(w.key(reconciler.MountDevice)) != asw.Uncertain {
		t.Errorf("%v", err)
	}
	r.plugin.hook("mountDevice", nil)
	r.must(w.key(reconciler.MountDevice))
	r.must(w.key(reconciler.SetUp))
	if got := r.plugin.setUps[0].DeviceMountPath; got != old {
		t.Errorf("set up from %s", got)
	}
	r.settle(w)
	if got := r.plugin.devices[len(r.plugin.devices)-1].Path; got != old {
		t.Errorf("unmounted at %s", got)
	}
}

func TestParallelIsTheCarefulAnswer(t *testing.T) {
	r := newRig(t)
	yes, no := plugins.Identity{Storage: "s", Device: true, Parallel: true}, plugins.Identity{Storage: "s", Device: true}
	id := wish{pod: "pod", volume: "vol", identity: no}.id()
	if r.exec.Parallel(id) {
		t.Error("nobody said that it may be parallel")
	}
	a := wish{pod: "a", volume: "vol", identity: yes}
	r.want(a)
	if !r.exec.Parallel(id) {
		t.Error("wished as parallel, but is not")
	}
	r.must(a.key(reconciler.MountDevice))
	r.must(a.key(reconciler.SetUp))
	r.want(wish{pod: "b", volume: "vol", identity: no})
	if r.exec.Parallel(id) {
		t.Error("one wish says no")
	}
	r.desired.RemovePod("a")
	r.desired.RemovePod("b")
	if !r.exec.Parallel(id) {
		t.Error("what is there is parallel")
	}
	r.settle(a)
	r.want(wish{pod: "b", volume: "vol", identity: no})
	r.must(a.key(reconciler.MountDevice))
	r.want(a)
	r.desired.RemovePod("b")
	if r.exec.Parallel(id) {
		t.Error("what is there is not parallel")
	}
	r.settle(a)
}
