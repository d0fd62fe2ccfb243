package reconciler

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
)

// The enumerated domain. Of each of two pods: the wish, the entry and how the
// two differ; the differences matter only where a wish meets an entry. Of the
// volume: what it needs, the attachment, the device and its label, whether the
// device was found, whether one pod only may use it, and whether the pods want
// the same label.

type entry int

const (
	noEntry entry = iota
	present
	found
	uncertain
)

type difference int

const (
	equal difference = iota
	otherLabel
	otherReadOnly
	otherBlock
	otherGroup
	larger
	largerThanUnknown
	olderGeneration
	refreshDue
	refreshLater
	largerAndOlder
	differences
)

// cell is one pod of the domain. A nil state is a wish that is missing.
type cell struct {
	wish  *dsw.State
	entry entry
	diff  difference
}

type scenario struct {
	attach, device       bool
	attachment, deviceAt asw.Presence
	deviceLabel          string
	deviceFound          bool
	onePod               bool
	label2               string // what the second pod wants
	pods                 [2]cell
}

var (
	now   = time.Unix(1_000_000, 0)
	gib   = resource.MustParse("1Gi")
	twoGi = resource.MustParse("2Gi")
)

func ptr[T any](v T) *T { return &v }

func cells() []cell {
	wanted, unwanted, unknown := ptr(dsw.Wanted), ptr(dsw.Unwanted), ptr(dsw.Unknown)
	list := []cell{{wish: wanted}}
	for e := present; e <= uncertain; e++ {
		for d := range differences {
			list = append(list, cell{wanted, e, d})
		}
	}
	for e := noEntry; e <= uncertain; e++ {
		list = append(list, cell{unwanted, e, equal}, cell{unknown, e, equal}, cell{nil, e, equal})
	}
	return list
}

// nodes lists the volumes of the domain, without the pods.
func nodes() []scenario {
	var list []scenario
	for _, s := range [][2]bool{{false, false}, {true, false}, {false, true}, {true, true}} {
		for attachment := asw.Absent; attachment <= asw.Uncertain; attachment++ {
			for deviceAt := asw.Absent; deviceAt <= asw.Uncertain; deviceAt++ {
				base := scenario{attach: s[0], device: s[1], attachment: attachment, deviceAt: deviceAt, label2: "a", deviceLabel: "a"}
				list = append(list, labels(base)...)
			}
		}
	}
	for _, s := range slices.Clone(list) {
		s.onePod = true
		list = append(list, s)
	}
	return list
}

func labels(base scenario) []scenario {
	list := []scenario{base}
	if !base.device {
		return list
	}
	vary := func(change func(*scenario)) {
		for _, s := range slices.Clone(list) {
			change(&s)
			list = append(list, s)
		}
	}
	vary(func(s *scenario) { s.label2 = "b" })
	if base.deviceAt != asw.Absent {
		vary(func(s *scenario) { s.deviceLabel = "x" })
	}
	if base.deviceAt == asw.Uncertain {
		vary(func(s *scenario) { s.deviceFound = true })
	}
	return list
}

var (
	onePodSpec = &plugins.Spec{PV: &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod},
	}}}
	manySpec = &plugins.Spec{PV: &v1.PersistentVolume{}}
	// The second pod is older, so that age and order of names disagree.
	pods = [2]*v1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one", UID: "u1", CreationTimestamp: metav1.Unix(200, 0)}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "two", UID: "u2", CreationTimestamp: metav1.Unix(100, 0)}},
	}
)

func (s *scenario) spec() *plugins.Spec {
	if s.onePod {
		return onePodSpec
	}
	return manySpec
}

func (s *scenario) identity() plugins.Identity {
	return plugins.Identity{Storage: "disk", Attach: s.attach, Device: s.device}
}

// state builds wish and fact.
func (s *scenario) state() (dsw.Wish, asw.Volume) {
	wish := dsw.Wish{ID: "p/x/disk"}
	fact := asw.Volume{
		ID: wish.ID, Identity: s.identity(), Spec: s.spec(), Attachment: s.attachment, Device: s.deviceAt,
		DeviceParams: plugins.Params{SELinuxLabel: s.deviceLabel},
	}
	if s.deviceFound {
		fact.Spec, fact.DeviceParams = nil, plugins.Params{}
	}
	for i, c := range s.pods {
		label := "a"
		if i == 1 {
			label = s.label2
		}
		w, f := s.podState(c, plugins.PodVolume{Pod: pods[i].UID, Plugin: "p/x", Name: "disk"}, label)
		if c.wish != nil {
			w.Pod = pods[i]
			wish.Pods = append(wish.Pods, w)
		}
		if c.entry != noEntry {
			f.Pod = plugins.PodRef{Namespace: "ns", Name: pods[i].Name, UID: pods[i].UID}
			fact.Pods = append(fact.Pods, f)
		}
	}
	return wish, fact
}

func (s *scenario) podState(c cell, volume plugins.PodVolume, label string) (dsw.PodWish, asw.PodVolume) {
	w := dsw.PodWish{Volume: volume, Why: "the claim is not there"}
	params := plugins.Params{SELinuxLabel: label, FSGroup: ptr(int64(7)), Size: &gib}
	if c.wish != nil {
		w.State = *c.wish
	}
	if w.State == dsw.Wanted {
		w.Spec, w.Identity, w.Params, w.Generation = s.spec(), s.identity(), params, 5
	}
	f := asw.PodVolume{Volume: volume, State: asw.Uncertain, Params: params, Generation: 5}
	f.Params.FSGroup = ptr(int64(7))
	differ(c.diff, &w, &f)
	switch c.entry {
	case present:
		f.State = asw.Present
	case found:
		f.Found, f.Spec, f.Params = true, nil, plugins.Params{}
	}
	return w, f
}

func differ(d difference, w *dsw.PodWish, f *asw.PodVolume) {
	switch d {
	case otherLabel:
		f.Params.SELinuxLabel = "y"
	case otherReadOnly:
		f.Params.ReadOnly = true
	case otherBlock:
		f.Block = true
	case otherGroup:
		f.Params.FSGroup = nil
	case larger:
		w.Params.Size = &twoGi
	case largerThanUnknown:
		f.Params.Size = nil
	case olderGeneration:
		f.Generation = 4
	case refreshDue:
		f.RefreshAt = now
	case refreshLater:
		f.RefreshAt = now.Add(time.Minute)
	case largerAndOlder:
		w.Params.Size, f.Generation = &twoGi, 4
	}
}

// TestPlanEveryCombination holds every plan of the domain against the
// invariants, and follows it to where it leads.
func TestPlanEveryCombination(t *testing.T) {
	all, plans := cells(), 0
	for _, s := range nodes() {
		for i := range all {
			for j := i % planStride; j < len(all); j += planStride {
				s.pods = [2]cell{all[i], all[j]}
				wish, fact := s.state()
				plan := PlanVolume(now, wish, fact)
				if msg := judge(&s, wish, fact, plan); msg != "" {
					t.Fatalf("%s\n%s\nplan: %+v", msg, describe(&s), plan)
				}
				if msg := follow(&s, wish, fact, plan); msg != "" {
					t.Fatalf("%s\n%s\nplan: %+v", msg, describe(&s), plan)
				}
				plans++
			}
		}
	}
	t.Logf("%d combinations", plans)
}

func describe(s *scenario) string {
	text := fmt.Sprintf("attach=%v device=%v attachment=%v device=%v label=%q found=%v onePod=%v label2=%q",
		s.attach, s.device, s.attachment, s.deviceAt, s.deviceLabel, s.deviceFound, s.onePod, s.label2)
	for i, c := range s.pods {
		wish := "none"
		if c.wish != nil {
			wish = c.wish.String()
		}
		text += fmt.Sprintf("\npod %d: wish=%s entry=%d difference=%d", i+1, wish, c.entry, c.diff)
	}
	return text
}

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
	case steps[TearDown] && !remade(c) && !(s.device && s.deviceAt != asw.Absent && !fitsDevice(s, i)):
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

// TestPlanNames checks who is named, and the words for people.
func TestPlanNames(t *testing.T) {
	wanted, unwanted, unknown := ptr(dsw.Wanted), ptr(dsw.Unwanted), ptr(dsw.Unknown)
	for name, tt := range map[string]struct {
		s    scenario
		want Hold
	}{
		"exclusive, by an entry": {
			scenario{onePod: true, pods: [2]cell{{wanted, noEntry, equal}, {unwanted, uncertain, equal}}},
			Hold{Code: HoldExclusive, By: "ns/two"},
		},
		"exclusive, by age": {
			scenario{onePod: true, pods: [2]cell{{wanted, noEntry, equal}, {wanted, noEntry, equal}}},
			Hold{Code: HoldExclusive, By: "ns/two"},
		},
		"exclusive, by presence": {
			scenario{onePod: true, pods: [2]cell{{wanted, present, equal}, {wanted, noEntry, equal}}},
			Hold{Code: HoldExclusive, By: "ns/one"},
		},
		"another label is wanted and there": {
			scenario{device: true, deviceAt: asw.Present, deviceLabel: "a", label2: "b", pods: [2]cell{{wanted, present, equal}, {wanted, noEntry, equal}}},
			Hold{Code: HoldConflict, By: "ns/one"},
		},
		"another label is left": {
			scenario{device: true, deviceAt: asw.Present, deviceLabel: "x", label2: "b", pods: [2]cell{{unwanted, present, equal}, {wanted, noEntry, equal}}},
			Hold{Code: HoldConflict, By: "ns/one"},
		},
		"unknown says why": {
			scenario{pods: [2]cell{{unknown, present, equal}, {}}},
			Hold{Code: HoldUnknown},
		},
		"the device waits": {
			scenario{device: true, deviceAt: asw.Present, pods: [2]cell{{unwanted, present, equal}, {}}},
			Hold{Code: HoldNode, By: "ns/one"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			wish, fact := tt.s.state()
			plan := PlanVolume(now, wish, fact)
			if len(plan.Holds) != 1 || plan.Holds[0].Code != tt.want.Code || plan.Holds[0].By != tt.want.By {
				t.Fatalf("holds %+v, want %s by %q", plan.Holds, tt.want.Code, tt.want.By)
			}
			if tt.want.Code == HoldUnknown && plan.Holds[0].Reason != "the claim is not there" {
				t.Errorf("reason %q", plan.Holds[0].Reason)
			}
		})
	}
}

func TestCompareVolumesIsStringOrder(t *testing.T) {
	words := []string{"", "a", "b", "a-", "a/", "a0", "ab"}
	var list []plugins.PodVolume
	for _, a := range words {
		for _, b := range words {
			for _, c := range words {
				list = append(list, plugins.PodVolume{Pod: types.UID(a), Plugin: b, Name: c})
			}
		}
	}
	for i := range list {
		for j := range list {
			a, b := &list[i], &list[j]
			got, want := compareVolumes(a, b), 0
			switch {
			case a.String() < b.String():
				want = -1
			case a.String() > b.String():
				want = 1
			}
			if got != want {
				t.Fatalf("%q against %q: %d, want %d", a, b, got, want)
			}
		}
	}
}

// TestPlanIdleAllocates checks that planning a volume at rest makes one list
// and no more.
func TestPlanIdleAllocates(t *testing.T) {
	s := scenario{attach: true, device: true, attachment: asw.Present, deviceAt: asw.Present, deviceLabel: "a", label2: "a",
		pods: [2]cell{{ptr(dsw.Wanted), present, equal}, {ptr(dsw.Wanted), present, equal}}}
	wish, fact := s.state()
	if n := testing.AllocsPerRun(100, func() { PlanVolume(now, wish, fact) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPlanIdle(b *testing.B) {
	s := scenario{device: true, deviceAt: asw.Present, deviceLabel: "a", label2: "a",
		pods: [2]cell{{ptr(dsw.Wanted), present, equal}, {ptr(dsw.Wanted), present, equal}}}
	wish, fact := s.state()
	b.ReportAllocs()
	for b.Loop() {
		PlanVolume(now, wish, fact)
	}
}

func BenchmarkPlanOneStep(b *testing.B) {
	s := scenario{pods: [2]cell{{ptr(dsw.Wanted), noEntry, equal}, {}}}
	wish, fact := s.state()
	b.ReportAllocs()
	for b.Loop() {
		PlanVolume(now, wish, fact)
	}
}
