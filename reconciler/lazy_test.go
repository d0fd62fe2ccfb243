package reconciler

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/volumekit/volumekit/plugins"
)

// lazyOptions let a stuck step be joined after a minute.
func lazyOptions() Options {
	return Options{
		LazyAfter: time.Minute, Backoff: Backoff{Jitter: -1}, SafetyPeriod: -1,
		Deadline: func(Step) time.Duration { return 10 * time.Second },
	}
}

// A lazy try that gets stuck itself is not joined: neither one that ran alone
// nor one whose stuck companion has returned. The fake finds the fault.
func TestLazyDoesNotJoinLazy(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		var free chan struct{}
		e := newFake(func(_ context.Context, s Step) error {
			if s.Lazy {
				<-free
			}
			return errors.New("busy")
		})
		inBubble(t, lazyOptions(), e, func(t *testing.T, d *Default) {
			free = make(chan struct{})
			d.Wake(e.add(stepOf(TearDown, vol, "one"))...)
			elapse(time.Hour)
			d.Reset(vol)
			elapse(time.Hour)
			if n := lazyTries(e); n != 1 {
				t.Errorf("%d lazy tries while the first one hangs", n)
			}
			e.set(vol)
			close(free)
			atRest(t, d, e)
		})
	})
	t.Run("left alone", func(t *testing.T) {
		var first, lazy chan struct{}
		e := newFake(nil)
		e.act = func(_ context.Context, s Step) error {
			if s.Lazy {
				<-lazy
			} else {
				<-first
			}
			return errors.New("killed")
		}
		inBubble(t, lazyOptions(), e, func(t *testing.T, d *Default) {
			first, lazy = make(chan struct{}), make(chan struct{})
			d.Wake(e.add(stepOf(TearDown, vol, "one"))...)
			elapse(2 * time.Minute)
			close(first)
			elapse(time.Hour)
			if n := len(e.calls()); n != 2 {
				t.Errorf("%d tries, want the stuck one and the lazy one", n)
			}
			if r := d.Report(vol); len(r) != 1 || !r[0].Stuck {
				t.Errorf("report %+v", r)
			}
			e.set(vol)
			close(lazy)
			atRest(t, d, e)
		})
	})
}

func lazyTries(e *fakeEngine) (n int) {
	for _, try := range e.calls() {
		if try.Lazy {
			n++
		}
	}
	return n
}

// A lazy try that waits, or failed for good, is made again when a change gives
// reason to, although the call that it is to free still runs.
func TestWakeReachesLazyTry(t *testing.T) {
	for name, tt := range map[string]struct {
		err         error
		not, reason func(*Default)
	}{
		"waiting": {
			plugins.WaitFor(plugins.Ref{Kind: "X", Name: "x"}, errors.New("no")),
			func(*Default) {}, func(d *Default) { d.Wake(vol) },
		},
		"permanent": {
			plugins.Permanent(errors.New("no")),
			func(d *Default) { d.Wake(vol) }, func(d *Default) { d.Reset(vol) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			var free chan struct{}
			answer := tt.err
			e := newFake(nil)
			e.act = func(_ context.Context, s Step) error {
				if s.Lazy {
					return answer
				}
				<-free
				return nil
			}
			inBubble(t, lazyOptions(), e, func(t *testing.T, d *Default) {
				free = make(chan struct{})
				d.Wake(e.add(stepOf(TearDown, vol, "one"))...)
				elapse(30 * time.Minute)
				tt.not(d)
				elapse(30 * time.Minute)
				if n := lazyTries(e); n != 1 {
					t.Fatalf("%d lazy tries without a reason for a second", n)
				}
				answer = nil
				tt.reason(d)
				synctest.Wait()
				if n := lazyTries(e); n != 2 || e.left() != 0 {
					t.Errorf("%d lazy tries, %d steps left", n, e.left())
				}
				close(free)
				atRest(t, d, e)
			})
		})
	}
}

// What a lazy try comes to wait for may come while it runs.
func TestWakeDuringLazyTry(t *testing.T) {
	var free chan struct{}
	e := newFake(nil)
	var d *Default
	e.act = func(_ context.Context, s Step) error {
		switch {
		case !s.Lazy:
			<-free
			return nil
		case lazyTries(e) > 1:
			return nil
		}
		d.Wake(vol)
		elapse(time.Second) // it is planned meanwhile
		return plugins.WaitFor(plugins.Ref{Kind: "X", Name: "x"}, errors.New("no"))
	}
	inBubble(t, lazyOptions(), e, func(t *testing.T, own *Default) {
		d, free = own, make(chan struct{})
		d.Wake(e.add(stepOf(TearDown, vol, "one"))...)
		elapse(time.Hour)
		if e.left() != 0 {
			t.Errorf("the wake is lost after %d lazy tries", lazyTries(e))
		}
		close(free)
		atRest(t, d, e)
	})
}

// A volume with work that waits for the stuck steps of its plugin still gets
// its lazy try: it may be what frees those.
func TestLazyBesideWaitingWork(t *testing.T) {
	h := hangs{which: func(s Step) bool { return s.Volume.Pod == "stuck" && !s.Lazy }}
	e := newFake(nil)
	e.act, e.parallel = h.act, true
	o := lazyOptions()
	o.MaxStuck = 1
	inBubble(t, o, e, func(t *testing.T, d *Default) {
		h.free = make(chan struct{})
		d.Wake(e.add(stepOf(TearDown, vol, "stuck"))...)
		elapse(20 * time.Second)
		e.set(vol, stepOf(TearDown, vol, "another"), stepOf(TearDown, vol, "stuck"), stepOf(SetUp, vol, "third"))
		d.Wake(vol)
		elapse(20 * time.Second)
		if n := len(e.calls()); n != 1 {
			t.Fatalf("%d tries beside a full budget", n)
		}
		elapse(time.Hour)
		if n := lazyTries(e); n != 1 || e.left() != 2 {
			t.Errorf("%d lazy tries, %d steps left", n, e.left())
		}
		close(h.free)
		atRest(t, d, e)
	})
}

// A volume that was queued for a lazy try and then needs another kind waits
// for the stuck steps of its plugin like any other.
func TestStuckBudgetAfterLazyQueue(t *testing.T) {
	var free, hold chan struct{}
	second := volumeOf("a", 2)
	e := newFake(nil)
	e.act = func(_ context.Context, s Step) error {
		switch {
		case s.ID == second && s.Lazy:
			return errors.New("busy")
		case s.ID == second:
			<-hold
			return nil
		case s.ID == vol && len(e.calls()) < 3:
			<-free
			return errors.New("killed")
		case s.ID.Plugin() == "p/b":
			elapse(2 * time.Minute)
		}
		return nil
	}
	o := lazyOptions()
	o.MaxInFlight, o.MaxStuck = 2, 1
	o.Deadline = func(s Step) time.Duration {
		if s.ID.Plugin() == "p/b" {
			return time.Hour
		}
		return 10 * time.Second
	}
	inBubble(t, o, e, func(t *testing.T, d *Default) {
		free, hold = make(chan struct{}), make(chan struct{})
		d.Wake(e.add(stepOf(TearDown, vol, "one"), stepOf(TearDown, second, "two"))...)
		elapse(20 * time.Second) // both are stuck
		d.Wake(e.add(stepOf(SetUp, volumeOf("b", 1), "x"), stepOf(SetUp, volumeOf("b", 2), "x"))...)
		elapse(time.Minute) // both are queued to be joined, and there is no slot
		close(free)
		elapse(30 * time.Minute)
		tries := 0
		for _, try := range e.calls() {
			if try.ID == vol {
				tries++
			}
		}
		if tries != 1 {
			t.Errorf("%d tries although the plugin's other stuck step fills the budget", tries)
		}
		if r := d.Report(vol); len(r) != 1 || !r[0].Queued {
			t.Errorf("report %+v", r)
		}
		close(hold)
		atRest(t, d, e)
	})
}

// A call that has not outlived its deadline is not joined, whatever else of
// the volume is stuck and however long it has been running.
func TestLazyDoesNotJoinRunning(t *testing.T) {
	h := hangs{which: func(s Step) bool { return !s.Lazy }}
	e := newFake(h.act)
	e.parallel = true
	o := lazyOptions()
	o.Deadline = func(s Step) time.Duration {
		if s.Volume.Pod == "slow" {
			return 2 * time.Hour
		}
		return 10 * time.Second
	}
	inBubble(t, o, e, func(t *testing.T, d *Default) {
		h.free = make(chan struct{})
		d.Wake(e.add(stepOf(TearDown, vol, "slow"), stepOf(TearDown, vol, "stuck"))...)
		elapse(time.Hour)
		if n := lazyTries(e); n != 1 || e.left() != 1 {
			t.Errorf("%d lazy tries, %d steps left", n, e.left())
		}
		close(h.free)
		atRest(t, d, e)
	})
}

// A volume that is at rest before its lazy try got a slot is still kept as
// long as it is queued: it may come back meanwhile.
func TestLazyQueueOutlivesStuckStep(t *testing.T) {
	var stuck chan struct{}
	h := hangs{which: func(s Step) bool { return s.Kind == SetUp }}
	e := newFake(nil)
	e.act = func(ctx context.Context, s Step) error {
		if s.Kind == TearDown {
			<-stuck
			return nil
		}
		if s.ID != vol {
			elapse(10 * time.Minute)
			return nil
		}
		return h.act(ctx, s)
	}
	o := lazyOptions()
	o.MaxInFlight = 1
	o.Deadline = func(s Step) time.Duration {
		if s.Kind == SetUp {
			return time.Hour
		}
		return 10 * time.Second
	}
	inBubble(t, o, e, func(t *testing.T, d *Default) {
		stuck, h.free = make(chan struct{}), make(chan struct{})
		d.Wake(e.add(stepOf(TearDown, vol, "one"))...)
		elapse(20 * time.Second)
		d.Wake(e.add(stepOf(SetUp, volumeOf("b", 1), "x"))...)
		elapse(2 * time.Minute) // the lazy try waits for the slot
		close(stuck)
		synctest.Wait()
		d.Wake(e.add(stepOf(SetUp, vol, "two"))...)
		elapse(10 * time.Minute)
		if r := d.Report(vol); len(r) != 1 || !r[0].Running {
			t.Errorf("report of a step that runs: %+v", r)
		}
		close(h.free)
		atRest(t, d, e)
	})
}
