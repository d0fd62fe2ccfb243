package volumemanager

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
)

// MountedVolume is a ready volume of a pod.
type MountedVolume struct {
	// Volume and ID name it.
	Volume plugins.PodVolume
	ID     plugins.VolumeID
	// Path is where it is on the host: the folder or file to bind into a
	// container or, for a raw device, the link to the device.
	Path string
	// Block is true for a raw device.
	Block bool
	// ReadOnly is true if containers must get it read-only under this name,
	// whatever their volumeMounts say.
	ReadOnly bool
	// Attributes as the plugin gave them.
	Attributes plugins.Attributes
}

// MountedVolumes returns the pod's volumes that are ready, by their names in
// the pod's spec. A volume under two names appears twice. What is uncertain is
// left out.
func (m *Manager) MountedVolumes(pod *v1.Pod) map[string]MountedVolume {
	ready := map[string]MountedVolume{}
	if pod == nil {
		return ready
	}
	state, _ := m.desired.Pod(pod.UID)
	for _, v := range state.Volumes {
		entry, ok := m.actual.PodVolume(v.Volume)
		if !v.Resolved || !ok || entry.ID != v.ID || entry.State != asw.Present {
			continue
		}
		ready[v.Name] = MountedVolume{
			Volume: entry.Volume, ID: entry.ID, Path: entry.Path, Block: entry.Block,
			ReadOnly:   entry.Attributes.ReadOnly || entry.Params.ReadOnly || v.Spec != nil && v.Spec.ReadOnly,
			Attributes: entry.Attributes,
		}
	}
	return ready
}

// PossiblyMounted reports whether anything of the pod's volumes is or may be
// on the node, which includes a step that runs. Until Run has found out what an
// earlier process left, that is so of every pod.
func (m *Manager) PossiblyMounted(uid types.UID) bool { return !closed(m.loaded) || m.anythingOf(uid) }

// VolumesInUse lists, sorted, the attachable volumes that a control plane must
// not detach: those that a pod wants, and those of which anything is or may be
// on this node, running steps included. Until [Manager.Ready] is closed the
// list may lack volumes; do not replace an older list by it before.
func (m *Manager) VolumesInUse() []plugins.VolumeID {
	var list []plugins.VolumeID
	// In the order in which a volume moves, so that none slips through.
	for id := range m.desired.Volumes() {
		if slices.ContainsFunc(m.desired.Wish(id, nil).Pods, func(w dsw.PodWish) bool { return w.Identity.Attach }) {
			list = append(list, id)
		}
	}
	list = append(list, m.log.attaching()...)
	list = append(list, m.actual.InUse()...)
	slices.Sort(list)
	return slices.Compact(list)
}

// Retry forgets the backoff of the pod's volumes and tries them again now,
// also those whose failure was final.
func (m *Manager) Retry(pod *v1.Pod) {
	if pod == nil {
		return
	}
	state, _ := m.desired.Pod(pod.UID)
	again := dsw.Change{Pods: []types.UID{pod.UID}}
	for _, v := range state.Volumes {
		if v.Resolved {
			again.Volumes = append(again.Volumes, v.ID)
		}
		if v.Err != nil || !v.Resolved {
			again.Resolve = append(again.Resolve, dsw.Unresolved{Pod: pod.UID, Name: v.Name})
		}
	}
	m.apply(again)
}
