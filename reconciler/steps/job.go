package steps

import (
	"maps"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

// job is one step with all that it needs, looked up once.
type job struct {
	step   reconciler.Step
	plugin plugins.VolumePlugin
	can    plugins.Capabilities
	wish   dsw.PodWish // of the step's pod; zero for node-wide steps
	wishes []dsw.PodWish
	fact   asw.Volume
	entry  asw.PodVolume // zero if there is none
	pod    plugins.PodRef
	// missing is why there is no plugin.
	missing error
	// idle is true if there turned out to be nothing to do.
	idle bool
}

// prepare looks everything up and says whether the step still fits. A lazy one
// has to fit too: what it is to free stays planned until it is free.
func (e *Executor) prepare(step reconciler.Step) (*job, bool) {
	wish, fact := e.look(step.ID)
	plan := reconciler.PlanVolume(e.now(), wish, fact)
	fits := false
	for i := range plan.Steps {
		fits = fits || plan.Steps[i].Key == step.Key
	}
	if !fits {
		return nil, false
	}
	j := &job{step: step, fact: fact, wishes: wish.Pods}
	j.plugin, j.missing = e.Registry.ByName(step.ID.Plugin())
	j.can = plugins.CapabilitiesOf(j.plugin)
	if !j.nodeWide() {
		for i := range wish.Pods {
			if wish.Pods[i].Volume == step.Volume {
				j.wish = wish.Pods[i]
			}
		}
		for i := range fact.Pods {
			if fact.Pods[i].Volume == step.Volume {
				j.entry = fact.Pods[i]
			}
		}
	}
	j.pod = j.entry.Pod
	if p := j.wish.Pod; p != nil {
		j.pod = plugins.PodRef{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	}
	return j, true
}

func (j *job) nodeWide() bool { return j.step.Volume == plugins.PodVolume{} }

// there reports whether anything of a volume is or may be there.
func there(v *asw.Volume) bool {
	return v.Attachment != asw.Absent || v.Device != asw.Absent || len(v.Pods) > 0
}

// lead is the wish on whose behalf the step is done: of a node-wide one that
// makes something the one that [reconciler.Lead] names.
func (j *job) lead() (dsw.PodWish, bool) {
	if !j.nodeWide() {
		return j.wish, j.wish.State == dsw.Wanted
	}
	return reconciler.Lead(dsw.Wish{ID: j.step.ID, Pods: j.wishes}, j.fact)
}

// identity is how the volume is handled: as the wish says, or what is known of
// one that nobody wants. While something is there the more careful one of both
// counts.
func (j *job) identity() plugins.Identity {
	lead, ok := j.lead()
	if !ok {
		return j.fact.Identity
	}
	id := lead.Identity
	if there(&j.fact) {
		id.Attach = id.Attach || j.fact.Attachment != asw.Absent
		id.Device = id.Device || j.fact.Device != asw.Absent
		id.Durable = id.Durable || j.fact.Identity.Durable
		id.Parallel = id.Parallel && j.fact.Identity.Parallel
	}
	return id
}

// undo is what undoing the step will need. What is recorded of something that
// is there outweighs what the wish says today.
func (j *job) undo() plugins.Undo {
	lead, _ := j.lead()
	return merged(merged(lead.Identity.Undo, j.entry.Undo), j.fact.Undo)
}

// record is the record of the pod volume, or of the node-wide part as it is.
func (j *job) record() journal.Record {
	id := j.identity()
	r := journal.Record{
		Key:    journal.Key{ID: j.step.ID, Volume: j.step.Volume},
		Attach: j.fact.Attachment != asw.Absent, Device: j.fact.Device != asw.Absent,
		Durable: id.Durable, Parallel: id.Parallel, Storage: id.Storage, Lane: id.Lane,
		DeviceMountPath: j.fact.DeviceMountPath, Undo: j.undo(),
	}
	if j.nodeWide() {
		r.DevicePath = j.fact.DevicePath
	} else {
		r.Pod, r.Names, r.Block = j.pod, j.wish.Names, j.wish.Block
	}
	return r
}

// merged is a with what b has in place of it and beside it.
func merged(a, b plugins.Undo) plugins.Undo {
	switch {
	case len(b) == 0:
		return a
	case len(a) == 0:
		return b
	}
	m := maps.Clone(a)
	maps.Copy(m, b)
	return m
}
