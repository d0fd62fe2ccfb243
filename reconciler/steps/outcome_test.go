package steps_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/memory"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/reconciler/steps"
)

var secretRef = plugins.Ref{Kind: "Secret", Namespace: "ns", Name: "s"}

// outcomes are the ways in which a call can end, and what class that has.
var outcomes = []struct {
	name  string
	end   func() error
	class plugins.Class
}{
	{"success", func() error { return nil }, plugins.ClassNone},
	{"waiting", func() error { return plugins.WaitFor(secretRef, nil) }, plugins.ClassWaiting},
	{"transient", func() error { return plugins.Transientf("busy") }, plugins.ClassTransient},
	{"permanent", func() error { return plugins.Permanentf("wrong") }, plugins.ClassPermanent},
	{"unsupported", func() error { return plugins.Unsupportedf("never") }, plugins.ClassUnsupported},
	{"unsupported by the mounter", func() error { return fmt.Errorf("mount: %w", mount.ErrUnsupported) }, plugins.ClassUnsupported},
	{"uncertain", func() error { return plugins.Uncertain(errors.New("silence")) }, plugins.ClassUncertain},
	{"uncertain by word", func() error { return plugins.Uncertain(mount.ErrUnsupported) }, plugins.ClassUncertain},
	{"no class", func() error { return errors.New("something") }, plugins.ClassUncertain},
	{"deadline", func() error { return context.DeadlineExceeded }, plugins.ClassUncertain},
	{"panic", func() error { panic("password=hunter2") }, plugins.ClassUncertain},
	{"goexit", func() error { runtime.Goexit(); return nil }, plugins.ClassUncertain},
}

// The states in which a step can find what it is about.
const (
	fresh   = "fresh"
	found   = "found"   // an earlier process left it
	unsure  = "unsure"  // an earlier try of this process did
	present = "present" // it is there
)

// table lists the steps with the states for which they are planned.
var table = []struct {
	kind   reconciler.Kind
	call   string
	block  bool
	states []string
}{
	{reconciler.SetUp, "setUp", false, []string{fresh, found, unsure}},
	{reconciler.SetUp, "mapDevice", true, []string{fresh, found, unsure}},
	{reconciler.TearDown, "tearDown", false, []string{found, unsure, present}},
	{reconciler.TearDown, "unmapDevice", true, []string{found, unsure, present}},
	{reconciler.Refresh, "refresh", false, []string{present}},
	{reconciler.Expand, "expand", false, []string{present}},
	{reconciler.Attach, "attach", false, []string{fresh, found, unsure}},
	{reconciler.Detach, "detach", false, []string{found, unsure, present}},
	{reconciler.MountDevice, "mountDevice", false, []string{fresh, found, unsure}},
	{reconciler.UnmountDevice, "unmountDevice", false, []string{found, unsure, present}},
}

func TestEveryOutcomeOfEveryStep(t *testing.T) {
	for _, row := range table {
		for _, state := range row.states {
			for _, outcome := range outcomes {
				t.Run(fmt.Sprintf("%s/%s/%s", row.call, state, outcome.name), func(t *testing.T) {
					r := newRig(t)
					w := r.arrange(row.kind, row.block, state)
					key := w.key(row.kind)
					if !r.planned(key) {
						t.Fatalf("not planned: %+v", r.exec.Plan(key.ID))
					}
					r.forgetPast()
					r.plugin.hook(row.call, func(context.Context) error {
						r.checkBegun(key)
						return outcome.end()
					})
					err := r.finish(key)
					r.checkOutcome(key, state, outcome.class, err)
					r.plugin.hook(row.call, nil)
					r.settle(w)
				})
			}
		}
	}
}

// arrange brings about the state before the step, and returns the wish.
func (r *rig) arrange(kind reconciler.Kind, block bool, state string) wish {
	r.t.Helper()
	size := resource.MustParse("1Gi")
	w := wish{pod: "pod", volume: "vol", block: block, params: plugins.Params{Size: &size}}
	w.identity = plugins.Identity{Storage: "storage", Undo: plugins.Undo{"id": "1"}}
	switch kind {
	case reconciler.Attach, reconciler.Detach:
		w.identity.Attach = true
	case reconciler.MountDevice, reconciler.UnmountDevice:
		w.identity.Device = true
	}
	r.plugin.mapped = r.host.Layout.Root
	r.want(w)
	if state == found {
		r.load(w)
	}
	make := reconciler.SetUp
	switch {
	case w.identity.Attach:
		make = reconciler.Attach
	case w.identity.Device:
		make = reconciler.MountDevice
	}
	switch state {
	case unsure:
		r.failAt(steps.FaultDone, plugins.Uncertain(errors.New("cut")))
		if err := r.do(w.key(make)); err == nil {
			r.t.Fatal("the fault did not strike")
		}
		r.failAt("", nil)
	case present:
		r.must(w.key(make))
	}
	if kind.Undoes() {
		r.unwant(w)
	}
	switch kind {
	case reconciler.Refresh:
		r.desired.Touch(plugins.Ref{Kind: "Secret", Namespace: "ns", Name: "content"})
	case reconciler.Expand:
		more := resource.MustParse("2Gi")
		r.plugin.size, w.params.Size = more, &more
		r.want(w)
	}
	return w
}

// load enters what an earlier process left of the wish.
func (r *rig) load(w wish) {
	r.t.Helper()
	v := asw.Volume{ID: w.id(), Identity: w.identity}
	rec := journal.Record{Key: journal.Key{ID: w.id()}, Undo: plugins.Undo{"id": "1"}}
	switch {
	case w.identity.Attach:
		v.Attachment, rec.Attach = asw.Uncertain, true
	case w.identity.Device:
		path, _ := r.plugin.DeviceMountPath(w.spec())
		v.Device, v.DeviceMountPath, rec.Device, rec.DeviceMountPath = asw.Uncertain, path, true, path
	default:
		rec.Volume = w.podVolume()
		v.Pods = []asw.PodVolume{{Volume: w.podVolume(), State: asw.Uncertain, Found: true, Block: w.block, Undo: rec.Undo,
			Pod: plugins.PodRef{Namespace: "ns", Name: w.pod, UID: types.UID(w.pod)}}}
	}
	if err := r.actual.Load([]asw.Volume{v}); err != nil {
		r.t.Fatal(err)
	}
	if err := r.journal.Put(context.Background(), rec); err != nil {
		r.t.Fatal(err)
	}
}

// forgetPast drops what was noted of the steps that arranged the state.
func (r *rig) forgetPast() {
	r.locked(func() { r.started, r.finished, r.changed, r.points, r.woken = nil, nil, nil, nil, nil })
	r.events = memory.NewRecorder(0)
	r.host.Events = r.events
}

// checkBegun checks what has to hold while the plugin is called.
func (r *rig) checkBegun(key reconciler.Key) {
	if _, ok := r.journal.get(recordKey(key)); !ok {
		r.t.Errorf("the plugin is called without a record")
	}
	want := asw.Uncertain
	if key.Kind == reconciler.Expand || key.Kind == reconciler.Refresh {
		want = asw.Present
	}
	if got := r.state(key); got != want {
		r.t.Errorf("the plugin is called with the state %v", got)
	}
}

// finish runs a step that may end its goroutine, and returns its error.
func (r *rig) finish(key reconciler.Key) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.do(key)
	}()
	<-ended
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.started) != 1 || r.started[0] != key || len(r.finished) != 1 {
		r.t.Fatalf("observer: started %v, finished %v", r.started, r.finished)
	}
	if len(r.changed) != 1 || r.changed[0] != key.Volume {
		r.t.Errorf("changed: %v", r.changed)
	}
	return r.finished[0]
}

func (r *rig) checkOutcome(key reconciler.Key, before string, class plugins.Class, err error) {
	r.t.Helper()
	if got := plugins.ClassOf(err); got != class {
		r.t.Errorf("class %v: %v", got, err)
	}
	var failed *steps.Error
	if err != nil && (!errors.As(err, &failed) || failed.Step.Key != key || strings.Contains(err.Error(), "hunter2")) {
		r.t.Errorf("error: %#v", err)
	}
	state, record := asw.Uncertain, true
	switch {
	case key.Kind == reconciler.Refresh || key.Kind == reconciler.Expand:
		state = asw.Present
	case err == nil && key.Kind.Undoes():
		state, record = asw.Absent, false
	case err == nil:
		state = asw.Present
	case !key.Kind.Undoes() && before == fresh && class != plugins.ClassUncertain:
		state, record = asw.Absent, false
	}
	if got := r.state(key); got != state {
		r.t.Errorf("state %v, not %v", got, state)
	}
	if _, ok := r.journal.get(recordKey(key)); ok != record {
		r.t.Errorf("record: %v", ok)
	}
	if waiting := len(r.exec.AllWaiting()) > 0; waiting != (class == plugins.ClassWaiting) {
		r.t.Errorf("remembered as waiting: %v", waiting)
	}
	r.checkEvents(key, before, err)
}

// checkEvents checks which event was sent, and that a repetition sends none.
func (r *rig) checkEvents(key reconciler.Key, before string, err error) {
	r.t.Helper()
	block := r.plugin.count("mapDevice")+r.plugin.count("unmapDevice") > 0
	want := map[reconciler.Kind]string{
		reconciler.SetUp: "FailedMount", reconciler.Refresh: "FailedMount", reconciler.MountDevice: "",
		reconciler.TearDown: "FailedUnMount", reconciler.Expand: "VolumeResizeFailed", reconciler.Attach: "FailedAttachVolume",
	}[key.Kind]
	if block {
		want = map[reconciler.Kind]string{reconciler.SetUp: "FailedMapVolume", reconciler.TearDown: "FailedUnmapDevice"}[key.Kind]
	}
	if key.Kind == reconciler.MountDevice {
		want = "FailedMount"
	}
	if err == nil {
		want = map[reconciler.Kind]string{reconciler.SetUp: "SuccessfulMountVolume", reconciler.Attach: "SuccessfulAttachVolume",
			reconciler.Expand: "FileSystemResizeSuccessful"}[key.Kind]
		if before == found || before == unsure && key.Kind == reconciler.Attach {
			want = ""
		}
	}
	var got []string
	for _, e := range r.events.List() {
		got = append(got, e.Reason)
		if e.Object.Name != "pod" || e.Object.Kind != "Pod" {
			r.t.Errorf("event about %v", e.Object)
		}
	}
	if strings.Join(got, " ") != want {
		r.t.Errorf("events %q, not %q", got, want)
	}
}

// settle brings everything to an end as a reconciler would, whatever happened
// before, and checks that nothing is left.
func (r *rig) settle(w wish) {
	r.t.Helper()
	r.gone(w)
	for range 10 {
		plan := r.exec.Plan(w.id())
		if len(plan.Steps) == 0 {
			break
		}
		r.must(plan.Steps[0].Key)
	}
	r.clean()
	if folders, taken := r.exec.Busy(); folders+taken > 0 {
		r.t.Errorf("in use for ever: %d folders, %d paths", folders, taken)
	}
}
