package volumemanager

import (
	"cmp"
	"strings"

	v1 "k8s.io/api/core/v1"
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

// PodConditions returns what the pod's status should say about its volumes. A
// pod that the source has not told is not ready. Times are left to the caller,
// who alone knows what the status said before.
func (m *Manager) PodConditions(pod *v1.Pod) Conditions {
	if pod == nil {
		return Conditions{}
	}
	status, _ := m.Status(pod)
	if status.Ready {
		return Conditions{}
	}
	message := status.Message
	if !status.Known {
		message = "the pod is not known to the volume manager"
	}
	if message == "" {
		message = "volumes are not ready: " + strings.Join(missing(status.Volumes), "; ")
	}
	return Conditions{
		Conditions: []v1.PodCondition{{
			Type: v1.PodReady, Status: v1.ConditionFalse, Reason: ReasonVolumesNotReady, Message: message,
		}},
		Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating", Message: message},
	}
}

// missing says of each volume that is not ready why.
func missing(volumes []VolumeStatus) []string {
	var list []string
	for _, v := range volumes {
		if !v.Ready {
			list = append(list, v.Name+": "+cmp.Or(v.Message, string(v.Phase)))
		}
	}
	return list
}
