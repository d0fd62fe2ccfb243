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
func (l *lane) push(v *volume, step Step) {
	v.queued = true
	switch {
	case step.Lazy && v.running > 0:
		l.lazy.push(v)
	case step.Kind.Undoes():
		l.undo.push(v)
	default:
		l.make.push(v)
	}
}

// open reports whether a call could be started now.
func (l *lane) open(maxStuck int) bool {
	if l.running >= l.limit {
		return false
	}
	return l.lazy.size() > 0 || l.stuck < maxStuck && l.undo.size()+l.make.size() > 0
}

// pop takes the next volume of an open lane.
func (l *lane) pop() *volume {
	if l.lazy.size() > 0 {
		return l.lazy.pop()
	}
	l.undid = l.make.size() == 0 || l.undo.size() > 0 && !l.undid
	if l.undid {
		return l.undo.pop()
	}
	return l.make.pop()
}
