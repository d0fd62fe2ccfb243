package reconciler

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"k8s.io/utils/clock"

	"github.com/volumekit/volumekit/plugins"
)

// call is one running step.
type call struct {
	alarm  // its deadline
	volume *volume
	try    *try
	step   Step
	since  time.Time
	// attempt counts the tries of the present row, from 1.
	attempt int
	stuck   bool
	// woken and reset say that the volume was, while the call ran.
	woken, reset bool
	cancel       context.CancelCauseFunc
}

// stepContext ends like a context with a deadline does, by an injected clock.
type stepContext struct {
	context.Context //nolint:containedctx // it is one
	cancel          context.CancelCauseFunc
	// deadline is zero where the clock is not the real one: nobody could
	// compare it with anything.
	deadline time.Time
}

func newStepContext(parent context.Context, c clock.PassiveClock, deadline time.Time) stepContext {
	ctx, cancel := context.WithCancelCause(parent)
	if _, real := c.(clock.RealClock); !real {
		deadline = time.Time{}
	}
	return stepContext{ctx, cancel, deadline}
}

// Deadline is when the context ends, if the clock is the real one.
func (c stepContext) Deadline() (time.Time, bool) {
	at, ok := c.Context.Deadline()
	if c.deadline.IsZero() || ok && at.Before(c.deadline) {
		return at, ok
	}
	return c.deadline, true
}

// Err is [context.DeadlineExceeded] once the deadline has passed.
func (c stepContext) Err() error {
	err := c.Context.Err()
	if err != nil && errors.Is(context.Cause(c.Context), ErrDeadline) {
		return context.DeadlineExceeded
	}
	return err
}

// run makes the call on its own goroutine.
func (d *Default) run(ctx context.Context, c *call) {
	err := d.do(ctx, c)
	c.cancel(nil)
	d.logEnd(c, err)
	d.finish(c, err)
}

func (d *Default) do(ctx context.Context, c *call) (err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		value := recover()
		err = panicError(c.step.Kind, value)
		d.o.Log.Error(err, "step panicked", "op", c.step.Kind, "volume", c.step.ID, "stack", string(debug.Stack()))
		if value == nil { // runtime.Goexit: nothing behind this would run
			c.cancel(nil)
			d.finish(c, err)
		}
	}()
	err = d.o.Faults.At(FaultStart)
	if err == nil {
		err = d.engine.Do(ctx, c.step)
		if fault := d.o.Faults.At(FaultEnd); fault != nil {
			err = fault
		}
	}
	returned = true
	return err
}

// panicError tells what a panic was, but not a value that could hold secrets.
func panicError(kind Kind, value any) error {
	switch value := value.(type) {
	case nil:
		return plugins.Uncertain(fmt.Errorf("%s ended its goroutine", kind))
	case runtime.Error:
		return plugins.Uncertain(fmt.Errorf("%s panicked: %w", kind, value))
	default:
		return plugins.Uncertain(fmt.Errorf("%s panicked with a %T", kind, value))
	}
}

func (d *Default) logEnd(c *call, err error) {
	if d.o.Log.GetSink() == nil {
		return
	}
	log := d.o.Log.WithValues("op", c.step.Kind, "volume", c.step.ID, "plugin", c.step.ID.Plugin(), "pod", c.step.Volume.Pod)
	switch class := plugins.ClassOf(err); {
	case err == nil:
		log.V(1).Info("step done", "reason", c.step.Reason)
	case class == plugins.ClassWaiting:
		log.V(1).Info("step waits", "for", err.Error())
	case c.attempt > 1:
		log.V(1).Info("step failed again", "attempt", c.attempt, "class", class.String(), "error", err.Error())
	default:
		log.Error(err, "step failed", "class", class.String())
	}
}
