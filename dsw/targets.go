package dsw

import (
	"iter"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

// entry is a volume that at least one pod asks for.
type entry struct {
	id      plugins.VolumeID
	targets []*target // sorted by comparePodVolumes
	pos     int       // place in World.order
	woken   uint64    // operation that listed it last
}

// target is one volume of one pod, to which one or more names of the pod's
// spec lead.
type target struct {
	entry   *entry
	wish    PodWish
	members []*volume // sorted by name, all with a resolution
}

// attach enters v, which has just got its resolution, below its id.
func (w *World) attach(v *volume, c *Change) {
	e := w.volumes[v.res.ID]
	if e == nil {
		e = &entry{id: v.res.ID, pos: len(w.order)}
		w.volumes[e.id] = e
		w.order = append(w.order, e)
	}
	i, found := e.search(v.res.Volume)
	if !found {
		t := &target{entry: e, wish: PodWish{Volume: v.res.Volume, State: Wanted}}
		e.targets = slices.Insert(e.targets, i, t)
	}
	v.target = e.targets[i]
	v.target.join(v)
	w.wake(e, c)
}

// detach takes v out of t, which is the target it has or had, if it had one.
func (w *World) detach(v *volume, t *target, c *Change) {
	if t == nil {
		return
	}
	e := t.entry
	w.wake(e, c)
	if t.leave(v); len(t.members) > 0 {
		return
	}
	if i, found := e.search(t.wish.Volume); found {
		e.targets = slices.Delete(e.targets, i, i+1)
	}
	if len(e.targets) > 0 {
		return
	}
	delete(w.volumes, e.id)
	last := w.order[len(w.order)-1]
	w.order[e.pos], last.pos = last, e.pos
	w.order[len(w.order)-1] = nil
	w.order = w.order[:len(w.order)-1]
}

// wake lists the volume in c, once in an operation.
func (w *World) wake(e *entry, c *Change) {
	if e.woken != w.seq {
		e.woken = w.seq
		c.Volumes = append(c.Volumes, e.id)
	}
}

func (e *entry) search(v plugins.PodVolume) (int, bool) {
	return slices.BinarySearchFunc(e.targets, v, func(t *target, v plugins.PodVolume) int {
		return comparePodVolumes(t.wish.Volume, v)
	})
}

func (t *target) join(v *volume) {
	i, _ := slices.BinarySearchFunc(t.members, v.use.Name, func(m *volume, name string) int {
		return strings.Compare(m.use.Name, name)
	})
	t.members = slices.Insert(t.members, i, v)
	t.rename()
}

func (t *target) leave(v *volume) {
	t.members = slices.DeleteFunc(t.members, func(m *volume) bool { return m == v })
	if len(t.members) > 0 {
		t.rename()
	}
}

// rename makes the list of names anew: the old one may be in somebody's hands.
func (t *target) rename() {
	t.wish.Names = make([]string, len(t.members))
	for i, m := range t.members {
		t.wish.Names[i] = m.use.Name
	}
	t.update()
}

// update merges the members into the wish. The first one that may write gives
// the properties: the volume is read-only for the pod only if it is so under
// each of its names.
func (t *target) update() {
	lead, generation := t.members[0], uint64(0)
	for _, m := range t.members {
		if lead.res.Params.ReadOnly && !m.res.Params.ReadOnly {
			lead = m
		}
		generation = max(generation, m.generation)
	}
	t.wish.Pod = lead.pod.pod
	t.wish.Spec = lead.res.Spec
	t.wish.Identity = lead.res.Identity
	t.wish.Block = lead.res.Block
	t.wish.Params = lead.res.Params
	t.wish.Generation = generation
}

// told is the wish, unless it is not known yet whether the pod may write: a
// claim that is read-only under one name may be writable under another that is
// not resolved. What is live must not be made anew when that turns out.
func (t *target) told() PodWish {
	if !t.wish.Params.ReadOnly {
		return t.wish
	}
	lead := t.members[0]
	claim := lead.claim()
	for _, v := range lead.pod.volumes {
		if v.res != nil || claim == nil {
			continue
		}
		if other := v.claim(); other != nil && other.ClaimName == claim.ClaimName && !other.ReadOnly {
			return PodWish{
				Volume: t.wish.Volume, State: Unknown,
				Why: "volume " + v.use.Name + " of the pod has the same claim and is not resolved yet",
			}
		}
	}
	return t.wish
}

// claim is the claim that the pod names, or nil.
func (v *volume) claim() *v1.PersistentVolumeClaimVolumeSource {
	if vol := v.use.volume(v.pod.pod); vol != nil {
		return vol.PersistentVolumeClaim
	}
	return nil
}

// comparePodVolumes orders as PodVolume.String does, without making strings.
func comparePodVolumes(a, b plugins.PodVolume) int {
	if c := compareElement(string(a.Pod), string(b.Pod)); c != 0 {
		return c
	}
	if c := compareElement(a.Plugin, b.Plugin); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

// compareElement compares a+"/" with b+"/".
func compareElement(a, b string) int {
	n := min(len(a), len(b))
	if c := strings.Compare(a[:n], b[:n]); c != 0 || len(a) == len(b) {
		return c
	}
	if len(a) > n {
		return -compareElement(b, a)
	}
	if b[n] < '/' {
		return 1
	}
	return -1
}

// Wish is all that is known to be wished of a volume. There are the pod
// volumes that the actual state has under the id: for each of them that no pod
// asks for, the wish says whether that is certain. It is certain if the pod
// source has synced and the pod is gone, or every volume of the pod has been
// resolved and none leads to it.
//
// A volume that moved to another id (its persistent volume was replaced by one
// of the same name) is wanted there and not here, at the same target path:
// SetUp has to wait for TearDown then. See [World.IDOf].
func (w *World) Wish(id plugins.VolumeID, there []plugins.PodVolume) Wish {
	w.mu.Lock()
	defer w.mu.Unlock()
	wish := Wish{ID: id}
	e := w.volumes[id]
	if e == nil {
		e = &entry{}
	}
	if n := max(len(e.targets), len(there)); n > 0 {
		wish.Pods = make([]PodWish, 0, n)
	}
	for _, t := range e.targets {
		wish.Pods = append(wish.Pods, t.told())
	}
	for _, v := range there {
		if _, wanted := e.search(v); !wanted {
			state, why := w.unasked(v)
			wish.Pods = append(wish.Pods, PodWish{Volume: v, State: state, Why: why})
		}
	}
	if len(wish.Pods) > len(e.targets) {
		slices.SortFunc(wish.Pods, func(a, b PodWish) int { return comparePodVolumes(a.Volume, b.Volume) })
		wish.Pods = slices.CompactFunc(wish.Pods, func(a, b PodWish) bool { return a.Volume == b.Volume })
	}
	return wish
}

// unasked says what is known about a pod volume that no wish names.
func (w *World) unasked(v plugins.PodVolume) (State, string) {
	if !w.synced {
		return Unknown, "the pod source has not told all pods yet"
	}
	p := w.pods[v.Pod]
	if p == nil {
		return Unwanted, "the pod is gone"
	}
	if p.open == 0 {
		return Unwanted, p.unaskedBecause(v)
	}
	i := slices.IndexFunc(p.volumes, func(v *volume) bool { return v.res == nil })
	open := p.volumes[i]
	if open.err == nil {
		return Unknown, "volume " + open.use.Name + " of the pod is not resolved yet"
	}
	return Unknown, "volume " + open.use.Name + " of the pod cannot be resolved: " + open.err.Error()
}

// unaskedBecause says why a pod with all volumes resolved does not ask for v.
func (p *podEntry) unaskedBecause(v plugins.PodVolume) string {
	if m := p.leadingTo(v); m != nil {
		return "volume " + m.use.Name + " of the pod is now " + string(m.res.ID)
	}
	return "no volume of the pod leads to it"
}

// leadingTo returns a volume that was resolved to v, or nil.
func (p *podEntry) leadingTo(v plugins.PodVolume) *volume {
	for _, m := range p.volumes {
		if m.res != nil && m.res.Volume == v {
			return m
		}
	}
	return nil
}

// IDOf returns the id under which a pod volume is asked for, if it is.
func (w *World) IDOf(v plugins.PodVolume) (plugins.VolumeID, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.pods[v.Pod]; p != nil {
		if m := p.leadingTo(v); m != nil {
			return m.res.ID, true
		}
	}
	return "", false
}

// Len is the number of volumes that are asked for.
func (w *World) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.order)
}

// PodUIDs lists the pods that the source has told, in no order.
func (w *World) PodUIDs() []types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]types.UID, 0, len(w.pods))
	for uid := range w.pods {
		list = append(list, uid)
	}
	return list
}

// Slice appends at most n of the volumes that are asked for to list and
// returns it with the cursor for the next call. Cursor 0 begins a round, and
// is returned at its end. A volume that is asked for during a whole round is
// listed in it, perhaps more than once.
func (w *World) Slice(list []plugins.VolumeID, cursor, n int) ([]plugins.VolumeID, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// Downwards: removing fills a hole with the last one, which moves a
	// listed volume to an open place at worst, never the reverse.
	if cursor <= 0 || cursor > len(w.order) {
		cursor = len(w.order)
	}
	for ; n > 0 && cursor > 0; n-- {
		cursor--
		list = append(list, w.order[cursor].id)
	}
	return list, cursor
}

// Volumes lists the volumes that are asked for. No lock is held while the
// loop's body runs.
func (w *World) Volumes() iter.Seq[plugins.VolumeID] {
	return func(yield func(plugins.VolumeID) bool) {
		list, cursor := make([]plugins.VolumeID, 0, 128), 0
		for {
			list, cursor = w.Slice(list[:0], cursor, cap(list))
			for _, id := range list {
				if !yield(id) {
					return
				}
			}
			if cursor == 0 {
				return
			}
		}
	}
}
