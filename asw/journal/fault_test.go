package journal_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/plugins"
)

// faults fails at chosen points.
type faults struct {
	mu   sync.Mutex
	fail map[string]error
	hits map[string]int
}

func (f *faults) at(point string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hits == nil {
		f.hits = map[string]int{}
	}
	f.hits[point]++
	return f.fail[point]
}

func (f *faults) set(point string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = map[string]error{point: err}
}

var errDisk = errors.New("disk says no")

func TestFailedAppendLeavesNothing(t *testing.T) {
	for _, point := range []string{"journal.append", "journal.appended"} {
		dir := t.TempDir()
		var f faults
		j := open(t, dir, journal.Options{Faults: f.at})
		must(t, j.Put(t.Context(), record(1)))
		before := read(t, logFile(dir))
		f.set(point, errDisk)
		err := j.Put(t.Context(), record(2))
		if !errors.Is(err, errDisk) || plugins.ClassOf(err) != plugins.ClassTransient {
			t.Errorf("%s: %v", point, err)
		}
		if err := j.Delete(t.Context(), record(1).Key, false); !errors.Is(err, errDisk) {
			t.Errorf("%s: %v", point, err)
		}
		if !bytes.Equal(before, read(t, logFile(dir))) || names(j.All()) != "1" {
			t.Errorf("%s: something is left", point)
		}
		f.set("", nil)
		must(t, j.Put(t.Context(), record(2)))
		if c, _ := journal.Read(dir); names(c.Records) != "1 2" || len(c.Damaged) > 0 {
			t.Errorf("%s: %+v", point, c)
		}
	}
}

// TestFailedSync: after a failed sync only another file can be trusted.
func TestFailedSync(t *testing.T) {
	dir := t.TempDir()
	var f faults
	j := open(t, dir, journal.Options{Faults: f.at})
	must(t, j.Put(t.Context(), durable(1)))
	info, err := os.Stat(logFile(dir))
	must(t, err)
	f.set("journal.sync", errDisk)
	if err := j.Put(t.Context(), durable(2)); err != nil {
		t.Errorf("a new file was to be had: %v", err)
	}
	after, err := os.Stat(logFile(dir))
	must(t, err)
	if os.SameFile(info, after) {
		t.Error("the file was not replaced")
	}
	// When the new file fails as well, nothing is promised any more...
	f.mu.Lock()
	f.fail = map[string]error{"journal.sync": errDisk, "journal.compact": errDisk}
	f.mu.Unlock()
	if err := j.Put(t.Context(), durable(3)); !errors.Is(err, errDisk) {
		t.Errorf("Put: %v", err)
	}
	f.set("journal.compact", errDisk) // the sync would succeed now, and lie
	if err := j.Put(t.Context(), durable(3)); !errors.Is(err, errDisk) {
		t.Errorf("Put of what is there but not safe: %v", err)
	}
	if err := j.Put(t.Context(), record(4)); !errors.Is(err, errDisk) {
		t.Errorf("Put behind a failed sync: %v", err)
	}
	f.set("", nil)
	must(t, j.Put(t.Context(), durable(3)))
	must(t, j.Put(t.Context(), record(4)))
	must(t, j.Close())
	if c := open(t, dir, journal.Options{}).Contents(); names(c.Records) != "1 2 3 4" || len(c.Damaged) > 0 {
		t.Errorf("%+v", c)
	}
}

// TestGroupCommit: many writers share few syncs.
func TestGroupCommit(t *testing.T) {
	var f faults
	first := make(chan struct{})
	var once sync.Once
	j := open(t, t.TempDir(), journal.Options{Faults: func(p string) error {
		if p == "journal.sync" {
			once.Do(func() { <-first })
		}
		return f.at(p)
	}})
	const writers = 40
	var written atomic.Int32
	var all sync.WaitGroup
	for n := range writers {
		all.Go(func() {
			if err := j.Put(t.Context(), durable(n)); err != nil {
				t.Error(err)
			}
			written.Add(1)
		})
	}
	for len(j.All()) < writers {
		runtime.Gosched()
	}
	if written.Load() > 0 {
		t.Error("a Put returned before any sync had ended")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := j.Put(ctx, durable(0)); !errors.Is(err, context.Canceled) {
		t.Errorf("Put with an ended context waits: %v", err)
	}
	close(first)
	all.Wait()
	if n := f.hits["journal.sync"]; n > 2 {
		t.Errorf("%d syncs for %d writers of which one was ahead", n, writers)
	}
}

func TestCompaction(t *testing.T) {
	dir := t.TempDir()
	var f faults
	j := open(t, dir, journal.Options{CompactAt: 10_000, Faults: f.at})
	for n := range 10 {
		must(t, j.Put(t.Context(), durable(n)))
	}
	var largest int64
	for n := range 2000 {
		must(t, j.Put(t.Context(), record(100+n)))
		must(t, j.Delete(t.Context(), record(100+n).Key, false))
		info, err := os.Stat(logFile(dir))
		must(t, err)
		largest = max(largest, info.Size())
	}
	if largest > 20_000 || f.hits["journal.renamed"] < 10 {
		t.Errorf("%d bytes, %d compactions", largest, f.hits["journal.renamed"])
	}
	must(t, j.Close())
	if c := open(t, dir, journal.Options{}).Contents(); names(c.Records) != "0 1 2 3 4 5 6 7 8 9" || len(c.Damaged) > 0 || c.Namespace != here {
		t.Errorf("%+v", c)
	}
}

func TestFailedCompactionIsNoHarm(t *testing.T) {
	for _, point := range []string{"journal.compact", "journal.renamed"} {
		dir := t.TempDir()
		var f faults
		j := open(t, dir, journal.Options{CompactAt: 1000, Faults: f.at})
		f.set(point, errDisk)
		var failed int
		for n := range 20 {
			if j.Put(t.Context(), record(n)) != nil {
				failed++
			}
			if j.Delete(t.Context(), record(n-1).Key, false) != nil {
				failed++
			}
		}
		if (failed > 0) != (point == "journal.renamed") {
			t.Errorf("%s: %d changes failed", point, failed)
		}
		if f.hits["journal.compact"] == 0 {
			t.Errorf("%s: no compaction", point)
		}
		f.set("", nil)
		must(t, j.Put(t.Context(), durable(30)))
		want := names(j.All())
		must(t, j.Close())
		if c := open(t, dir, journal.Options{}).Contents(); names(c.Records) != want || len(c.Damaged) > 0 {
			t.Errorf("%s: %q, want %q", point, names(c.Records), want)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*.new")); len(left) > 0 {
			t.Errorf("%s: %v left", point, left)
		}
	}
}

func TestLeftoversAreCleaned(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "odd [name]*")
	must(t, os.Mkdir(dir, 0o700))
	left := filepath.Join(dir, "journal.123.new")
	must(t, os.WriteFile(left, []byte("x"), 0o600))
	open(t, dir, journal.Options{})
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the file of an interrupted compaction is still there")
	}
}

// TestManyWriters puts and deletes from many goroutines while the journal is
// compacted again and again, and compares with what each knows of its own.
func TestManyWriters(t *testing.T) {
	dir := t.TempDir()
	var f faults
	j := open(t, dir, journal.Options{CompactAt: 5_000, Faults: f.at})
	const writers, steps = 8, 150
	var mine [writers]map[int]bool
	var all sync.WaitGroup
	for w := range writers {
		mine[w] = map[int]bool{}
		all.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			for range steps {
				n := w*100 + random.IntN(10)
				var err error
				if mine[w][n] = !mine[w][n]; mine[w][n] {
					rec := record(n)
					rec.Durable = random.IntN(10) == 0
					err = j.Put(t.Context(), rec)
				} else {
					err = j.Delete(t.Context(), record(n).Key, false)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			if c, err := journal.Read(dir); err != nil || len(c.Damaged) > 0 {
				t.Errorf("Read beside the writers: %v %v", err, c.Damaged)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	all.Wait()
	close(stop)
	reader.Wait()
	must(t, j.Close())
	c := open(t, dir, journal.Options{}).Contents()
	got := map[string]bool{}
	for _, r := range c.Records {
		got[r.Volume.Name] = true
	}
	for w := range writers {
		for n, there := range mine[w] {
			if got[record(n).Volume.Name] != there {
				t.Errorf("record %d: there %v, want %v", n, !there, there)
			}
		}
	}
	if len(c.Damaged) > 0 || f.hits["journal.renamed"] < 3 {
		t.Errorf("damage %v, %d compactions", c.Damaged, f.hits["journal.renamed"])
	}
}
