package reconciler

// lane is what waits and runs of one plugin, or of those of its volumes that
// name a lane, and its limits.
type lane struct {
	name                      string // "<plugin>" or "<plugin>/<lane>"
	limit, reserved, maxStuck int
	volumes                   int // that refer to it
	inRing                    bool
	// undo and make are apart: what makes volumes ready may hang, and what goes
	// can still go. They take turns.
	undo, make sort
	undid      bool
	// lazy tries are let through when the plugin's stuck steps stop the rest:
	// they are what may free those.
	lazy queue[*volume]
}

// sort is the steps of a plugin that undo something, or that make something.
type sort struct {
	queue   queue[*volume]
	running int // calls that hold a slot
	stuck   int // calls that have outlived their deadline
}

func (l *lane) sortOf(kind Kind) *sort {
	if kind.Undoes() {
		return &l.undo
	}
	return &l.make
}

// slot reports whether a call of the sort may start; full says that all common
// slots are taken.
func (l *lane) slot(s *sort, full bool) bool {
	return s.running < l.limit && (!full || s.running < l.reserved)
}

// may reports whether the sort has a call to start now.
func (l *lane) may(s *sort, full bool) bool {
	return s.queue.size() > 0 && s.stuck < l.maxStuck && l.slot(s, full)
}

// push queues a volume by the step that it would run.
func (l *lane) push(v *volume, kind Kind) {
	v.queued = true
	l.sortOf(kind).queue.push(v)
}

// pushLazy queues a volume for a lazy try beside a stuck call. It may be queued
// by push too, for its other pods, and must not wait there for the stuck call.
func (l *lane) pushLazy(v *volume) {
	v.joining = true
	l.lazy.push(v)
}

// open reports whether a call could be started now.
func (l *lane) open(full bool) bool {
	return l.mayJoin(full) || l.may(&l.undo, full) || l.may(&l.make, full)
}

func (l *lane) mayJoin(full bool) bool { return l.lazy.size() > 0 && l.slot(&l.undo, full) }

// pop takes the next volume of an open lane, and says whether it is for a lazy
// try beside a stuck call.
func (l *lane) pop(full bool) (v *volume, joins bool) {
	if l.mayJoin(full) {
		v = l.lazy.pop()
		v.joining = false
		return v, true
	}
	l.undid = !l.may(&l.make, full) || l.may(&l.undo, full) && !l.undid
	if l.undid {
		v = l.undo.queue.pop()
	} else {
		v = l.make.queue.pop()
	}
	v.queued = false
	return v, false
}
