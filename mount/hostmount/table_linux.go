package hostmount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// snapshot is the mount table at one moment. Nobody changes it.
type snapshot struct {
	// ids are all that the kernel listed, in order; nil for a table from text.
	ids []uint64
	// rows are in the order of their ids, table in mount order.
	rows  []mount.Entry
	table mount.Table
}

// tables keeps the mount table between calls.
//
// The kernel says that the table changed, not what (poll(2) on mountinfo), and
// says it for our own mounts too. It says nothing of a change of propagation,
// and loses a notice now and then where namespaces are busy side by side: on
// Linux 6.18 one in a hundred about unmounts, half of those about remounts. So
// a table counts as current while there was no notice, this mounter changed
// nothing and it is not older than the interval.
//
// Else Linux 6.13 and later are asked for the list of mount ids, 8 bytes a
// mount, and only mounts that are new are read: whatever came or went costs no
// reading of the whole table. If there was a notice, nothing came or went and
// this mounter did nothing, then somebody changed a mount in place (made it
// read-only, moved it), and everything is read again, once per interval at
// most. Since such notices are lost, everything is also read again by a call
// that comes wholeAge intervals after the last time.
//
// Older kernels give the text alone, which is read as a whole in each of these
// cases.
//
// A folder that is renamed moves the mounts below it without a notice.
type tables struct {
	mu      sync.Mutex
	file    *os.File      // mountinfo, to be polled
	reading chan struct{} // not nil while somebody reads; closed afterwards
	current *snapshot     // nil if unknown
	text    bool          // there is the text only
	inPlace bool          // a mount was changed in place and not yet read
	full    time.Time     // when everything was read last
	checked time.Time     // when the kernel was asked last
	done    uint64        // calls of our own that finished before the last reading
	reads   int           // how often everything was read, for tests
}

// wholeAge is after how many intervals everything is read again without a sign
// that it has changed.
const wholeAge = 60

// Table implements [mount.Mounter]. It comes from a cache that follows what this
// mounter does at once, and what others mount and unmount at once or, where the
// kernel does not say it, after Options.TableInterval. Changes that others make
// to a mount in place (its flags, its propagation) may be seen as late as 60
// such intervals after.
//
// The ids are the unique ones of [mount.Point] since Linux 6.13; before that
// they are those of proc_pid_mountinfo(5).
func (m *Mounter) Table(ctx context.Context) (mount.Table, error) {
	s, err := m.snapshot(ctx, false)
	if err != nil {
		return nil, fmt.Errorf("mount table: %w", err)
	}
	return s.table, nil
}

// snapshot returns the table. With again everything is read.
func (m *Mounter) snapshot(ctx context.Context, again bool) (*snapshot, error) {
	t := &m.host.tables
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		now := m.options.Clock.Now()
		t.mu.Lock()
		if wait := t.reading; wait != nil {
			t.mu.Unlock()
			select {
			case <-wait:
				continue
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		job, err := m.plan(now, again)
		if err != nil || job == nil {
			s := t.current
			t.mu.Unlock()
			return s, err
		}
		done := make(chan struct{})
		t.reading = done
		t.mu.Unlock()
		result, err := job.run()
		t.mu.Lock()
		t.reading = nil
		close(done)
		t.keep(job, result, err)
		t.mu.Unlock()
		return result, err
	}
}

// reader is one reading of the table.
type reader struct {
	file *os.File
	// base is the table to start from; nil reads everything.
	base *snapshot
	// foreign is true if there was a notice that this mounter did not cause. If
	// no mount came or went then, one was changed in place.
	foreign bool
	// early is true if it is too early to read everything for that.
	early bool
	text  bool
	now   time.Time
	// done counts what this mounter had done by now.
	done uint64

	// all and inPlace say how it went.
	all, inPlace bool
}

// plan decides what has to be read; nil if nothing. Its caller holds the lock.
func (m *Mounter) plan(now time.Time, again bool) (*reader, error) {
	t := &m.host.tables
	if t.file == nil {
		file, err := os.Open(mountinfoPath)
		if err != nil {
			return nil, err
		}
		t.file = file
		t.text = m.options.Classic || !canStatmount()
	}
	noticed, err := pollChanged(t.file)
	if err != nil {
		return nil, err
	}
	r := &reader{file: t.file, base: t.current, text: t.text, now: now, done: m.host.own.finished.Load()}
	r.early = now.Sub(t.full) < m.options.TableInterval
	ours := r.done != t.done
	r.foreign = noticed && !ours
	whole := again || t.current == nil || (t.inPlace && !r.early) || now.Sub(t.full) >= wholeAge*m.options.TableInterval
	old := now.Sub(t.checked) >= m.options.TableInterval
	if !whole && !noticed && !ours && !old {
		return nil, nil //nolint:nilnil // nothing to read
	}
	if whole {
		r.base = nil
	}
	return r, nil
}

// keep stores a reading. Its caller holds the lock.
func (t *tables) keep(r *reader, s *snapshot, err error) {
	if err != nil { // the notice that led here is used up
		t.current = nil
		return
	}
	t.current, t.done, t.checked = s, r.done, r.now
	if r.all {
		t.full, t.inPlace = r.now, false
		t.reads++
	}
	t.inPlace = t.inPlace || r.inPlace
}

func (r *reader) run() (*snapshot, error) {
	if r.text {
		r.all = true
		table, err := readMountinfo()
		if err != nil {
			return nil, err
		}
		return newSnapshot(table), nil
	}
	s := r.base
	for range 5 { // what changes meanwhile is caught up with
		next, err := r.step(s)
		if err != nil {
			return nil, err
		}
		s = next
		if changed, err := pollChanged(r.file); err != nil || !changed {
			return s, err
		}
	}
	return s, nil
}

// step brings base up to date.
func (r *reader) step(base *snapshot) (*snapshot, error) {
	ids, err := listMounts()
	if err != nil {
		return nil, fmt.Errorf("listmount: %w", err)
	}
	if base != nil && slices.Equal(ids, base.ids) {
		if !r.foreign || r.early {
			r.inPlace = r.inPlace || r.foreign
			return base, nil
		}
		base = nil
	}
	if base == nil {
		base = &snapshot{}
		r.all, r.inPlace = true, false
	}
	rows, err := base.follow(ids)
	if err != nil {
		return nil, err
	}
	s := newSnapshot(rows)
	s.ids = ids
	return s, nil
}

// follow returns the mounts with the given ids, of which it reads those that s
// lacks.
func (s *snapshot) follow(ids []uint64) ([]mount.Entry, error) {
	var stat statMounter
	rows := make([]mount.Entry, 0, len(ids))
	old := s.rows
	for _, id := range ids {
		for len(old) > 0 && old[0].ID < id {
			old = old[1:]
		}
		if len(old) > 0 && old[0].ID == id {
			rows = append(rows, old[0])
			continue
		}
		e, err := stat.stat(id)
		if errors.Is(err, unix.ENOENT) {
			continue // gone meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("statmount: %w", err)
		}
		if e.Target != "" { // else it lies outside of our root
			rows = append(rows, e)
		}
	}
	return rows, nil
}

func newSnapshot(table mount.Table) *snapshot {
	rows := table
	byID := func(a, b mount.Entry) int {
		switch {
		case a.ID < b.ID:
			return -1
		case a.ID > b.ID:
			return 1
		}
		return 0
	}
	if !slices.IsSortedFunc(rows, byID) {
		rows = slices.Clone(rows)
		slices.SortStableFunc(rows, byID)
	}
	return &snapshot{rows: rows, table: mountOrder(table)}
}

// mountOrder puts mounts on one target into the order in which they lie on
// each other. It differs from that of their ids where a mount was made first
// and attached later.
func mountOrder(table mount.Table) mount.Table {
	place := make(map[uint64]int, len(table))
	for i := range table {
		place[table[i].ID] = i
	}
	cloned := false
	for again := true; again; {
		again = false
		for i := range table {
			j, ok := place[table[i].Parent]
			if !ok || j <= i || table[j].Target != table[i].Target {
				continue
			}
			if !cloned { // rows may share the memory
				table, cloned = slices.Clone(table), true
			}
			table[i], table[j] = table[j], table[i]
			place[table[i].ID], place[table[j].ID] = i, j
			again = true
		}
	}
	return table
}
