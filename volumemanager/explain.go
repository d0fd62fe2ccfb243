package volumemanager

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

// place tells apart what two volumes may have at one path, one after another.
type place struct {
	volume plugins.PodVolume
	id     plugins.VolumeID
}

func (m *Manager) status(uid types.UID) (PodStatus, bool) {
	state, known := m.desired.Pod(uid)
	entries := m.actual.Pod(uid)
	m.mu.Lock()
	refused, invalid := m.invalid[uid]
	hidden := m.hidden
	m.mu.Unlock()
	if !known && len(entries) == 0 && !invalid {
		return PodStatus{}, false
	}
	s := PodStatus{
		Pod: plugins.PodRef{UID: uid}, Known: known || invalid, Ready: known && !invalid, Err: refused.err, Volumes: []VolumeStatus{},
	}
	if known {
		s.Pod.Namespace, s.Pod.Name = state.Pod.Namespace, state.Pod.Name
	}
	if invalid {
		s.Message = refused.err.Error()
	}
	if refused.unseen {
		state.Volumes = nil // they stand for something that is not known
	}
	told := map[place]bool{}
	for _, v := range state.Volumes {
		if v.Resolved {
			told[place{v.Volume, v.ID}] = true
		}
		status := m.wanted(uid, v, entries)
		status.hide(hidden, entries)
		s.Ready = s.Ready && status.Ready
		s.Volumes = append(s.Volumes, status)
	}
	for _, entry := range entries {
		if s.Pod.Name == "" {
			s.Pod = entry.Pod
		}
		if !told[place{entry.Volume, entry.ID}] {
			s.Volumes = append(s.Volumes, m.left(entry)...)
		}
	}
	slices.SortStableFunc(s.Volumes, func(a, b VolumeStatus) int { return strings.Compare(a.Name, b.Name) })
	return s, true
}

// wanted tells about a volume that the pod's spec has.
func (m *Manager) wanted(uid types.UID, v dsw.VolumeState, entries []asw.PodVolume) VolumeStatus {
	s := VolumeStatus{Name: v.Name, Volume: v.Volume, ID: v.ID, Progress: Progress{Phase: Pending}}
	if !v.Resolved {
		s.Progress = m.resolvingProgress(uid, v)
		return s
	}
	for _, entry := range entries {
		if entry.Volume == v.Volume && entry.ID == v.ID {
			s.enter(entry)
			s.Faults = m.faults(entry)
		}
	}
	m.explain(&s)
	if v.Err != nil && s.Message == "" {
		s.Message = "the volume's objects could not be read again: " + v.Err.Error()
	}
	return s
}

// resolvingProgress tells about a volume that was never resolved.
func (m *Manager) resolvingProgress(uid types.UID, v dsw.VolumeState) Progress {
	p := Progress{Phase: Resolving, Step: resolveStep}
	for _, r := range reportOf(m.resolving, resolveID(uid, v.Name)) {
		p.take(stepReport{StepReport: r})
	}
	if v.Err != nil {
		p.fail(v.Err)
	}
	if p.Err != nil || p.Stuck {
		p.Code = CodeUnresolved
	}
	_, again := m.unresolved.has(dsw.Unresolved{Pod: uid, Name: v.Name})
	p.again = again
	p.Advice = p.advice()
	return p
}

// left tells about something that is there without a resolved wish.
func (m *Manager) left(entry asw.PodVolume) []VolumeStatus {
	names := entry.Names
	if len(names) == 0 {
		names = []string{entry.Volume.Name}
	}
	list := make([]VolumeStatus, len(names))
	for i, name := range names {
		s := VolumeStatus{Name: name, Volume: entry.Volume, ID: entry.ID}
		s.enter(entry)
		s.Faults = m.faults(entry)
		s.Ready, s.Phase = false, Unmounting
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

// hide says of a ready mount that containers may not see it, if that is so.
func (s *VolumeStatus) hide(why string, entries []asw.PodVolume) {
	mounted := slices.ContainsFunc(entries, func(e asw.PodVolume) bool { return e.Volume == s.Volume && e.Mounted })
	if why != "" && s.Ready && s.Code == "" && mounted {
		s.Code, s.Message = CodeNotVisible, why
		s.Advice = s.advice()
	}
}

// explain adds what holds the volume up: a step that runs or failed, or a
// reason why none is due.
func (m *Manager) explain(s *VolumeStatus) {
	plan := m.steps.Plan(s.ID)
	m.progress(&s.Progress, plan, s.ID, s.Volume)
	s.Phase = s.phase(s.Phase, s.Ready)
	s.Advice = s.advice()
}

// node tells how the node-wide part of a volume fares, nil if nothing is done
// or due.
func (m *Manager) node(id plugins.VolumeID, plan reconciler.Plan) *Progress {
	var p Progress
	m.progress(&p, plan, id, plugins.PodVolume{})
	if p.Step == "" && p.Code == "" {
		return nil
	}
	p.Phase = p.phase("", false)
	p.Advice = p.advice()
	return &p
}

// progress adds what is known of v's steps and of the node-wide ones.
func (m *Manager) progress(p *Progress, plan reconciler.Plan, id plugins.VolumeID, v plugins.PodVolume) {
	mine := func(other plugins.PodVolume) bool { return other == v || other == plugins.PodVolume{} }
	best, other := sift(m.log.report(id, m.volumes), mine)
	if best != nil {
		p.take(*best)
	}
	i := slices.IndexFunc(plan.Steps, func(s reconciler.Step) bool { return mine(s.Volume) })
	if p.Step == "" && i >= 0 {
		p.Step, p.Message = plan.Steps[i].Kind, plan.Steps[i].Reason
		if other != nil {
			p.Blocker = m.nameOf(other.Key.Volume.Pod)
			p.Message = fmt.Sprintf("waits for the %s of pod %s on the same volume", other.Key.Kind, p.Blocker)
		}
	}
	for _, hold := range plan.Holds {
		if hold.Volume == v && p.Err == nil && !p.Running {
			p.hold(hold)
		}
	}
	p.Code = p.code()
}

// sift picks of the reports that are mine the one that matters most: one that
// runs before one that failed before one that is queued. The other is one that
// runs for somebody else.
func sift(reports []stepReport, mine func(plugins.PodVolume) bool) (best, other *stepReport) {
	rank := func(r *stepReport) int {
		switch {
		case r.Running:
			return 2
		case r.Err != nil:
			return 1
		}
		return 0
	}
	for i := range reports {
		switch r := &reports[i]; {
		case mine(r.Key.Volume):
			if best == nil || rank(r) > rank(best) {
				best = r
			}
		case r.Running:
			other = r
		}
	}
	return best, other
}

func (m *Manager) nameOf(uid types.UID) string {
	if state, known := m.desired.Pod(uid); known {
		return state.Pod.Namespace + "/" + state.Pod.Name
	}
	for _, entry := range m.actual.Pod(uid) {
		if entry.Pod.Name != "" {
			return entry.Pod.String()
		}
	}
	return string(uid)
}

func (p *Progress) hold(h reconciler.Hold) {
	if h.Code == reconciler.HoldNode && p.Step != "" {
		return // that step is what is waited for
	}
	p.Message, p.Blocker = h.Reason, h.By
	switch h.Code {
	case reconciler.HoldUnknown:
		p.Code = CodeUnknown
	default:
		p.Code = CodeBlocked
	}
}

// take takes over the report of a step.
func (p *Progress) take(r stepReport) {
	p.Step, p.Running, p.Stuck, p.Attempts, p.NextTry, p.again = r.Key.Kind, r.Running, r.Stuck, r.Attempts, r.NextTry, r.again
	switch {
	case r.Running:
		p.Since = r.Since
	case !r.FirstFailed.IsZero():
		p.Since = r.FirstFailed
	}
	if r.Err != nil {
		p.fail(r.Err)
	}
	switch {
	case r.Stuck:
		p.Message = fmt.Sprintf("%s has not returned since %s", r.Key.Kind, r.Since.Format(time.RFC3339))
	case r.Queued && r.Err == nil:
		p.Message = "waits for other steps to end"
	}
}

func (p *Progress) fail(err error) {
	p.Err, p.Class = err, plugins.ClassOf(err)
	p.Failure, p.Message = p.Class.String(), err.Error()
}

func (p *Progress) code() Code {
	switch {
	case p.Err == nil && !p.Stuck:
		return p.Code
	case p.Class == plugins.ClassWaiting && !p.Stuck && p.Step != reconciler.Refresh:
		return CodeWaiting
	}
	switch p.Step {
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

// phase is where the step leads that runs, failed or is due.
func (p *Progress) phase(state Phase, ready bool) Phase {
	switch {
	case p.Code == CodeUnknown && state != Pending:
		return Kept
	case ready || state == Confirming:
		return state
	case p.Step == reconciler.Attach:
		return Attaching
	case p.Step == reconciler.MountDevice || p.Step == reconciler.SetUp:
		return Mounting
	case p.Step.Undoes():
		return Unmounting
	}
	return state
}

// advice is the way out, for people.
func (p *Progress) advice() string {
	var missing *plugins.MissingError
	switch {
	case errors.As(p.Err, &missing):
		return "Set VolumeHost." + missing.Field + " in the program that embeds the manager."
	case errors.Is(p.Err, mount.ErrBusy):
		return "End the processes that still use the mount, or allow lazy unmounts."
	case p.Stuck:
		return "The storage does not answer. Repair it, or allow lazy unmounts to give it up."
	case p.Class == plugins.ClassWaiting:
		return "Create or repair the object that is waited for; the volume follows by itself."
	case p.Class == plugins.ClassPermanent:
		return "Change the pod or the object that the message names; trying again will not help."
	case p.Class == plugins.ClassUnsupported:
		return "This node cannot provide the volume. Register a plugin for it, or run the pod elsewhere."
	}
	switch p.Code {
	case CodeStuckAttaching:
		return "See whether another node still has the volume. It is tried again by itself."
	case CodeStuckMounting:
		return "See whether the storage works. It is tried again by itself."
	case CodeFailsToDetach:
		return "See whether the storage works. It is tried again by itself; the volume counts as in use until then."
	case CodeUnknown:
		return "Nothing is taken away until it is known whether the volume is wanted."
	case CodeNotVisible:
		return "Make the root folder a shared mount and restart the containers."
	case CodeBlocked:
		return "The volume follows when " + cmp.Or(p.Blocker, "what is in the way") + " has released it."
	}
	return ""
}
