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
