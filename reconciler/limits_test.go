package reconciler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/volumekit/volumekit/plugins"
)

// hangs is a step that ignores its context until it is freed.
type hangs struct {
	free  chan struct{}
	which func(Step) bool
	after error
}

func (h *hangs) act(_ context.Context, s Step) error {
	if h.which(s) {
		<-h.free
		return h.after
	}
	return nil
}

func TestStuckStepGivesItsSlotBack(t *testing.T) {
	h := hangs{which: func(s Step) bool { return s.ID == vol }}
	var ended context.Context
	e := newFake(nil)
	e.act = func(ctx context.Context, s Step) error {
		if s.ID == vol {
			ended = ctx
		}
		return h.act(ctx, s)
	}
	inBubble(t, Options{MaxInFlight: 1}, e, func(t *testing.T, d *Default) {
		h.free = make(chan struct{})
		begin := time.Now()
		d.Wake(e.add(stepOf(SetUp, vol, "one"), stepOf(SetUp, vol, "two"))...)
		synctest.Wait()
		if at, ok := ended.Deadline(); !ok || !at.Equal(begin.Add(DefaultDeadline)) {
			t.Errorf("deadline %v, %v", at, ok)
		}
		other := volumeOf("b", 1)
		d.Wake(e.add(stepOf(SetUp, other, "x"))...)
		synctest.Wait()
		if r := d.Report(other); len(r) != 1 || !r[0].Queued || r[0].Running {
			t.Errorf("report of what waits for a slot: %+v", r)
		}
		elapse(DefaultDeadline + time.Minute)
		d.Wake(vol)
		synctest.Wait()
		if e.left() != 2 || len(e.calls()) != 2 {
			t.Fatalf("%d steps left, %d began: the other volume has to go on, this one to wait", e.left(), len(e.calls()))
		}
		if r := d.Report(vol); len(r) != 1 || !r[0].Running || !r[0].Stuck || !r[0].Since.Equal(begin) {
			t.Errorf("report %+v", r)
		}
		if !errors.Is(ended.Err(), context.DeadlineExceeded) || !errors.Is(context.Cause(ended), ErrDeadline) {
			t.Errorf("context ended with %v, %v", ended.Err(), context.Cause(ended))
		}
		close(h.free)
		atRest(t, d, e)
	})
}

func TestStuckBudgetIsPerPlugin(t *testing.T) {
	h := hangs{which: func(s Step) bool { return s.ID.Plugin() == "p/a" }}
	e := newFake(nil)
	e.act = h.act
	o := Options{MaxInFlight: 4, MaxStuck: 3, PerPlugin: map[string]int{"p/a": 2}}
	inBubble(t, o, e, func(t *testing.T, d *Default) {
		h.free = make(chan struct{})
		for n := range 100 {
			d.Wake(e.add(stepOf(SetUp, volumeOf("a", n), "one"))...)
		}
		elapse(time.Hour)
		if n := len(e.calls()); n != 4 { // 2 get stuck, then 2 more: over the budget
			t.Errorf("%d steps of the hanging plugin began", n)
		}
		begin := time.Now()
		for n := range 100 {
			d.Wake(e.add(stepOf(SetUp, volumeOf("b", n), "one"))...)
		}
		synctest.Wait()
		if e.left() != 100 || !time.Now().Equal(begin) {
			t.Errorf("%d steps left: the other plugin is kept back", e.left())
		}
		close(h.free)
		atRest(t, d, e)
	})
}

func TestLazyBesideStuck(t *testing.T) {
	h := hangs{which: func(s Step) bool { return !s.Lazy }, after: errors.New("killed")}
	failures := 2
	e := newFake(nil)
	e.act = func(ctx context.Context, s Step) error {
		if s.Lazy && failures > 0 {
			failures--
			return errors.New("still busy")
		}
		return h.act(ctx, s)
	}
	o := Options{MaxStuck: 1, LazyAfter: 5 * time.Minute, Backoff: Backoff{Jitter: -1}}
	inBubble(t, o, e, func(t *testing.T, d *Default) {
		h.free = make(chan struct{})
		e.keep = true
		begin := time.Now()
		d.Wake(e.add(stepOf(TearDown, vol, "one"))...)
		elapse(5*time.Minute - time.Second)
		if len(e.calls()) != 1 {
			t.Fatalf("%d tries before the time", len(e.calls()))
		}
		elapse(time.Hour)
		tries := e.tries(TearDown)
		if len(tries) != 4 || tries[0].Lazy || !tries[1].Lazy {
			t.Fatalf("tries %+v", tries)
		}
		for i, want := range []time.Duration{0, 5 * time.Minute, 5*time.Minute + 500*time.Millisecond, 5*time.Minute + 1500*time.Millisecond} {
			if got := tries[i].at.Sub(begin); got != want {
				t.Errorf("try %d after %v, want %v", i, got, want)
			}
		}
		if r := d.Report(vol); len(r) != 1 || !r[0].Stuck {
			t.Errorf("report %+v", r)
		}
		e.set(vol)
		close(h.free)
		atRest(t, d, e)
	})
}

func TestLazyAfterFailing(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		kind Kind
		want bool
	}{
		"transient": {errors.New("busy"), TearDown, true},
		"permanent": {plugins.Permanent(errors.New("busy")), UnmountDevice, true},
		"detach":    {errors.New("busy"), Detach, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newFake(func(_ context.Context, s Step) error {
				if s.Lazy {
					return nil
				}
				return tt.err
			})
			inBubble(t, Options{LazyAfter: time.Minute}, e, func(t *testing.T, d *Default) {
				begin := time.Now()
				d.Wake(e.add(stepOf(tt.kind, vol, ""))...)
				elapse(10 * time.Minute)
				if done := e.left() == 0; done != tt.want {
					t.Errorf("done is %v", done)
				}
				for _, try := range e.tries(tt.kind) {
					if try.Lazy && try.at.Sub(begin) < time.Minute {
						t.Errorf("lazy after %v", try.at.Sub(begin))
					}
				}
			})
		})
	}
}

func TestLimits(t *testing.T) {
	e := newFake(func(context.Context, Step) error { elapse(time.Second); return nil })
	o := Options{MaxInFlight: 5, DefaultPerPlugin: 3, PerPlugin: map[string]int{"p/c": 1}}
	inBubble(t, o, e, func(t *testing.T, d *Default) {
		for n := range 30 {
			for _, plugin := range []string{"a", "b", "c"} {
				d.Wake(e.add(stepOf(SetUp, volumeOf(plugin, n), "one"))...)
			}
		}
		elapse(time.Minute)
		atRest(t, d, e)
		for n := range 30 {
			d.Wake(e.add(stepOf(SetUp, volumeOf("b", n), "one"))...)
		}
		elapse(time.Minute)
		atRest(t, d, e)
		if e.most != 5 || e.mostBy["p/a"] > 3 || e.mostBy["p/b"] != 3 || e.mostBy["p/c"] != 1 {
			t.Errorf("at most %d at a time, by plugin %v", e.most, e.mostBy)
		}
	})
}

// A flood of one plugin lets another in with its next free slot, and set-ups
// let a teardown in.
func TestFairness(t *testing.T) {
	e := newFake(func(context.Context, Step) error { elapse(time.Second); return nil })
	inBubble(t, Options{MaxInFlight: 2}, e, func(t *testing.T, d *Default) {
		for n := range 500 {
			d.Wake(e.add(stepOf(SetUp, volumeOf("a", n), "one"))...)
		}
		elapse(1500 * time.Millisecond)
		begin := time.Now()
		d.Wake(e.add(stepOf(SetUp, volumeOf("b", 1), "one"))...)
		d.Wake(e.add(stepOf(TearDown, volumeOf("a", 1000), "one"))...)
		elapse(10 * time.Second)
		for _, try := range e.calls() {
			special := try.Kind == TearDown || try.ID.Plugin() == "p/b"
			if special && try.at.Sub(begin) > 3*time.Second {
				t.Errorf("%v came after %v", try.Key, try.at.Sub(begin))
			}
		}
		if n := len(e.tries(TearDown)); n != 1 {
			t.Errorf("%d teardowns", n)
		}
	})
}

func TestParallelVolume(t *testing.T) {
	e := newFake(nil)
	e.parallel = true
	h := hangs{which: func(s Step) bool { return s.Volume.Pod == "one" && s.Kind == SetUp }}
	e.act = h.act
	inBubble(t, Options{}, e, func(t *testing.T, d *Default) {
		h.free = make(chan struct{})
		d.Wake(e.add(stepOf(SetUp, vol, "one"))...)
		synctest.Wait()
		d.Wake(e.add(stepOf(SetUp, vol, "two"), stepOf(TearDown, vol, "three"), stepOf(Refresh, vol, "one"))...)
		synctest.Wait()
		if e.left() != 2 { // one's SetUp and Refresh
			t.Errorf("%d steps left", e.left())
		}
		d.Wake(e.add(stepOf(Expand, vol, "two"), stepOf(UnmountDevice, vol, ""))...)
		synctest.Wait()
		if e.left() != 4 {
			t.Errorf("%d steps left: these have to wait", e.left())
		}
		close(h.free)
		atRest(t, d, e)
	})
}

func TestShutdownNamesWhatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := hangs{free: make(chan struct{}), which: func(s Step) bool { return s.ID == vol }}
		e := newFake(nil)
		e.act = func(ctx context.Context, s Step) error {
			if s.ID != vol {
				<-ctx.Done() // ends with the reconciler
				return ctx.Err()
			}
			return h.act(ctx, s)
		}
		d := New(Options{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- d.Run(ctx, e) }()
		d.Wake(e.add(stepOf(SetUp, vol, "one"), stepOf(SetUp, volumeOf("b", 1), "x"))...)
		synctest.Wait()
		cancel()
		begin := time.Now()
		err := <-done
		if err == nil || !strings.Contains(err.Error(), string(vol)) || strings.Contains(err.Error(), "p/b") || time.Since(begin) != DefaultShutdownGrace {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		close(h.free) // must still be able to end
		synctest.Wait()
	})
}

// TestManyVolumes lets a thousand volumes come and go with failures of every
// kind, and looks at what is left.
func TestManyVolumes(t *testing.T) {
	for _, parallel := range []bool{false, true} {
		t.Run(fmt.Sprintf("parallel=%v", parallel), func(t *testing.T) { manyVolumes(t, parallel) })
	}
}

func manyVolumes(t *testing.T, parallel bool) {
	const volumes = 1000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	m := newModel(volumes, seed)
	m.parallel = parallel
	o := Options{
		MaxInFlight: 32, MaxStuck: 4, LazyAfter: 10 * time.Second,
		Deadline: func(Step) time.Duration { return 5 * time.Second },
		Backoff:  Backoff{Base: 50 * time.Millisecond, Max: time.Second},
	}
	inBubble(t, o, m.fakeEngine, func(t *testing.T, d *Default) {
		m.wake, m.reset = d.Wake, d.Reset
		for round := range 20 {
			m.change(round, volumes)
			elapse(time.Duration(round) * 500 * time.Millisecond)
		}
		m.calm()
		for n := range volumes {
			d.Reset(volumeOf(fmt.Sprint(n%7), n))
		}
		elapse(5 * time.Minute)
		atRest(t, d, m.fakeEngine)
		if m.failed < volumes {
			t.Errorf("only %d failures", m.failed)
		}
	})
}
