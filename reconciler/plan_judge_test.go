package reconciler

import (
	"fmt"
	"slices"
	"time"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
)

// view is what a plan says, by pod.
type view struct {
	steps map[Kind]int
	pod   [2]map[Kind]bool
	holds [2]string
}

func look(s *scenario, plan Plan) (view, string) {
	v := view{steps: map[Kind]int{}, pod: [2]map[Kind]bool{{}, {}}}
	undoing := true
	for _, step := range plan.Steps {
		v.steps[step.Kind]++
		switch {
		case step.Reason == "" || step.ID != "p/x/disk":
			return v, "step without reason or id"
		case step.Kind == TearDown && !undoing:
			return v, "TearDown after another step"
		case step.Volume == plugins.PodVolume{}:
			if step.Kind == SetUp || step.Kind == TearDown || step.Kind == Expand || step.Kind == Refresh {
				return v, "pod step without a pod"
			}
		default:
			i := podIndex(step.Volume)
			if v.pod[i][step.Kind] {
				return v, "the same step twice"
			}
			v.pod[i][step.Kind] = true
		}
		undoing = step.Kind == TearDown
	}
	for _, h := range plan.Holds {
		if h.Reason == "" {
			return v, "hold without reason"
		}
		if h.Volume != (plugins.PodVolume{}) {
			i := podIndex(h.Volume)
			if v.holds[i] != "" {
				return v, "two holds for a pod"
			}
			v.holds[i] = h.Code
		}
	}
	return v, ""
}

func podIndex(volume plugins.PodVolume) int {
	if volume.Pod == "u1" {
		return 0
	}
	return 1
}

// judge checks the invariants of PlanVolume's comment.
func judge(s *scenario, wish dsw.Wish, fact asw.Volume, plan Plan) string {
	v, msg := look(s, plan)
	if msg != "" {
		return msg
	}
	for i := range s.pods {
		if msg := judgePod(s, i, v); msg != "" {
			return fmt.Sprintf("pod %d: %s", i+1, msg)
		}
	}
	if msg := judgeNode(s, v, len(plan.Steps)); msg != "" {
		return msg
	}
	if msg := judgeSharing(s, v, fact); msg != "" {
		return msg
	}
	next := time.Time{}
	for _, c := range s.pods {
		if c.wish != nil && *c.wish == dsw.Wanted && c.entry == present && c.diff == refreshLater {
			next = now.Add(time.Minute)
		}
	}
	if !plan.Next.Equal(next) {
		return "14: wrong Next"
	}
	lead, ok := Lead(wish, fact)
	if (v.steps[Attach] > 0 || v.steps[MountDevice] > 0) && (!ok || v.holds[podIndex(lead.Volume)] != HoldNode && !v.pod[podIndex(lead.Volume)][TearDown]) {
		return "node-wide step without a lead that waits for it"
	}
	return ""
}

func isWanted(c cell) bool { return c.wish != nil && *c.wish == dsw.Wanted }
func isUnknown(c cell) bool {
	return c.wish == nil && c.entry != noEntry || c.wish != nil && *c.wish == dsw.Unknown
}

func remade(c cell) bool {
	switch c.diff {
	case otherBlock:
		return c.entry != noEntry
	case otherLabel, otherReadOnly, otherGroup:
		return c.entry == present || c.entry == uncertain
	}
	return false
}

func judgePod(s *scenario, i int, v view) string {
	c, steps, hold := s.pods[i], v.pod[i], v.holds[i]
	only := func(kinds ...Kind) bool {
		for k := range steps {
			if !slices.Contains(kinds, k) {
				return false
			}
		}
		return true
	}
	switch {
	case isUnknown(c):
		if hold != HoldUnknown || len(steps) > 0 {
			return "1: unknown is not left alone"
		}
		return ""
	case c.wish == nil:
		if hold != "" || len(steps) > 0 {
			return "nothing became something"
		}
		return ""
	case !isWanted(c):
		if steps[TearDown] != (c.entry != noEntry) || !only(TearDown) || hold != "" {
			return "2: unwanted"
		}
		return ""
	}
	switch {
	case hold != "" && len(steps) > 0:
		return "held and stepped"
	case hold == HoldUnknown:
		return "wanted is unknown"
	case hold == "" && len(steps) == 0 && c.entry != present:
		return "13: wanted, and nothing happens"
	case (steps[SetUp] || steps[TearDown]) && len(steps) > 1:
		return "3: contradicting steps"
	case steps[SetUp] && (c.entry == present || remade(c)):
		return "8: SetUp of what is there, or on what does not fit"
	case steps[TearDown] && c.entry == noEntry:
		return "9: TearDown of nothing"
	case steps[TearDown] && !remade(c) && (!s.device || s.deviceAt == asw.Absent || fitsDevice(s, i)):
		return "9: TearDown of what fits"
	case remade(c) && !steps[TearDown] && hold == "":
		return "9: misfit stays"
	}
	if c.entry == present && hold == "" && !steps[TearDown] {
		grow := c.diff == larger || c.diff == largerAndOlder
		fresh := c.diff == olderGeneration || c.diff == refreshDue || c.diff == largerAndOlder
		if steps[Expand] != grow || steps[Refresh] != fresh {
			return "10: Expand or Refresh"
		}
	} else if steps[Expand] || steps[Refresh] {
		return "10: Expand or Refresh of what is not there"
	}
	return ""
}

func podLabel(s *scenario, i int) string {
	if i == 0 {
		return "a"
	}
	return s.label2
}

func fitsDevice(s *scenario, i int) bool { return podLabel(s, i) == s.deviceLabel }

// deviceLabelKnown repeats the rule of invariant 7.
func deviceLabelKnown(s *scenario) bool {
	if s.deviceAt == asw.Uncertain {
		return !s.deviceFound && s.pods[0].entry != found && s.pods[1].entry != found
	}
	return s.deviceAt == asw.Present
}

func judgeNode(s *scenario, v view, steps int) string {
	makes := v.steps[SetUp] + v.steps[Expand] + v.steps[Refresh]
	wanted, unknown, entries := 0, 0, 0
	for _, c := range s.pods {
		if isWanted(c) {
			wanted++
		}
		if isUnknown(c) {
			unknown++
		}
		if c.entry != noEntry {
			entries++
		}
	}
	up, down := v.steps[Attach]+v.steps[MountDevice], v.steps[UnmountDevice]+v.steps[Detach]
	switch {
	case up > 1 || up == 1 && makes > 0:
		return "4: node-wide step beside what waits for it"
	case makes > 0 && (s.attach && s.attachment != asw.Present || s.device && s.deviceAt != asw.Present):
		return "4: pod made before the node-wide part"
	case v.steps[MountDevice] > 0 && (!s.device || s.deviceAt == asw.Present || s.attach && s.attachment != asw.Present):
		return "4: MountDevice out of turn"
	case v.steps[Attach] > 0 && (!s.attach || s.attachment == asw.Present):
		return "4: Attach out of turn"
	case down > 0 && (steps > 1 || entries > 0 || unknown > 0):
		return "11: undone beside something"
	case v.steps[Detach] > 0 && (wanted > 0 || s.deviceAt != asw.Absent || s.attachment == asw.Absent):
		return "11: Detach"
	case v.steps[UnmountDevice] > 0 && s.deviceAt == asw.Absent:
		return "11: UnmountDevice of nothing"
	case v.steps[UnmountDevice] > 0 && wanted > 0 && (!s.device || !deviceLabelKnown(s)):
		return "7: UnmountDevice of a device that may fit"
	case wanted+unknown+entries == 0 && s.deviceAt != asw.Absent && v.steps[UnmountDevice] != 1:
		return "11: device stays"
	case wanted+unknown+entries == 0 && s.deviceAt == asw.Absent && s.attachment != asw.Absent && v.steps[Detach] != 1:
		return "11: attachment stays"
	}
	return ""
}

// judgeSharing checks what two pods may do beside each other.
func judgeSharing(s *scenario, v view, fact asw.Volume) string {
	makes := func(i int) bool {
		return v.pod[i][SetUp] || v.pod[i][Expand] || v.pod[i][Refresh] || isWanted(s.pods[i]) && v.holds[i] == HoldNode
	}
	for i := range s.pods {
		c, other := s.pods[i], s.pods[1-i]
		switch {
		case !s.onePod && v.holds[i] == HoldExclusive:
			return "5: exclusive for no reason"
		case s.onePod && isWanted(c) && c.entry == noEntry && other.entry != noEntry && v.holds[i] != HoldExclusive:
			return "5: a second pod is not held"
		case !s.device && v.holds[i] == HoldConflict:
			return "6: conflict without a device"
		case v.pod[i][SetUp] && s.device && !fitsDevice(s, i) && deviceLabelKnown(s):
			return "6: SetUp on a device with another label"
		}
	}
	if s.onePod && makes(0) && makes(1) {
		return "5: both pods are active"
	}
	if s.onePod && isWanted(s.pods[0]) && isWanted(s.pods[1]) && s.pods[0].entry == noEntry && s.pods[1].entry == noEntry && v.holds[0] != HoldExclusive {
		return "5: the older pod does not go first"
	}
	if s.device && s.label2 != "a" && v.pod[0][SetUp] && v.pod[1][SetUp] {
		return "6: two labels on one device"
	}
	// One who wants the label that is there keeps it.
	for i := range s.pods {
		if s.device && deviceLabelKnown(s) && isWanted(s.pods[i]) && fitsDevice(s, i) && v.holds[i] != HoldExclusive &&
			(v.steps[UnmountDevice] > 0 || v.holds[i] == HoldConflict) {
			return "7: a device is taken from a pod that wants it as it is"
		}
	}
	return ""
}

// follow runs plans to their end, every step succeeding, and looks at what is
// left.
func follow(s *scenario, wish dsw.Wish, fact asw.Volume, plan Plan) string {
	before := fact.Pods
	fact.Pods = slices.Clone(fact.Pods)
	for n := 0; len(plan.Steps) > 0; n++ {
		if n > 20 {
			return "the plan does not end"
		}
		apply(plan.Steps[n%len(plan.Steps)], wish, &fact)
		plan = PlanVolume(now, wish, fact)
	}
	held := map[plugins.PodVolume]string{}
	for _, h := range plan.Holds {
		held[h.Volume] = h.Code
	}
	some := false
	for i, c := range s.pods {
		volume := plugins.PodVolume{Pod: pods[i].UID, Plugin: "p/x", Name: "disk"}
		at := slices.IndexFunc(fact.Pods, func(f asw.PodVolume) bool { return f.Volume == volume })
		some = some || isWanted(c) || isUnknown(c)
		switch {
		case isUnknown(c):
			was := slices.IndexFunc(before, func(f asw.PodVolume) bool { return f.Volume == volume })
			if (was < 0) != (at < 0) || at >= 0 && fact.Pods[at].State != before[was].State {
				return "an unknown pod did not stay as it was"
			}
		case !isWanted(c) && at >= 0:
			return "an unwanted pod is left"
		case isWanted(c) && held[volume] == HoldNode:
			return "a pod waits for nothing"
		case isWanted(c) && held[volume] == "" && (at < 0 || fact.Pods[at].State != asw.Present || misfit(&wish.Pods[min(i, len(wish.Pods)-1)], &fact.Pods[at]) != ""):
			return "a wanted pod is not there"
		case isWanted(c) && held[volume] == HoldExclusive && !s.onePod:
			return "held for ever"
		}
	}
	if !some && (fact.Attachment != asw.Absent || fact.Device != asw.Absent || len(fact.Pods) > 0) {
		return "something is left of a volume that nobody wants"
	}
	return ""
}

// apply is what a perfect engine does.
func apply(step Step, wish dsw.Wish, fact *asw.Volume) {
	at := slices.IndexFunc(fact.Pods, func(f asw.PodVolume) bool { return f.Volume == step.Volume })
	w := slices.IndexFunc(wish.Pods, func(w dsw.PodWish) bool { return w.Volume == step.Volume })
	switch step.Kind {
	case Attach:
		fact.Attachment = asw.Present
	case MountDevice:
		lead, _ := Lead(wish, *fact)
		fact.Device, fact.DeviceParams, fact.Spec = asw.Present, lead.Params, lead.Spec
	case UnmountDevice:
		fact.Device, fact.DeviceParams = asw.Absent, plugins.Params{}
	case Detach:
		fact.Attachment = asw.Absent
	case TearDown:
		fact.Pods = slices.Delete(fact.Pods, at, at+1)
	case SetUp, Expand, Refresh:
		made := asw.PodVolume{
			Volume: step.Volume, State: asw.Present, Block: wish.Pods[w].Block,
			Params: wish.Pods[w].Params, Generation: wish.Pods[w].Generation,
		}
		if at >= 0 {
			fact.Pods[at] = made
			return
		}
		fact.Pods = append(fact.Pods, made)
		slices.SortFunc(fact.Pods, func(a, b asw.PodVolume) int { return compareVolumes(&a.Volume, &b.Volume) })
	}
}
