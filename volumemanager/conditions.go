package volumemanager

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Conditions are what a pod's status should say about its volumes.
type Conditions struct {
	// Conditions holds Ready with status False while volumes are missing, and
	// is empty when all are ready: whether the pod is ready then, others know.
	Conditions []v1.PodCondition
	// Waiting is the state of containers that cannot start for want of
	// volumes, nil when all are ready.
	Waiting *v1.ContainerStateWaiting
}

// ReasonVolumesNotReady is the reason of the Ready condition while volumes are
// missing.
const ReasonVolumesNotReady = "VolumesNotReady"

// PodConditions returns what the pod's status should say about its volumes.
func (m *Manager) PodConditions(pod *v1.Pod) Conditions {
	status, known := m.Status(pod)
	if !known || status.Ready {
		return Conditions{}
	}
	message := status.Message
	var missing []string
	for _, v := range status.Volumes {
		if v.Ready {
			continue
		}
		text := v.Name + ": " + string(v.Phase)
		if v.Message != "" {
			text = v.Name + ": " + v.Message
		}
		missing = append(missing, text)
	}
	if message == "" {
		message = fmt.Sprintf("volumes are not ready: %s", strings.Join(missing, "; "))
	}
	return Conditions{
		Conditions: []v1.PodCondition{{
			Type: v1.PodReady, Status: v1.ConditionFalse, Reason: ReasonVolumesNotReady, Message: message,
			LastProbeTime: metav1.NewTime(m.host.Time().Now()),
		}},
		Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating", Message: message},
	}
}
