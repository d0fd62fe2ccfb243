package reconciler

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/volumekit/volumekit/plugins"
)

// Volumes of one plugin that name different lanes do not share limits: what
// hangs in one keeps nothing of the other from starting.
func TestLanesOfOnePlugin(t *testing.T) {
	const bad, good = 20, 10
	done := make(chan struct{}, 100)
	slow := func(id plugins.VolumeID) bool { return id < volumeOf("csi", bad) }
	e := newFake(func(ctx context.Context, s Step) error {
		if slow(s.ID) {
			<-ctx.Done()
			return ctx.Err()
		}
		done <- struct{}{}
		return nil
	})
	e.lane = func(id plugins.VolumeID) string {
		if slow(id) {
			return "slow.example.com"
		}
		return "good.example.com"
	}
	o := Options{DefaultPerPlugin: 4, MaxStuck: 4, Deadline: func(Step) time.Duration { return time.Second }}
	inBubble(t, o, e, func(t *testing.T, d *Default) {
		for n := range bad {
			d.Wake(e.add(stepOf(SetUp, volumeOf("csi", n), "pod"))...)
		}
		elapse(10 * time.Second)
		for n := range good {
			d.Wake(e.add(stepOf(SetUp, volumeOf("csi", bad+n), "pod"))...)
		}
		elapse(time.Second)
		if len(done) != good {
			t.Errorf("%d of %d steps of the good lane ran", len(done), good)
		}
	})
}

func TestLaneHasItsOwnLimit(t *testing.T) {
	e := newFake(func(ctx context.Context, _ Step) error {
		<-ctx.Done()
		return nil
	})
	e.lane = func(plugins.VolumeID) string { return "a.example.com" }
	o := Options{
		PerPlugin: map[string]int{"p/csi": 7, "p/csi/a.example.com": 3},
		Deadline:  func(Step) time.Duration { return time.Hour },
	}
	inBubble(t, o, e, func(t *testing.T, d *Default) {
		for n := range 20 {
			d.Wake(e.add(stepOf(SetUp, volumeOf("csi", n), "pod"))...)
		}
		elapse(time.Second)
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.most != 3 {
			t.Errorf("%d steps ran at the same time, want 3", e.most)
		}
	})
}

// The pace of an error decides about the pauses between tries.
func TestPace(t *testing.T) {
	for _, c := range []struct {
		pace plugins.Pace
		want []time.Duration
	}{
		{plugins.PaceGrowing, []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second}},
		{plugins.PaceFlat, []time.Duration{500 * time.Millisecond, 500 * time.Millisecond, 500 * time.Millisecond}},
		{plugins.PaceSlow, []time.Duration{2 * time.Minute, 2 * time.Minute, 2 * time.Minute}},
	} {
		e := newFake(func(context.Context, Step) error {
			return plugins.Transient(plugins.Paced(c.pace, errors.New("no")))
		})
		inBubble(t, Options{Backoff: Backoff{Jitter: -1}}, e, func(t *testing.T, d *Default) {
			d.Wake(e.add(stepOf(SetUp, volumeOf("csi", 1), "pod"))...)
			elapse(10 * time.Minute)
			e.mu.Lock()
			defer e.mu.Unlock()
			for i, want := range c.want {
				if len(e.log) < i+2 {
					t.Fatalf("pace %d: only %d tries", c.pace, len(e.log))
				}
				if got := e.log[i+1].at.Sub(e.log[i].at); got != want {
					t.Errorf("pace %d: pause %d is %v, want %v", c.pace, i+1, got, want)
				}
			}
		})
	}
}

// A slow pace ends at once when there is reason to hope.
func TestSlowPaceEndsWithAReset(t *testing.T) {
	e := newFake(func(context.Context, Step) error {
		return plugins.Transient(plugins.Paced(plugins.PaceSlow, errors.New("no")))
	})
	inBubble(t, Options{}, e, func(t *testing.T, d *Default) {
		ids := e.add(stepOf(SetUp, volumeOf("csi", 1), "pod"))
		d.Wake(ids...)
		elapse(time.Second)
		d.Reset(ids...)
		elapse(time.Second)
		e.mu.Lock()
		defer e.mu.Unlock()
		if len(e.log) != 2 {
			t.Errorf("%d tries, want the first and one after the reset", len(e.log))
		}
	})
}
