package dsw

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

// Options of a [World].
type Options struct {
	// AllVolumes also asks for volumes that no container uses.
	AllVolumes bool
}

// World is the desired state of all volumes of this node. It is a pure cache:
// it does no I/O, calls no plugin and starts nothing. All methods are safe for
// concurrent use and quick; each costs as much as it changes, whatever the
// number of pods.
//
// Methods that change it return what has to be done about the change. Nobody
// may change a pod, [Resolution] or slice after giving it to a World, nor what
// a World returns.
type World struct {
	all bool

	mu      sync.Mutex
	synced  bool
	listing bool
	// list numbers the lists of the pod source, seq everything that happens:
	// generations, versions of inputs and of tasks are all taken from it.
	list, seq uint64
	pods      map[types.UID]*podEntry
	volumes   map[plugins.VolumeID]*entry
	order     []*entry
	refs      refIndex
	notices   noticeLog
}

// Change is what a change of the desired state asks for. The zero value asks
// for nothing.
type Change struct {
	// Volumes have to be planned again. Each is listed once.
	Volumes []plugins.VolumeID
	// Pods are those for which it may have become certain that something is
	// asked for or not: plan again whatever the actual state has of them, also
	// under ids that nobody asks for.
	Pods []types.UID
	// All asks to plan everything that is there, once, at the first sync.
	All bool
	// Resolve has to be resolved, again or for the first time. See
	// [World.Begin].
	Resolve []Unresolved
}

// Unresolved names a volume that has to be resolved.
type Unresolved struct {
	// Pod is the pod's UID, Name the volume's name in the pod's spec.
	Pod  types.UID
	Name string
}

// podEntry is a pod that the source has told.
type podEntry struct {
	pod     *v1.Pod
	list    uint64
	volumes []*volume // in the order of the spec
	open    int       // how many of them have no resolution
}

// volume is one used volume of a pod, by its name in the pod's spec.
type volume struct {
	pod *podEntry
	use use
	// inputs is when that what the resolver reads of the pod changed last,
	// issued when the last task was begun, applied which task told last.
	inputs, issued, applied uint64
	inFlight, again         bool
	res                     *Resolution // nil until it was resolved once
	err                     error       // why the last try failed
	generation              uint64
	target                  *target // where it leads, if res is set
	links                   []link
	bumped, asked           uint64 // operation that did so last
}

// New returns an empty world that is not synced.
func New(o Options) *World {
	return &World{
		all:     o.AllVolumes,
		pods:    map[types.UID]*podEntry{},
		volumes: map[plugins.VolumeID]*entry{},
		refs:    refIndex{},
	}
}

// BeginList says that the pod source begins to tell its whole list.
func (w *World) BeginList() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list++
	w.listing = true
}

// EndList says that the source has told its whole list. Pods that it has not
// told since BeginList are gone. From the first call on the world is synced
// for good. Without a list under way it removes nothing.
func (w *World) EndList() Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	var c Change
	if w.listing {
		for uid, p := range w.pods {
			if p.list != w.list {
				w.remove(uid, p, &c)
			}
		}
	}
	w.listing = false
	c.All = !w.synced
	w.synced = true
	return c
}

// Synced reports whether the pod source has told all pods once.
func (w *World) Synced() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.synced
}

// SetPod adds a pod or replaces it by a newer version. Volumes whose source
// and use are the same keep their resolution; where other things changed that
// the resolver reads of a pod they keep it until it is renewed. Volumes that
// could not be resolved are tried again. A nil pod and one without UID are
// ignored.
func (w *World) SetPod(pod *v1.Pod) Change {
	if pod == nil || pod.UID == "" {
		return Change{}
	}
	uses := usesOf(pod, w.all)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	var c Change
	p := w.pods[pod.UID]
	if p == nil {
		p = &podEntry{}
		w.pods[pod.UID] = p
		c.Pods = append(c.Pods, pod.UID)
	}
	p.list = w.list
	if p.pod != pod {
		w.replace(p, pod, uses, &c)
	}
	return c
}

// replace exchanges the pod's object and compares its volumes.
func (w *World) replace(p *podEntry, pod *v1.Pod, uses []use, c *Change) {
	old, known, wasOpen := p.pod, p.volumes, p.open
	same := old != nil && samePodInputs(old, pod)
	p.pod = pod
	next := make([]*volume, 0, len(uses))
	for i, u := range uses {
		v := take(known, i, u.Name)
		if v != nil && sameUse(old, v.use, pod, u) {
			v.use = u
			w.keep(v, same, old, c)
			next = append(next, v)
			continue
		}
		if v != nil {
			w.drop(v, c)
		}
		v = &volume{pod: p, use: u, inputs: w.seq}
		p.open++
		next = append(next, v)
		c.Resolve = append(c.Resolve, Unresolved{pod.UID, u.Name})
	}
	for _, v := range known {
		if v != nil {
			w.drop(v, c)
		}
	}
	p.volumes = next
	if wasOpen > 0 {
		w.wakeReadOnly(p, c)
	}
	if old != nil && (wasOpen == 0) != (p.open == 0) {
		c.Pods = append(c.Pods, pod.UID)
	}
}

// wakeReadOnly wakes the pod's read-only volumes: what they waited for may be
// no part of the pod any more.
func (w *World) wakeReadOnly(p *podEntry, c *Change) {
	for _, v := range p.volumes {
		if v.target != nil && v.target.wish.Params.ReadOnly {
			w.wake(v.target.entry, c)
		}
	}
}

// take removes the volume called name from list, most likely at place i.
func take(list []*volume, i int, name string) *volume {
	if i >= len(list) || list[i] == nil || list[i].use.Name != name {
		for i = 0; i < len(list) && (list[i] == nil || list[i].use.Name != name); i++ {
		}
	}
	if i == len(list) {
		return nil
	}
	v := list[i]
	list[i] = nil
	return v
}

// keep brings a volume whose source did not change to the pod's new version.
func (w *World) keep(v *volume, sameInputs bool, old *v1.Pod, c *Change) {
	pod := v.pod.pod
	if !sameInputs {
		v.inputs = w.seq
	}
	if !sameInputs || v.err != nil && !v.inFlight {
		c.Resolve = append(c.Resolve, Unresolved{pod.UID, v.use.Name})
	}
	if v.target == nil {
		return
	}
	if !sameInputs || contentChanged(old, pod, v.use.volume(pod)) {
		v.generation = w.seq
		w.wake(v.target.entry, c)
	}
	v.target.update()
}

// drop takes a volume out of the world.
func (w *World) drop(v *volume, c *Change) {
	if v.res == nil {
		v.pod.open--
	}
	w.detach(v, v.target, c)
	w.refs.unlink(v)
	w.landed(v)
}

// RemovePod says that the pod is gone. Nothing of it is asked for any more,
// once the world is synced.
func (w *World) RemovePod(uid types.UID) Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	var c Change
	if p := w.pods[uid]; p != nil {
		w.remove(uid, p, &c)
	}
	return c
}

func (w *World) remove(uid types.UID, p *podEntry, c *Change) {
	for _, v := range p.volumes {
		w.drop(v, c)
	}
	delete(w.pods, uid)
	c.Pods = append(c.Pods, uid)
}

// find returns the pod's volume called name, or nil.
func (p *podEntry) find(name string) *volume {
	for _, v := range p.volumes {
		if v.use.Name == name {
			return v
		}
	}
	return nil
}
