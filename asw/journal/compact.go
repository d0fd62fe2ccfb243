package journal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// aside is a journal that is being written beside the present one.
type aside struct {
	file *os.File
	size int64
	// from is up to where of the present file it says the same.
	from int64
}

// drop gives up.
func (a *aside) drop() {
	_ = a.file.Close()
	_ = os.Remove(a.file.Name())
}

// wasteful reports whether the file is worth to be written anew. The caller
// has the turn.
func (j *Journal) wasteful() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	garbage := j.size - j.table.live
	return garbage > j.compactAt && garbage > j.table.live
}

// compact writes the file anew without what is out of date. Others go on
// appending to the old one until the new one has reached the disk; what they
// appended is then copied, and the file replaced. A failure does no harm, is
// logged, and tried again when as much garbage has come again.
func (j *Journal) compact() {
	j.turn <- struct{}{}
	if j.compacting || j.closed {
		j.give()
		return
	}
	j.compacting = true
	old, from := j.file, j.size
	records := j.All()
	j.give()

	a, err := j.writeAside(records, from)

	j.turn <- struct{}{}
	defer j.give()
	j.compacting = false
	if err == nil {
		if j.file != old || j.closed || j.suspected() {
			a.drop()
			return
		}
		err = j.adopt(a)
	}
	if err != nil {
		j.compactAt += int64(j.options.CompactAt)
		j.options.Log.Error(err, "Journal was not compacted")
	}
}

// rewrite writes the file anew from memory. The caller has the turn and keeps
// it.
func (j *Journal) rewrite() error {
	a, err := j.writeAside(j.All(), j.size)
	if err != nil {
		return err
	}
	return j.adopt(a)
}

// writeAside writes records to a new file that has a name of its own and is on
// the disk when it returns.
func (j *Journal) writeAside(records []Record, from int64) (*aside, error) {
	file, err := os.CreateTemp(j.dir, asideGlob) // mode 0600
	if err != nil {
		return nil, fmt.Errorf("write journal anew: %w", err)
	}
	a := &aside{file: file, from: from}
	if err := a.fill(j, records); err != nil {
		a.drop()
		return nil, fmt.Errorf("write journal anew: %w", err)
	}
	return a, nil
}

func (a *aside) fill(j *Journal, records []Record) error {
	out := bufio.NewWriterSize(a.file, 64<<10)
	line, err := encodeHead(j.options.Namespace)
	if err != nil {
		return err
	}
	a.size = int64(len(line))
	if _, err := out.Write(line); err != nil {
		return err
	}
	for i := range records {
		line, err := encode(opPut, &records[i])
		if err != nil {
			return err
		}
		a.size += int64(len(line))
		if _, err := out.Write(line); err != nil {
			return err
		}
	}
	return errors.Join(out.Flush(), a.file.Sync())
}

// adopt makes a the journal. The caller has the turn.
func (j *Journal) adopt(a *aside) error {
	if err := j.replace(a); err != nil {
		a.drop()
		return fmt.Errorf("replace journal: %w", err)
	}
	// From here on the new file is the journal, whatever happens.
	id, err := identify(a.file)
	if err == nil {
		err = j.options.Faults.At("journal.renamed")
	}
	if err == nil {
		err = syncDir(j.dir)
	}
	j.torn, j.headDue = false, false
	j.compactAt = int64(j.options.CompactAt)
	j.mu.Lock()
	old := j.file
	j.file, j.fileID, j.size = a.file, id, a.size
	j.suspect = err != nil // a power cut could bring the old file back
	if err == nil {
		j.synced = j.table.lines
	}
	j.mu.Unlock()
	_ = old.Close()
	if err != nil {
		return fmt.Errorf("sync the journal's folder: %w", err)
	}
	return nil
}

// replace copies what was appended since and gives the new file its name.
func (j *Journal) replace(a *aside) error {
	if tail := j.size - a.from; tail > 0 {
		n, err := io.Copy(io.NewOffsetWriter(a.file, a.size), io.NewSectionReader(j.file, a.from, tail))
		if err == nil && n != tail {
			err = io.ErrUnexpectedEOF
		}
		if err == nil {
			err = dataSync(a.file)
		}
		if err != nil {
			return err
		}
		a.size += tail
	}
	if err := j.options.Faults.At("journal.compact"); err != nil {
		return err
	}
	if !j.holdsLock() {
		return fmt.Errorf("%s: %w", j.dir, errNotOurs) // it may be another agent's by now
	}
	return os.Rename(a.file.Name(), j.path())
}

// errNotOurs says that the folder at the journal's name is not the locked one.
var errNotOurs = errors.New("the folder is not the one that is locked")

// escapeGlob takes the meaning from the characters of a path that
// [path/filepath.Glob] knows.
func escapeGlob(path string) string {
	return strings.NewReplacer(`*`, `[*]`, `?`, `[?]`, `[`, `[[]`).Replace(path)
}
