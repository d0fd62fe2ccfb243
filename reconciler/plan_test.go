package reconciler

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
)

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
