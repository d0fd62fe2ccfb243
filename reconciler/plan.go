package reconciler

import (
	"time"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
)

// PlanVolume decides what may be done for one volume: a pure function of what
// should be, what is, and the time. Both lists of pods are sorted as package
// dsw and package asw sort them; the wish has an entry for every pod of the
// fact, and one that it lacks counts as unknown. A pod is active if it is
// wanted and not held by rule 5 or 6.
//
// The plan keeps these invariants.
//
//  1. An unknown pod has no step, only a [HoldUnknown].
//  2. An unwanted pod has a TearDown if it has an entry, else nothing.
//  3. A pod has one of SetUp, TearDown or neither; Expand and Refresh only
//     beside neither. Both of these may be planned at once, so that the one
//     that fails does not keep back the other.
//  4. SetUp, Expand and Refresh are for active pods and come after Attach and
//     MountDevice: while an active pod needs one of these, active pods have
//     [HoldNode]. MountDevice comes after Attach, and is repeated while the
//     device is uncertain.
//  5. Of a ReadWriteOncePod volume one pod is active at most: of the wanted
//     ones the first by presence (present, uncertain, absent), age and name,
//     and without an entry of its own only when no other pod has one. The
//     others have [HoldExclusive].
//  6. The device has one SELinux label: the one it has, as long as an active
//     pod wants that, else the one of the pod that [Lead] names. Pods that
//     want another have [HoldConflict] and nothing else, so that what is live
//     is not taken down for something that cannot follow.
//  7. A device whose known label no active pod wants is unmounted before it is
//     mounted anew: first the active pods' entries are torn down; unknown pods
//     and held ones with an entry stop that, and all active pods then have
//     [HoldConflict]. The label of an uncertain device that was found, and not
//     made by this process, is not known: MountDevice confirms it.
//  8. SetUp is for an active pod whose entry is absent or uncertain, and whose
//     entry, if it has one, fits what is wished.
//  9. TearDown is for an active pod whose entry does not fit and cannot be
//     changed in place (block mode, SELinux label, read-only, fsGroup). Of a
//     found entry only the block mode is known. An uncertain entry that does
//     not fit is torn down too: what is left of it must not pass for the new
//     one.
//  10. Expand is for a present entry whose known size is smaller than the
//     wished one; an unknown size never grows. Refresh is for a present entry
//     of an older generation, or whose RefreshAt has come.
//  11. UnmountDevice and Detach stand alone. They are planned only where no pod
//     has an entry and, but for rule 7, none is wanted or unknown; Detach only
//     when the device is absent. An uncertain device or attachment is undone
//     like a present one. This follows from the states alone, so that it holds
//     for what was found without a spec.
//  12. TearDown steps come first: what moves is released before it is made
//     elsewhere.
//  13. Every wanted pod has a step, a hold, or an entry that is present.
//  14. Next is the earliest RefreshAt after now of a wanted, present entry.
func PlanVolume(now time.Time, wish dsw.Wish, fact asw.Volume) Plan {
	p := newPlanner(wish, fact)
	p.now = now
	p.exclude()
	p.agree()
	p.tearDowns()
	p.node()
	p.makePods()
	p.lane()
	return p.plan
}

// lane takes the volume's lane from a wish, or from what is there.
func (p *planner) lane() {
	if len(p.plan.Steps) == 0 {
		return
	}
	p.plan.Lane = p.fact.Identity.Lane
	for i := range p.pairs {
		if q := &p.pairs[i]; p.plan.Lane == "" && q.state() == dsw.Wanted {
			p.plan.Lane = q.wish.Identity.Lane
		}
	}
}

// Lead returns the wish on whose behalf [PlanVolume] plans Attach and
// MountDevice: its Spec, Identity and Params are those of the node-wide part.
// It is false if no pod is active.
func Lead(wish dsw.Wish, fact asw.Volume) (dsw.PodWish, bool) {
	p := newPlanner(wish, fact)
	p.exclude()
	p.needs()
	if lead := p.lead(); lead != nil {
		return *lead.wish, true
	}
	return dsw.PodWish{}, false
}

// planner is one run of PlanVolume.
type planner struct {
	now   time.Time
	id    plugins.VolumeID
	fact  asw.Volume
	pairs []pair
	plan  Plan

	wanted, unknown, entries int  // how many pods there are of these
	needAttach, needDevice   bool // what active pods need
	remakeDevice             bool // the device has a label that nobody wants
	remakeBlocked            bool // and somebody stops its undoing
	waitNode                 bool // active pods wait for a node-wide step
}

func newPlanner(wish dsw.Wish, fact asw.Volume) planner {
	p := planner{id: wish.ID, fact: fact, pairs: join(wish.Pods, fact.Pods)}
	if p.id == "" {
		p.id = fact.ID
	}
	for i := range p.pairs {
		q := &p.pairs[i]
		if q.fact != nil {
			p.entries++
		}
		switch q.state() {
		case dsw.Wanted:
			p.wanted++
		case dsw.Unknown:
			p.unknown++
		}
	}
	return p
}

func (p *planner) step(kind Kind, volume plugins.PodVolume, reason string) {
	p.plan.Steps = append(p.plan.Steps, Step{Key: Key{Kind: kind, ID: p.id, Volume: volume}, Reason: reason})
}

// hold keeps a pod back from everything.
func (p *planner) hold(q *pair, code, reason, by string) {
	q.held = true
	p.plan.Holds = append(p.plan.Holds, Hold{Volume: q.volume(), Code: code, Reason: reason, By: by})
}

// exclude holds unknown pods, and all but one of a ReadWriteOncePod volume.
func (p *planner) exclude() {
	exclusive := false
	var owner *pair
	for i := range p.pairs {
		q := &p.pairs[i]
		switch q.state() {
		case dsw.Unknown:
			p.hold(q, HoldUnknown, q.why(), "")
		case dsw.Wanted:
			exclusive = exclusive || q.wish.Spec.OnePod()
			if owner == nil || q.before(owner) {
				owner = q
			}
		}
	}
	if !exclusive {
		return
	}
	by := owner
	if owner.fact == nil {
		if other := p.first(func(q *pair) bool { return q.fact != nil && q.pod() != owner.pod() }); other != nil {
			by = other
		}
	}
	for i := range p.pairs {
		q := &p.pairs[i]
		if q.active() && (q.pod() != owner.pod() || by != owner) {
			p.hold(q, HoldExclusive, "only one pod may use the volume (ReadWriteOncePod)", by.who())
		}
	}
}

func (p *planner) first(match func(*pair) bool) *pair {
	for i := range p.pairs {
		if match(&p.pairs[i]) {
			return &p.pairs[i]
		}
	}
	return nil
}

// needs finds out what the active pods need of the node-wide part.
func (p *planner) needs() {
	for i := range p.pairs {
		if q := &p.pairs[i]; q.active() {
			p.needAttach = p.needAttach || q.wish.Identity.Attach
			p.needDevice = p.needDevice || q.wish.Identity.Device
		}
	}
}

// lead is the active pod on whose behalf the node-wide steps are done.
func (p *planner) lead() *pair {
	prefer := p.needDevice && p.labelKnown()
	var lead *pair
	for i := range p.pairs {
		q := &p.pairs[i]
		switch {
		case !q.active():
		case lead == nil:
			lead = q
		case prefer && p.fits(q) != p.fits(lead):
			if p.fits(q) {
				lead = q
			}
		case q.before(lead):
			lead = q
		}
	}
	return lead
}

// labelKnown reports whether the device has a label that is known.
func (p *planner) labelKnown() bool {
	switch p.fact.Device {
	case asw.Present:
		return true
	case asw.Absent:
		return false
	}
	return p.fact.Spec != nil && p.first(func(q *pair) bool { return q.fact != nil && q.fact.Found }) == nil
}

// fits reports whether the device's label is what the pod wants.
func (p *planner) fits(q *pair) bool {
	return q.wish.Params.SELinuxLabel == p.fact.DeviceParams.SELinuxLabel
}

// agree makes the active pods agree on one label for the device.
func (p *planner) agree() {
	p.needs()
	if !p.needDevice {
		return
	}
	lead := p.lead()
	if p.labelKnown() && !p.fits(lead) {
		p.clearDevice()
		return
	}
	label := lead.wish.Params.SELinuxLabel
	for i := range p.pairs {
		if q := &p.pairs[i]; q.active() && q.wish.Params.SELinuxLabel != label {
			p.hold(q, HoldConflict, "another pod needs the device with another SELinux label", lead.who())
		}
	}
}

// clearDevice prepares the unmounting of a device whose label nobody wants.
func (p *planner) clearDevice() {
	p.remakeDevice = true
	blocker := p.first(func(q *pair) bool {
		return q.state() == dsw.Unknown || q.held && q.fact != nil
	})
	p.remakeBlocked = blocker != nil
	user := p.first(func(q *pair) bool { return q.fact != nil })
	for i := range p.pairs {
		q := &p.pairs[i]
		switch {
		case !q.active():
		case blocker != nil:
			p.hold(q, HoldConflict, "the device has another SELinux label and a pod may need it", blocker.who())
		case q.fact != nil:
			q.remake = "the device must be mounted with another SELinux label"
		case user != nil:
			p.hold(q, HoldConflict, "the device has another SELinux label and a pod still uses it", user.who())
		default:
			p.hold(q, HoldNode, "the device is mounted with another SELinux label", "")
		}
	}
}

// tearDowns plans what goes, whether for good or to be made again.
func (p *planner) tearDowns() {
	for i := range p.pairs {
		q := &p.pairs[i]
		switch {
		case q.fact == nil:
		case q.state() == dsw.Unwanted:
			p.step(TearDown, q.volume(), "no longer wanted")
		case q.active():
			if q.remake == "" {
				q.remake = misfit(q.wish, q.fact)
			}
			if q.remake != "" {
				p.step(TearDown, q.volume(), q.remake)
			}
		}
	}
}

// node plans the one node-wide step that may be due.
func (p *planner) node() {
	none := plugins.PodVolume{}
	switch {
	case p.wanted+p.unknown == 0:
		p.undoNode()
	case p.remakeDevice:
		if p.entries == 0 && !p.remakeBlocked {
			p.step(UnmountDevice, none, "it has an SELinux label that no pod wants")
		}
	case p.needAttach && p.fact.Attachment != asw.Present:
		p.waitNode = true
		p.step(Attach, none, makeReason(p.fact.Attachment))
	case p.needDevice && p.fact.Device != asw.Present:
		p.waitNode = true
		p.step(MountDevice, none, makeReason(p.fact.Device))
	}
}

// undoNode plans the undoing of the node-wide part that no pod needs.
func (p *planner) undoNode() {
	kind := Detach
	switch {
	case p.fact.Device != asw.Absent:
		kind = UnmountDevice
	case p.fact.Attachment == asw.Absent:
		return
	}
	if user := p.first(func(q *pair) bool { return q.fact != nil }); user != nil {
		p.plan.Holds = append(p.plan.Holds, Hold{
			Code: HoldNode, Reason: "it stays until no pod has the volume", By: user.who(),
		})
		return
	}
	p.step(kind, plugins.PodVolume{}, "no pod wants it")
}

func makeReason(state asw.Presence) string {
	if state == asw.Uncertain {
		return "its state is not known"
	}
	return "a pod wants it"
}

// makePods plans what the active pods lack.
func (p *planner) makePods() {
	for i := range p.pairs {
		q := &p.pairs[i]
		if q.state() == dsw.Wanted && q.fact != nil && q.fact.State == asw.Present {
			p.next(q.fact.RefreshAt)
		}
		switch {
		case !q.active() || q.remake != "":
		case p.waitNode:
			p.hold(q, HoldNode, "it is attached and its device mounted first", "")
		default:
			p.makePod(q)
		}
	}
}

func (p *planner) next(at time.Time) {
	if at.After(p.now) && (p.plan.Next.IsZero() || at.Before(p.plan.Next)) {
		p.plan.Next = at
	}
}

func (p *planner) makePod(q *pair) {
	w, f := q.wish, q.fact
	switch {
	case f == nil:
		p.step(SetUp, w.Volume, "the pod wants it")
		return
	case f.State != asw.Present && f.Found:
		p.step(SetUp, w.Volume, "left by an earlier process, to be confirmed")
		return
	case f.State != asw.Present:
		p.step(SetUp, w.Volume, "its state is not known")
		return
	}
	if grown(w, f) {
		p.step(Expand, w.Volume, "the wished size grew")
	}
	switch {
	case f.Generation < w.Generation:
		p.step(Refresh, w.Volume, "its source changed")
	case !f.RefreshAt.IsZero() && !f.RefreshAt.After(p.now):
		p.step(Refresh, w.Volume, "its content is due")
	}
}
