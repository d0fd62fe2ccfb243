package reconciler

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/volumekit/volumekit/plugins"
)

var vol = volumeOf("a", 1)

func TestOneStepAtATime(t *testing.T) {
	var open gate
	e := newFake(func(ctx context.Context, _ Step) error { return open.pass(ctx) })
	inBubble(t, Options{}, e, func(t *testing.T, d *Default) {
		open = make(gate)
		d.Wake(e.add(stepOf(TearDown, vol, "one"), stepOf(SetUp, vol, "two"), stepOf(SetUp, vol, "three"))...)
		synctest.Wait()
		e.add(stepOf(SetUp, vol, "four"))
		d.Wake(vol) // while a step runs: planned again when that ends
		d.Wake(vol)
		synctest.Wait()
		if len(e.calls()) != 1 {
			t.Fatalf("%d steps began, want 1", len(e.calls()))
		}
		if r := d.Report(vol); len(r) != 1 || !r[0].Running || r[0].Stuck || !r[0].Since.Equal(time.Now()) {
			t.Errorf("report %+v", r)
		}
		close(open)
		atRest(t, d, e)
		if e.calls()[0].Kind != TearDown || len(e.calls()) != 4 {
			t.Errorf("ran %+v", e.calls())
		}
	})
}

func TestWakeBeforeRunAndWithinDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Options{SafetyPeriod: -1})
		other := volumeOf("b", 1)
		e := newFake(nil)
		e.act = func(_ context.Context, s Step) error {
			if s.ID == vol {
				d.Wake(e.add(stepOf(SetUp, other, "x"))...)
			}
			return nil
		}
		d.Wake(e.add(stepOf(SetUp, vol, "one"))...)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- d.Run(ctx, e) }()
		atRest(t, d, e)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if d.Wake(vol); d.size() != 0 {
			t.Error("a wake after Run is kept")
		}
		if d.Run(t.Context(), e) == nil {
			t.Error("Run twice gave no error")
		}
	})
}

func TestBackoff(t *testing.T) {
	fail := true
	e := newFake(func(context.Context, Step) error {
		if fail {
			return errors.New("no")
		}
		return nil
	})
	inBubble(t, Options{}, e, func(t *testing.T, d *Default) {
		begin := time.Now()
		e.add(stepOf(SetUp, vol, "one"))
		for range 20 {
			d.Wake(vol) // changes nothing
			elapse(time.Minute)
		}
		tries := e.tries(SetUp)
		if len(tries) < 10 {
			t.Fatalf("%d tries", len(tries))
		}
		for i := 1; i < len(tries); i++ {
			want := min(500*time.Millisecond<<(i-1), 2*time.Minute)
			if got := tries[i].at.Sub(tries[i-1].at); got < want*9/10 || got > want*11/10 {
				t.Errorf("pause %d is %v, want %v give or take a tenth", i, got, want)
			}
		}
		r := d.Report(vol)
		if len(r) != 1 || r[0].Attempts != len(tries) || !r[0].FirstFailed.Equal(begin) || r[0].Err == nil || !r[0].NextTry.After(time.Now()) || r[0].Running {
			t.Errorf("report %+v", r)
		}
		fail = false
		d.Reset(vol)
		atRest(t, d, e)
		if len(d.Report(vol)) != 0 {
			t.Error("success is not forgotten")
		}
	})
}

func TestBackoffDelays(t *testing.T) {
	var b Backoff
	b.setDefaults()
	for _, r := range []float64{0, 0.5, math.Nextafter(1, 0)} {
		b.Rand = func() float64 { return r }
		for n, want := range map[int]time.Duration{1: 500 * time.Millisecond, 2: time.Second, 9: 2 * time.Minute, 100_000: 2 * time.Minute} {
			want = time.Duration(float64(want) * (0.9 + 0.2*r))
			if got := b.delay(n); (got - want).Abs() > time.Microsecond {
				t.Errorf("delay %d at %v is %v, want %v", n, r, got, want)
			}
		}
	}
	flat := Backoff{Base: time.Second, Factor: 1, Jitter: -1}
	flat.setDefaults()
	if flat.delay(1) != time.Second || flat.delay(50) != time.Second {
		t.Error("factor 1 is not flat")
	}
}

// One pod's pause does not keep another pod of the volume back.
func TestBackoffIsPerKey(t *testing.T) {
	e := newFake(func(_ context.Context, s Step) error {
		if s.Volume.Pod == "bad" {
			return errors.New("no")
		}
		return nil
	})
	inBubble(t, Options{}, e, func(t *testing.T, d *Default) {
		begin := time.Now()
		d.Wake(e.add(stepOf(SetUp, vol, "bad"), stepOf(SetUp, vol, "good"))...)
		synctest.Wait()
		if e.left() != 1 || !time.Now().Equal(begin) {
			t.Errorf("%d steps are left", e.left())
		}
	})
}

// Two kinds that fail in turn do not reset each other's backoff.
func TestOppositeKindsKeepBackoff(t *testing.T) {
	e := newFake(nil)
	up, down := stepOf(SetUp, vol, "one"), stepOf(TearDown, vol, "one")
	e.act = func(_ context.Context, s Step) error {
		if s.Kind == SetUp {
			e.set(vol, down)
		} else {
			e.set(vol, up)
		}
		return errors.New("no")
	}
	e.set(vol, up)
	inBubble(t, Options{}, e, func(t *testing.T, d *Default) {
		for range 600 {
			d.Wake(vol)
			elapse(100 * time.Millisecond)
		}
		if n := len(e.calls()); n < 8 || n > 20 {
			t.Errorf("%d tries in a minute", n)
		}
	})
}

func TestWaitingStep(t *testing.T) {
	answer := plugins.WaitFor(plugins.Ref{Kind: "X", Name: "x"}, errors.New("not there"))
	e := newFake(nil)
	e.act = func(context.Context, Step) error { return answer }
	inBubble(t, Options{MaxInFlight: 1}, e, func(t *testing.T, d *Default) {
		d.Wake(e.add(stepOf(Attach, vol, ""))...)
		elapse(time.Hour)
		if n := len(e.calls()); n != 1 {
			t.Fatalf("%d tries without a change", n)
		}
		if r := d.Report(vol); len(r) != 1 || r[0].Attempts != 0 || !r[0].NextTry.IsZero() || !errors.Is(r[0].Err, plugins.ErrWaiting) {
			t.Errorf("report %+v", r)
		}
		d.Wake(vol)
		synctest.Wait()
		if n := len(e.calls()); n != 2 {
			t.Fatalf("%d tries after a wake", n)
		}
		answer = nil
		d.Reset(vol)
		atRest(t, d, e)
	})
}

// What is awaited may come while the step looks for it.
func TestWakeDuringWaitingStep(t *testing.T) {
	e := newFake(nil)
	var d *Default
	e.act = func(context.Context, Step) error {
		if len(e.calls()) > 1 {
			return nil
		}
		d.Wake(vol)
		return plugins.WaitFor(plugins.Ref{Kind: "X", Name: "x"}, errors.New("not there"))
	}
	inBubble(t, Options{}, e, func(t *testing.T, own *Default) {
		d = own
		d.Wake(e.add(stepOf(Attach, vol, ""))...)
		atRest(t, d, e)
	})
}

func TestPermanentFailure(t *testing.T) {
	for name, answer := range map[string]error{
		"permanent": plugins.Permanent(errors.New("no")), "unsupported": plugins.Unsupported(errors.New("no")),
	} {
		t.Run(name, func(t *testing.T) {
			e := newFake(func(context.Context, Step) error { return answer })
			inBubble(t, Options{}, e, func(t *testing.T, d *Default) {
				e.add(stepOf(SetUp, vol, "one"))
				for range 100 {
					d.Wake(vol)
					elapse(time.Minute)
				}
				if n := len(e.calls()); n != 1 {
					t.Fatalf("%d tries", n)
				}
				if r := d.Report(vol); len(r) != 1 || r[0].Attempts != 1 || !r[0].NextTry.IsZero() {
					t.Errorf("report %+v", r)
				}
				d.Reset(vol)
				synctest.Wait()
				if n := len(e.calls()); n != 2 {
					t.Fatalf("%d tries after Reset", n)
				}
				e.set(vol)
				d.Wake(vol)
				atRest(t, d, e)
			})
		})
	}
}

// A reset while the step runs gives it another try at once.
func TestResetDuringStep(t *testing.T) {
	e := newFake(nil)
	var d *Default
	e.act = func(context.Context, Step) error {
		if len(e.calls()) > 1 {
			return nil
		}
		d.Reset(vol)
		return plugins.Permanent(errors.New("no"))
	}
	inBubble(t, Options{}, e, func(t *testing.T, own *Default) {
		d = own
		d.Wake(e.add(stepOf(SetUp, vol, "one"))...)
		atRest(t, d, e)
	})
}

// Whatever an engine does, no step is repeated all the time.
func TestNoHotLoop(t *testing.T) {
	var d *Default
	for name, act := range map[string]func() error{
		"success that changes nothing": func() error { return nil },
		"waiting that wakes itself": func() error {
			d.Wake(vol)
			return plugins.WaitFor(plugins.Ref{Kind: "X", Name: "x"}, errors.New("no"))
		},
		"permanent that resets itself": func() error { d.Reset(vol); return plugins.Permanent(errors.New("no")) },
		"transient that resets itself": func() error { d.Reset(vol); return errors.New("no") },
	} {
		t.Run(name, func(t *testing.T) {
			e := newFake(func(context.Context, Step) error { return act() })
			e.keep = true
			inBubble(t, Options{}, e, func(t *testing.T, own *Default) {
				d = own
				d.Wake(e.add(stepOf(SetUp, vol, "one"))...)
				elapse(10 * time.Second)
				if n := len(e.tries(SetUp)); n < 20 || n > 100 {
					t.Errorf("%d tries in ten seconds", n)
				}
			})
		})
	}
}

func TestPlanNextIsKept(t *testing.T) {
	e := newFake(nil)
	inBubble(t, Options{SafetyPeriod: -1}, e, func(t *testing.T, d *Default) {
		begin := time.Now()
		e.mu.Lock()
		e.next[vol] = begin.Add(time.Hour)
		e.mu.Unlock()
		d.Wake(vol)
		elapse(time.Hour - time.Second)
		e.mu.Lock()
		delete(e.next, vol)
		e.mu.Unlock()
		e.add(stepOf(Refresh, vol, "one"))
		elapse(2 * time.Second)
		if n := e.tries(Refresh); len(n) != 1 || !n[0].at.Equal(begin.Add(time.Hour)) {
			t.Errorf("refreshed at %+v", n)
		}
		atRest(t, d, e)
	})
}

func TestSafetyPass(t *testing.T) {
	e := newFake(nil)
	for n := range 100 {
		e.set(volumeOf("a", n))
	}
	inBubble(t, Options{SafetySlice: 10}, e, func(t *testing.T, d *Default) {
		elapse(1500 * time.Millisecond)
		e.add(stepOf(SetUp, volumeOf("a", 95), "one")) // nobody says so
		e.mu.Lock()
		e.next[volumeOf("a", 96)] = time.Now().Add(time.Hour)
		e.mu.Unlock()
		elapse(9 * time.Second)
		if e.left() != 0 {
			t.Error("missed change is not found")
		}
		if d.size() != 2 { // the volume and its lane, for the alarm
			t.Errorf("%d things are kept", d.size())
		}
	})
}

// A volume with a step that is known to fail may have another one that nobody
// told about.
func TestSafetyPassBesideKnown(t *testing.T) {
	e := newFake(func(_ context.Context, s Step) error {
		if s.Volume.Pod == "bad" {
			return plugins.Permanentf("no")
		}
		return nil
	})
	inBubble(t, Options{}, e, func(t *testing.T, d *Default) {
		d.Wake(e.add(stepOf(SetUp, vol, "bad"))...)
		elapse(10 * time.Second)
		if n := len(e.calls()); n != 1 {
			t.Errorf("the pass retried a known step: %d tries", n)
		}
		e.add(stepOf(SetUp, vol, "good"))
		elapse(2 * time.Second)
		if e.left() != 1 {
			t.Error("missed change is not found")
		}
	})
}

func TestPanics(t *testing.T) {
	for name, act := range map[string]func(){
		"runtime error": func() { var none *call; _ = none.step },
		"a value":       func() { panic("the secret") },
		"goexit":        func() { runtime.Goexit() },
	} {
		t.Run(name, func(t *testing.T) {
			e := newFake(nil)
			e.act = func(context.Context, Step) error {
				if len(e.calls()) == 1 {
					act()
				}
				return nil
			}
			inBubble(t, Options{}, e, func(t *testing.T, d *Default) {
				d.Wake(e.add(stepOf(SetUp, vol, "one"))...)
				synctest.Wait()
				r := d.Report(vol)
				if len(r) != 1 || plugins.ClassOf(r[0].Err) != plugins.ClassUncertain || strings.Contains(r[0].Err.Error(), "secret") {
					t.Fatalf("report %+v", r)
				}
				elapse(time.Second)
				atRest(t, d, e)
			})
		})
	}
}

// panicking is an engine whose plan for one volume panics.
type panicking struct{ *fakeEngine }

func (p panicking) Plan(id plugins.VolumeID) Plan {
	if id == vol {
		panic("no plan")
	}
	return p.fakeEngine.Plan(id)
}

func TestPanicInPlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newFake(nil)
		d := New(Options{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- d.Run(ctx, panicking{e}) }()
		d.Wake(vol)
		elapse(time.Hour)
		d.Wake(e.add(stepOf(SetUp, volumeOf("a", 2), "one"))...)
		synctest.Wait()
		if e.left() != 0 {
			t.Error("another volume is kept back")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestFaults(t *testing.T) {
	for _, point := range []string{FaultStart, FaultEnd} {
		t.Run(point, func(t *testing.T) {
			e := newFake(nil)
			o := Options{Faults: func(at string) error {
				if at == point {
					return plugins.Permanentf("injected")
				}
				return nil
			}}
			inBubble(t, o, e, func(t *testing.T, d *Default) {
				e.keep = true
				d.Wake(e.add(stepOf(SetUp, vol, "one"))...)
				synctest.Wait()
				if r := d.Report(vol); len(r) != 1 || r[0].Err == nil {
					t.Errorf("report %+v", r)
				}
				if ran := len(e.calls()) > 0; ran != (point == FaultEnd) {
					t.Errorf("ran is %v", ran)
				}
			})
		})
	}
}

// TestInjectedClock runs backoff and deadline by a clock that the test moves.
func TestInjectedClock(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	began := make(chan context.Context, 10)
	e := newFake(nil)
	e.act = func(ctx context.Context, _ Step) error {
		began <- ctx
		<-ctx.Done()
		return context.Cause(ctx)
	}
	d := New(Options{Clock: clock, Deadline: func(Step) time.Duration { return time.Minute }, Backoff: Backoff{Jitter: -1}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- d.Run(ctx, e) }()
	d.Wake(e.add(stepOf(SetUp, vol, "one"))...)
	first := <-began
	if _, ok := first.Deadline(); ok {
		t.Error("a deadline by a clock that nobody can read")
	}
	advance(t, clock, time.Minute, first.Done())
	if !errors.Is(first.Err(), context.DeadlineExceeded) || !errors.Is(context.Cause(first), ErrDeadline) {
		t.Errorf("context ended with %v, %v", first.Err(), context.Cause(first))
	}
	for len(d.Report(vol)) == 0 || d.Report(vol)[0].Running {
		runtime.Gosched()
	}
	if r := d.Report(vol); !errors.Is(r[0].Err, ErrDeadline) || !r[0].NextTry.Equal(clock.Now().Add(500*time.Millisecond)) {
		t.Errorf("report %+v", r)
	}
	again := make(chan struct{})
	go func() { <-began; close(again) }()
	advance(t, clock, 500*time.Millisecond, again)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// advance moves the clock until what is awaited comes: at least by d.
func advance(t *testing.T, clock *clocktesting.FakeClock, d time.Duration, until <-chan struct{}) {
	t.Helper()
	clock.Step(d)
	select {
	case <-until:
	case <-time.After(10 * time.Second):
		t.Fatalf("nothing happens after %v", d)
	}
}
