package volumemanager

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

// PodPlan is what the manager would do for a pod.
type PodPlan struct {
	Pod plugins.PodRef `json:"pod"`
	// Volumes are sorted by name.
	Volumes []VolumePlan `json:"volumes"`
}

// VolumePlan is what the manager would do for one volume of a pod.
type VolumePlan struct {
	// Name is the volume's name in the pod's spec.
	Name string `json:"name"`
	// Volume, ID and Path say what it would be, and where.
	Volume plugins.PodVolume `json:"volume,omitzero"`
	ID     plugins.VolumeID  `json:"id,omitempty"`
	Path   string            `json:"path,omitempty"`
	// Steps are all steps up to the ready volume, in order, as if each
	// succeeded. None means that it is ready, or that something holds it.
	Steps []reconciler.Step `json:"steps,omitempty"`
	// Holds say what stands in the way after those steps.
	Holds []reconciler.Hold `json:"holds,omitempty"`
	// Err says why nothing can be planned; Message is its text.
	Err     error  `json:"-"`
	Message string `json:"message,omitempty"`
}

// Plan says what the manager would do for pod, given what is on the node now.
// It has no side effect: it may read claims and persistent volumes through the
// host, and nothing else. The pod need not be known to the pod source. The
// error says that the pod as such cannot be taken.
func (m *Manager) Plan(ctx context.Context, pod *v1.Pod) (PodPlan, error) {
	if pod == nil {
		return PodPlan{}, plugins.Permanent(errors.New("no pod given"))
	}
	pod = plugins.DefaultPod(pod)
	if err := plugins.ValidatePod(pod); err != nil {
		return PodPlan{}, err
	}
	p := PodPlan{Pod: plugins.PodRef{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, Volumes: []VolumePlan{}}
	wishes := map[place]*dsw.PodWish{}
	for _, use := range dsw.UsedVolumes(pod, m.config.AllVolumes) {
		v := VolumePlan{Name: use.Name}
		r, err := m.lookUp(ctx, pod, use.Name)
		if err != nil {
			v.Err, v.Message = err, err.Error()
		} else {
			v.Volume, v.ID, v.Path = r.Volume, r.ID, m.layout.Load().PodVolume(r.Volume)
			if r.Block {
				v.Path = m.layout.Load().PodDevice(r.Volume)
			}
			join(wishes, pod, use.Name, r)
		}
		p.Volumes = append(p.Volumes, v)
	}
	for i := range p.Volumes {
		if v := &p.Volumes[i]; v.Err == nil {
			v.Steps, v.Holds = m.planVolume(v.ID, *wishes[place{v.Volume, v.ID}])
		}
	}
	slices.SortFunc(p.Volumes, func(a, b VolumePlan) int { return strings.Compare(a.Name, b.Name) })
	return p, nil
}

// join adds what a name of the pod's spec leads to. Several names may lead to
// one volume, which is read-only only if it is so under each of them.
func join(wishes map[place]*dsw.PodWish, pod *v1.Pod, name string, r dsw.Resolution) {
	at := place{r.Volume, r.ID}
	names := []string{name}
	if w := wishes[at]; w != nil {
		names = slices.Concat(w.Names, names)
		if r.Params.ReadOnly || !w.Params.ReadOnly {
			w.Names = names
			return
		}
	}
	wishes[at] = &dsw.PodWish{
		Volume: r.Volume, State: dsw.Wanted, Names: names, Pod: pod, Spec: r.Spec,
		Identity: r.Identity, Block: r.Block, Params: r.Params,
	}
}

// planVolume plans up to the ready volume, with mine in the place of what the
// desired state has for that pod.
func (m *Manager) planVolume(id plugins.VolumeID, mine dsw.PodWish) ([]reconciler.Step, []reconciler.Hold) {
	fact, ok := m.actual.Volume(id)
	if !ok {
		fact.ID = id
	}
	there := make([]plugins.PodVolume, len(fact.Pods))
	for i, entry := range fact.Pods {
		there[i] = entry.Volume
	}
	wish := m.desired.Wish(id, there)
	wish.Pods = slices.Clone(wish.Pods) // it may be shared
	if i := slices.IndexFunc(wish.Pods, func(w dsw.PodWish) bool { return w.Volume == mine.Volume }); i >= 0 {
		mine.Generation = wish.Pods[i].Generation
		wish.Pods[i] = mine
	} else {
		wish.Pods = append(wish.Pods, mine)
		slices.SortFunc(wish.Pods, func(a, b dsw.PodWish) int { return strings.Compare(a.Volume.String(), b.Volume.String()) })
	}
	return foresee(m.host.Time().Now(), wish, fact, mine.Volume)
}

// foresee plans a volume again and again, as if every step that concerns v
// succeeded, until nothing is left to do.
func foresee(now time.Time, wish dsw.Wish, fact asw.Volume, v plugins.PodVolume) (steps []reconciler.Step, holds []reconciler.Hold) {
	const enough = 16 // a volume needs eight at most; this only bounds a fault of the planner
	for len(steps) < enough {
		plan := reconciler.PlanVolume(now, wish, fact)
		i := slices.IndexFunc(plan.Steps, func(s reconciler.Step) bool {
			return s.Volume == v || s.Volume == plugins.PodVolume{}
		})
		if i < 0 {
			for _, h := range plan.Holds {
				if h.Volume == v || h.Volume == (plugins.PodVolume{}) {
					holds = append(holds, h)
				}
			}
			break
		}
		steps = append(steps, plan.Steps[i])
		fact = after(fact, wish, plan.Steps[i])
	}
	return steps, holds
}

// after is the fact that the step's success would make.
func after(fact asw.Volume, wish dsw.Wish, step reconciler.Step) asw.Volume {
	fact.Pods = slices.Clone(fact.Pods)
	i := slices.IndexFunc(fact.Pods, func(p asw.PodVolume) bool { return p.Volume == step.Volume })
	w := slices.IndexFunc(wish.Pods, func(p dsw.PodWish) bool { return p.Volume == step.Volume })
	switch step.Kind {
	case reconciler.Attach:
		fact.Attachment = asw.Present
	case reconciler.MountDevice:
		fact.Device = asw.Present
		if lead, ok := reconciler.Lead(wish, fact); ok {
			fact.DeviceParams, fact.Spec = lead.Params, lead.Spec
		}
	case reconciler.SetUp, reconciler.Expand, reconciler.Refresh:
		entry := asw.PodVolume{Volume: step.Volume, ID: fact.ID, State: asw.Present}
		if w >= 0 {
			entry.Params, entry.Generation, entry.Block = wish.Pods[w].Params, wish.Pods[w].Generation, wish.Pods[w].Block
		}
		if i >= 0 {
			fact.Pods[i] = entry
		} else {
			fact.Pods = append(fact.Pods, entry)
		}
	case reconciler.TearDown:
		if i >= 0 {
			fact.Pods = slices.Delete(fact.Pods, i, i+1)
		}
	case reconciler.UnmountDevice:
		fact.Device = asw.Absent
	case reconciler.Detach:
		fact.Attachment = asw.Absent
	}
	return fact
}
