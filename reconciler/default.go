package reconciler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/volumekit/volumekit/plugins"
)

// Default is the reconciler that the manager uses unless it is given another.
//
// It is driven by events: Wake makes a volume planned, the first step of its
// plan that need not pause is run on a goroutine of its own, and when that
// ends the volume is planned again. A volume at rest costs nothing but its
// share of the safety pass. For one volume one step runs at a time, or one for
// each pod where [Engine] Parallel allows it.
//
//   - A step that fails is repeated after a pause that grows, for each [Key]
//     by itself. One that waits is repeated when the volume is woken; one that
//     failed for good after Reset. A step is forgotten when it succeeds or
//     when nothing is planned for the volume any more; while other steps are,
//     it is remembered for the length of its pause.
//   - No step repeats at once for ever: after a few times it is held to the
//     pace of Backoff.Base. The exception is one that succeeds, and whose volume
//     was woken while it ran: what changes often is followed at its own pace.
//   - Limits hold for all plugins together and for each; free slots go round
//     the plugins, and within one, undoing and making take turns.
//   - A step past its deadline is stuck: its context ends with [ErrDeadline],
//     it gives its slot back, and its volume stays busy until the call
//     returns. When a plugin has too many of them its new steps wait, but for
//     the lazy tries that may free those.
//
// All methods are safe for concurrent use.
type Default struct {
	o      Options
	signal chan struct{} // says that there may be work for Run

	mu      sync.Mutex // guards what follows; no call goes out under it
	engine  Engine
	stopped bool
	volumes map[plugins.VolumeID]*volume
	lanes   map[string]*lane
	dirty   queue[*volume] // to be planned
	ring    queue[*lane]   // with work that may start
	timers  timers
	inUse   int // slots
	open    int // calls that have not returned

	pass safetyPass // of Run alone
}

var (
	_ Reconciler = (*Default)(nil)
	_ Reporter   = (*Default)(nil)
)

// New returns a reconciler; nothing starts before Run.
func New(o Options) *Default {
	o.setDefaults()
	return &Default{
		o: o, signal: make(chan struct{}, 1),
		volumes: map[plugins.VolumeID]*volume{}, lanes: map[string]*lane{},
	}
}

// Wake implements [Reconciler].
func (d *Default) Wake(ids ...plugins.VolumeID) { d.wake(ids, false) }

// Reset implements [Reconciler].
func (d *Default) Reset(ids ...plugins.VolumeID) { d.wake(ids, true) }

func (d *Default) wake(ids []plugins.VolumeID, reset bool) {
	d.mu.Lock()
	if !d.stopped {
		for _, id := range ids {
			v := d.volume(id)
			v.woken = true
			v.reset = v.reset || reset
			if !v.busy() || v.stuck > 0 { // a lazy try may be due
				d.enqueue(v)
			}
		}
	}
	d.mu.Unlock()
	d.poke()
}

// Report implements [Reporter].
func (d *Default) Report(id plugins.VolumeID) []StepReport {
	now := d.o.Clock.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if v := d.volumes[id]; v != nil {
		return v.report(now)
	}
	return nil
}

// Run implements [Reconciler]. It returns nil once ctx has ended and every
// step has returned; the steps' contexts end with ctx. If some have not
// returned after Options.ShutdownGrace, the error names them; their goroutines
// end when their calls do. It may be called once.
func (d *Default) Run(ctx context.Context, engine Engine) error {
	d.mu.Lock()
	again := d.engine != nil
	if !again {
		d.engine = engine
	}
	d.mu.Unlock()
	if again {
		return errors.New("the reconciler was run before")
	}
	d.startSafety()
	w := waiter{clock: d.o.Clock}
	for ctx.Err() == nil {
		if due := d.work(ctx); due.IsZero() || due.After(d.o.Clock.Now()) {
			w.wait(ctx, d.signal, due)
		}
	}
	w.stop()
	return d.drain()
}

// waiter waits by one timer.
type waiter struct {
	clock clock.Clock
	timer clock.Timer
	armed time.Time // zero when the timer has fired
}

// wait returns when ctx ends, a signal comes, or at a time, if that is not
// zero. It may return too early.
func (w *waiter) wait(ctx context.Context, signal <-chan struct{}, at time.Time) {
	if !at.IsZero() && (w.armed.IsZero() || at.Before(w.armed)) {
		pause := at.Sub(w.clock.Now())
		if w.timer == nil {
			w.timer = w.clock.NewTimer(pause)
		} else {
			w.timer.Reset(pause)
		}
		w.armed = at
		if !at.After(w.clock.Now()) {
			w.armed = time.Time{}
			return // it came in between; a clock that is stepped would not tell
		}
	}
	var fired <-chan time.Time
	if w.timer != nil {
		fired = w.timer.C()
	}
	select {
	case <-ctx.Done():
	case <-signal:
	case <-fired:
		w.armed = time.Time{}
	}
}

func (w *waiter) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// drain waits for the calls that are still open.
func (d *Default) drain() error {
	d.mu.Lock()
	d.stopped = true
	d.mu.Unlock()
	grace := d.o.Clock.NewTimer(d.o.ShutdownGrace)
	defer grace.Stop()
	for {
		d.mu.Lock()
		open := d.open
		d.mu.Unlock()
		if open == 0 {
			return nil
		}
		select {
		case <-d.signal:
		case <-grace.C():
			return d.hung()
		}
	}
}

// hung names the calls that do not return, nil if there are none.
func (d *Default) hung() error {
	now := d.o.Clock.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []string
	for _, v := range d.volumes {
		for _, t := range v.tries {
			for _, c := range t.calls {
				list = append(list, fmt.Sprintf("%s of %s %s (for %v)", t.key.Kind, t.key.ID, t.key.Volume.Pod, now.Sub(c.since).Round(time.Second)))
			}
		}
	}
	if len(list) == 0 {
		return nil
	}
	slices.Sort(list)
	return fmt.Errorf("steps that do not return: %s", strings.Join(list, "; "))
}

// poke wakes Run.
func (d *Default) poke() {
	select {
	case d.signal <- struct{}{}:
	default: // it has been told already
	}
}

// size counts what is kept, for tests.
func (d *Default) size() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.volumes) + len(d.lanes) + d.dirty.size() + d.open + d.inUse
}
