package steps

import "github.com/volumekit/volumekit/plugins"

// Remembered counts the scopes of which events and waits are remembered.
func (e *Executor) Remembered() (events, waits int) {
	e.events.mu.Lock()
	events = len(e.events.told.scopes)
	e.events.mu.Unlock()
	e.waits.mu.Lock()
	defer e.waits.mu.Unlock()
	return events, len(e.waits.notes.scopes) + len(e.waits.byRef)
}

// Busy counts the pods whose folders are in use and the paths that are taken.
func (e *Executor) Busy() (folders, taken int) {
	e.folders.mu.Lock()
	folders = len(e.folders.busy)
	e.folders.mu.Unlock()
	e.paths.mu.Lock()
	defer e.paths.mu.Unlock()
	return folders, len(e.paths.users)
}

// Meets is meets.
func Meets(notice, waited plugins.Ref) bool { return meets(notice, waited) }

// HoldFolder stands for a removal of a pod's folder that takes long.
func (e *Executor) HoldFolder(uid string, removing chan<- struct{}, done <-chan struct{}) {
	e.folders.remove(uid, func() {
		close(removing)
		<-done
	})
}
