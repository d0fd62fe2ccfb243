package reconciler

// lane is the queue of one plugin, and its limits.
type lane struct {
	plugin  string
	limit   int
	volumes int // that refer to it
	running int // calls that hold a slot
	stuck   int // calls that have outlived their deadline
	inRing  bool
	// lazy tries are let through when the plugin's stuck steps stop the rest:
	// they are what may free those. Undoing and making take turns.
	lazy, undo, make queue[*volume]
	undid            bool
}

// push queues a volume by the step that it would run.
func (l *lane) push(v *volume, kind Kind) {
	v.queued = true
	if kind.Undoes() {
		l.undo.push(v)
	} else {
		l.make.push(v)
	}
}

// pushLazy queues a volume for a lazy try beside a stuck call. It may be queued
// by push too, for its other pods, and must not wait there for the stuck call.
func (l *lane) pushLazy(v *volume) {
	v.joining = true
	l.lazy.push(v)
}

// open reports whether a call could be started now.
func (l *lane) open(maxStuck int) bool {
	if l.running >= l.limit {
		return false
	}
	return l.lazy.size() > 0 || l.stuck < maxStuck && l.undo.size()+l.make.size() > 0
}

// pop takes the next volume of an open lane, and says whether it is for a lazy
// try beside a stuck call.
func (l *lane) pop() (v *volume, joins bool) {
	if l.lazy.size() > 0 {
		v = l.lazy.pop()
		v.joining = false
		return v, true
	}
	l.undid = l.make.size() == 0 || l.undo.size() > 0 && !l.undid
	if l.undid {
		v = l.undo.pop()
	} else {
		v = l.make.pop()
	}
	v.queued = false
	return v, false
}
