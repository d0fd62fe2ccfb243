package steps

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

// waits remembers what steps wait for, and which notices came lately: a step
// that learns what it has to wait for may have missed the notice already.
type waits struct {
	mu   sync.Mutex
	pods map[types.UID]map[reconciler.Key][]plugins.Ref
	// recent are the last notices; the newest has the number count.
	recent []plugins.Ref
	count  uint64
}

// maxRecent bounds the notices that are remembered. Where more came during one
// step, every one of them counts as missed.
const maxRecent = 256

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
	uid := key.Volume.Pod
	if len(refs) == 0 {
		if delete(w.pods[uid], key); len(w.pods[uid]) == 0 {
			delete(w.pods, uid)
		}
		return false
	}
	since := w.count - mark
	if since > uint64(len(w.recent)) {
		return true
	}
	for _, notice := range w.recent[uint64(len(w.recent))-since:] {
		if slices.ContainsFunc(refs, func(r plugins.Ref) bool { return refers(r, notice) }) {
			return true
		}
	}
	if w.pods[uid] == nil {
		w.pods[uid] = map[reconciler.Key][]plugins.Ref{}
	}
	w.pods[uid][key] = refs
	return false
}

// notice takes a notice and returns the volumes that waited for it.
func (w *waits) notice(ref plugins.Ref) []plugins.VolumeID {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count++
	if w.recent = append(w.recent, ref); len(w.recent) > maxRecent {
		w.recent = slices.Delete(w.recent, 0, maxRecent/2)
	}
	return w.take(func(r plugins.Ref) bool { return refers(r, ref) })
}

func (w *waits) all() []plugins.VolumeID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.take(func(plugins.Ref) bool { return true })
}

func (w *waits) take(wanted func(plugins.Ref) bool) []plugins.VolumeID {
	var ids []plugins.VolumeID
	for uid, keys := range w.pods {
		for key, refs := range keys {
			if slices.ContainsFunc(refs, wanted) {
				ids = append(ids, key.ID)
				delete(keys, key)
			}
		}
		if len(keys) == 0 {
			delete(w.pods, uid)
		}
	}
	return ids
}

func (w *waits) forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
}

func refers(waited, notice plugins.Ref) bool {
	return waited.Kind == notice.Kind &&
		(notice.Namespace == "" || waited.Namespace == notice.Namespace) &&
		(notice.Name == "" || waited.Name == "" || waited.Name == notice.Name)
}
