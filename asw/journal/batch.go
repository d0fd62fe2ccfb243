package journal

import (
	"context"
	"errors"
	"slices"

	"github.com/volumekit/volumekit/plugins"
)

// change is a line and its meaning.
type change struct {
	line  []byte
	key   Key
	entry *entry // nil for a deletion
	left  bool   // nobody waits for it any more
}

// batch is lines that are written at once. Who finds none that is being
// gathered begins one and leads it: it waits for the turn to write, while the
// others join. So a burst costs few writes, and no queue for the turn that is
// as long as the burst is wide.
type batch struct {
	changes []*change // guarded by the journal's mu
	done    chan struct{}
	// last is the number of its last line, err how it ended. Both are set
	// before done is closed.
	last uint64
	err  error
}

// errNoLeader is the end of a batch whose leader could not wait: nothing of it
// was written.
var errNoLeader = errors.New("nobody led the batch")

// enter has a change written and entered. due says that it is worth while to
// compact.
func (j *Journal) enter(ctx context.Context, c *change) (seq uint64, due bool, err error) {
	for {
		b, leads := j.join(c)
		if leads {
			due, err = j.writeBatch(ctx, b)
			return b.last, due, err
		}
		select {
		case <-b.done:
		case <-ctx.Done():
			if j.leave(b, c) {
				return 0, false, waitEnded(ctx)
			}
			<-b.done // it is being written
		}
		if !errors.Is(b.err, errNoLeader) {
			return b.last, false, b.err
		}
	}
}

// join adds a change to the batch that is being gathered, or begins one.
func (j *Journal) join(c *change) (b *batch, leads bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if leads = j.batch == nil; leads {
		j.batch = &batch{done: make(chan struct{})}
	}
	j.batch.changes = append(j.batch.changes, c)
	return j.batch, leads
}

// leave takes a change back, unless it is being written.
func (j *Journal) leave(b *batch, c *change) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	c.left = j.batch == b
	return c.left
}

// writeBatch gathers until it has the turn, and writes. The batch ends in every
// case, also where a hook or a log panics.
func (j *Journal) writeBatch(ctx context.Context, b *batch) (due bool, err error) {
	ended := errNoLeader
	defer func() {
		b.err = ended
		close(b.done)
	}()
	if err := j.take(ctx); err != nil {
		j.seal(b)
		return false, err
	}
	defer j.give()
	ended = errUnfinished
	changes := j.seal(b)
	j.text = j.text[:0]
	for _, c := range changes {
		j.text = append(j.text, c.line...)
	}
	if ended = j.append(j.text); ended != nil {
		return false, ended
	}
	j.mu.Lock()
	for _, c := range changes {
		j.table.take(c)
	}
	b.last = j.table.lines
	j.mu.Unlock()
	return j.wasteful() && !j.compacting && !j.closed && canReplace, nil
}

// seal ends the gathering, and returns what is to be written.
func (j *Journal) seal(b *batch) []*change {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.batch = nil
	return slices.DeleteFunc(b.changes, func(c *change) bool { return c.left })
}

// take enters a change.
func (t *table) take(c *change) {
	if c.entry == nil {
		t.del(c.key)
		return
	}
	t.put(c.entry)
}

// change has a line written, and compacts if that is worth while.
func (j *Journal) change(ctx context.Context, c *change, durable bool) error {
	seq, due, err := j.enter(ctx, c)
	if err != nil {
		return plugins.Transient(err)
	}
	if due {
		j.compact()
	}
	return j.durable(ctx, durable, seq)
}
