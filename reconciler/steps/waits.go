package steps

import (
	"slices"
	"sync"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

// waits remembers what steps wait for, and which notices came lately: a step
// that learns what it has to wait for may have missed the notice already. What
// a step waits for is kept until its next try, also when a notice came: whoever
// took the notice may not get to that try.
type waits struct {
	mu    sync.Mutex
	notes notes[[]plugins.Ref]
	// byRef finds the steps by kind and ref.
	byRef map[string]map[plugins.Ref]map[reconciler.Key]struct{}
	// recent are the last notices; the newest has the number count.
	recent []plugins.Ref
	count  uint64
}

// maxRecent bounds the notices that are remembered. Where more came during one
// step, every one of them counts as missed.
const maxRecent = 256

func newWaits() waits {
	return waits{notes: newNotes[[]plugins.Ref](), byRef: map[string]map[plugins.Ref]map[reconciler.Key]struct{}{}}
}

// mark is where the notices stand before a step.
func (w *waits) mark() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

// set remembers what the step waits for, if anything, and reports whether one
// of that was noticed since the mark.
func (w *waits) set(key reconciler.Key, refs []plugins.Ref, mark uint64) (missed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if old, ok := w.notes.get(&key); ok {
		w.unlink(key, old)
		w.notes.remove(&key)
	}
	if len(refs) == 0 {
		return false
	}
	w.notes.set(&key, refs)
	for _, ref := range refs {
		w.link(key, ref)
	}
	since := w.count - mark
	if since > uint64(len(w.recent)) {
		return true
	}
	for _, notice := range w.recent[uint64(len(w.recent))-since:] {
		if slices.ContainsFunc(refs, func(r plugins.Ref) bool { return meets(notice, r) }) {
			return true
		}
	}
	return false
}

func (w *waits) link(key reconciler.Key, ref plugins.Ref) {
	kind := w.byRef[ref.Kind]
	if kind == nil {
		kind = map[plugins.Ref]map[reconciler.Key]struct{}{}
		w.byRef[ref.Kind] = kind
	}
	if kind[ref] == nil {
		kind[ref] = map[reconciler.Key]struct{}{}
	}
	kind[ref][key] = struct{}{}
}

func (w *waits) unlink(key reconciler.Key, refs []plugins.Ref) {
	for _, ref := range refs {
		kind := w.byRef[ref.Kind]
		if delete(kind[ref], key); len(kind[ref]) > 0 {
			continue
		}
		if delete(kind, ref); len(kind) == 0 {
			delete(w.byRef, ref.Kind)
		}
	}
}

// notice takes a notice and returns the volumes that wait for it.
func (w *waits) notice(ref plugins.Ref) []plugins.VolumeID {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count++
	if w.recent = append(w.recent, ref); len(w.recent) > maxRecent {
		w.recent = slices.Delete(w.recent, 0, maxRecent/2)
	}
	var ids []plugins.VolumeID
	take := func(keys map[reconciler.Key]struct{}) {
		for key := range keys {
			ids = append(ids, key.ID)
		}
	}
	kind := w.byRef[ref.Kind]
	if ref.Name == "" {
		for other, keys := range kind {
			if meets(ref, other) {
				take(keys)
			}
		}
		return ids
	}
	take(kind[ref])
	take(kind[plugins.Ref{Kind: ref.Kind}])
	if ref.Namespace != "" {
		take(kind[plugins.Ref{Kind: ref.Kind, Namespace: ref.Namespace}])
	}
	return ids
}

func (w *waits) all() []plugins.VolumeID {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []plugins.VolumeID
	for _, keys := range w.notes.scopes {
		for key := range keys {
			ids = append(ids, key.ID)
		}
	}
	return ids
}

func (w *waits) forget(s scope) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, refs := range w.notes.scopes[s] {
		w.unlink(key, refs)
	}
	w.notes.forget(s)
}

func (w *waits) has(s scope) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.notes.scopes[s] != nil
}

func (w *waits) due() []scope {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.notes.due()
}

// meets reports whether a notice is about what a step waits for. Without a
// name either means every object of its kind, in its namespace if it has one.
func meets(notice, waited plugins.Ref) bool {
	switch {
	case notice.Kind != waited.Kind:
		return false
	case notice == waited, waited == plugins.Ref{Kind: waited.Kind}:
		return true
	case notice.Name == "":
		return notice.Namespace == "" || waited.Namespace == "" || notice.Namespace == waited.Namespace
	}
	return waited.Name == "" && notice.Namespace == waited.Namespace
}
