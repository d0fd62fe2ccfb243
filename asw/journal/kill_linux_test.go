package journal_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/plugins"
)

// childDir names the journal's folder to the process that is to be killed.
const childDir = "VOLUMEKIT_JOURNAL_CHILD"

// TestWriteUntilKilled is the process that TestKilledAnywhere kills. It tells
// what it is about to do, and when that is acknowledged.
func TestWriteUntilKilled(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		t.Skip("runs as the child of TestKilledAnywhere")
	}
	j := open(t, dir, journal.Options{CompactAt: 2_000})
	say := func(word string, n int) {
		if _, err := fmt.Fprintf(os.Stderr, "%s %d\n", word, n); err != nil {
			os.Exit(1)
		}
	}
	for n := 0; ; n++ {
		rec := record(n)
		rec.Durable = n%8 == 0
		say("try", n)
		must(t, j.Put(t.Context(), rec))
		say("put", n)
		if n >= 5 {
			say("drop", n-5)
			must(t, j.Delete(t.Context(), record(n-5).Key, false))
			say("del", n-5)
		}
	}
}

// TestKilledAnywhere kills a writing process at random moments: what it had
// acknowledged is there, and nothing else but what it had begun.
func TestKilledAnywhere(t *testing.T) {
	if os.Getenv(childDir) != "" {
		t.Skip("is the child")
	}
	random := rand.New(rand.NewPCG(7, 7))
	for range 20 {
		dir := t.TempDir()
		acknowledged, begun := writeAndKill(t, dir, 1+random.IntN(400))
		j := open(t, dir, journal.Options{})
		c := j.Contents()
		if len(c.Damaged) > 0 {
			t.Fatalf("damage: %+v", c.Damaged)
		}
		there := map[string]bool{}
		for _, r := range c.Records {
			there[strings.TrimPrefix(r.Volume.Name, "volume-")] = true
		}
		for n, want := range acknowledged {
			if there[n] != want && begun != n {
				t.Errorf("record %s: there %v, acknowledged %v (under way: %s)", n, there[n], want, begun)
			}
			delete(there, n)
		}
		delete(there, begun)
		if len(there) > 0 {
			t.Errorf("nobody wrote %v", there)
		}
		must(t, j.Close())
		if left, _ := filepath.Glob(filepath.Join(dir, "*.new")); len(left) > 0 {
			t.Errorf("%v left", left)
		}
	}
}

// writeAndKill runs the child, kills it after so many of its lines, and
// returns what it had acknowledged and what was under way.
func writeAndKill(t *testing.T, dir string, lines int) (acknowledged map[string]bool, begun string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestWriteUntilKilled$")
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	pipe, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	acknowledged = map[string]bool{}
	in := bufio.NewReader(pipe)
	for {
		line, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		word, n, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "put", "del":
			acknowledged[n], begun = word == "put", ""
		case "try", "drop":
			begun = n
		default:
			t.Errorf("child: %s", line)
		}
		if lines--; lines == 0 {
			must(t, cmd.Process.Kill())
		}
	}
	_ = cmd.Wait()
	if lines > 0 {
		t.Fatal("the child ended by itself")
	}
	return acknowledged, begun
}

// TestDiskFull fills a real file system.
func TestDiskFull(t *testing.T) {
	dir := nstest.Dir(t)
	must(t, unix.Mount("small", dir, "tmpfs", 0, "size=64k"))
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	j := open(t, dir, journal.Options{CompactAt: 1 << 30})
	var err error
	n := 0
	for ; err == nil && n < 10_000; n++ {
		err = j.Put(t.Context(), record(n))
	}
	if !errors.Is(err, unix.ENOSPC) || plugins.ClassOf(err) != plugins.ClassTransient {
		t.Fatalf("after %d records: %v", n, err)
	}
	want := names(j.All())
	for range 3 {
		if err := j.Put(t.Context(), record(n)); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("%v", err)
		}
	}
	c, err := journal.Read(dir)
	must(t, err)
	if names(c.Records) != want || len(c.Damaged) > 0 {
		t.Errorf("on a full disk: %q, want %q; damage %v", names(c.Records), want, c.Damaged)
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, "size=256k"))
	must(t, j.Put(t.Context(), record(n)))
	must(t, j.Close())
	if got := names(open(t, dir, journal.Options{}).All()); got != want+fmt.Sprintf(" %d", n) {
		t.Errorf("with room again: %q", got)
	}
}

// TestLockedByAnother holds the lock in another process.
func TestLockedByAnother(t *testing.T) {
	if os.Getenv(childDir) != "" {
		t.Skip("is the child")
	}
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestWriteUntilKilled$")
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	pipe, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	_, err = bufio.NewReader(pipe).ReadString('\n')
	must(t, err)
	_, err = journal.Open(t.Context(), dir, journal.Options{})
	if !errors.Is(err, journal.ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", cmd.Process.Pid)) {
		t.Errorf("Open: %v, want the holder %d", err, cmd.Process.Pid)
	}
	if _, err := journal.Read(dir); err != nil {
		t.Errorf("Read: %v", err)
	}
	must(t, cmd.Process.Kill())
	_ = pipe.Close()
	_ = cmd.Wait()
	start := time.Now()
	must(t, open(t, dir, journal.Options{}).Close())
	t.Logf("opened %v after the kill", time.Since(start))
}
