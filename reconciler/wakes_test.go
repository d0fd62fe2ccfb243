package reconciler

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/volumekit/volumekit/plugins"
)

// A source that changes while it is read is followed at its own pace.
func TestFollowsItsSource(t *testing.T) {
	for name, parallel := range map[string]bool{"alone": false, "parallel": true} {
		t.Run(name, func(t *testing.T) {
			const changes, pause = 100, 10 * time.Millisecond
			var d *Default
			e := newFake(nil)
			e.parallel = parallel
			e.act = func(context.Context, Step) error {
				elapse(pause)
				if len(e.calls()) <= changes {
					d.Wake(vol)
				} else {
					e.set(vol)
				}
				return nil
			}
			e.keep = true
			inBubble(t, Options{SafetyPeriod: -1}, e, func(t *testing.T, own *Default) {
				d = own
				begin := time.Now()
				d.Wake(e.add(stepOf(Refresh, vol, "one"))...)
				elapse((changes + 1) * pause)
				synctest.Wait()
				tries := e.tries(Refresh)
				if len(tries) != changes+1 {
					t.Fatalf("%d refreshes for %d changes", len(tries), changes)
				}
				for i, try := range tries {
					if want := begin.Add(time.Duration(i) * pause); !try.at.Equal(want) {
						t.Fatalf("refresh %d is %v late", i, try.at.Sub(want))
					}
				}
				atRest(t, d, e)
			})
		})
	}
}

// Only the wakes make it so: a step that fails or waits in between, or is not
// woken, is held to the gap again.
func TestNoHotLoopBetweenSuccesses(t *testing.T) {
	wait := plugins.WaitFor(plugins.Ref{Kind: "X", Name: "x"}, errors.New("no"))
	for name, answers := range map[string][]error{
		"waits in between":      {nil, wait},
		"permanent in between":  {nil, plugins.Permanent(errors.New("no"))},
		"transient in between":  {nil, errors.New("no")},
		"one success in twenty": {19: nil, 0: wait, 1: wait, 2: wait},
	} {
		t.Run(name, func(t *testing.T) {
			for _, parallel := range []bool{false, true} {
				var d *Default
				n := 0
				e := newFake(nil)
				e.keep, e.parallel = true, parallel
				e.act = func(context.Context, Step) error {
					d.Reset(vol)
					n++
					return answers[n%len(answers)]
				}
				inBubble(t, Options{}, e, func(t *testing.T, own *Default) {
					d = own
					d.Wake(e.add(stepOf(SetUp, vol, "one"))...)
					elapse(10 * time.Second)
					if n := len(e.calls()); n < 10 || n > 200 {
						t.Errorf("%d tries in ten seconds", n)
					}
				})
			}
		})
	}
}

// A wake during a step that comes to wait is kept until that ends, whatever
// makes the volume planned meanwhile.
func TestWakeIsKeptForRunningStep(t *testing.T) {
	for name, prepare := range map[string]func(*fakeEngine){
		"parallel": func(e *fakeEngine) { e.parallel = true },
		"alarm": func(e *fakeEngine) {
			e.next[vol] = time.Now().Add(2 * time.Second)
			e.planned = func(plugins.VolumeID) {
				e.mu.Lock()
				defer e.mu.Unlock()
				if !e.next[vol].After(time.Now()) {
					delete(e.next, vol)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, class := range []error{
				plugins.WaitFor(plugins.Ref{Kind: "X", Name: "x"}, errors.New("no")), plugins.Permanent(errors.New("no")),
			} {
				e := newFake(nil)
				e.act = func(context.Context, Step) error {
					if len(e.calls()) > 1 {
						return nil
					}
					elapse(3 * time.Second)
					return class
				}
				inBubble(t, Options{SafetyPeriod: -1}, e, func(t *testing.T, d *Default) {
					prepare(e)
					d.Wake(e.add(stepOf(SetUp, vol, "one"))...)
					elapse(time.Second)
					d.Reset(vol)
					elapse(time.Minute)
					atRest(t, d, e)
				})
			}
		})
	}
}

// A plan that should have changed already is not made all the time.
func TestPlanNextInThePast(t *testing.T) {
	e := newFake(nil)
	var plans atomic.Int32
	e.planned = func(plugins.VolumeID) { plans.Add(1) }
	e.next[vol] = time.Unix(1, 0)
	inBubble(t, Options{SafetyPeriod: -1}, e, func(t *testing.T, d *Default) {
		d.Wake(vol)
		elapse(10 * time.Second)
		if n := plans.Load(); n < 2 || n > 30 {
			t.Errorf("%d plans in ten seconds", n)
		}
	})
}

// A plan that was made before a step ended is not used after it: it may have
// that step still in it.
func TestPlanFromBeforeTheEnd(t *testing.T) {
	t.Run("being made", func(t *testing.T) {
		var g chan struct{}
		e := newFake(func(context.Context, Step) error { <-g; return nil })
		e.parallel = true
		inBubble(t, Options{SafetyPeriod: -1}, e, func(t *testing.T, d *Default) {
			g = make(chan struct{})
			d.Wake(e.add(stepOf(SetUp, vol, "one"))...)
			synctest.Wait()
			e.whilePlanning(func() {
				close(g)
				synctest.Wait()
			})
			d.Wake(vol)
			elapse(time.Second)
			if n := len(e.calls()); n != 1 {
				t.Errorf("the step ran %d times", n)
			}
			atRest(t, d, e)
		})
	})
	t.Run("in the queue", func(t *testing.T) {
		var stuck, slot chan struct{}
		other := volumeOf("b", 1)
		e := newFake(nil)
		e.act = func(_ context.Context, s Step) error {
			if s.ID == vol {
				<-stuck
			} else {
				<-slot
			}
			return nil
		}
		o := lazyOptions()
		o.MaxInFlight = 1
		o.Deadline = func(s Step) time.Duration {
			if s.ID == vol {
				return 10 * time.Second
			}
			return time.Hour
		}
		e.parallel = true
		inBubble(t, o, e, func(t *testing.T, d *Default) {
			stuck, slot = make(chan struct{}), make(chan struct{})
			d.Wake(e.add(stepOf(TearDown, vol, "one"))...)
			elapse(20 * time.Second)
			d.Wake(e.add(stepOf(SetUp, other, "x"))...)
			elapse(time.Minute) // the lazy try waits for the slot
			e.whilePlanning(func() {
				close(stuck)
				close(slot)
				synctest.Wait()
			})
			d.Wake(volumeOf("c", 1))
			elapse(time.Second)
			if n := len(e.tries(TearDown)); n != 1 {
				t.Errorf("the step ran %d times", n)
			}
			atRest(t, d, e)
		})
	})
}

// When an engine takes back that steps may run side by side, those that run go
// on, and no other begins beside them.
func TestParallelIsTakenBack(t *testing.T) {
	for name, kind := range map[string]Kind{"making": SetUp, "undoing, stuck": TearDown} {
		t.Run(name, func(t *testing.T) {
			h := hangs{which: func(Step) bool { return true }}
			e := newFake(h.act)
			e.parallel = true
			inBubble(t, lazyOptions(), e, func(t *testing.T, d *Default) {
				h.free = make(chan struct{})
				d.Wake(e.add(stepOf(kind, vol, "one"), stepOf(kind, vol, "two"))...)
				synctest.Wait()
				e.mu.Lock()
				e.parallel = false
				e.mu.Unlock()
				d.Wake(e.add(stepOf(kind, vol, "three"))...)
				elapse(time.Hour)
				if n := len(e.calls()); n != 2 {
					t.Errorf("%d steps began", n)
				}
				close(h.free)
				atRest(t, d, e)
			})
		})
	}
}

// A plan without steps says nothing about whether they may run side by side.
func TestParallelAfterEmptyPlan(t *testing.T) {
	h := hangs{which: func(s Step) bool { return s.Volume.Pod == "one" }}
	e := newFake(h.act)
	e.parallel = true
	inBubble(t, Options{SafetyPeriod: -1}, e, func(t *testing.T, d *Default) {
		h.free = make(chan struct{})
		d.Wake(e.add(stepOf(SetUp, vol, "one"))...)
		synctest.Wait()
		e.set(vol)
		d.Wake(vol)
		synctest.Wait()
		d.Wake(e.add(stepOf(SetUp, vol, "two"))...)
		synctest.Wait()
		if e.left() != 0 {
			t.Error("a pod waits for another one's step")
		}
		close(h.free)
		atRest(t, d, e)
	})
}

// Resets that come while a step runs are one reason to repeat it, however many
// they are.
func TestManyResetsDuringStep(t *testing.T) {
	e := newFake(nil)
	e.parallel = true
	e.act = func(context.Context, Step) error {
		if len(e.calls()) > 1 {
			return nil
		}
		elapse(100 * time.Millisecond)
		return plugins.Permanent(errors.New("no"))
	}
	inBubble(t, Options{SafetyPeriod: -1}, e, func(t *testing.T, d *Default) {
		d.Wake(e.add(stepOf(SetUp, vol, "one"))...)
		for range 2 * maxBurst {
			elapse(10 * time.Millisecond)
			d.Reset(vol)
		}
		elapse(50 * time.Millisecond)
		atRest(t, d, e)
	})
}

// The safety pass finds a step that failed, was not planned for a while, and is
// planned again.
func TestSafetyPassFindsOldStep(t *testing.T) {
	e := newFake(nil)
	e.act = func(_ context.Context, s Step) error {
		if s.Volume.Pod == "bad" {
			return plugins.Permanentf("no")
		}
		if len(e.tries(SetUp)) < 3 {
			return errors.New("no")
		}
		return nil
	}
	bad, good := stepOf(SetUp, vol, "bad"), stepOf(SetUp, vol, "good")
	inBubble(t, Options{Backoff: Backoff{Base: time.Minute}}, e, func(t *testing.T, d *Default) {
		d.Wake(e.add(bad, good)...)
		elapse(10 * time.Second)
		e.set(vol, bad)
		d.Wake(vol)
		elapse(10 * time.Second)
		e.set(vol, bad, good) // nobody says so
		elapse(10 * time.Minute)
		if e.left() != 1 {
			t.Error("missed change is not found")
		}
	})
}
