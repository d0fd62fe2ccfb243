//go:build unix

package journal_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/plugins"
)

// TestRemovedWhileOpen takes the journal away under a running agent: what it
// records afterwards, and all before, has to be at its place again.
func TestRemovedWhileOpen(t *testing.T) {
	for name, remove := range map[string]func(t *testing.T, dir string){
		"file":   func(t *testing.T, dir string) { must(t, os.Remove(logFile(dir))) },
		"lock":   func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, "lock"))) },
		"folder": func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) },
		"root":   func(t *testing.T, dir string) { must(t, os.RemoveAll(filepath.Dir(dir))) },
		"moved":  func(t *testing.T, dir string) { must(t, os.Rename(dir, dir+".old")) },
		"replaced": func(t *testing.T, dir string) {
			must(t, os.Remove(logFile(dir)))
			must(t, os.WriteFile(logFile(dir), []byte("rubbish\n"), 0o600))
		},
		"link": func(t *testing.T, dir string) {
			must(t, os.Rename(logFile(dir), logFile(dir)+".elsewhere"))
			must(t, os.Symlink(logFile(dir)+".elsewhere", logFile(dir)))
		},
	} {
		for what, change := range map[string]func(*journal.Journal) error{
			"put":       func(j *journal.Journal) error { return j.Put(t.Context(), record(3)) },
			"durable":   func(j *journal.Journal) error { return j.Put(t.Context(), durable(3)) },
			"unchanged": func(j *journal.Journal) error { return j.Put(t.Context(), record(1)) },
			"delete":    func(j *journal.Journal) error { return j.Delete(t.Context(), record(2).Key, false) },
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "root", "state")
				j := open(t, dir, journal.Options{})
				must(t, j.Put(t.Context(), record(1)))
				must(t, j.Put(t.Context(), record(2)))
				remove(t, dir)
				must(t, change(j))
				c, err := journal.Read(dir)
				must(t, err)
				if got, want := names(c.Records), names(j.All()); got != want || len(c.Damaged) > 0 || c.Namespace != here {
					t.Errorf("%q is recorded, damaged %v, namespace %v; want %q", got, c.Damaged, c.Namespace, want)
				}
				if _, err := journal.Open(t.Context(), dir, journal.Options{}); !errors.Is(err, journal.ErrLocked) {
					t.Errorf("a second agent got hold of it: %v", err)
				}
				must(t, j.Put(t.Context(), record(4)))
				must(t, j.Close())
				if got, want := names(open(t, dir, journal.Options{}).All()), names(j.All()); got != want {
					t.Errorf("opened again: %q, want %q", got, want)
				}
			})
		}
	}
}

// TestTakenByAnother: the folder was removed and another agent began there.
func TestTakenByAnother(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	j := open(t, dir, journal.Options{CompactAt: 1})
	must(t, j.Put(t.Context(), record(1)))
	must(t, os.RemoveAll(dir))
	other := open(t, dir, journal.Options{})
	must(t, other.Put(t.Context(), record(7)))
	for range 3 {
		err := j.Put(t.Context(), record(2))
		if !errors.Is(err, journal.ErrLocked) || plugins.ClassOf(err) != plugins.ClassTransient {
			t.Errorf("recorded in a folder of another agent: %v", err)
		}
	}
	if err := j.Put(t.Context(), record(1)); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("a record that has no file any more counts: %v", err)
	}
	if _, ok := j.Get(record(2).Key); ok {
		t.Error("a record is known that was not written")
	}
	must(t, other.Put(t.Context(), record(8)))
	c, err := journal.Read(dir)
	must(t, err)
	if got := names(c.Records); got != "7 8" {
		t.Errorf("the other agent's journal holds %q", got)
	}
	must(t, other.Close())
	must(t, j.Put(t.Context(), record(2))) // the folder is free again
}

// TestCannotComeBack: no step may start without a record.
func TestCannotComeBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	j := open(t, dir, journal.Options{})
	must(t, j.Put(t.Context(), record(1)))
	must(t, os.RemoveAll(dir))
	must(t, os.WriteFile(dir, nil, 0o600)) // no folder can be made there
	if err := j.Put(t.Context(), record(2)); plugins.ClassOf(err) != plugins.ClassTransient {
		t.Errorf("error %v", err)
	}
	must(t, os.Remove(dir))
	must(t, j.Put(t.Context(), record(3)))
	c, err := journal.Read(dir)
	must(t, err)
	if got := names(c.Records); got != "1 3" {
		t.Errorf("%q is recorded", got)
	}
}

// TestNotAPlainFile puts other things in the place of the files: Open and Read
// say so at once, and neither wait nor touch them.
func TestNotAPlainFile(t *testing.T) {
	for what, put := range map[string]func(path string) error{
		"a pipe":          func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a folder":        func(path string) error { return os.Mkdir(path, 0o700) },
		"a symbolic link": func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		for _, file := range []string{"journal", "lock"} {
			t.Run(what+" for "+file, func(t *testing.T) {
				dir := t.TempDir()
				path := filepath.Join(dir, file)
				must(t, put(path))
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				ended := make(chan error, 2)
				go func() {
					j, err := journal.Open(ctx, dir, journal.Options{})
					if err == nil {
						_ = j.Close()
					}
					ended <- err
					if file == "journal" {
						_, err = journal.Read(dir)
					}
					ended <- err
				}()
				for range 2 {
					select {
					case err := <-ended:
						if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), what) {
							t.Errorf("error %v", err)
						}
					case <-ctx.Done():
						t.Fatal("it waits")
					}
				}
			})
		}
	}
}

// TestHookPanics: what a panic leaves behind must not hold up the next caller.
func TestHookPanics(t *testing.T) {
	for _, point := range []string{"journal.append", "journal.appended", "journal.sync"} {
		dir, armed := t.TempDir(), false
		j := open(t, dir, journal.Options{Faults: func(at string) error {
			if armed && at == point {
				armed = false
				panic(point)
			}
			return nil
		}})
		must(t, j.Put(t.Context(), durable(1)))
		armed = true
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", point)
				}
			}()
			rec := durable(2)
			rec.Names = []string{strings.Repeat("long", 100)}
			_ = j.Put(t.Context(), rec)
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := j.Put(ctx, durable(3)); err != nil {
			t.Errorf("%s: then: %v", point, err)
		}
		if c, err := journal.Read(dir); err != nil || len(c.Damaged) > 0 || names(c.Records) != names(j.All()) {
			t.Errorf("%s: then the file holds %q, damaged %v, %v", point, names(c.Records), c.Damaged, err)
		}
	}
}
