package dsw

import (
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

// Resolution is what a volume of a pod turned out to be.
type Resolution struct {
	// Volume and ID are where the wish belongs.
	Volume plugins.PodVolume
	ID     plugins.VolumeID
	// Spec, Identity, Block and Params are the wish.
	Spec     *plugins.Spec
	Identity plugins.Identity
	Block    bool
	Params   plugins.Params
	// ContentRefs are the objects that the content is made of: a notice about
	// one makes the content out of date.
	ContentRefs []plugins.Ref
	// SpecRefs are the objects that this resolution was read from: a notice
	// about one asks to resolve again. A failed resolution has them too.
	SpecRefs []plugins.Ref
}

// Task is one resolution under way.
type Task struct {
	// Pod and Name are what to give to the resolver.
	Pod  *v1.Pod
	Name string

	version uint64
}

// Begin begins to resolve a volume. It returns false if that is not needed any
// more. The outcome of every task that was begun must be told by SetResolved
// or SetFailed: until then notices ask for no other. Of two tasks for one
// volume the one that was begun later counts.
func (w *World) Begin(u Unresolved) (Task, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pods[u.Pod]
	if p == nil {
		return Task{}, false
	}
	v := p.find(u.Name)
	if v == nil {
		return Task{}, false
	}
	w.seq++
	v.issued, v.again = w.seq, false
	if !v.inFlight {
		v.inFlight = true
		w.notices.users++
	}
	return Task{Pod: p.pod, Name: u.Name, version: w.seq}, true
}

// SetResolved tells a resolution. It is dropped, and the volume has to be
// resolved again, if the pod changed meanwhile; likewise if a notice came that
// it may have missed.
func (w *World) SetResolved(t Task, r Resolution) Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	var c Change
	v := w.report(t, &c)
	if v == nil {
		return c
	}
	if err := v.refuse(&r); err != nil {
		w.fail(v, err, r.SpecRefs)
	} else {
		w.apply(v, &r, &c)
	}
	w.settle(v, t, &c)
	return c
}

// SetFailed tells why a volume could not be resolved, and on which objects
// that depends (those that err waits for need not be repeated). A volume that
// had been resolved keeps its wish.
func (w *World) SetFailed(t Task, err error, refs []plugins.Ref) Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	var c Change
	v := w.report(t, &c)
	if v == nil {
		return c
	}
	if err == nil {
		err = plugins.Permanent(errors.New("it was not resolved, and nobody said why"))
	}
	w.fail(v, err, refs)
	w.settle(v, t, &c)
	return c
}

// report finds the volume of a task, unless its outcome does not count.
func (w *World) report(t Task, c *Change) *volume {
	if t.Pod == nil {
		return nil
	}
	p := w.pods[t.Pod.UID]
	if p == nil {
		return nil
	}
	v := p.find(t.Name)
	if v == nil {
		return nil
	}
	if t.version == v.issued {
		w.landed(v)
	}
	if t.version <= v.inputs {
		if !v.inFlight {
			c.Resolve = append(c.Resolve, Unresolved{t.Pod.UID, t.Name})
		}
		return nil
	}
	if t.version <= v.applied {
		return nil
	}
	v.applied = t.version
	return v
}

// refuse checks what a resolution says against the other volumes of the pod.
func (v *volume) refuse(r *Resolution) error {
	if r.Spec == nil || r.ID == "" || r.Volume.Pod != v.pod.pod.UID {
		return plugins.Permanent(errors.New("the resolution is incomplete or about another pod"))
	}
	for _, other := range v.pod.volumes {
		if other == v || other.res == nil || other.res.Volume != r.Volume {
			continue
		}
		if (other.res.Spec.PV == nil) != (r.Spec.PV == nil) {
			return plugins.Permanentf("volume %s of the pod is another one with the same place on disk (%s)",
				other.use.Name, r.Volume.Name)
		}
	}
	return nil
}

// apply enters a resolution.
func (w *World) apply(v *volume, r *Resolution, c *Change) {
	v.err = nil
	switch old := v.res; {
	case old != nil && old.ID == r.ID && old.Volume == r.Volume:
		v.res = r
		v.target.update()
		w.wake(v.target.entry, c)
	default:
		if old == nil {
			v.pod.open--
			if v.pod.open == 0 {
				c.Pods = append(c.Pods, r.Volume.Pod)
			}
		}
		was := v.target
		v.res, v.generation = r, w.seq
		w.attach(v, c) // first, so that an id that stays is not removed between
		w.detach(v, was, c)
	}
	w.refs.relink(v, nil)
}

// fail notes a failure.
func (w *World) fail(v *volume, err error, refs []plugins.Ref) {
	v.err = err
	w.refs.relink(v, slices.Concat(refs, plugins.WaitsFor(err)))
}

// settle asks to resolve again if a notice came while the task ran: what it
// read may have been older.
func (w *World) settle(v *volume, t Task, c *Change) {
	if v.inFlight {
		return
	}
	if v.again || w.notices.missed(v, t.version) {
		v.again = false
		c.Resolve = append(c.Resolve, Unresolved{t.Pod.UID, t.Name})
	}
}

// landed says that no task is under way for v.
func (w *World) landed(v *volume) {
	if v.inFlight {
		v.inFlight = false
		w.notices.users--
	}
}

// PodState is what is known of one pod.
type PodState struct {
	// Pod is the pod as it was told last.
	Pod *v1.Pod
	// Volumes are those that are asked for, in the order of the spec.
	Volumes []VolumeState
}

// VolumeState is what is known of one volume of a pod.
type VolumeState struct {
	// Use holds the name and how the containers use it.
	Use
	// Resolved is true if it was resolved once. The fields up to Block are
	// set then.
	Resolved bool
	// Volume and ID are where the wish belongs.
	Volume plugins.PodVolume
	ID     plugins.VolumeID
	// Spec is what the volume is.
	Spec *plugins.Spec
	// Block is true for a raw device.
	Block bool
	// Err is why it could not be resolved last time; nil if it could, or has
	// not been tried. Beside Resolved the last known wish stays.
	Err error
}

// HasPod reports whether the source tells a pod.
func (w *World) HasPod(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[uid] != nil
}

// PodObject is the pod as it was told last, nil if the source does not tell it.
func (w *World) PodObject(uid types.UID) *v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pods[uid]; p != nil {
		return p.pod
	}
	return nil
}

// Pod returns what is known of a pod, false if the source does not tell it.
func (w *World) Pod(uid types.UID) (PodState, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pods[uid]
	if p == nil {
		return PodState{}, false
	}
	s := PodState{Pod: p.pod, Volumes: make([]VolumeState, len(p.volumes))}
	for i, v := range p.volumes {
		s.Volumes[i] = VolumeState{Use: v.use.Use, Err: v.err}
		if r := v.res; r != nil {
			s.Volumes[i].Resolved = true
			s.Volumes[i].Volume, s.Volumes[i].ID = r.Volume, r.ID
			s.Volumes[i].Spec, s.Volumes[i].Block = r.Spec, r.Block
		}
	}
	return s, true
}
