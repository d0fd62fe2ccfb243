package steps_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/reconciler/steps"
)

func TestEventsTellOfChangesAndNotOfTries(t *testing.T) {
	r := newRig(t)
	w := simple("pod", "vol")
	r.want(w)
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for _, e := range r.events.List() {
			got = append(got, e.Type+" "+e.Reason)
		}
		if !slices.Equal(got, want) {
			t.Errorf("events %q, not %q", got, want)
		}
		r.forgetPast()
	}
	const failed, mounted = "Warning FailedMount", "Normal SuccessfulMountVolume"
	r.plugin.fail("setUp", plugins.Transientf("busy"))
	for range 5 {
		_ = r.do(w.key(reconciler.SetUp))
	}
	expect(failed)
	r.plugin.fail("setUp", plugins.Transientf("gone"))
	for range 5 {
		_ = r.do(w.key(reconciler.SetUp))
	}
	expect(failed)
	r.plugin.hook("setUp", nil)
	r.must(w.key(reconciler.SetUp))
	expect(mounted)
	touch := func() { r.desired.Touch(plugins.Ref{Kind: "Secret", Namespace: "ns", Name: "content"}) }
	touch()
	r.plugin.fail("refresh", plugins.Transientf("gone"))
	for range 5 {
		_ = r.do(w.key(reconciler.Refresh))
	}
	expect(failed)
	r.plugin.hook("refresh", nil)
	r.must(w.key(reconciler.Refresh))
	touch()
	r.plugin.fail("refresh", plugins.Transientf("gone"))
	_ = r.do(w.key(reconciler.Refresh))
	expect(failed) // after a success it is news again
	r.plugin.hook("refresh", nil)
	r.settle(w)
	expect()

	r.exec.QuietMounts = true
	r.want(w)
	r.must(w.key(reconciler.SetUp))
	expect()
	r.exec.QuietMounts = false
	r.settle(w)

	// Of a volume that was merely found whole nobody need be told, nor a pod
	// of which nothing but the UID is known.
	entry := asw.PodVolume{Volume: w.podVolume(), State: asw.Uncertain, Found: true}
	if err := r.actual.Load([]asw.Volume{{ID: w.id(), Pods: []asw.PodVolume{entry}}}); err != nil {
		t.Fatal(err)
	}
	r.plugin.fail("tearDown", errors.New("no"))
	_ = r.do(w.key(reconciler.TearDown))
	expect()
	r.plugin.hook("tearDown", nil)
	r.want(w)
	r.must(w.key(reconciler.SetUp))
	expect()
	r.settle(w)
}

// What is remembered of steps goes with the pods and volumes, in whatever
// order things end.
func TestNothingIsRememberedForEver(t *testing.T) {
	r := newRig(t)
	r.plugin.fail("setUp", plugins.WaitFor(secretRef, nil))
	r.plugin.fail("attach", plugins.WaitFor(secretRef, nil))
	for i := range 50 {
		w := simple(fmt.Sprintf("pod-%d", i), "vol")
		d := wish{pod: fmt.Sprintf("node-%d", i), volume: "vol", identity: plugins.Identity{Storage: fmt.Sprint(i), Attach: true}}
		r.want(w)
		r.want(d)
		_ = r.do(w.key(reconciler.SetUp))
		_ = r.do(d.key(reconciler.Attach))
		for _, w := range []wish{w, d} {
			r.gone(w)
		}
		if events, waits := r.exec.Remembered(); events+waits > 0 {
			t.Fatalf("round %d: events of %d scopes, waits of %d", i, events, waits)
		}
		// The pod goes while the step runs.
		w.pod += "-b"
		r.want(w)
		r.plugin.hook("setUp", func(context.Context) error {
			r.gone(w)
			return plugins.WaitFor(secretRef, nil)
		})
		_ = r.do(w.key(reconciler.SetUp))
		// And once more, with a set-up whose outcome nobody knows.
		w.pod += "-c"
		r.want(w)
		r.plugin.hook("setUp", func(context.Context) error {
			r.gone(w)
			return errors.Join(plugins.WaitFor(secretRef, nil), errors.New("what?"))
		})
		_ = r.do(w.key(reconciler.SetUp))
		r.must(w.key(reconciler.TearDown))
		r.plugin.fail("setUp", plugins.WaitFor(secretRef, nil))
	}
	r.clean()
}

// With very many volumes that fail, what is remembered stays in proportion to
// those that still can.
func TestWhatIsRememberedOfVolumesIsBounded(t *testing.T) {
	r := newRig(t)
	r.plugin.fail("attach", plugins.WaitFor(secretRef, nil))
	wishes := make([]wish, 200)
	for i := range wishes {
		wishes[i] = wish{pod: fmt.Sprintf("pod-%d", i), volume: "vol", identity: plugins.Identity{Storage: fmt.Sprint(i), Attach: true}}
		r.want(wishes[i])
		_ = r.do(wishes[i].key(reconciler.Attach))
	}
	for i, w := range wishes {
		r.gone(w)
		left := len(wishes) - i - 1
		// Waits count their kinds too, of which there is one.
		if events, waits := r.exec.Remembered(); events > 64+4*left || waits > 65+4*left {
			t.Fatalf("%d pods left: events of %d scopes, waits of %d", left, events, waits)
		}
	}
	r.clean()
}

func TestWaitingSteps(t *testing.T) {
	one := func(name string) plugins.Ref { return plugins.Ref{Kind: "Secret", Namespace: "ns", Name: name} }
	r := newRig(t)
	ids := map[string]plugins.VolumeID{}
	for pod, refs := range map[string][]plugins.Ref{"a": {one("x")}, "b": {one("x"), one("y")}, "c": {{Kind: "Bundle"}}, "d": {{Kind: "Secret", Namespace: "other"}}} {
		w := simple(pod, "vol")
		ids[pod] = w.id()
		r.want(w)
		var errs []error
		for _, ref := range refs {
			errs = append(errs, plugins.WaitFor(ref, nil))
		}
		r.plugin.fail("setUp", errors.Join(errs...))
		if err := r.do(w.key(reconciler.SetUp)); plugins.ClassOf(err) != plugins.ClassWaiting {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		notice plugins.Ref
		want   string
	}{
		{one("x"), "ab"}, {one("y"), "b"}, {one("z"), ""}, {plugins.Ref{Kind: "Secret"}, "abd"},
		{plugins.Ref{Kind: "Secret", Namespace: "ns"}, "ab"}, {plugins.Ref{Kind: "Secret", Namespace: "other"}, "d"},
		{plugins.Ref{Kind: "Secret", Namespace: "other", Name: "q"}, "d"}, {plugins.Ref{Kind: "Bundle", Name: "q"}, "c"},
		{plugins.Ref{Kind: "ConfigMap", Namespace: "ns", Name: "x"}, ""}, {one("x"), "ab"}, // kept until the next try
	} {
		got := ""
		woken := r.exec.Waiting(c.notice)
		for _, pod := range []string{"a", "b", "c", "d"} {
			if slices.Contains(woken, ids[pod]) {
				got += pod
			}
		}
		if got != c.want {
			t.Errorf("%v wakes %q, not %q", c.notice, got, c.want)
		}
	}
	if all := r.exec.AllWaiting(); len(all) != 4 {
		t.Errorf("all: %v", all)
	}
	// A try that waits for something else, or for nothing, is found there only.
	r.plugin.fail("setUp", plugins.WaitFor(one("z"), nil))
	_ = r.do(simple("a", "vol").key(reconciler.SetUp))
	r.plugin.fail("setUp", plugins.Transientf("no"))
	_ = r.do(simple("b", "vol").key(reconciler.SetUp))
	if x, z := r.exec.Waiting(one("x")), r.exec.Waiting(one("z")); len(x) > 0 || len(z) != 1 || z[0] != ids["a"] {
		t.Errorf("x wakes %v, z %v", x, z)
	}
}

// The index agrees with the definition, for every pair of refs.
func TestNoticesMeetWhatMeets(t *testing.T) {
	var refs []plugins.Ref
	for _, kind := range []string{"A", "B"} {
		for _, namespace := range []string{"", "n", "m"} {
			for _, name := range []string{"", "x", "y"} {
				refs = append(refs, plugins.Ref{Kind: kind, Namespace: namespace, Name: name})
			}
		}
	}
	for _, waited := range refs {
		r := newRig(t)
		w := simple("pod", "vol")
		r.want(w)
		for _, notice := range refs {
			r.plugin.fail("setUp", plugins.WaitFor(waited, nil))
			_ = r.do(w.key(reconciler.SetUp))
			meets := steps.Meets(notice, waited)
			if got := len(r.exec.Waiting(notice)) > 0; got != meets {
				t.Errorf("notice %q, waited for %q: woken %v", notice, waited, got)
			}
			// The same notice while the step runs.
			r.locked(func() { r.woken = nil })
			r.plugin.hook("setUp", func(context.Context) error {
				r.exec.Waiting(notice)
				return plugins.WaitFor(waited, nil)
			})
			_ = r.do(w.key(reconciler.SetUp))
			if got := len(r.woken) > 0; got != meets {
				t.Errorf("notice %q during the step, waited for %q: woken %v", notice, waited, got)
			}
		}
	}
}

func TestManyNoticesDuringAStepCountAsMissed(t *testing.T) {
	r := newRig(t)
	w := simple("pod", "vol")
	r.want(w)
	for _, n := range []int{1, 128, 255, 256, 257, 1000} {
		r.locked(func() { r.woken = nil })
		r.plugin.hook("setUp", func(context.Context) error {
			r.exec.Waiting(secretRef)
			for i := range n - 1 {
				r.exec.Waiting(plugins.Ref{Kind: "Other", Name: fmt.Sprint(i)})
			}
			return plugins.WaitFor(secretRef, nil)
		})
		_ = r.do(w.key(reconciler.SetUp))
		if len(r.woken) != 1 || r.woken[0] != w.id() {
			t.Errorf("%d notices: woken %v", n, r.woken)
		}
	}
}

// Whatever the order of a source's change, its notice and the step that reads
// the source: either the step sees the change, or it is woken.
func TestNoNoticeIsLost(t *testing.T) {
	for range 50 {
		r := newRig(t)
		w := simple("pod", "vol")
		r.want(w)
		var mu sync.Mutex
		there := false
		r.plugin.hook("setUp", func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			if !there {
				return plugins.WaitFor(secretRef, nil)
			}
			return nil
		})
		var wg sync.WaitGroup
		var woken []plugins.VolumeID
		var err error
		wg.Go(func() { err = r.do(w.key(reconciler.SetUp)) })
		wg.Go(func() {
			mu.Lock()
			there = true
			mu.Unlock()
			woken = r.exec.Waiting(secretRef)
		})
		wg.Wait()
		if err != nil && len(woken) == 0 && len(r.woken) == 0 {
			t.Fatal("the step waits and nobody wakes it")
		}
	}
}
