package reconciler

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Plugins that hang and use up all slots do not keep another one from working.
func TestReservedSlots(t *testing.T) {
	const hanging = 3
	done := make(chan struct{}, 100)
	e := newFake(func(ctx context.Context, s Step) error {
		if s.ID.Plugin() != "p/ok" {
			<-ctx.Done()
			return ctx.Err()
		}
		done <- struct{}{}
		return nil
	})
	o := Options{MaxInFlight: 32, DefaultPerPlugin: 16, Deadline: func(Step) time.Duration { return time.Hour }}
	inBubble(t, o, e, func(t *testing.T, d *Default) {
		for p := range hanging {
			for n := range 20 {
				d.Wake(e.add(stepOf(SetUp, volumeOf(fmt.Sprint("hung", p), n), "pod"))...)
			}
		}
		elapse(time.Second)
		for n := range 10 {
			d.Wake(e.add(stepOf(SetUp, volumeOf("ok", n), "pod"))...)
		}
		elapse(time.Second)
		if len(done) != 10 {
			t.Errorf("%d of 10 steps ran beside the hung ones", len(done))
		}
	})
}

// Set-ups that hang, as many as a plugin may have, keep nothing of it from
// being taken away.
func TestStuckSetUpsLetTeardownsPass(t *testing.T) {
	done := make(chan struct{}, 100)
	var release chan struct{} // made within the bubble
	e := newFake(func(_ context.Context, s Step) error {
		if s.Kind == SetUp {
			<-release // whatever its context says
			return nil
		}
		done <- struct{}{}
		return nil
	})
	o := Options{MaxStuck: 4, DefaultPerPlugin: 4, Deadline: func(Step) time.Duration { return time.Second }}
	inBubble(t, o, e, func(t *testing.T, d *Default) {
		release = make(chan struct{})
		defer close(release)
		for n := range 20 {
			d.Wake(e.add(stepOf(SetUp, volumeOf("hung", n), "pod"))...)
		}
		elapse(10 * time.Second)
		if hung := len(e.calls()); hung < 4 || hung > 8 {
			t.Errorf("%d set-ups hang; the budget is 4 and 4 may run", hung)
		}
		for n := range 10 {
			d.Wake(e.add(stepOf(TearDown, volumeOf("hung", 100+n), "pod"))...)
		}
		elapse(10 * time.Second)
		if len(done) != 10 {
			t.Errorf("%d of 10 teardowns ran beside hung set-ups", len(done))
		}
	})
}

// Set-ups that hang and have not reached their deadline yet, as many as may
// run, keep nothing from being taken away either.
func TestRunningSetUpsLetTeardownsPass(t *testing.T) {
	done := make(chan struct{}, 100)
	e := newFake(func(ctx context.Context, s Step) error {
		if s.Kind == SetUp {
			<-ctx.Done()
			return ctx.Err()
		}
		done <- struct{}{}
		return nil
	})
	o := Options{MaxInFlight: 32, DefaultPerPlugin: 32, Deadline: func(Step) time.Duration { return time.Hour }}
	inBubble(t, o, e, func(t *testing.T, d *Default) {
		for n := range 40 {
			d.Wake(e.add(stepOf(SetUp, volumeOf("hung", n), "pod"))...)
		}
		elapse(time.Second)
		for n := range 10 {
			d.Wake(e.add(stepOf(TearDown, volumeOf("hung", 100+n), "pod"))...)
		}
		elapse(time.Second)
		if len(done) != 10 {
			t.Errorf("%d of 10 teardowns ran beside running set-ups", len(done))
		}
	})
}
