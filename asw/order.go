package asw

import (
	"cmp"
	"slices"
	"strings"

	"github.com/volumekit/volumekit/plugins"
)

// order keeps the volumes in the order in which they came, so that a walk can
// be interrupted and resumed by number while volumes come and go.
type order struct {
	last  uint64
	slots []slot // ascending by seq
	holes int    // slots whose volume is gone
}

// slot is a volume's place; id is empty when the volume is gone.
type slot struct {
	seq uint64
	id  plugins.VolumeID
}

func (o *order) add(id plugins.VolumeID) uint64 {
	o.last++
	o.slots = append(o.slots, slot{o.last, id})
	return o.last
}

func (o *order) remove(seq uint64) {
	at, ok := o.search(seq)
	if !ok {
		return
	}
	o.slots[at].id = ""
	o.holes++
	if o.holes > 64 && o.holes > len(o.slots)/2 {
		left := slices.DeleteFunc(o.slots, func(s slot) bool { return s.id == "" })
		o.slots = slices.Clone(left) // gives the large array back
		o.holes = 0
	}
}

func (o *order) search(seq uint64) (int, bool) {
	return slices.BinarySearchFunc(o.slots, seq, func(s slot, seq uint64) int { return cmp.Compare(s.seq, seq) })
}

// slice appends volumes behind after, and not behind upTo, to ids until that is
// full, and returns the last one's number, or zero at the end.
func (o *order) slice(after, upTo uint64, ids []plugins.VolumeID) ([]plugins.VolumeID, uint64) {
	at, _ := o.search(after + 1)
	for ; at < len(o.slots) && o.slots[at].seq <= upTo; at++ {
		s := o.slots[at]
		if s.id == "" {
			continue
		}
		if len(ids) == cap(ids) {
			return ids, after
		}
		ids, after = append(ids, s.id), s.seq
	}
	return ids, 0
}

// comparePodVolumes orders like the strings of both, without making them.
func comparePodVolumes(a, b plugins.PodVolume) int {
	for _, pair := range [...][2]string{{string(a.Pod), string(b.Pod)}, {a.Plugin, b.Plugin}, {a.Name, b.Name}} {
		x, y := pair[0], pair[1]
		n := min(len(x), len(y))
		if c := strings.Compare(x[:n], y[:n]); c != 0 {
			return c
		}
		if len(x) != len(y) { // what follows the shorter one decides
			return strings.Compare(a.String(), b.String())
		}
	}
	return 0
}
