package reconciler

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/volumekit/volumekit/plugins"
)

// The defaults of [Options].
const (
	// DefaultMaxInFlight suits a small machine with slow storage: most steps
	// wait for something, and few of them compute.
	DefaultMaxInFlight = 64
	// DefaultPerPlugin leaves half of the slots to the other plugins.
	DefaultPerPlugin = 32
	// DefaultMaxStuck is how many stuck steps a plugin may have before its new
	// steps wait.
	DefaultMaxStuck = 64
	// DefaultDeadline is a little more than the two minutes that the kubelet
	// gives a CSI call, so that the call's own limit speaks first.
	DefaultDeadline = 2*time.Minute + 10*time.Second
	// DefaultSafetyPeriod and DefaultSafetySlice size the safety pass.
	DefaultSafetyPeriod = time.Second
	DefaultSafetySlice  = 256
	// DefaultShutdownGrace is how long Run waits for steps after its context
	// has ended.
	DefaultShutdownGrace = 10 * time.Second
)

// ErrDeadline is the cause ([context.Cause]) with which a step's context ends
// when its deadline has passed. It wraps [context.DeadlineExceeded].
var ErrDeadline = fmt.Errorf("the step's deadline has passed: %w", context.DeadlineExceeded)

// Points at which Options.Faults is called.
const (
	// FaultStart is before a step's call; an error is returned in its place.
	FaultStart = "reconciler.start"
	// FaultEnd is after it, before the outcome counts; an error replaces it.
	FaultEnd = "reconciler.end"
)

// Options configure [Default]. The zero value works.
type Options struct {
	// Clock tells the time; nil means the real one.
	Clock clock.WithTicker
	// Log takes failures and stuck steps; V(1) has every step.
	Log logr.Logger
	// MaxInFlight limits the steps that run at a time, over all plugins.
	MaxInFlight int
	// Reserved is how many steps of either sort may run for a plugin although
	// others use all of MaxInFlight: plugins whose storage or API hangs do not
	// hold up those whose does not, nor what goes. Zero means a sixteenth of MaxInFlight, less than
	// zero none.
	Reserved int
	// PerPlugin limits the steps that make something, and those that undo
	// something, for plugins by name, DefaultPerPlugin for the others. Zero or
	// less means the default. Where a plugin's volumes name lanes
	// ([plugins.Identity] Lane) this, Reserved and MaxStuck hold for each lane;
	// one may have a limit of its own under "<plugin>/<lane>".
	PerPlugin        map[string]int
	DefaultPerPlugin int
	// MaxStuck is how many steps of one plugin that make something, and how many
	// that undo something, may outlive their deadline before no new one of the
	// sort is started. As each of the running ones may get stuck too, a plugin
	// has at most twice this many and its limit of calls open, and as many lazy
	// ones again.
	MaxStuck int
	// Deadline says how long a step may take. Nil, and a result of zero or
	// less, mean DefaultDeadline. It is called with a lock held and must be
	// quick.
	Deadline func(Step) time.Duration
	// Backoff says how failed steps are repeated.
	Backoff Backoff
	// SafetyPeriod is how often a slice of all volumes is planned again in
	// case a change was missed, SafetySlice how many. A negative period turns
	// it off.
	SafetyPeriod time.Duration
	SafetySlice  int
	// LazyAfter, if positive, is the time after which a TearDown or
	// UnmountDevice that keeps failing or is stuck is run with Step.Lazy. A
	// stuck one is joined by one lazy try at a time, the sole exception to one
	// step at a time for a volume; a lazy one that is stuck itself is joined by
	// none. One that failed for good is tried once so.
	LazyAfter time.Duration
	// ShutdownGrace is how long Run waits for its steps once its context has
	// ended.
	ShutdownGrace time.Duration
	// Faults is a hook for tests; nil in production.
	Faults plugins.FaultFunc
}

// Backoff says after which time a failed step is tried again. The zero value
// is 500 ms, doubled each time up to 2 minutes, give or take a tenth.
type Backoff struct {
	// Base is the first delay. It is also the pace to which steps are held
	// that would repeat at once again and again.
	Base time.Duration
	// Factor multiplies the delay after each failure; 1 keeps it flat.
	Factor float64
	// Max limits it, before jitter.
	Max time.Duration
	// Jitter is the part of the delay by which it varies at most. Zero means
	// 0.1, less than zero none.
	Jitter float64
	// Rand returns numbers in [0,1) and is called by one goroutine at a time;
	// nil means math/rand/v2.
	Rand func() float64
}

// delay is the pause after the n-th failure in a row, counted from 1.
func (b *Backoff) delay(n int) time.Duration {
	d := float64(b.Base) * math.Pow(b.Factor, float64(n-1))
	return b.vary(time.Duration(min(d, float64(b.Max)))) // also where d is infinite
}

// vary is d give or take the jitter.
func (b *Backoff) vary(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 + b.Jitter*(2*b.Rand()-1)))
}

// paced is the pause after the n-th failure in a row of one with the given pace.
func (b *Backoff) paced(pace plugins.Pace, n int) time.Duration {
	switch pace {
	case plugins.PaceFlat:
		return b.vary(b.Base)
	case plugins.PaceSlow:
		return b.vary(b.Max)
	}
	return b.delay(n)
}

func (b *Backoff) setDefaults() {
	orElse(&b.Base, 500*time.Millisecond)
	orElse(&b.Max, 2*time.Minute)
	b.Max = max(b.Max, b.Base)
	if !(b.Factor >= 1) {
		b.Factor = 2
	}
	switch {
	case b.Jitter == 0:
		b.Jitter = 0.1
	case !(b.Jitter > 0):
		b.Jitter = 0
	}
	b.Jitter = min(b.Jitter, 1)
	if b.Rand == nil {
		b.Rand = rand.Float64
	}
}

func (o *Options) setDefaults() {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	orElse(&o.MaxInFlight, DefaultMaxInFlight)
	if o.Reserved == 0 {
		o.Reserved = o.MaxInFlight / 16
	}
	orElse(&o.DefaultPerPlugin, DefaultPerPlugin)
	orElse(&o.MaxStuck, DefaultMaxStuck)
	orElse(&o.SafetySlice, DefaultSafetySlice)
	orElse(&o.ShutdownGrace, DefaultShutdownGrace)
	if o.SafetyPeriod == 0 {
		o.SafetyPeriod = DefaultSafetyPeriod
	}
	o.Backoff.setDefaults()
}

func orElse[T int | time.Duration](value *T, def T) {
	if *value <= 0 {
		*value = def
	}
}

// limit is how many steps of a plugin's lane may run.
func (o *Options) limit(plugin, name string) int {
	for _, key := range []string{name, plugin} {
		if n := o.PerPlugin[key]; n > 0 {
			return n
		}
	}
	return o.DefaultPerPlugin
}

func (o *Options) deadline(step Step) time.Duration {
	if o.Deadline != nil {
		if d := o.Deadline(step); d > 0 {
			return d
		}
	}
	return DefaultDeadline
}

// lazy reports whether the policy applies to a kind at all.
func (o *Options) lazy(kind Kind) bool {
	return o.LazyAfter > 0 && (kind == TearDown || kind == UnmountDevice)
}
