package volumemanager

import (
	"context"
	"errors"
	"fmt"

	"github.com/volumekit/volumekit/asw"
)

// ErrNotDrained says that something was left when a drain ended.
var ErrNotDrained = errors.New("not everything was taken away")

// DrainReport says what a drain left.
type DrainReport struct {
	// Pods are those of which something is left, with the reasons.
	Pods []PodStatus `json:"pods,omitempty"`
	// Volumes are those whose attachment or device mount is left, with the
	// reasons.
	Volumes []VolumeSnapshot `json:"volumes,omitempty"`
}

// Drain takes the volumes of all pods away, as if every pod had been removed,
// and refuses pods from then on. The caller has ended all containers. It
// returns when nothing is left and no step runs: drivers may be stopped then.
// When ctx ends first, or Run does, the report says what is left and why, the
// error wraps [ErrNotDrained] and ctx's cause or [ErrStopped], and the work goes
// on until Run ends.
//
// Until the pod source has synced once nothing is taken away, so a drain waits
// for that too.
func (m *Manager) Drain(ctx context.Context) (DrainReport, error) {
	m.draining.Store(true)
	if closed(m.ready) { // else Synced does it
		m.removeAll()
	}
	var report DrainReport
	err := m.watchers.wait(ctx, &m.stopped, anyPod, func(ended error) (done bool, err error) {
		if closed(m.ready) && m.empty() {
			return true, nil
		}
		if ended == nil {
			return false, nil
		}
		report, err = m.leftovers(ended)
		return true, err
	})
	return report, err
}

// empty reports whether no volume is or may be there and no step runs.
func (m *Manager) empty() bool {
	if m.log.runs(anyPod) > 0 {
		return false
	}
	volumes, _ := m.actual.Len()
	return volumes == 0
}

func (m *Manager) leftovers(cause error) (DrainReport, error) {
	s := m.Snapshot()
	var report DrainReport
	for _, p := range s.Pods {
		if m.anythingOf(p.Pod.UID) {
			report.Pods = append(report.Pods, p)
		}
	}
	absent := asw.Absent.String()
	for _, v := range s.Volumes {
		if v.Attachment != absent || v.Device != absent {
			report.Volumes = append(report.Volumes, v)
		}
	}
	if !s.Ready {
		cause = fmt.Errorf("the pod source has not told all its pods: %w", cause)
	}
	return report, fmt.Errorf("%w: volumes of %d pods and %d attached or staged volumes are left: %w",
		ErrNotDrained, len(report.Pods), len(report.Volumes), cause)
}
