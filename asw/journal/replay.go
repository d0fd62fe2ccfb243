package journal

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/volumekit/volumekit/mount"
)

// ErrVersion says that the journal has a format which this program does not
// know. It is left as it is.
var ErrVersion = errors.New("unknown version of the journal")

// maxDamages limits what is reported of one file.
const maxDamages = 1000

// entry is a live record. It is never changed, only replaced.
type entry struct {
	Record
	// order is the place of the record's first appearance.
	order uint64
	// seq is the number of the line that holds it, size that line's length.
	seq  uint64
	size int64
}

// table is the live records.
type table struct {
	entries map[Key]*entry
	// lines counts all lines, live and not.
	lines uint64
	// live is the length of the lines that hold live records.
	live int64
}

// put enters a record, whose place it tells.
func (t *table) put(e *entry) {
	t.lines++
	e.order, e.seq = t.lines, t.lines
	if old := t.entries[e.Key]; old != nil {
		e.order = old.order
		t.live -= old.size
	}
	t.live += e.size
	t.entries[e.Key] = e
}

func (t *table) del(key Key) {
	t.lines++
	if old := t.entries[key]; old != nil {
		t.live -= old.size
		delete(t.entries, key)
	}
}

// records lists the live ones in the order of their first appearance.
func (t *table) records() []Record {
	list := make([]*entry, 0, len(t.entries))
	for _, e := range t.entries {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *entry) int { return cmp.Compare(a.order, b.order) })
	records := make([]Record, len(list))
	for i := range list {
		records[i] = list[i].Record
	}
	return records
}

// replay is what a file holds.
type replay struct {
	table
	namespace mount.Namespace
	headed    bool
	damaged   []Damage
	// end is where the last whole line ends: what follows was never finished.
	end int64
	// broken is true if the file could not be read to its end.
	broken bool

	file string
	line int
}

// read takes in a whole file. It fails only for an unknown version and when
// ended, which is asked now and then, returns an error: damage is listed and
// read over.
func (p *replay) read(r io.Reader, ended func() error) error {
	p.entries = make(map[Key]*entry)
	in := bufio.NewReaderSize(r, maxLine)
	for {
		if p.line&0x3ff == 0 {
			if err := ended(); err != nil {
				return fmt.Errorf("read journal: %w", err)
			}
		}
		p.line++
		line, err := in.ReadSlice('\n')
		size := int64(len(line))
		long := errors.Is(err, bufio.ErrBufferFull)
		for errors.Is(err, bufio.ErrBufferFull) {
			line, err = in.ReadSlice('\n')
			size += int64(len(line))
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil // size bytes of a line that was never finished
		case err != nil:
			p.broken = true
			p.damage(nil, fmt.Sprintf("the rest cannot be read: %v", err))
			return nil
		case long:
			p.damage(nil, fmt.Sprintf("a line of %d bytes is too long", size))
		default:
			if err := p.take(line[:len(line)-1]); err != nil {
				return err
			}
		}
		p.end += size
	}
}

// take takes in one line without its end.
func (p *replay) take(line []byte) error {
	w, key, err := decode(line)
	if err != nil {
		p.damage(key, err.Error())
		return nil
	}
	switch w.Op {
	case opHead:
		if w.Version != version {
			return fmt.Errorf("%s, line %d: %w: %d (this program knows %d)", p.file, p.line, ErrVersion, w.Version, version)
		}
		p.headed, p.namespace = true, mount.Namespace{}
		if w.Namespace != nil {
			p.namespace = *w.Namespace
		}
	case opPut:
		p.put(&entry{Record: w.Record, size: int64(len(line)) + 1})
	case opDel:
		p.del(w.Key)
	}
	return nil
}

func (p *replay) damage(key *Key, reason string) {
	switch n := len(p.damaged); {
	case n < maxDamages:
		p.damaged = append(p.damaged, Damage{File: p.file, Line: p.line, Key: key, Reason: reason})
	case n == maxDamages:
		p.damaged = append(p.damaged, Damage{File: p.file, Line: p.line, Reason: "this and further damages are not listed"})
	}
}
