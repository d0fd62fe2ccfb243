package steps_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/reconciler/steps"
)

// simple is a wish for a volume of a pod's own.
func simple(pod, volume string) wish { return wish{pod: pod, volume: volume} }

// makers are the steps that make something, on what is fresh.
var makers = map[reconciler.Kind]plugins.Identity{
	reconciler.SetUp:       {},
	reconciler.Attach:      {Storage: "storage", Attach: true},
	reconciler.MountDevice: {Storage: "storage", Device: true},
}

func TestWithoutARecordNothingHappens(t *testing.T) {
	for kind, identity := range makers {
		for name, class := range map[string]plugins.Class{"disk": plugins.ClassTransient, "record": plugins.ClassPermanent} {
			t.Run(string(kind)+"/"+name, func(t *testing.T) {
				r := newRig(t)
				w := wish{pod: "pod", volume: "vol", identity: identity}
				r.want(w)
				r.journal.put = func(journal.Record) error {
					if class == plugins.ClassPermanent {
						return plugins.Permanent(errDisk)
					}
					return errDisk // without a class of its own
				}
				err := r.do(w.key(kind))
				if plugins.ClassOf(err) != class || !errors.Is(err, errDisk) {
					t.Errorf("error: %v", err)
				}
				if len(r.plugin.calls) > 0 {
					t.Errorf("the plugin was called: %v", r.plugin.calls)
				}
				if r.state(w.key(kind)) != asw.Absent {
					t.Errorf("entered: %v", r.state(w.key(kind)))
				}
				r.settle(w)
			})
		}
	}
}

// A put that fails may have written the record: it is taken back, and where
// even that fails, the volume stays so that a teardown takes it back.
func TestARecordThatMayBeThereIsTakenBack(t *testing.T) {
	for kind, identity := range makers {
		for _, stuck := range []bool{false, true} {
			t.Run(string(kind), func(t *testing.T) {
				r := newRig(t)
				w := wish{pod: "pod", volume: "vol", identity: identity}
				r.want(w)
				r.journal.wrote = func() error { return plugins.Transient(errDisk) }
				if stuck {
					r.journal.del = func(journal.Key) error { return errDisk }
				}
				err := r.do(w.key(kind))
				want, class := asw.Absent, plugins.ClassTransient
				if stuck {
					want, class = asw.Uncertain, plugins.ClassUncertain
				}
				if plugins.ClassOf(err) != class || r.state(w.key(kind)) != want || len(r.plugin.calls) > 0 {
					t.Errorf("%v, state %v, calls %v", err, r.state(w.key(kind)), r.plugin.calls)
				}
				if !stuck && len(r.journal.keys()) > 0 {
					t.Errorf("journal: %v", r.journal.keys())
				}
				r.journal.wrote, r.journal.del = nil, nil
				r.settle(w)
			})
		}
	}
}

func TestARecordThatCannotBeDroppedIsTriedAgain(t *testing.T) {
	for kind, identity := range makers {
		t.Run(string(kind), func(t *testing.T) {
			r := newRig(t)
			w := wish{pod: "pod", volume: "vol", identity: identity}
			r.want(w)
			r.must(w.key(kind))
			undo := map[reconciler.Kind]reconciler.Kind{reconciler.SetUp: reconciler.TearDown, reconciler.Attach: reconciler.Detach,
				reconciler.MountDevice: reconciler.UnmountDevice}[kind]
			r.unwant(w)
			r.journal.del = func(journal.Key) error { return errDisk }
			if err := r.do(w.key(undo)); plugins.ClassOf(err) != plugins.ClassUncertain || !errors.Is(err, errDisk) {
				t.Errorf("error: %v", err)
			}
			if r.state(w.key(kind)) != asw.Uncertain || !r.planned(w.key(undo)) {
				t.Errorf("state %v", r.state(w.key(kind)))
			}
			r.journal.del = nil
			r.must(w.key(undo))
			r.settle(w)
		})
	}
}

func TestAFailedStepThatCannotDropItsRecordStays(t *testing.T) {
	for kind, call := range map[reconciler.Kind]string{reconciler.SetUp: "setUp", reconciler.Attach: "attach", reconciler.MountDevice: "mountDevice"} {
		r := newRig(t)
		w := wish{pod: "pod", volume: "vol", identity: makers[kind]}
		r.want(w)
		r.plugin.fail(call, plugins.Permanentf("wrong"))
		r.journal.del = func(journal.Key) error { return errDisk }
		err := r.do(w.key(kind))
		if plugins.ClassOf(err) != plugins.ClassUncertain || !strings.Contains(err.Error(), "wrong") || r.state(w.key(kind)) != asw.Uncertain {
			t.Errorf("%s: %v, %v", kind, err, r.state(w.key(kind)))
		}
		r.journal.del = nil
		r.settle(w)
	}
}

func TestFaultPoints(t *testing.T) {
	for _, row := range table {
		for _, state := range row.states {
			for _, point := range []string{steps.FaultRecorded, steps.FaultBegun, steps.FaultDone, steps.FaultUndone} {
				t.Run(row.call+"/"+state+"/"+point, func(t *testing.T) {
					r := newRig(t)
					w := r.arrange(row.kind, row.block, state)
					key := w.key(row.kind)
					r.failAt(point, errors.New("cut"))
					r.locked(func() { r.points = nil })
					err := r.do(key)
					passed := len(r.points) > 0 && r.points[len(r.points)-1] == point
					if passed != (err != nil) {
						t.Fatalf("passed %v, error %v", r.points, err)
					}
					r.failAt("", nil)
					if !passed {
						r.settle(w)
						return
					}
					before := map[bool]asw.Presence{true: asw.Absent, false: asw.Uncertain}[state == fresh]
					switch {
					case point == steps.FaultRecorded && (r.state(key) != before || plugins.ClassOf(err) != plugins.ClassTransient):
						t.Errorf("nothing happened yet, but: %v, %v", r.state(key), err)
					case point != steps.FaultRecorded && (r.state(key) != asw.Uncertain || plugins.ClassOf(err) != plugins.ClassUncertain):
						t.Errorf("%v, %v", r.state(key), err)
					}
					r.settle(w)
				})
			}
		}
	}
}

func TestPromisesAreChecked(t *testing.T) {
	cases := map[string]struct {
		result func(*rig, plugins.SetUpRequest, *plugins.SetUpResult)
		fails  string
	}{
		"no mount": {func(r *rig, q plugins.SetUpRequest, _ *plugins.SetUpResult) { _ = r.plugin.unmount(q.Path) }, "none is there"},
		"dead": {func(r *rig, q plugins.SetUpRequest, _ *plugins.SetUpResult) {
			_ = r.mounts.Corrupt(q.Path, syscall.ENOTCONN)
		}, "is dead"},
		"outside": {func(_ *rig, q plugins.SetUpRequest, got *plugins.SetUpResult) {
			got.Path = filepath.Dir(q.Path) + "/other"
		}, "outside"},
		"outside by dots": {func(_ *rig, q plugins.SetUpRequest, got *plugins.SetUpResult) {
			got.Path = q.Path + "/../../../elsewhere"
		}, "outside"},
		"a prefix": {func(_ *rig, q plugins.SetUpRequest, got *plugins.SetUpResult) { got.Path = q.Path + "2" }, "outside"},
		"relative": {func(_ *rig, _ plugins.SetUpRequest, got *plugins.SetUpResult) { got.Path = "vol" }, "relative"},
		"below": {func(r *rig, q plugins.SetUpRequest, got *plugins.SetUpResult) {
			got.Path = filepath.Join(q.Path, "mount")
			_ = r.plugin.mount(got.Path)
		}, ""},
		"elsewhere without a mount": {func(r *rig, q plugins.SetUpRequest, got *plugins.SetUpResult) {
			_ = r.plugin.unmount(q.Path)
			got.Path, got.Mounted = "/srv/data", false
		}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			w := simple("pod", "vol")
			r.want(w)
			var told plugins.SetUpResult
			r.plugin.result = func(q plugins.SetUpRequest, got *plugins.SetUpResult) {
				c.result(r, q, got)
				told = *got
			}
			err := r.do(w.key(reconciler.SetUp))
			entry, _ := r.actual.PodVolume(w.podVolume())
			if c.fails == "" {
				if err != nil || entry.State != asw.Present || entry.Path != told.Path || entry.Mounted != told.Mounted || entry.Mounted != (entry.MountID != 0) {
					t.Errorf("%v, %+v", err, entry)
				}
				return
			}
			if plugins.ClassOf(err) != plugins.ClassUncertain || !strings.Contains(err.Error(), c.fails) || entry.State != asw.Uncertain {
				t.Errorf("%v, %+v", err, entry)
			}
		})
	}
}

func TestAPluginThatLeavesSomethingIsNotBelieved(t *testing.T) {
	r := newRig(t)
	w := simple("pod", "vol")
	r.want(w)
	r.plugin.fail("setUp done", plugins.Transientf("nothing is left, it says"))
	err := r.do(w.key(reconciler.SetUp))
	if plugins.ClassOf(err) != plugins.ClassUncertain || r.state(w.key(reconciler.SetUp)) != asw.Uncertain {
		t.Errorf("%v, %v", err, r.state(w.key(reconciler.SetUp)))
	}
	r.unwant(w)
	r.plugin.hook("tearDown done", func(context.Context) error { return r.plugin.mount(r.host.Layout.PodVolume(w.podVolume())) })
	err = r.do(w.key(reconciler.TearDown))
	if plugins.ClassOf(err) != plugins.ClassUncertain || r.state(w.key(reconciler.SetUp)) != asw.Uncertain || len(r.journal.keys()) != 1 {
		t.Errorf("teardown: %v, %v", err, r.state(w.key(reconciler.SetUp)))
	}
	r.plugin.hook("tearDown done", nil)
	r.settle(w)

	w = wish{pod: "pod", volume: "vol", identity: plugins.Identity{Storage: "s", Device: true}}
	r.want(w)
	r.plugin.fail("mountDevice done", plugins.Transientf("nothing is left, it says"))
	if err := r.do(w.key(reconciler.MountDevice)); plugins.ClassOf(err) != plugins.ClassUncertain || r.state(w.key(reconciler.MountDevice)) != asw.Uncertain {
		t.Errorf("device: %v", err)
	}
	r.unwant(w)
	path, _ := r.plugin.DeviceMountPath(w.spec())
	r.plugin.hook("unmountDevice done", func(context.Context) error { return r.plugin.mount(path) })
	if err := r.do(w.key(reconciler.UnmountDevice)); plugins.ClassOf(err) != plugins.ClassUncertain || r.state(w.key(reconciler.MountDevice)) != asw.Uncertain {
		t.Errorf("unmount device: %v", err)
	}
	r.plugin.hook("unmountDevice done", nil)
	r.settle(w)
}

// The books are right although the context ended while the plugin succeeded.
func TestContextThatEndsDuringACall(t *testing.T) {
	for _, row := range table {
		for _, state := range row.states {
			t.Run(row.call+"/"+state, func(t *testing.T) {
				r := newRig(t)
				w := r.arrange(row.kind, row.block, state)
				key := w.key(row.kind)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				r.plugin.hook(row.call+" done", func(context.Context) error { cancel(); return nil })
				err := r.exec.Do(ctx, reconciler.Step{Key: key})
				_, recorded := r.journal.get(recordKey(key))
				switch got := r.state(key); {
				case err != nil && (got != asw.Uncertain || !recorded || plugins.ClassOf(err) != plugins.ClassUncertain):
					t.Errorf("%v: %v, recorded %v", err, got, recorded)
				case err == nil && recorded != (got == asw.Present):
					t.Errorf("%v, recorded %v", got, recorded)
				}
				r.plugin.hook(row.call+" done", nil)
				r.settle(w)
			})
		}
	}
}

// What cannot be taken down by a call that hangs is no reason to hang oneself.
func TestHungCheckEndsWithItsContext(t *testing.T) {
	r := newRig(t)
	w := simple("pod", "vol")
	r.want(w)
	r.must(w.key(reconciler.SetUp))
	r.unwant(w)
	hold := r.mounts.Hang(mounttest.OpInspect, "vol")
	defer hold.Release()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-hold.Reached()
		cancel()
	}()
	if err := r.exec.Do(ctx, reconciler.Step{Key: w.key(reconciler.TearDown)}); plugins.ClassOf(err) != plugins.ClassUncertain {
		t.Errorf("error: %v", err)
	}
}
