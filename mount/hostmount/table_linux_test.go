package hostmount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
)

func each(t *testing.T, test func(t *testing.T, m *Mounter, clock *clocktesting.FakeClock, dir string)) {
	t.Helper()
	for name, classic := range map[string]bool{"new": false, "classic": true} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
			dir := nstest.Dir(t)
			test(t, New(Options{Classic: classic, Clock: clock}), clock, dir)
		})
	}
}

func try(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func folder(t testing.TB, elements ...string) string {
	t.Helper()
	path := filepath.Join(elements...)
	try(t, os.MkdirAll(path, 0o755))
	return path
}

func read(t testing.TB, m *Mounter) mount.Table {
	t.Helper()
	table, err := m.Table(t.Context())
	try(t, err)
	return table
}

func small(target string) mount.Mount {
	return mount.Mount{Source: "small", Target: target, FSType: "tmpfs"}
}

func TestTableAgreesWithMountinfo(t *testing.T) {
	each(t, func(t *testing.T, m *Mounter, _ *clocktesting.FakeClock, dir string) {
		odd := folder(t, dir, "with space\\and\ttab\nand line")
		mt := small(odd)
		mt.Source = "a source"
		mt.Options.ReadOnly = true
		try(t, m.Mount(t.Context(), mt))
		file := filepath.Join(dir, "file")
		try(t, os.WriteFile(file, nil, 0o600))
		try(t, unix.Mount(file, file, "", unix.MS_BIND, ""))
		private := folder(t, dir, "private")
		try(t, unix.Mount("none", private, "tmpfs", 0, ""), unix.Mount("", private, "", unix.MS_PRIVATE, ""))
		text, err := readMountinfo()
		try(t, err)
		got := read(t, m)
		if len(got) != len(text) {
			t.Fatalf("%d mounts, mountinfo has %d", len(got), len(text))
		}
		for i := range got {
			a, b := got[i], text[i]
			a.ID, a.Parent, b.ID, b.Parent = 0, 0, 0, 0
			if a.Source == "" { // mountinfo cannot show an empty source
				a.Source = b.Source
			}
			if a != b {
				t.Errorf("%+v\nmountinfo has %+v", a, b)
			}
		}
		e, ok := got.At(odd)
		if !ok || e.Source != "a source" || !e.ReadOnly || e.FSType != "tmpfs" || e.Root != "/" || e.Propagation != mount.Shared {
			t.Errorf("%+v", e)
		}
		if p, err := m.Inspect(t.Context(), odd); err != nil || (!m.host.tables.text && p.MountID != e.ID) {
			t.Errorf("Inspect says mount %d, the table %d (%v)", p.MountID, e.ID, err)
		}
	})
}

// TestTableFollowsAtOnce repeats, since the kernel loses notices.
func TestTableFollowsAtOnce(t *testing.T) {
	each(t, func(t *testing.T, m *Mounter, clock *clocktesting.FakeClock, dir string) {
		own, foreign := folder(t, dir, "own"), folder(t, dir, "foreign")
		want := len(read(t, m))
		for range 50 {
			try(t, m.Mount(t.Context(), small(own)))
			if table := read(t, m); len(table) != want+1 {
				t.Fatalf("%d mounts, want %d: our own is missing", len(table), want+1)
			}
			try(t, m.Unmount(t.Context(), own, mount.UnmountOptions{}))
			if table := read(t, m); len(table) != want {
				t.Fatalf("%d mounts, want %d: our own stays", len(table), want)
			}
			try(t, unix.Mount("x", foreign, "tmpfs", 0, ""))
			clock.Step(time.Second) // at the latest then
			if _, ok := read(t, m).At(foreign); !ok {
				t.Fatal("somebody else's mount is missing")
			}
			try(t, unix.Unmount(foreign, 0))
			clock.Step(time.Second)
			if _, ok := read(t, m).At(foreign); ok {
				t.Fatal("somebody else's mount stays")
			}
		}
		if n := m.host.tables.reads; !m.host.tables.text && n > 50 {
			t.Errorf("everything was read %d times", n)
		}
	})
}

func TestTableIsNotReadForOurOwnChanges(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	m := New(Options{Clock: clock})
	dir := folder(t, nstest.Dir(t), "a")
	read(t, m)
	if m.host.tables.text {
		t.Skip("this kernel has no statmount(2)")
	}
	for range 20 {
		clock.Step(time.Second)
		try(t, m.Mount(t.Context(), small(dir)))
		read(t, m)
		try(t, m.Mount(t.Context(), small(dir)), m.Unmount(t.Context(), dir, mount.UnmountOptions{}))
		read(t, m)
		try(t, m.Unmount(t.Context(), dir, mount.UnmountOptions{}))
		read(t, m)
	}
	if n := m.host.tables.reads; n != 1 {
		t.Errorf("everything was read %d times", n)
	}
}

func TestTableIsKept(t *testing.T) {
	each(t, func(t *testing.T, m *Mounter, _ *clocktesting.FakeClock, _ string) {
		a := read(t, m)
		b := read(t, m)
		if &a[0] != &b[0] {
			t.Error("nothing changed, and it was read again")
		}
	})
}

func TestTableSeesChangesInPlace(t *testing.T) {
	each(t, func(t *testing.T, m *Mounter, clock *clocktesting.FakeClock, dir string) {
		target := folder(t, dir, "a")
		try(t, m.Mount(t.Context(), small(target)))
		read(t, m)
		try(t, unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
		clock.Step(time.Minute) // the kernel need not say it
		if e, _ := read(t, m).At(target); !e.ReadOnly {
			t.Error("a mount that was made read-only is not shown so")
		}
		if m.host.tables.text {
			return
		}
		for range 1000 { // where it says so, it is seen earlier
			reads := m.host.tables.reads
			try(t, unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND, ""))
			read(t, m)
			clock.Step(time.Second)
			if e, _ := read(t, m).At(target); !e.ReadOnly {
				if n := m.host.tables.reads - reads; n != 1 {
					t.Errorf("read %d times", n)
				}
				return
			}
		}
		t.Error("no notice in a thousand changes")
	})
}

func TestTableUnderLoad(t *testing.T) {
	each(t, func(t *testing.T, m *Mounter, _ *clocktesting.FakeClock, dir string) {
		var users sync.WaitGroup
		for i := range 4 {
			target := folder(t, dir, fmt.Sprint(i))
			users.Go(func() {
				for range 30 {
					if err := m.Mount(t.Context(), small(target)); err != nil {
						t.Error(err)
						return
					}
					table, err := m.Table(t.Context())
					if _, ok := table.At(target); err != nil || !ok {
						t.Errorf("our own mount is missing: %v", err)
					}
					if err := m.Unmount(t.Context(), target, mount.UnmountOptions{}); err != nil {
						t.Error(err)
						return
					}
					table, err = m.Table(t.Context())
					if _, ok := table.At(target); err != nil || ok {
						t.Errorf("our own mount stays: %v", err)
					}
				}
			})
		}
		users.Wait()
	})
}

func TestWatch(t *testing.T) {
	each(t, func(t *testing.T, m *Mounter, clock *clocktesting.FakeClock, dir string) {
		target := folder(t, dir, "a")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		notices, end := make(chan struct{}, 1000), make(chan error, 1)
		go func() { end <- m.Watch(ctx, func() { notices <- struct{}{} }) }()
		var mounts int
		timeout := time.After(20 * time.Second)
		for noticed := false; !noticed; mounts++ { // the kernel may lose a notice
			try(t, unix.Mount("x", target, "tmpfs", 0, ""))
			tick := time.NewTimer(100 * time.Millisecond)
			select {
			case <-notices:
				noticed = true
			case <-tick.C:
			case <-timeout:
				t.Fatal("no notice")
			}
			tick.Stop()
		}
		for range mounts {
			try(t, unix.Unmount(target, 0))
		}
		if n := len(notices); n > 0 {
			t.Errorf("%d notices more before the interval was over", n)
		}
		for !clock.HasWaiters() { // it pauses
			runtime.Gosched()
		}
		cancel()
		if err := <-end; !errors.Is(err, context.Canceled) {
			t.Errorf("Watch returned %v", err)
		}
		if n := len(m.host.own.logs); n != 0 {
			t.Errorf("%d watchers are left", n)
		}
	})
}

func TestWatchEndsWhileItWaits(t *testing.T) {
	each(t, func(t *testing.T, m *Mounter, _ *clocktesting.FakeClock, _ string) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := m.Watch(ctx, func() {}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Watch returned %v", err)
		}
	})
}

func TestWatchKnowsOursFromOthers(t *testing.T) {
	each(t, func(t *testing.T, m *Mounter, _ *clocktesting.FakeClock, dir string) {
		w, err := m.newWatch(t.Context())
		try(t, err)
		defer w.close()
		foreign := func() bool {
			found, err := w.compare(t.Context(), true)
			try(t, err)
			return found
		}
		var users sync.WaitGroup
		for i := range 4 {
			target, tree := folder(t, dir, fmt.Sprint(i)), folder(t, dir, fmt.Sprint("tree", i))
			users.Go(func() {
				for range 20 {
					err := errors.Join(
						m.Mount(t.Context(), small(target)),
						m.Mount(t.Context(), small(target)),
						m.Mount(t.Context(), mount.Mount{Source: target, Target: tree, Options: mount.Options{Bind: true, Recursive: true}}),
						m.Unmount(t.Context(), tree, mount.UnmountOptions{Lazy: true}),
						m.Unmount(t.Context(), target, mount.UnmountOptions{}),
						m.Unmount(t.Context(), target, mount.UnmountOptions{}),
					)
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { users.Wait(); close(done) }()
		for busy := true; busy; {
			select {
			case <-done:
				busy = false
			default:
			}
			if w.mustWait() && foreign() {
				t.Error("our own mounts were taken for others'")
			}
		}
		if w.mustWait() && foreign() || len(w.pending) > 0 {
			t.Errorf("at the end: %v", w.pending)
		}
		target := folder(t, dir, "theirs")
		try(t, unix.Mount("x", target, "tmpfs", 0, ""))
		w.m.host.tables.mu.Lock()
		w.m.host.tables.checked = time.Time{} // the notice may be lost
		w.m.host.tables.mu.Unlock()
		if !foreign() {
			t.Error("a mount of others was not seen")
		}
		try(t, m.Mount(t.Context(), small(folder(t, dir, "ours"))))
		if foreign() {
			t.Error("our own mount was taken for others'")
		}
	})
}

// mustWait waits for a notice as Watch does; it is false if none came.
func (w *watch) mustWait() bool {
	if len(w.pending) > 0 {
		return true
	}
	noticed, err := w.stop.wait(w.file, 0)
	return noticed && err == nil
}

func TestActivity(t *testing.T) {
	row := func(id uint64, target string) mount.Entry { return mount.Entry{ID: id, Target: target} }
	snap := func(rows ...mount.Entry) *snapshot { return newSnapshot(rows) }
	for name, c := range map[string]struct {
		before, after *snapshot
		act           func(a *activity)
		foreign       bool
		left          map[string]int
	}{
		"nothing":          {before: snap(row(1, "/a")), after: snap(row(1, "/a"))},
		"others mounted":   {before: snap(), after: snap(row(1, "/a")), foreign: true},
		"others unmounted": {before: snap(row(1, "/a")), after: snap(), foreign: true},
		"others replaced":  {before: snap(row(1, "/a")), after: snap(row(2, "/a")), foreign: true},
		"we mounted":       {before: snap(), after: snap(row(1, "/a")), act: func(a *activity) { a.begin("/a", false)(1) }},
		"we replaced": {before: snap(row(1, "/a")), after: snap(row(2, "/a")), act: func(a *activity) {
			a.begin("/a", false)(-1)
			a.begin("/a", false)(1)
		}},
		"we failed, others mounted": {before: snap(), after: snap(row(1, "/a")), foreign: true, act: func(a *activity) {
			a.begin("/a", false)(0)
		}},
		"we mounted, others unmounted": {before: snap(), after: snap(), foreign: true, act: func(a *activity) {
			a.begin("/a", false)(1)
		}},
		"we mounted once, others too": {before: snap(), after: snap(row(1, "/a"), row(2, "/a")), foreign: true, act: func(a *activity) {
			a.begin("/a", false)(1)
		}},
		"our tree": {before: snap(), after: snap(row(1, "/a"), row(2, "/a/b")), act: func(a *activity) { a.begin("/a", true)(1) }},
		"under way": {before: snap(), after: snap(row(1, "/a")), left: map[string]int{"/a": 1}, act: func(a *activity) {
			a.begin("/a", false)
		}},
		"under way, others elsewhere": {
			before: snap(), after: snap(row(1, "/a"), row(2, "/b")), left: map[string]int{"/a": 1}, foreign: true,
			act: func(a *activity) { a.begin("/a", false) },
		},
		"made read-only": {before: snap(row(1, "/a")), after: snap(mount.Entry{ID: 1, Target: "/a", ReadOnly: true}), foreign: true},
	} {
		t.Run(name, func(t *testing.T) {
			var a activity
			log := a.subscribe()
			if c.act != nil {
				c.act(&a)
			}
			a.mark(log)
			changes := difference(c.before, c.after)
			foreign, _ := a.settle(log, changes)
			if foreign != c.foreign {
				t.Errorf("foreign is %v", foreign)
			}
			if len(changes)+len(c.left) > 0 && !reflect.DeepEqual(changes, c.left) {
				t.Errorf("left to be judged: %v, want %v", changes, c.left)
			}
		})
	}
}

func TestMountOrder(t *testing.T) {
	table := mountOrder(mount.Table{
		{ID: 1, Target: "/"},
		{ID: 2, Parent: 4, Target: "/a"},
		{ID: 3, Parent: 1, Target: "/b"},
		{ID: 4, Parent: 5, Target: "/a"},
		{ID: 5, Parent: 1, Target: "/a"},
	})
	var got []uint64
	for _, e := range table {
		got = append(got, e.ID)
	}
	if want := []uint64{1, 5, 3, 4, 2}; !reflect.DeepEqual(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

func TestParseMountinfo(t *testing.T) {
	for line, want := range map[string]mount.Entry{
		`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`: {
			ID: 36, Parent: 35, Device: "98:0", Root: "/mnt1", Target: "/mnt2", FSType: "ext3", Source: "/dev/root", Propagation: mount.Slave,
		},
		`1 1 0:1 / / ro shared:1 master:2 propagate_from:3 - tmpfs none rw`: {
			ID: 1, Parent: 1, Device: "0:1", Root: "/", Target: "/", FSType: "tmpfs", Source: "none", ReadOnly: true, Propagation: mount.Shared,
		},
		`1 1 0:1 / /a\040b\134\011 rw unbindable - fuse.x a\012b ro`: {
			ID: 1, Parent: 1, Device: "0:1", Root: "/", Target: "/a b\\\t", FSType: "fuse.x", Source: "a\nb", ReadOnly: true, Propagation: mount.Unbindable,
		},
		`1 1 0:1 / /a rw - tmpfs  rw`: {
			ID: 1, Parent: 1, Device: "0:1", Root: "/", Target: "/a", FSType: "tmpfs", Propagation: mount.Private,
		},
	} {
		table, err := parseMountinfo(line + "\n")
		if err != nil || len(table) != 1 || table[0] != want {
			t.Errorf("%s: %+v, %v", line, table, err)
		}
	}
	for _, bad := range []string{"x", "1 1 0:1 / / rw", "a 1 0:1 / / rw - t s r", "1 b 0:1 / / rw - t s r", "1 1 0:1 / / rw - t"} {
		if _, err := parseMountinfo(bad); !errors.Is(err, errMountinfo) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzParseMountinfo(f *testing.F) {
	f.Add("36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n")
	f.Add(`1 1 0:1 / /a\040b\134\011 rw unbindable - fuse.x a\012b ro`)
	f.Add("\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		table, err := parseMountinfo(text)
		if err != nil && !errors.Is(err, errMountinfo) {
			t.Fatalf("error of no class: %v", err)
		}
		if err == nil && len(table) > strings.Count(text, "\n")+1 {
			t.Fatalf("%d mounts from %q", len(table), text)
		}
	})
}
