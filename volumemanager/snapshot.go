package volumemanager

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

// Snapshot is everything that the manager knows, as plain values for JSON.
type Snapshot struct {
	// Time is when it was taken.
	Time time.Time `json:"time"`
	// Ready is true after [Manager.Ready] is closed.
	Ready bool `json:"ready"`
	// Pods are sorted by namespace, name and UID: those that the source has,
	// and those of which something is left.
	Pods []PodStatus `json:"pods"`
	// Volumes are those that are wished for or there, sorted by id.
	Volumes []VolumeSnapshot `json:"volumes"`
	// Faults are what the start found and could not make sense of. It stays
	// on disk, untouched.
	Faults []FaultSnapshot `json:"faults,omitempty"`
	// InUse is as [Manager.VolumesInUse].
	InUse []plugins.VolumeID `json:"inUse,omitempty"`
}

// VolumeSnapshot is what is known about the node-wide part of a volume.
type VolumeSnapshot struct {
	ID              plugins.VolumeID `json:"id"`
	Attachment      string           `json:"attachment"`
	Device          string           `json:"device"`
	DevicePath      string           `json:"devicePath,omitempty"`
	DeviceMountPath string           `json:"deviceMountPath,omitempty"`
	// Pods are the pod volumes that are or may be there.
	Pods []PodVolumeSnapshot `json:"pods,omitempty"`
	// Plan is what is due now.
	Plan reconciler.Plan `json:"plan"`
	// Node tells how attaching, the device mount and their undoing fare; nil if
	// nothing of that is due.
	Node *Progress `json:"node,omitempty"`
	// Steps tell how running and failed steps fare.
	Steps []StepSnapshot `json:"steps,omitempty"`
}

// PodVolumeSnapshot is what is known about a volume of one pod.
type PodVolumeSnapshot struct {
	Volume plugins.PodVolume `json:"volume"`
	State  string            `json:"state"`
	Found  bool              `json:"found,omitempty"`
	Path   string            `json:"path,omitempty"`
	Since  time.Time         `json:"since,omitzero"`
}

// StepSnapshot is a [reconciler.StepReport] with its error as text.
type StepSnapshot struct {
	reconciler.StepReport
	Error string `json:"error,omitempty"`
	Class string `json:"class,omitempty"`
}

// FaultSnapshot is something on disk that the start could not make sense of.
type FaultSnapshot struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}

// Snapshot returns everything that the manager knows. It costs time in
// proportion to the number of volumes; it holds up nothing.
func (m *Manager) Snapshot() Snapshot {
	s := Snapshot{
		Time: m.host.Time().Now(), Ready: closed(m.ready), InUse: m.VolumesInUse(),
		Pods: []PodStatus{}, Volumes: []VolumeSnapshot{},
	}
	seen := map[plugins.VolumeID]bool{}
	pods := map[types.UID]bool{}
	for id := range m.steps.Volumes() {
		if !seen[id] {
			seen[id] = true
			s.Volumes = append(s.Volumes, m.volumeSnapshot(id, pods))
		}
	}
	for _, uid := range m.desired.PodUIDs() {
		pods[uid] = true
	}
	m.mu.Lock()
	for uid := range m.invalid {
		pods[uid] = true
	}
	for _, f := range m.findings.Faults {
		s.Faults = append(s.Faults, FaultSnapshot{Path: f.Path, Message: f.Err.Error()})
	}
	m.mu.Unlock()
	for uid := range pods {
		if status, ok := m.status(uid); ok {
			s.Pods = append(s.Pods, status)
		}
	}
	slices.SortFunc(s.Volumes, func(a, b VolumeSnapshot) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(s.Pods, func(a, b PodStatus) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return s
}

func (m *Manager) volumeSnapshot(id plugins.VolumeID, pods map[types.UID]bool) VolumeSnapshot {
	fact, _ := m.actual.Volume(id)
	plan := m.steps.Plan(id)
	v := VolumeSnapshot{
		ID: id, Attachment: fact.Attachment.String(), Device: fact.Device.String(),
		DevicePath: fact.DevicePath, DeviceMountPath: fact.DeviceMountPath, Plan: plan, Node: m.node(id, plan),
	}
	for _, p := range fact.Pods {
		pods[p.Volume.Pod] = true
		v.Pods = append(v.Pods, PodVolumeSnapshot{Volume: p.Volume, State: p.State.String(), Found: p.Found, Path: p.Path, Since: p.Since})
	}
	for _, r := range m.log.report(id, m.volumes) {
		step := StepSnapshot{StepReport: r.StepReport}
		if r.Err != nil {
			step.Error, step.Class = r.Err.Error(), plugins.ClassOf(r.Err).String()
		}
		v.Steps = append(v.Steps, step)
	}
	return v
}
