package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/go-logr/logr"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// Names of the files in the journal's folder.
const (
	fileName    = "journal"
	lockName    = "lock"
	damagedName = "journal.damaged" // the last file in which damage was found
	asideGlob   = "journal.*.new"   // a file that is being written
)

// DefaultCompactAt is how many bytes of the file may be out of date before it
// is written anew.
const DefaultCompactAt = 1 << 20

var (
	// ErrLocked says that another journal has the folder open.
	ErrLocked = errors.New("the journal is in use")
	// ErrClosed says that the journal has been closed.
	ErrClosed = errors.New("the journal is closed")
)

// Options are what [Open] may be told.
type Options struct {
	// Namespace is the world as it is now. It is recorded.
	Namespace mount.Namespace
	// CompactAt is how many bytes of the file must be out of date, beside
	// being more than those that are not, before it is written anew. Zero
	// means [DefaultCompactAt].
	CompactAt int
	// Log takes what goes wrong without a caller to tell it to.
	Log logr.Logger
	// Faults is called at the points journal.append, journal.appended,
	// journal.sync, journal.compact and journal.renamed. An error there is as
	// good as one of the system call that comes next.
	Faults plugins.FaultFunc
}

// Journal is an open journal. It is safe for concurrent use. Errors of its
// methods are of class ClassTransient, or ClassPermanent where the record
// itself is at fault.
type Journal struct {
	dir     string
	options Options
	// filePath and lockPath are the files' names in dir.
	filePath, lockPath string
	found              Contents

	// turn is held, by putting a value in, by whoever writes to the file: a
	// lock which can be waited for with a context. It comes before mu.
	turn chan struct{}
	// The following belong to the holder of turn.
	text       []byte // room for what is written
	torn       bool   // an append failed, and its bytes are still behind size
	headDue    bool   // the namespace is not written yet
	closed     bool
	compacting bool
	compactAt  int64 // the garbage at which to compact next

	// mu guards what follows. It is never held across I/O. Only the holder of
	// turn changes lock, table, file and size.
	mu      sync.Mutex
	lock    *os.File
	lockID  identity
	fileID  identity
	table   table
	batch   *batch // the lines that are being gathered
	file    *os.File
	size    int64
	synced  uint64 // lines up to this one are on the disk
	suspect bool   // the file, or its name, may never reach the disk: write it anew
	round   *round
}

// Open opens the journal in dir, which is made if it is missing, and takes
// hold of it: a second Open of the same folder, in this process or in another,
// fails with an error that wraps [ErrLocked] and names the holder. A last line
// that was not finished is cut off. Where lines are damaged, Contents lists
// them, the file is kept beside the journal under another name, and a new one
// is written without them.
func Open(ctx context.Context, dir string, options Options) (*Journal, error) {
	if options.CompactAt <= 0 {
		options.CompactAt = DefaultCompactAt
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the journal's folder: %w", err)
	}
	lock, err := takeLock(filepath.Join(dir, lockName))
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	j := &Journal{dir: dir, options: options, lock: lock, turn: make(chan struct{}, 1)}
	j.filePath, j.lockPath = filepath.Join(dir, fileName), filepath.Join(dir, lockName)
	if j.lockID, err = identify(lock); err == nil {
		err = j.load(ctx)
	}
	if err != nil {
		if j.file != nil {
			_ = j.file.Close()
		}
		_ = lock.Close()
		return nil, err
	}
	return j, nil
}

// path is where the journal is.
func (j *Journal) path() string { return j.filePath }

// load reads the file and puts it in order.
func (j *Journal) load(ctx context.Context) error {
	j.clean()
	var err error
	j.file, err = openPlain(j.path(), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	if j.fileID, err = identify(j.file); err != nil {
		return fmt.Errorf("open journal: %w", err)
	}
	p := replay{file: j.path()}
	if err := p.read(j.file, func() error { return context.Cause(ctx) }); err != nil {
		return err
	}
	j.table, j.size, j.compactAt = p.table, p.end, int64(j.options.CompactAt)
	j.headDue = !p.headed || p.namespace != j.options.Namespace
	j.torn = !p.broken // so that the next append cuts off what is behind
	j.found = Contents{Namespace: p.namespace, Damaged: p.damaged}
	if len(p.damaged) > 0 {
		j.keepDamaged()
	}
	fresh := p.end == 0 && !p.broken
	switch {
	case p.broken:
		// Nothing may be written behind what cannot be read.
		return j.rewrite()
	case len(p.damaged) > 0 || j.wasteful():
		if err := j.rewrite(); err != nil {
			j.options.Log.Error(err, "Journal stays as it is")
		}
	}
	if err := j.repair(); err != nil {
		j.options.Log.Error(err, "Journal has no new header yet")
	}
	if fresh {
		if err := syncDir(j.dir); err != nil {
			return fmt.Errorf("sync the journal's folder: %w", err)
		}
	}
	return nil
}

// repair cuts off what was not finished and writes the header if it is due.
func (j *Journal) repair() error {
	if j.headDue {
		return j.append(nil)
	}
	return j.cut()
}

// clean removes what an interrupted compaction has left.
func (j *Journal) clean() {
	left, _ := filepath.Glob(filepath.Join(escapeGlob(j.dir), asideGlob))
	for _, name := range left {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			j.options.Log.Error(err, "Journal has left a file")
		}
	}
}

// keepDamaged gives the file a second name, which stays when the journal is
// written anew.
func (j *Journal) keepDamaged() {
	kept := filepath.Join(j.dir, damagedName)
	_ = os.Remove(kept)
	if err := os.Link(j.path(), kept); err != nil {
		j.options.Log.Error(err, "Damaged journal is not kept")
		return
	}
	for i := range j.found.Damaged {
		j.found.Damaged[i].File = kept
	}
}

// Contents is what the journal held when it was opened: the damage, and the
// namespace as it was before. The records are the live ones at the time of the
// call; they are read-only.
func (j *Journal) Contents() Contents {
	c := j.found
	c.Damaged = slices.Clone(c.Damaged)
	c.Records = j.All()
	return c
}

// All lists the live records in the order of their first appearance. They are
// read-only.
func (j *Journal) All() []Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.table.records()
}

// Get returns a record, which is read-only.
func (j *Journal) Get(key Key) (Record, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := j.table.entries[key]; e != nil {
		return e.Record, true
	}
	return Record{}, false
}

// Put records rec, in place of what its key held. When it returns nil the
// record survives the death of this process, and if rec.Durable is set also a
// power cut. A record that is there already costs next to nothing. Where
// somebody has removed the journal, or its folder, it is first written anew as
// a whole; if that cannot be, or another agent has taken the folder meanwhile
// ([ErrLocked]), that is an error. With an error it
// may be there or not: nobody may rely on it, and it may be put or deleted
// again.
func (j *Journal) Put(ctx context.Context, rec Record) error {
	j.mu.Lock()
	old := j.table.entries[rec.Key]
	j.mu.Unlock()
	if old != nil && same(&old.Record, &rec) && j.inPlace() {
		return j.durable(ctx, rec.Durable, old.seq)
	}
	if err := rec.check(); err != nil {
		return plugins.Permanent(err)
	}
	rec.Names, rec.Undo = slices.Clone(rec.Names), maps.Clone(rec.Undo)
	line, err := encode(opPut, &rec)
	if err != nil {
		return plugins.Permanent(err)
	}
	return j.change(ctx, &change{line: line, entry: &entry{Record: rec, size: int64(len(line))}}, rec.Durable)
}

// Delete forgets a record. durable is as for [Journal.Put]. To delete what is
// not there costs nothing.
func (j *Journal) Delete(ctx context.Context, key Key, durable bool) error {
	j.mu.Lock()
	_, ok := j.table.entries[key]
	j.mu.Unlock()
	if !ok {
		return nil
	}
	line, err := encode(opDel, &Record{Key: key})
	if err != nil {
		return plugins.Permanent(err)
	}
	return j.change(ctx, &change{line: line, key: key}, durable)
}

// take waits for the turn to write.
func (j *Journal) take(ctx context.Context) error {
	select {
	case j.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return waitEnded(ctx)
	}
}

func waitEnded(ctx context.Context) error {
	return fmt.Errorf("wait for the journal: %w", context.Cause(ctx))
}

// give lets the next one write.
func (j *Journal) give() { <-j.turn }

// append writes lines, and the header before them if that is due. It looks
// afterwards whether the file that has them is still the journal: what was
// written to a file that has no name any more is not recorded. The caller has
// the turn. With an error the file is as before.
func (j *Journal) append(lines []byte) error {
	if err := j.tryAppend(lines); err != nil {
		return fmt.Errorf("append to journal: %w", err)
	}
	return nil
}

func (j *Journal) tryAppend(lines []byte) error {
	if j.closed {
		return ErrClosed
	}
	if err := j.options.Faults.At("journal.append"); err != nil {
		return err
	}
	if j.suspected() {
		if err := j.rewrite(); err != nil {
			return err
		}
	}
	for tries := 0; ; tries++ {
		before, headDue := j.size, j.headDue
		if err := j.write(lines); err != nil {
			return err
		}
		if j.inPlace() {
			return nil
		}
		// As before, so that the file may serve if it comes back.
		j.mu.Lock()
		j.size = before
		j.mu.Unlock()
		j.torn, j.headDue = true, headDue
		if tries == maxRestores {
			return errRemoved
		}
		if err := j.restore(); err != nil {
			return errors.Join(err, j.cut())
		}
	}
}

// maxRestores is how often one append brings a removed journal back.
const maxRestores = 2

// write writes lines at the end of the file.
func (j *Journal) write(lines []byte) error {
	if err := j.cut(); err != nil {
		return err
	}
	headed := j.headDue
	if headed {
		head, err := encodeHead(j.options.Namespace)
		if err != nil {
			return err
		}
		lines = append(head, lines...)
	}
	j.torn = true
	_, err := j.file.WriteAt(lines, j.size)
	if err == nil {
		err = j.options.Faults.At("journal.appended")
	}
	if err != nil {
		return errors.Join(err, j.cut())
	}
	j.torn, j.headDue = false, j.headDue && !headed
	j.mu.Lock()
	j.size += int64(len(lines))
	j.mu.Unlock()
	return nil
}

// suspected reports whether nothing may rely on the file any more.
func (j *Journal) suspected() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.suspect
}

// cut removes what a failed append has left behind the last good line.
func (j *Journal) cut() error {
	if !j.torn {
		return nil
	}
	if err := j.file.Truncate(j.size); err != nil {
		return fmt.Errorf("cut off an unfinished line: %w", err)
	}
	j.torn = false
	return nil
}

// Close gives the folder free. Later calls fail with [ErrClosed]; a second
// Close does nothing.
func (j *Journal) Close() error {
	j.turn <- struct{}{}
	defer j.give()
	if j.closed {
		return nil
	}
	j.closed = true
	return errors.Join(j.file.Close(), j.lock.Close())
}

// Read shows what the journal in dir holds. It takes no lock and changes
// nothing. While an agent writes, the result is what the file held at some
// moment; a line that is being written is not seen. Where there is no journal
// the error wraps [fs.ErrNotExist].
func Read(dir string) (Contents, error) {
	name := filepath.Join(dir, fileName)
	f, err := openPlain(name, os.O_RDONLY)
	if err != nil {
		return Contents{}, fmt.Errorf("open journal: %w", err)
	}
	defer func() { _ = f.Close() }()
	p := replay{file: name}
	if err := p.read(f, func() error { return nil }); err != nil {
		return Contents{}, err
	}
	return Contents{Namespace: p.namespace, Records: p.records(), Damaged: p.damaged}, nil
}
