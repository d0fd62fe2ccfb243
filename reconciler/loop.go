package reconciler

import (
	"context"
	"runtime/debug"
	"slices"
	"time"

	"github.com/volumekit/volumekit/plugins"
)

// volume returns the state of a volume, and begins one if there is none.
func (d *Default) volume(id plugins.VolumeID) *volume {
	if v := d.volumes[id]; v != nil {
		return v
	}
	v := &volume{id: id, lane: d.enterLane(id.Plugin(), "")}
	v.ofVolume = v
	d.volumes[id] = v
	return v
}

// enterLane returns a lane for one more volume.
func (d *Default) enterLane(plugin, of string) *lane {
	name := laneName(plugin, of)
	l := d.lanes[name]
	if l == nil {
		l = &lane{name: name, limit: d.o.limit(plugin, name), reserved: d.o.Reserved, maxStuck: d.o.MaxStuck}
		d.lanes[name] = l
	}
	l.volumes++
	return l
}

func (d *Default) leaveLane(l *lane) {
	if l.volumes--; l.volumes == 0 {
		delete(d.lanes, l.name)
	}
}

func laneName(plugin, of string) string {
	if of == "" {
		return plugin
	}
	return plugin + "/" + of
}

// changeLane follows what a plan says of a volume's lane, unless the volume is
// in the midst of the one it has.
func (d *Default) changeLane(v *volume, of string) {
	plugin := v.id.Plugin()
	if v.queued || v.joining || v.running > 0 || v.lane.name == laneName(plugin, of) {
		return
	}
	old := v.lane
	v.lane = d.enterLane(plugin, of)
	d.leaveLane(old)
}

// release forgets a volume at rest.
func (d *Default) release(v *volume) {
	if v.dirty || v.queued || v.joining || v.running > 0 || len(v.tries) > 0 || v.place > 0 {
		return
	}
	delete(d.volumes, v.id)
	d.leaveLane(v.lane)
}

func (d *Default) enqueue(v *volume) {
	if !v.dirty {
		v.dirty = true
		d.dirty.push(v)
	}
}

// work does what can be done now, but plans one volume at most, and returns
// when there is more: the zero time if only a signal can tell.
func (d *Default) work(ctx context.Context) time.Time {
	now := d.o.Clock.Now()
	d.mu.Lock()
	stuck, safety := d.fire(now)
	var v *volume
	var ended uint64
	if d.dirty.size() > 0 {
		v = d.dirty.pop()
		v.dirty, ended = false, v.ended
	}
	d.mu.Unlock()

	for _, c := range stuck {
		d.o.Log.Info("step is stuck", "op", c.step.Kind, "volume", c.step.ID, "pod", c.step.Volume.Pod, "since", c.since)
	}
	if safety {
		d.safety()
	}
	var plan Plan
	var parallel, planned bool
	if v != nil {
		if plan, parallel, planned = d.plan(v.id); !planned {
			plan.Next = now.Add(d.o.Backoff.Max)
		}
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	if v != nil && v.ended == ended { // else the plan is out of date, and another is due
		d.settle(v, plan, parallel, now)
	}
	d.dispatch(ctx, now)
	if d.dirty.size() > 0 {
		return now
	}
	return d.timers.next()
}

// plan asks the engine. A panic there costs one volume its plan for a while,
// not the process.
func (d *Default) plan(id plugins.VolumeID) (plan Plan, parallel, ok bool) {
	defer func() {
		if !ok {
			d.o.Log.Error(panicError("plan", recover()), "planning panicked", "volume", id, "stack", string(debug.Stack()))
		}
	}()
	plan = d.engine.Plan(id)
	parallel = len(plan.Steps) > 0 && d.engine.Parallel(id)
	return plan, parallel, true
}

// fire handles the alarms whose time has come: it returns the calls that got
// stuck, and whether the safety pass is due.
func (d *Default) fire(now time.Time) (stuck []*call, safety bool) {
	for a := d.timers.due(now); a != nil; a = d.timers.due(now) {
		switch {
		case a.ofVolume != nil:
			d.enqueue(a.ofVolume)
		case a.ofCall != nil:
			d.strand(a.ofCall)
			stuck = append(stuck, a.ofCall)
		default:
			safety = true
		}
	}
	return stuck, safety
}

// strand ends the context of a call that has outlived its deadline, and frees
// its slot.
func (d *Default) strand(c *call) {
	l := c.volume.lane
	c.stuck = true
	d.inUse--
	s := l.sortOf(c.step.Kind)
	s.running--
	s.stuck++
	c.volume.stuck++
	c.cancel(ErrDeadline)
	if d.o.lazy(c.step.Kind) {
		d.enqueue(c.volume) // to find out when it may be joined
	}
	d.ready(l)
}

// settle takes in a new plan.
func (d *Default) settle(v *volume, plan Plan, parallel bool, now time.Time) {
	if len(plan.Steps) > 0 || v.running == 0 { // the engine is not asked about an empty plan
		v.parallel = parallel
	}
	if len(plan.Steps) > 0 {
		d.changeLane(v, plan.Lane)
	}
	v.settle(&plan, now, d.o.Backoff.Base)
	d.offer(v, now)
}

// offer queues a volume that has a step to run, sets its alarm, and forgets it
// if it has neither.
func (d *Default) offer(v *volume, now time.Time) {
	step, at := d.choose(v, now)
	if step != nil && !v.queued {
		v.lane.push(v, step.Kind)
	}
	lazy, lazyAt := d.chooseLazy(v, now)
	if lazy != nil && !v.joining {
		v.lane.pushLazy(v)
	}
	d.ready(v.lane)
	d.timers.set(&v.alarm, earliest(earliest(at, lazyAt), v.next))
	d.release(v)
}

// choose returns a copy of the step that a volume should run now, nil if there
// is none, and when a step's pause ends.
func (d *Default) choose(v *volume, now time.Time) (*Step, time.Time) {
	var at time.Time
	found := pick(v.steps, func(s *Step) bool {
		t := v.find(&s.Key)
		switch {
		case !v.free(s) || t != nil && t.parked:
			return false
		case t != nil && t.notBefore.After(now):
			at = earliest(at, t.notBefore)
			return false
		}
		return true
	})
	if found == nil {
		return nil, at
	}
	step := *found
	step.Lazy = d.lazyNow(v.find(&step.Key), step.Kind, now)
	return &step, at
}

// chooseLazy is like choose, for a lazy try beside a stuck call.
func (d *Default) chooseLazy(v *volume, now time.Time) (*Step, time.Time) {
	if v.stuck == 0 {
		return nil, time.Time{}
	}
	var at time.Time
	found := pick(v.steps, func(s *Step) bool {
		t := v.find(&s.Key)
		if t == nil {
			return false
		}
		when := d.joinAt(v, t)
		if when.After(now) {
			at = earliest(at, when)
			return false
		}
		return !when.IsZero()
	})
	if found == nil {
		return nil, at
	}
	step := *found
	step.Lazy = true
	return &step, at
}

// joinAt is when a lazy try may join a stuck call, the zero time if never: it
// joins one that waits for what is busy, and never another lazy one.
func (d *Default) joinAt(v *volume, t *try) time.Time {
	if !d.o.lazy(t.key.Kind) || !t.joinable() || t.ok || t.parked {
		return time.Time{}
	}
	if v.running > 1 && !v.parallel {
		return time.Time{}
	}
	at := earliest(t.firstFailed, t.calls[0].since).Add(d.o.LazyAfter)
	if t.notBefore.After(at) {
		at = t.notBefore
	}
	return at
}

// lazyNow reports whether the policy lets a step's next try be a lazy one.
func (d *Default) lazyNow(t *try, kind Kind, now time.Time) bool {
	if t == nil || !d.o.lazy(kind) {
		return false
	}
	return !t.firstFailed.IsZero() && now.Sub(t.firstFailed) >= d.o.LazyAfter
}

// ready puts a lane into the ring if it has work that may start.
func (d *Default) ready(l *lane) {
	if !l.inRing && l.open(false) {
		l.inRing = true
		d.ring.push(l)
	}
}

// dispatch starts steps while there are slots, one for each plugin in turn.
func (d *Default) dispatch(ctx context.Context, now time.Time) {
	for waiting := 0; waiting < d.ring.size(); { // plugins in a row that get no slot
		l, full := d.ring.pop(), d.inUse >= d.o.MaxInFlight
		if full && l.open(false) && !l.open(true) {
			d.ring.push(l)
			waiting++
			continue
		}
		l.inRing = false
		if l.open(full) {
			v, joins := l.pop(full)
			d.start(ctx, v, joins, now)
			waiting = 0
		}
		d.ready(l)
	}
}

// start runs the step that a volume has come to the front of the queue for, if
// it still has one: no other kind, since the stuck steps of a plugin keep only
// those back that do not join one.
func (d *Default) start(ctx context.Context, v *volume, joins bool, now time.Time) {
	choose := d.choose
	if joins {
		choose = d.chooseLazy
	}
	step, _ := choose(v, now)
	if step == nil {
		d.offer(v, now)
		return
	}
	d.launch(ctx, v, *step, now)
	if v.parallel {
		d.offer(v, now)
		return
	}
	v.steps = nil // it is planned anew when the call ends
	d.timers.set(&v.alarm, v.next)
}

// launch makes the call for a step.
func (d *Default) launch(ctx context.Context, v *volume, step Step, now time.Time) {
	t := v.find(&step.Key)
	if t == nil {
		t = &try{key: step.Key}
		v.tries = append(v.tries, t)
	}
	deadline := now.Add(d.o.deadline(step))
	own := newStepContext(ctx, d.o.Clock, deadline)
	c := &call{volume: v, try: t, step: step, since: now, attempt: t.attempts + 1, cancel: own.cancel}
	c.ofCall = c
	t.calls, t.started = append(t.calls, c), now
	v.running++
	if standsAlone(step.Kind) {
		v.exclusive++
	}
	v.lane.sortOf(step.Kind).running++
	d.inUse++
	d.open++
	d.timers.set(&c.alarm, deadline)
	go d.run(own, c)
}

// finish takes in the outcome of a call.
func (d *Default) finish(c *call, err error) {
	now := d.o.Clock.Now()
	d.mu.Lock()
	v, t, l := c.volume, c.try, c.volume.lane
	d.timers.set(&c.alarm, time.Time{})
	t.calls = slices.DeleteFunc(t.calls, func(other *call) bool { return other == c })
	t.woken, t.reset = t.woken || c.woken, t.reset || c.reset
	v.running--
	v.ended++
	v.steps = nil // planned before it ended
	if standsAlone(c.step.Kind) {
		v.exclusive--
	}
	if c.stuck {
		l.sortOf(c.step.Kind).stuck--
		v.stuck--
	} else {
		l.sortOf(c.step.Kind).running--
		d.inUse--
	}
	d.open--
	d.enter(t, c, err, now)
	d.enqueue(v)
	d.ready(l)
	d.mu.Unlock()
	d.poke()
}

// enter records how a call ended. Of a stuck one and the lazy one beside it
// the success of either counts, once both have returned.
func (d *Default) enter(t *try, c *call, err error, now time.Time) {
	switch {
	case err == nil:
		t.ok = true
		if len(t.calls) == 0 {
			t.record = record{}
		}
		return
	case t.ok:
		if len(t.calls) == 0 {
			t.record = record{}
		}
		return
	}
	t.fail(now, err)
	switch {
	case !t.parked:
		t.delay = d.o.Backoff.paced(plugins.PaceOf(err), t.attempts)
		t.notBefore = now.Add(t.delay)
	case t.class != plugins.ClassWaiting && d.o.lazy(c.step.Kind) && !c.step.Lazy:
		t.parked = false
		t.delay = max(t.firstFailed.Add(d.o.LazyAfter).Sub(now), d.o.Backoff.Base)
		t.notBefore = now.Add(t.delay)
	}
}
