package asw

import (
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"math"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

// ErrImpossible says that a change cannot have happened: a device that is gone
// while pods use it, a volume detached under its device, one pod volume that
// belongs to two volumes. Nothing was changed.
var ErrImpossible = errors.New("impossible change of the actual state")

// World is the actual state of all volumes. It is a cache: its methods do no
// I/O, never wait, and may be called from any goroutine. What they return is
// read-only, and is never changed by a later call.
//
// A volume is known as long as its attachment or device is not absent or a pod
// has it; then it is forgotten.
type World struct {
	seed maphash.Seed

	mu      sync.Mutex
	volumes map[plugins.VolumeID]*entry
	pods    map[types.UID][]place // each sorted by volume
	order   order
	count   int // of pod volumes
	waiting []chan struct{}
}

// entry is one volume.
type entry struct {
	volume Volume
	// shared is true if the array behind volume.Pods has been handed out: it
	// is copied before the next change.
	shared bool
	// seq is the entry's place in the order.
	seq uint64
}

// place says where a pod volume is.
type place struct {
	volume plugins.PodVolume
	entry  *entry
}

// waitingSlots is how many channels the pods share on which their changes are
// told: enough that two that are waited for seldom have the same, and few
// enough that they need not be given back.
const waitingSlots = 4096

// New returns an empty world.
func New() *World {
	return &World{
		seed:    maphash.MakeSeed(),
		volumes: make(map[plugins.VolumeID]*entry),
		pods:    make(map[types.UID][]place),
		waiting: make([]chan struct{}, waitingSlots),
	}
}

// Volume returns what is known of a volume.
func (w *World) Volume(id plugins.VolumeID) (Volume, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.volumes[id]
	if e == nil {
		return Volume{}, false
	}
	e.shared = true
	v := e.volume
	v.Pods = slices.Clip(v.Pods)
	return v, true
}

// Pod returns what is known of a pod's volumes, sorted by Volume.String().
func (w *World) Pod(uid types.UID) []PodVolume {
	w.mu.Lock()
	defer w.mu.Unlock()
	places := w.pods[uid]
	if len(places) == 0 {
		return nil
	}
	list := make([]PodVolume, len(places))
	for i, p := range places {
		at, _ := p.entry.find(p.volume)
		list[i] = p.entry.volume.Pods[at]
	}
	return list
}

// VolumesOf lists the volumes that a pod has anything of.
func (w *World) VolumesOf(uid types.UID) []plugins.VolumeID {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := make([]plugins.VolumeID, len(w.pods[uid]))
	for i, p := range w.pods[uid] {
		ids[i] = p.entry.volume.ID
	}
	return ids
}

// HasPod reports whether anything is known of a pod's volumes.
func (w *World) HasPod(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.pods[uid]) > 0
}

// PodVolume returns what is known of one volume of a pod.
func (w *World) PodVolume(v plugins.PodVolume) (PodVolume, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.owner(v)
	if e == nil {
		return PodVolume{}, false
	}
	at, _ := e.find(v)
	return e.volume.Pods[at], true
}

// Len counts the volumes and the pod volumes.
func (w *World) Len() (volumes, pods int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.volumes), w.count
}

// Slice walks over the volumes in parts: it fills ids up to its capacity with
// those behind the cursor after, which is zero at the beginning, and returns
// the cursor for the next part, or zero at the end. A volume that is known
// from the beginning of a walk to its end is seen exactly once.
func (w *World) Slice(after uint64, ids []plugins.VolumeID) ([]plugins.VolumeID, uint64) {
	return w.slice(after, math.MaxUint64, ids)
}

func (w *World) slice(after, upTo uint64, ids []plugins.VolumeID) ([]plugins.VolumeID, uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.order.slice(after, upTo, ids[:0])
}

// newest is the number of the volume that came last.
func (w *World) newest() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.order.last
}

// Volumes walks over the volumes that are known when the walk begins, in
// constant space, and leaves out those that are forgotten meanwhile. The world
// may be used and changed in between.
func (w *World) Volumes() iter.Seq[plugins.VolumeID] {
	return func(yield func(plugins.VolumeID) bool) {
		ids, upTo := make([]plugins.VolumeID, 0, 256), w.newest()
		for after, more := uint64(0), true; more; more = after != 0 {
			ids, after = w.slice(after, upTo, ids)
			for _, id := range ids {
				if !yield(id) {
					return
				}
			}
		}
	}
}

// InUse lists, sorted, the volumes that have an attachment and of which
// anything is or may be there: those that must not be detached elsewhere.
func (w *World) InUse() []plugins.VolumeID {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []plugins.VolumeID
	for id, e := range w.volumes {
		if e.volume.Identity.Attach {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Changed returns a channel that is closed at the next change of any volume of
// the pod; now and then it is closed without one. To wait for something, take
// the channel first, then look.
func (w *World) Changed(uid types.UID) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	slot := w.slot(uid)
	if *slot == nil {
		*slot = make(chan struct{})
	}
	return *slot
}

func (w *World) slot(uid types.UID) *chan struct{} {
	return &w.waiting[maphash.String(w.seed, string(uid))%waitingSlots]
}

// tell wakes who waits for a change of the pod.
func (w *World) tell(uid types.UID) {
	if slot := w.slot(uid); *slot != nil {
		close(*slot)
		*slot = nil
	}
}

// owner is the volume that a pod volume belongs to, or nil.
func (w *World) owner(v plugins.PodVolume) *entry {
	places := w.pods[v.Pod]
	if at, ok := findPlace(places, v); ok {
		return places[at].entry
	}
	return nil
}

// entry returns the entry of a volume, made if it is missing.
func (w *World) entry(id plugins.VolumeID) *entry {
	e := w.volumes[id]
	if e == nil {
		e = &entry{volume: Volume{ID: id}, seq: w.order.add(id)}
		w.volumes[id] = e
	}
	return e
}

// sweep forgets a volume of which nothing is left.
func (w *World) sweep(e *entry) {
	if v := &e.volume; v.Attachment == Absent && v.Device == Absent && len(v.Pods) == 0 {
		delete(w.volumes, v.ID)
		w.order.remove(e.seq)
	}
}

// find is the index of a pod volume, or where it would be.
func (e *entry) find(v plugins.PodVolume) (int, bool) {
	return slices.BinarySearchFunc(e.volume.Pods, v, func(pv PodVolume, v plugins.PodVolume) int {
		return comparePodVolumes(pv.Volume, v)
	})
}

func findPlace(places []place, v plugins.PodVolume) (int, bool) {
	return slices.BinarySearchFunc(places, v, func(p place, v plugins.PodVolume) int {
		return comparePodVolumes(p.volume, v)
	})
}

// own makes volume.Pods safe to be changed in place.
func (e *entry) own() {
	if e.shared {
		e.volume.Pods = slices.Clone(e.volume.Pods)
		e.shared = false
	}
}

// place enters a pod volume, which the world keeps.
func (w *World) place(e *entry, pv PodVolume) {
	pv.Names, pv.Undo = slices.Clone(pv.Names), maps.Clone(pv.Undo)
	slices.Sort(pv.Names)
	e.own()
	at, found := e.find(pv.Volume)
	if found {
		e.volume.Pods[at] = pv
	} else {
		e.volume.Pods = slices.Insert(e.volume.Pods, at, pv)
		places := w.pods[pv.Volume.Pod]
		in, _ := findPlace(places, pv.Volume)
		w.pods[pv.Volume.Pod] = slices.Insert(places, in, place{pv.Volume, e})
		w.count++
	}
	w.tell(pv.Volume.Pod)
}

// remove takes a pod volume out, if it is there.
func (w *World) remove(v plugins.PodVolume) {
	places := w.pods[v.Pod]
	in, ok := findPlace(places, v)
	if !ok {
		return
	}
	e := places[in].entry
	if len(places) == 1 {
		delete(w.pods, v.Pod)
	} else {
		w.pods[v.Pod] = slices.Delete(places, in, in+1)
	}
	at, _ := e.find(v)
	e.own()
	e.volume.Pods = slices.Delete(e.volume.Pods, at, at+1)
	w.count--
	w.sweep(e)
	w.tell(v.Pod)
}

// Load enters what was found at start, as it is. It is for an empty world: a
// volume that is known already, and a pod volume that belongs to another one,
// is left out and named in the error.
func (w *World) Load(found []Volume) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var faults []error
	for _, v := range found {
		if w.volumes[v.ID] != nil {
			faults = append(faults, fmt.Errorf("load %s: %w: it is there already", v.ID, ErrImpossible))
			continue
		}
		pods := v.Pods
		v.Pods, v.Undo, v.Identity.Undo = nil, maps.Clone(v.Undo), maps.Clone(v.Identity.Undo)
		e := w.entry(v.ID)
		e.volume = v
		for _, pv := range pods {
			pv.ID = v.ID
			switch owner := w.owner(pv.Volume); {
			case pv.State == Absent:
			case owner != nil && owner != e:
				faults = append(faults, otherOwner(pv, owner))
			default:
				w.place(e, pv)
			}
		}
		w.sweep(e)
	}
	return errors.Join(faults...)
}

func otherOwner(pv PodVolume, owner *entry) error {
	return fmt.Errorf("pod volume %s of %s: %w: it belongs to %s", pv.Volume, pv.ID, ErrImpossible, owner.volume.ID)
}
