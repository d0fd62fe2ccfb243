package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/volumekit/volumekit/plugins"
)

// round is one fdatasync(2) that several callers wait for.
type round struct {
	done chan struct{}
	// upTo is the last line that it covers, err how it ended. Both are set
	// before done is closed.
	upTo uint64
	err  error
}

// durable waits until the line is on the disk, if that is asked for. The first
// caller who finds no round under way leads one for all lines that are written
// by then; the others wait for it, or lead the next.
func (j *Journal) durable(ctx context.Context, asked bool, seq uint64) error {
	for asked {
		j.mu.Lock()
		if j.synced >= seq {
			j.mu.Unlock()
			return nil
		}
		r := j.round
		if r == nil {
			r = &round{done: make(chan struct{}), upTo: j.table.lines}
			j.round = r
			j.mu.Unlock()
			j.lead(r)
			return r.err
		}
		j.mu.Unlock()
		select {
		case <-r.done:
			if r.upTo >= seq && r.err != nil {
				return r.err
			}
		case <-ctx.Done():
			return plugins.Transient(fmt.Errorf("wait for the journal to reach the disk: %w", context.Cause(ctx)))
		}
	}
	return nil
}

// lead brings the lines of a round to the disk. The round ends in every case,
// also where a hook or a log panics.
func (j *Journal) lead(r *round) {
	err := errUnfinished
	defer func() {
		j.mu.Lock()
		if err == nil {
			j.synced = max(j.synced, r.upTo)
		} else {
			r.err = plugins.Transient(fmt.Errorf("sync journal: %w", err))
		}
		j.round = nil
		j.mu.Unlock()
		close(r.done)
	}()
	failed := j.syncFile()
	if failed != nil {
		failed = j.rescue(r.upTo, failed)
	}
	err = failed
}

// errUnfinished is what others are told of a sync that never came to an end.
var errUnfinished = errors.New("it was not finished")

// syncFile syncs the present file. Once that has failed it is never tried
// again on the same one.
func (j *Journal) syncFile() error {
	j.mu.Lock()
	file, suspect := j.file, j.suspect
	j.mu.Unlock()
	if suspect {
		return errSuspect
	}
	err := j.options.Faults.At("journal.sync")
	if err == nil {
		err = dataSync(file)
	}
	if err != nil {
		j.mu.Lock()
		j.suspect = j.suspect || j.file == file
		j.mu.Unlock()
	}
	return err
}

// errSuspect is the cause where an earlier sync has failed.
var errSuspect = errors.New("an earlier sync of the journal failed")

// rescue follows a failed sync. The kernel may have dropped the pages and
// count them as written, so that the next sync of the same file would succeed
// without the data: only another file can be trusted.
func (j *Journal) rescue(upTo uint64, cause error) error {
	j.turn <- struct{}{}
	defer j.give()
	j.mu.Lock()
	replaced := j.synced >= upTo
	j.mu.Unlock()
	switch {
	case replaced:
		return nil // the file was written anew meanwhile, and the old one closed
	case j.closed:
		return ErrClosed
	}
	if err := j.rewrite(); err != nil {
		return fmt.Errorf("%w (and then: %w)", cause, err)
	}
	j.options.Log.Error(cause, "Journal was written anew after a failed sync")
	return nil
}
