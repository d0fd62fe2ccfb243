package reconciler

import (
	"cmp"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
)

// pair is one pod's part of a volume: its wish and its entry, one of which may
// be missing.
type pair struct {
	wish   *dsw.PodWish
	fact   *asw.PodVolume
	held   bool   // nothing is done for it now
	remake string // why its entry has to go although it is wanted
}

// join matches wishes with entries. Both lists are in the order of
// PodVolume.String; what is out of order finds no partner, which is safe: a
// wish alone is made again, and an entry alone is unknown.
func join(wishes []dsw.PodWish, facts []asw.PodVolume) []pair {
	pairs := make([]pair, 0, max(len(wishes), len(facts)))
	w, f := 0, 0
	for w < len(wishes) || f < len(facts) {
		order := 0
		switch {
		case w == len(wishes):
			order = 1
		case f == len(facts):
			order = -1
		default:
			order = compareVolumes(&wishes[w].Volume, &facts[f].Volume)
		}
		var q pair
		if order <= 0 {
			q.wish = &wishes[w]
			w++
		}
		if order >= 0 {
			q.fact = &facts[f]
			f++
		}
		pairs = append(pairs, q)
	}
	return pairs
}

// compareVolumes orders like String does, and builds the strings only where
// the parts alone do not tell.
func compareVolumes(a, b *plugins.PodVolume) int {
	switch {
	case *a == *b:
		return 0
	case a.Pod != b.Pod && len(a.Pod) == len(b.Pod):
		return cmp.Compare(a.Pod, b.Pod)
	case a.Pod == b.Pod && a.Plugin == b.Plugin:
		return cmp.Compare(a.Name, b.Name)
	}
	return strings.Compare(a.String(), b.String())
}

func (q *pair) state() dsw.State {
	if q.wish == nil {
		return dsw.Unknown
	}
	return q.wish.State
}

// active reports whether something may be made for the pod.
func (q *pair) active() bool { return !q.held && q.state() == dsw.Wanted }

func (q *pair) volume() plugins.PodVolume {
	if q.wish != nil {
		return q.wish.Volume
	}
	return q.fact.Volume
}

func (q *pair) pod() types.UID { return q.volume().Pod }

// why explains an unknown wish.
func (q *pair) why() string {
	switch {
	case q.wish == nil:
		return "nobody has said whether the pod wants it"
	case q.wish.Why == "":
		return "it is not known yet whether the pod wants it"
	}
	return q.wish.Why
}

// who names the pod for people.
func (q *pair) who() string {
	switch {
	case q.wish != nil && q.wish.Pod != nil:
		return q.wish.Pod.Namespace + "/" + q.wish.Pod.Name
	case q.fact != nil && q.fact.Pod.Name != "":
		return q.fact.Pod.String()
	}
	return string(q.pod())
}

// before reports whether this wanted pod goes before that one: what is there
// before what is not, then the older pod, then the smaller name.
func (q *pair) before(other *pair) bool {
	if a, b := q.rank(), other.rank(); a != b {
		return a < b
	}
	if a, b := q.wish.Pod, other.wish.Pod; a != nil && b != nil {
		if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
			return a.CreationTimestamp.Before(&b.CreationTimestamp)
		}
		if a.Namespace != b.Namespace {
			return a.Namespace < b.Namespace
		}
		if a.Name != b.Name {
			return a.Name < b.Name
		}
	}
	return compareVolumes(&q.wish.Volume, &other.wish.Volume) < 0
}

func (q *pair) rank() int {
	switch {
	case q.fact == nil:
		return 2
	case q.fact.State == asw.Present:
		return 0
	}
	return 1
}

// misfit says why an entry cannot be brought to what is wished in place, ""
// if it can.
func misfit(w *dsw.PodWish, f *asw.PodVolume) string {
	switch {
	case w.Block != f.Block:
		return "the volume mode changed"
	case f.Found:
		return "" // the rest is not known of what an earlier process made
	case w.Params.SELinuxLabel != f.Params.SELinuxLabel:
		return "the SELinux label changed"
	case w.Params.ReadOnly != f.Params.ReadOnly:
		return "read-only changed"
	case !sameGroup(w.Params.FSGroup, f.Params.FSGroup):
		return "fsGroup changed"
	}
	return ""
}

func sameGroup(a, b *int64) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// grown reports whether a larger size is wished than the one that is known.
func grown(w *dsw.PodWish, f *asw.PodVolume) bool {
	if w.Params.Size == nil || f.Params.Size == nil {
		return false
	}
	size := *w.Params.Size // Cmp may write to its receiver, and wishes are shared
	return size.Cmp(*f.Params.Size) > 0
}
