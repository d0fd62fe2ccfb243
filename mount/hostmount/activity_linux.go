package hostmount

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/volumekit/volumekit/mount"
)

// activity knows what this mounter does itself, so that watchers can tell
// others' changes from it.
type activity struct {
	mu   sync.Mutex
	open map[string]int // calls under way, by target
	logs map[*ownLog]struct{}
	// finished counts calls that changed something.
	finished atomic.Uint64
}

// ownLog is what one watcher has not yet compared with the mount table. Its
// fields are guarded by activity.mu.
type ownLog struct {
	// net is by how many mounts calls that succeeded changed a target.
	net map[string]int
	// moving are targets with a call under way since the last mark.
	moving map[string]bool
	// trees are targets whose whole subtree came or went.
	trees map[string]bool
}

// begin notes that a call on target starts. With tree it may touch what lies
// below as well. The result notes its end, and by how many mounts the target
// changed.
func (a *activity) begin(target string, tree bool) (done func(delta int)) {
	if byDescriptor(target) {
		if path, err := os.Readlink(target); err == nil {
			target = path
		}
	}
	target = filepath.Clean(target)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == nil {
		a.open = map[string]int{}
	}
	a.open[target]++
	for log := range a.logs {
		log.moving[target] = true
	}
	return func(delta int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.open[target]--; a.open[target] == 0 {
			delete(a.open, target)
		}
		for log := range a.logs {
			log.moving[target] = true
			if delta != 0 {
				log.net[target] += delta
			}
			if tree {
				log.trees[target] = true
			}
		}
		if delta != 0 || tree {
			a.finished.Add(1)
		}
	}
}

func (a *activity) subscribe() *ownLog {
	log := &ownLog{net: map[string]int{}, moving: map[string]bool{}, trees: map[string]bool{}}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.logs == nil {
		a.logs = map[*ownLog]struct{}{}
	}
	a.logs[log] = struct{}{}
	return log
}

func (a *activity) unsubscribe(log *ownLog) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.logs, log)
}

// mark is called before the table is read: a target on which a call is under
// way from now on cannot be judged by what is read.
func (a *activity) mark(log *ownLog) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(log.moving)
	for target := range a.open {
		log.moving[target] = true
	}
}

// reset forgets what was done before the first table was read.
func (a *activity) reset(log *ownLog) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(log.net)
	clear(log.trees)
}

// settle compares the changes that the table shows, by target, with our own.
// It takes out of both what is explained, reports whether anything was not
// (foreign) and whether we did anything at all (own), and leaves in changes
// what has to be judged later.
func (a *activity) settle(log *ownLog, changes map[string]int) (foreign, own bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	own = len(log.net)+len(log.moving)+len(log.trees) > 0
	for target, n := range changes {
		ours, known := log.net[target]
		switch {
		case log.moving[target]:
			continue
		case log.inTree(target):
		case !known || ours != n:
			foreign = true
		}
		delete(changes, target)
		delete(log.net, target)
	}
	for target, n := range log.net {
		if log.moving[target] {
			continue
		}
		// What we mounted and the table does not show, somebody took away.
		foreign = foreign || (n != 0 && !log.inTree(target))
		delete(log.net, target)
	}
	for tree := range log.trees {
		if !log.moving[tree] {
			delete(log.trees, tree)
		}
	}
	return foreign, own
}

func (l *ownLog) inTree(target string) bool {
	for tree := range l.trees {
		if mount.Inside(tree, target) {
			return true
		}
	}
	return false
}

// difference counts the mounts that came and went from one table to another,
// by target. A mount that was replaced or changed in place counts zero.
func difference(before, after *snapshot) map[string]int {
	changes := map[string]int{}
	a, b := before.rows, after.rows
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].ID < b[0].ID:
			changes[a[0].Target]--
			a = a[1:]
		case len(a) == 0 || b[0].ID < a[0].ID:
			changes[b[0].Target]++
			b = b[1:]
		default:
			if a[0] != b[0] {
				changes[a[0].Target]--
				changes[b[0].Target]++
			}
			a, b = a[1:], b[1:]
		}
	}
	return changes
}
