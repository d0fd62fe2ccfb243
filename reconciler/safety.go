package reconciler

import (
	"github.com/volumekit/volumekit/plugins"
)

// safetyPass is where the safety pass stands. It keeps a list of all volumes
// and takes a new one when it has come to its end, so that a pass over a slice
// costs the same however many volumes there are.
type safetyPass struct {
	alarm
	list []plugins.VolumeID
	done int
}

func (d *Default) startSafety() {
	if d.o.SafetyPeriod > 0 {
		d.mu.Lock()
		d.timers.set(&d.pass.alarm, d.o.Clock.Now().Add(d.o.SafetyPeriod))
		d.mu.Unlock()
	}
}

// safety plans a slice of the volumes and wakes those with work that is not
// known.
func (d *Default) safety() {
	p := &d.pass
	if p.done >= len(p.list) {
		p.list, p.done = p.list[:0], 0
		for id := range d.engine.Volumes() {
			p.list = append(p.list, id)
		}
	}
	for end := min(p.done+d.o.SafetySlice, len(p.list)); p.done < end; p.done++ {
		d.check(p.list[p.done])
	}
	d.startSafety()
}

// check wakes a volume if it has work that is not known.
func (d *Default) check(id plugins.VolumeID) {
	plan, _, ok := d.plan(id)
	if !ok || len(plan.Steps) == 0 && plan.Next.IsZero() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.volumes[id]
	if v == nil {
		v = d.volume(id)
		d.enqueue(v)
		return
	}
	if v.busy() || v.queued || v.dirty {
		return
	}
	known := plan.Next.IsZero() || v.place > 0 && !v.at.After(plan.Next)
	for i := range plan.Steps {
		t := v.find(&plan.Steps[i].Key)
		known = known && t != nil && !t.gone
	}
	if !known {
		d.enqueue(v)
	}
}
