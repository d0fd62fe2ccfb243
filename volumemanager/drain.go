package volumemanager

import (
	"context"
	"errors"
	"fmt"

	"github.com/volumekit/volumekit/plugins"
)

// ErrNotDrained says that something was left when a drain ended.
var ErrNotDrained = errors.New("not everything was taken away")

// DrainReport says what a drain left.
type DrainReport struct {
	// Pods are those of which something is left, with the reasons.
	Pods []PodStatus `json:"pods,omitempty"`
	// Volumes are those whose attachment or device mount is left.
	Volumes []plugins.VolumeID `json:"volumes,omitempty"`
}

// Drain takes the volumes of all pods away, as if every pod had been removed,
// and refuses pods from then on. The caller has ended all containers. It
// returns when nothing is left: drivers may be stopped then. When ctx ends
// first, the report says what is left and why, the error wraps [ErrNotDrained]
// and ctx's cause, and the work goes on until Run ends.
//
// Until the pod source has synced once nothing is taken away, so a drain waits
// for that too.
func (m *Manager) Drain(ctx context.Context) (DrainReport, error) {
	m.draining.Store(true)
	select {
	case <-m.ready:
	case <-ctx.Done():
		return m.leftovers(context.Cause(ctx))
	}
	for _, uid := range m.desired.PodUIDs() {
		m.gone(uid, m.desired.RemovePod(uid))
	}
	for {
		changed := m.watchers.next(anyPod)
		if volumes, _ := m.actual.Len(); volumes == 0 {
			return DrainReport{}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return m.leftovers(context.Cause(ctx))
		}
	}
}

// anyPod is the key of those who wait for a change of any pod. No pod has it:
// an empty UID is refused.
const anyPod = ""

func (m *Manager) leftovers(cause error) (DrainReport, error) {
	s := m.Snapshot()
	var report DrainReport
	for _, p := range s.Pods {
		if m.PossiblyMounted(p.Pod.UID) {
			report.Pods = append(report.Pods, p)
		}
	}
	for _, v := range s.Volumes {
		if v.Attachment != "absent" || v.Device != "absent" {
			report.Volumes = append(report.Volumes, v.ID)
		}
	}
	return report, fmt.Errorf("%w: volumes of %d pods and %d attached or staged volumes are left: %w",
		ErrNotDrained, len(report.Pods), len(report.Volumes), cause)
}
