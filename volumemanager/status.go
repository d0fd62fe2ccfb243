package volumemanager

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

// Phase says where a pod's volume is on its way.
type Phase string

// The phases.
const (
	// Resolving: the claim or persistent volume is being looked up.
	Resolving Phase = "Resolving"
	// Pending: it is known what it is, and a step is due.
	Pending Phase = "Pending"
	// Attaching: the storage is being attached to the node.
	Attaching Phase = "Attaching"
	// Mounting: the device is being mounted, or the volume set up.
	Mounting Phase = "Mounting"
	// Mounted: it is ready.
	Mounted Phase = "Mounted"
	// Confirming: an earlier process left it, and it is being checked.
	Confirming Phase = "Confirming"
	// Unmounting: it is being taken away.
	Unmounting Phase = "Unmounting"
	// Kept: it is there, nobody can say whether it is wanted, so it stays.
	Kept Phase = "Kept"
)

// Code is a stable word for what a volume suffers from.
type Code string

// The codes. The first four are the classic ways in which a volume fails.
const (
	// CodeStuckAttaching: attaching fails or hangs.
	CodeStuckAttaching Code = "StuckAttaching"
	// CodeStuckMounting: mounting or setting up fails or hangs.
	CodeStuckMounting Code = "StuckMounting"
	// CodeNotVisible: it is mounted, but a container may not see it.
	CodeNotVisible Code = "MountedNotVisible"
	// CodeFailsToDetach: taking it away, unmounting its device or detaching it
	// fails or hangs.
	CodeFailsToDetach Code = "FailsToDetach"
	// CodeUnresolved: its claim, persistent volume or plugin is not to be had.
	CodeUnresolved Code = "Unresolved"
	// CodeWaiting: it waits for an object, which the message names.
	CodeWaiting Code = "Waiting"
	// CodeUnknown: whether it is wanted is unknown.
	CodeUnknown Code = "DesiredStateUnknown"
	// CodeBlocked: another pod or volume is in the way; see Blocker.
	CodeBlocked Code = "Blocked"
	// CodeStale: it is ready, but its content could not be brought up to date.
	CodeStale Code = "StaleContent"
	// CodeExpandFailed: it is ready, but smaller than asked for.
	CodeExpandFailed Code = "ExpandFailed"
)

// PodStatus tells how the volumes of a pod fare.
type PodStatus struct {
	Pod plugins.PodRef `json:"pod"`
	// Known is true while the pod source has the pod.
	Known bool `json:"known"`
	// Ready is true if every volume that the pod uses is ready.
	Ready bool `json:"ready"`
	// Err says why the pod as a whole cannot be taken; Message is its text.
	Err     error  `json:"-"`
	Message string `json:"message,omitempty"`
	// Volumes are sorted by name. What is left of a removed pod is listed under
	// the names that it had.
	Volumes []VolumeStatus `json:"volumes"`
}

// VolumeStatus tells how one volume of a pod fares.
type VolumeStatus struct {
	// Name is the name in the pod's spec.
	Name string `json:"name"`
	// Volume and ID name what it is on this node, once that is known.
	Volume plugins.PodVolume `json:"volume,omitzero"`
	ID     plugins.VolumeID  `json:"id,omitempty"`
	// Ready is true while containers can use it.
	Ready bool `json:"ready"`
	// Path is where, on the host.
	Path string `json:"path,omitempty"`
	Progress
	// RefreshAt is when the content will be made again at the latest.
	RefreshAt time.Time `json:"refreshAt,omitzero"`
	// ContentVersion identifies the content.
	ContentVersion string `json:"contentVersion,omitempty"`
	// Faults are what is known to be wrong with the storage of a volume that is
	// there, as far as its plugin tells.
	Faults []plugins.Fault `json:"faults,omitempty"`
}

// Progress tells where something is on its way, and what holds it up.
type Progress struct {
	Phase Phase `json:"phase,omitempty"`
	// Code says what is wrong or awaited; empty if nothing is.
	Code Code `json:"code,omitempty"`
	// Step is the step that runs, failed, or is due.
	Step reconciler.Kind `json:"step,omitempty"`
	// Running is true while that step's call is under way, Stuck if it has
	// outlived its deadline.
	Running bool `json:"running,omitempty"`
	Stuck   bool `json:"stuck,omitempty"`
	// Since is when the step began, the row of failures began, or the state
	// was entered.
	Since time.Time `json:"since,omitzero"`
	// Attempts counts the failures in a row.
	Attempts int `json:"attempts,omitempty"`
	// Err is the last failure, Class its class and Failure that in a word.
	// Message is its text or, without a failure, what is due or awaited. Advice
	// is the way out.
	Err     error         `json:"-"`
	Class   plugins.Class `json:"-"`
	Failure string        `json:"class,omitempty"`
	Message string        `json:"message,omitempty"`
	Advice  string        `json:"advice,omitempty"`
	// NextTry is when it is tried again; the zero time where that depends on a
	// change.
	NextTry time.Time `json:"nextTry,omitzero"`
	// Blocker names who is in the way.
	Blocker string `json:"blocker,omitempty"`

	// again is true if the failure is not the last word: a try is under way,
	// or certain to come, since something changed.
	again bool
}

// Status tells how the pod's volumes fare. It is false for a pod of which
// nothing is known and nothing left.
func (m *Manager) Status(pod *v1.Pod) (PodStatus, bool) {
	if pod == nil {
		return PodStatus{}, false
	}
	return m.status(pod.UID)
}
