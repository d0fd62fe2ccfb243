package reconciler

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
