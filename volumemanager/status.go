package volumemanager

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/mount"
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
	Phase  Phase             `json:"phase"`
	// Ready is true while containers can use it.
	Ready bool `json:"ready"`
	// Path is where, on the host.
	Path string `json:"path,omitempty"`
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
	// Err is the last failure, Class its class, Message its text or, without a
	// failure, what is awaited. Advice is the way out.
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
	// RefreshAt is when the content will be made again at the latest.
	RefreshAt time.Time `json:"refreshAt,omitzero"`
	// ContentVersion identifies the content.
	ContentVersion string `json:"contentVersion,omitempty"`
}

// Status tells how the pod's volumes fare. It is false for a pod of which
// nothing is known and nothing left.
func (m *Manager) Status(pod *v1.Pod) (PodStatus, bool) {
	if pod == nil {
		return PodStatus{}, false
	}
	return m.status(pod.UID)
}

func (m *Manager) status(uid types.UID) (PodStatus, bool) {
	state, known := m.desired.Pod(uid)
	entries := m.actual.Pod(uid)
	m.mu.Lock()
	invalid := m.invalid[uid]
	m.mu.Unlock()
	if !known && len(entries) == 0 && invalid == nil {
		return PodStatus{}, false
	}
	s := PodStatus{Pod: plugins.PodRef{UID: uid}, Known: known, Ready: known && invalid == nil, Err: invalid}
	if known {
		s.Pod.Namespace, s.Pod.Name = state.Pod.Namespace, state.Pod.Name
	}
	if invalid != nil {
		s.Message = invalid.Error()
	}
	told := map[plugins.PodVolume]bool{}
	for _, v := range state.Volumes {
		told[v.Volume] = v.Resolved
		status := m.wanted(uid, v, entries)
		s.Ready = s.Ready && status.Ready
		s.Volumes = append(s.Volumes, status)
	}
	for _, entry := range entries {
		if s.Pod.Name == "" {
			s.Pod = entry.Pod
		}
		if !told[entry.Volume] {
			s.Volumes = append(s.Volumes, m.left(entry)...)
		}
	}
	slices.SortStableFunc(s.Volumes, func(a, b VolumeStatus) int { return strings.Compare(a.Name, b.Name) })
	return s, true
}

// wanted tells about a volume that the pod's spec has.
func (m *Manager) wanted(uid types.UID, v dsw.VolumeState, entries []asw.PodVolume) VolumeStatus {
	s := VolumeStatus{Name: v.Name, Volume: v.Volume, ID: v.ID, Phase: Pending}
	if !v.Resolved {
		s.Phase, s.Code, s.Step = Resolving, CodeUnresolved, resolveStep
		s.take(reportOf(m.resolving, resolveID(uid, v.Name)), plugins.PodVolume{})
		if v.Err != nil {
			s.fail(v.Err)
		}
		s.Advice = advice(s)
		return s
	}
	for _, entry := range entries {
		if entry.Volume == v.Volume {
			s.enter(entry)
		}
	}
	m.explain(&s)
	if v.Err != nil && s.Err == nil {
		s.Message = "the volume's objects could not be read again: " + v.Err.Error()
	}
	return s
}

// left tells about something that is there without a resolved wish.
func (m *Manager) left(entry asw.PodVolume) []VolumeStatus {
	names := entry.Names
	if len(names) == 0 {
		names = []string{entry.Volume.Name}
	}
	list := make([]VolumeStatus, len(names))
	for i, name := range names {
		s := VolumeStatus{Name: name, Volume: entry.Volume, ID: entry.ID, Phase: Unmounting}
		s.enter(entry)
		s.Ready = false
		if s.Phase == Mounted || s.Phase == Confirming {
			s.Phase = Unmounting
		}
		m.explain(&s)
		list[i] = s
	}
	return list
}

// enter takes over what the actual state knows.
func (s *VolumeStatus) enter(entry asw.PodVolume) {
	s.Path, s.Since = entry.Path, entry.Since
	s.RefreshAt, s.ContentVersion = entry.RefreshAt, entry.ContentVersion
	switch {
	case entry.State == asw.Present:
		s.Phase, s.Ready = Mounted, true
	case entry.Found:
		s.Phase = Confirming
	default:
		s.Phase = Mounting
	}
}

// explain adds what holds the volume up: a step that runs or failed, or a
// reason why none is due.
func (m *Manager) explain(s *VolumeStatus) {
	s.take(reportOf(m.volumes, s.ID), s.Volume)
	plan := m.steps.Plan(s.ID)
	for _, step := range plan.Steps {
		if s.Step == "" && (step.Volume == s.Volume || step.Volume == plugins.PodVolume{}) {
			s.Step, s.Message = step.Kind, step.Reason
		}
	}
	for _, hold := range plan.Holds {
		if hold.Volume == s.Volume && s.Err == nil && !s.Running {
			s.hold(hold)
		}
	}
	s.Code = s.code()
	s.Phase = s.phase()
	if s.Code == "" && s.Ready && m.hidden != "" && m.isMount(s.Volume) {
		s.Code, s.Message = CodeNotVisible, m.hidden
	}
	s.Advice = advice(*s)
}

func (m *Manager) isMount(v plugins.PodVolume) bool {
	entry, ok := m.actual.PodVolume(v)
	return ok && entry.Mounted
}

func (s *VolumeStatus) hold(h reconciler.Hold) {
	s.Message, s.Blocker = h.Reason, h.By
	switch h.Code {
	case reconciler.HoldUnknown:
		s.Code = CodeUnknown
	default:
		s.Code = CodeBlocked
	}
}

// take picks the report that matters most: of the volume's own steps and the
// node-wide ones, a running one before a failed one.
func (s *VolumeStatus) take(reports []reconciler.StepReport, v plugins.PodVolume) {
	var best *reconciler.StepReport
	for i, r := range reports {
		if r.Key.Volume != v && r.Key.Volume != (plugins.PodVolume{}) {
			continue
		}
		if best == nil || (r.Running && !best.Running) || (r.Stuck && !best.Stuck) {
			best = &reports[i]
		}
	}
	if best == nil {
		return
	}
	s.Step, s.Running, s.Stuck, s.Attempts, s.NextTry = best.Key.Kind, best.Running, best.Stuck, best.Attempts, best.NextTry
	switch {
	case best.Running:
		s.Since = best.Since
	case !best.FirstFailed.IsZero():
		s.Since = best.FirstFailed
	}
	if best.Stuck {
		s.Message = fmt.Sprintf("%s has not returned since %s", best.Key.Kind, best.Since.Format(time.RFC3339))
	}
	if best.Err != nil {
		s.fail(best.Err)
	}
}

func (s *VolumeStatus) fail(err error) {
	s.Err, s.Class = err, plugins.ClassOf(err)
	s.Failure, s.Message = s.Class.String(), err.Error()
}

func (s *VolumeStatus) code() Code {
	switch {
	case s.Err == nil && !s.Stuck:
		return s.Code
	case s.Class == plugins.ClassWaiting:
		return CodeWaiting
	}
	switch s.Step {
	case reconciler.Attach:
		return CodeStuckAttaching
	case reconciler.MountDevice, reconciler.SetUp:
		return CodeStuckMounting
	case reconciler.TearDown, reconciler.UnmountDevice, reconciler.Detach:
		return CodeFailsToDetach
	case reconciler.Refresh:
		return CodeStale
	case reconciler.Expand:
		return CodeExpandFailed
	}
	return CodeUnresolved
}

func (s *VolumeStatus) phase() Phase {
	switch {
	case s.Code == CodeUnknown && s.Phase != Pending:
		return Kept
	case s.Ready || s.Phase == Confirming:
		return s.Phase
	case s.Step == reconciler.Attach:
		return Attaching
	case s.Step == reconciler.MountDevice || s.Step == reconciler.SetUp:
		return Mounting
	case s.Step.Undoes():
		return Unmounting
	}
	return s.Phase
}

// reportOf asks a reconciler how the steps of a volume fare, if it can tell.
func reportOf(r reconciler.Reconciler, id plugins.VolumeID) []reconciler.StepReport {
	if reporter, ok := r.(reconciler.Reporter); ok {
		return reporter.Report(id)
	}
	return nil
}

// advice is the way out, for people.
func advice(s VolumeStatus) string {
	var missing *plugins.MissingError
	switch {
	case errors.As(s.Err, &missing):
		return "Set VolumeHost." + missing.Field + " in the program that embeds the manager."
	case errors.Is(s.Err, mount.ErrBusy):
		return "End the processes that still use the mount, or allow lazy unmounts."
	case s.Class == plugins.ClassWaiting:
		return "Create or repair the object that is waited for; the volume follows by itself."
	case s.Stuck:
		return "The storage does not answer. Repair it, or allow lazy unmounts to give it up."
	case s.Class == plugins.ClassPermanent:
		return "Change the pod or the object that the message names; trying again will not help."
	case s.Class == plugins.ClassUnsupported:
		return "This node cannot provide the volume. Register a plugin for it, or run the pod elsewhere."
	}
	switch s.Code {
	case CodeUnknown:
		return "Nothing is taken away until it is known whether the volume is wanted."
	case CodeNotVisible:
		return "Make the root folder a shared mount and restart the containers."
	case CodeBlocked:
		return "The volume follows when " + s.Blocker + " has released it."
	}
	return ""
}
