package reconciler

import (
	"slices"
	"time"

	"github.com/volumekit/volumekit/plugins"
)

// maxBurst is how often in a row a step may be repeated at once.
const maxBurst = 3

// volume is what [Default] knows of a volume with work; one at rest has none.
type volume struct {
	alarm // when it is planned again
	id    plugins.VolumeID
	lane  *lane
	tries []*try
	// steps and next are from the last plan. The steps are kept as long as the
	// volume is queued for a slot: every change brings another plan.
	steps    []Step
	next     time.Time
	parallel bool
	dirty    bool // queued for planning
	queued   bool // queued for a slot
	joining  bool // queued for a slot for a lazy try beside a stuck call
	woken    bool // Wake was called since the last plan
	reset    bool // and Reset

	running   int    // calls that have not returned
	exclusive int    // those of them that stand alone
	stuck     int    // those that have outlived their deadline
	ended     uint64 // calls that have returned
}

// try is what is known of one step.
type try struct {
	record
	key     Key
	calls   []*call // running, the oldest first; two only if the second is lazy
	started time.Time
	burst   int
	// ok means that a call succeeded; the next plan says whether that was it.
	ok bool
	// woken and reset are those of the calls that ended since the last plan.
	woken, reset bool
	// gone is true while the plan lacks the step, until when it is remembered.
	planned, gone bool
	until         time.Time
}

// busy reports whether planning can wait until a running step ends.
func (v *volume) busy() bool { return v.running > 0 && !v.parallel }

func (v *volume) find(key *Key) *try {
	for _, t := range v.tries {
		if t.key == *key {
			return t
		}
	}
	return nil
}

// standsAlone reports whether no other step may run beside one of this kind,
// even where steps of different pods may.
func standsAlone(kind Kind) bool { return kind != SetUp && kind != TearDown && kind != Refresh }

// free reports whether a step may run beside those that run.
func (v *volume) free(step *Step) bool {
	if v.running == 0 {
		return true
	}
	if !v.parallel || v.exclusive > 0 || standsAlone(step.Kind) {
		return false
	}
	return !slices.ContainsFunc(v.tries, func(t *try) bool {
		return len(t.calls) > 0 && t.key.Volume == step.Volume
	})
}

// soon is when a step may be repeated that has no reason to pause: at once,
// unless it does so all the time.
func (t *try) soon(now time.Time, gap time.Duration) time.Time {
	switch {
	case now.Sub(t.started) >= gap:
		t.burst = 0
	case t.burst >= maxBurst:
		return t.started.Add(gap)
	default:
		t.burst++
	}
	return now
}

// stuck reports whether a call has outlived its deadline.
func (t *try) stuck() bool { return len(t.calls) > 0 && t.calls[0].stuck }

// joinable reports whether a lazy try could free the call that runs.
func (t *try) joinable() bool { return t.stuck() && len(t.calls) == 1 && !t.calls[0].step.Lazy }

// settle compares what is known of the steps with a new plan.
func (v *volume) settle(plan *Plan, now time.Time, gap time.Duration) {
	v.steps, v.next = plan.Steps, plan.Next
	if !v.next.IsZero() && !v.next.After(now) {
		v.next = now.Add(gap) // an engine must not make it plan all the time
	}
	for _, t := range v.tries {
		t.planned = false
	}
	for i := range v.steps {
		if t := v.find(&v.steps[i].Key); t != nil {
			t.planned = true
		}
	}
	v.tries = slices.DeleteFunc(v.tries, func(t *try) bool {
		v.inherit(t)
		drop := false
		switch {
		case len(t.calls) > 0:
			if t.joinable() {
				t.revive(now, gap)
			}
		case t.planned:
			t.renew(now, gap)
		default:
			drop = v.forget(t, now, gap)
		}
		t.woken, t.reset = false, false
		return drop
	})
	v.woken, v.reset = false, false
}

// inherit tells a step of the wakes since the last plan. Its running calls keep
// them until they end: what they come to wait for may be what came.
func (v *volume) inherit(t *try) {
	t.woken, t.reset = t.woken || v.woken, t.reset || v.reset
	for _, c := range t.calls {
		c.woken, c.reset = c.woken || v.woken, c.reset || v.reset
	}
}

// renew takes into account what happened since the last plan.
func (t *try) renew(now time.Time, gap time.Duration) {
	t.gone = false
	switch {
	case t.ok && t.woken:
		// It worked, and meanwhile there was a reason to do it anew: a source
		// that changes often is followed at its own pace. The burst is kept, so
		// that a step which succeeds only now and then is held to the gap.
		t.record = record{}
	case t.ok:
		t.notBefore = t.soon(now, gap)
	default:
		t.revive(now, gap)
	}
	t.ok = false
}

// revive ends the pause of a step if there was a reason to.
func (t *try) revive(now time.Time, gap time.Duration) {
	switch {
	case t.reset:
		t.record = record{notBefore: t.soon(now, gap)}
	case t.woken && t.waits():
		t.parked, t.notBefore = false, t.soon(now, gap)
	}
}

// forget reports whether a step that is not planned can be forgotten. As long
// as the volume has other steps it is remembered for another pause: two steps
// that take turns in failing keep their backoff.
func (v *volume) forget(t *try, now time.Time, gap time.Duration) bool {
	if t.ok || t.reset || len(v.steps) == 0 {
		return true
	}
	if !t.gone {
		t.gone, t.until = true, now.Add(max(t.delay, gap))
	}
	return !now.Before(t.until)
}

// report lists what is known of the steps.
func (v *volume) report(now time.Time) []StepReport {
	var list []StepReport
	for _, t := range v.tries {
		if len(t.calls) == 0 && (t.gone || t.err == nil) {
			continue
		}
		r := StepReport{
			Key: t.key, FirstFailed: t.firstFailed, Attempts: t.attempts, Err: t.err,
			Running: len(t.calls) > 0, Stuck: t.stuck(),
		}
		if r.Running {
			r.Since = t.calls[0].since
		} else if !t.parked {
			r.NextTry = t.notBefore
		}
		list = append(list, r)
	}
	if !v.queued {
		return list
	}
	if step := pick(v.steps, func(s *Step) bool {
		t := v.find(&s.Key)
		return v.free(s) && (t == nil || t.due(now))
	}); step != nil {
		if i := slices.IndexFunc(list, func(r StepReport) bool { return r.Key == step.Key }); i >= 0 {
			list[i].Queued = true
		} else {
			list = append(list, StepReport{Key: step.Key, Queued: true})
		}
	}
	return list
}
