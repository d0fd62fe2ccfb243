package hostmount_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
)

// someGroup is one that files can be given to: in a user namespace there is but
// one, which they have already.
func someGroup() int64 {
	if nstest.RealRoot() {
		return 4711
	}
	return 0
}

type owner struct {
	group int64
	mode  uint32
}

func lookAt(t testing.TB, path string) owner {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return owner{int64(st.Gid), st.Mode & 0o7777}
}

func wantOwner(t testing.TB, path string, want owner) {
	t.Helper()
	if is := lookAt(t, path); is != want {
		t.Errorf("%s has group %d and mode %o, want %d and %o", path, is.group, is.mode, want.group, want.mode)
	}
}

// manyFiles makes a folder that is worth a mount of its own.
func manyFiles(t testing.TB, elements ...string) string {
	t.Helper()
	top := mkdir(t, elements...)
	for i := range 300 {
		write(t, top, fmt.Sprintf("file-%03d", i))
	}
	return top
}

func openDescriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(list)
}

func TestSetGroupSpecialFiles(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		group := someGroup()
		for _, top := range []string{mkdir(t, dir, "small"), manyFiles(t, dir, "large")} {
			want := map[string]owner{}
			make := func(name string, mode, wantMode uint32, dev int) {
				path := filepath.Join(top, name)
				must(t, unix.Mknod(path, mode&unix.S_IFMT|0o600, dev))
				must(t, unix.Chmod(path, mode&0o7777))
				want[name] = owner{group, wantMode}
			}
			make("fifo", unix.S_IFIFO|0o600, 0o660, 0)
			make("socket", unix.S_IFSOCK|0o755, 0o775, 0)
			make("suid", unix.S_IFREG|0o4755, 0o4775, 0)
			make("sgid", unix.S_IFREG|0o2770, 0o2770, 0)
			make("right", unix.S_IFREG|0o660, 0o660, 0)
			make("none", unix.S_IFREG, 0o660, 0)
			make("\xff\n\" \x01", unix.S_IFREG, 0o660, 0)
			if nstest.RealRoot() {
				make("null", unix.S_IFCHR|0o600, 0o600, int(unix.Mkdev(1, 3)))
				want["null"] = owner{0, 0o600}
			}
			must(t, os.Link(filepath.Join(top, "none"), filepath.Join(top, "hard")))
			before := openDescriptors(t)
			for range 2 {
				must(t, m.SetGroup(t.Context(), top, mount.Ownership{Group: group}))
				for name, want := range want {
					wantOwner(t, filepath.Join(top, name), want)
				}
				wantOwner(t, top, owner{group, 0o2775})
			}
			if now := openDescriptors(t); now > before {
				t.Errorf("%d descriptors are open, were %d", now, before)
			}
		}
	})
}

// ownAll checks a tree by descriptors, since its paths may be too long.
func ownAll(t testing.TB, dir int, want func(isDir bool) owner) (entries int) {
	t.Helper()
	for dir >= 0 {
		f := os.NewFile(uintptr(dir), "dir")
		names, err := f.Readdirnames(-1)
		must(t, err)
		next := -1
		for _, name := range names {
			var st unix.Stat_t
			must(t, unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW))
			isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
			if is := (owner{int64(st.Gid), st.Mode & 0o7777}); is != want(isDir) {
				t.Fatalf("after %d entries: %q has %+v", entries, name, is)
			}
			entries++
			if name == "d" {
				next, err = unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
				must(t, err)
			}
		}
		f.Close()
		dir = next
	}
	return entries
}

// lowLimit runs f with few descriptors.
func lowLimit(t testing.TB, n uint64, f func() error) {
	t.Helper()
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	low := limit
	low.Cur = n
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	err := f()
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	must(t, err)
}

func TestSetGroupDeepTree(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		depth := 2000
		if os.Getenv("VOLUMEKIT_LONG") != "" {
			depth = 10_000
		}
		top := mkdir(t, dir, "top")
		fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		for range depth {
			for _, name := range []string{"before", "d", "z"} {
				must(t, unix.Mkdirat(fd, name, 0o700))
			}
			must(t, unix.Mknodat(fd, "file", unix.S_IFREG|0o600, 0))
			next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			must(t, err)
			must(t, unix.Close(fd))
			fd = next
		}
		must(t, unix.Close(fd))
		group := someGroup()
		lowLimit(t, 128, func() error {
			return m.SetGroup(t.Context(), top, mount.Ownership{Group: group, Parallel: 2})
		})
		fd, err = unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		n := ownAll(t, fd, func(isDir bool) owner {
			if isDir {
				return owner{group, 0o2770}
			}
			return owner{group, 0o660}
		})
		if n != 4*depth {
			t.Errorf("%d entries were found", n)
		}
	})
}

func TestSetGroupWideTree(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		top := mkdir(t, dir, "top")
		for i := range 3000 {
			mkdir(t, top, itoa(i), "sub")
		}
		group := someGroup()
		var entries int64
		lowLimit(t, 100, func() error {
			return m.SetGroup(t.Context(), top, mount.Ownership{Group: group, Parallel: 8, Progress: func(n int64) { entries = n }})
		})
		if entries != 6001 {
			t.Errorf("%d entries were told", entries)
		}
		for i := range 3000 {
			wantOwner(t, filepath.Join(top, itoa(i)), owner{group, 0o2775})
			wantOwner(t, filepath.Join(top, itoa(i), "sub"), owner{group, 0o2775})
		}
	})
}

// hooked returns mounters, new and classic, whose fault points call hook.
func hooked(t *testing.T, test func(t *testing.T, m *hostmount.Mounter, hook *func(point string) error)) {
	t.Helper()
	for name, classic := range map[string]bool{"new": false, "classic": true} {
		t.Run(name, func(t *testing.T) {
			nstest.Require(t)
			var hook func(string) error
			var mu sync.Mutex
			test(t, hostmount.New(hostmount.Options{Classic: classic, Faults: func(point string) error {
				mu.Lock()
				defer mu.Unlock()
				if hook == nil {
					return nil
				}
				return hook(point)
			}}), &hook)
		})
	}
}

func TestSetGroupEndsWithItsContext(t *testing.T) {
	hooked(t, func(t *testing.T, m *hostmount.Mounter, hook *func(string) error) {
		top := manyFiles(t, nstest.Dir(t), "top")
		write(t, mkdir(t, top, "a/b"), "f")
		const threads, last = 4, 50
		ctx, cancel := context.WithCancel(t.Context())
		entries := 0
		*hook = func(point string) error {
			if point == "own.entry" {
				if entries++; entries == last {
					cancel()
				}
			}
			return nil
		}
		wantErr(t, m.SetGroup(ctx, top, mount.Ownership{Group: someGroup(), Parallel: threads}), context.Canceled)
		if entries >= last+threads {
			t.Errorf("%d entries were begun, %d of them before the end", entries, last)
		}
		wantOwner(t, top, owner{0, 0o755})
	})
}

func TestSetGroupEndsSoon(t *testing.T) {
	if os.Getenv("VOLUMEKIT_LONG") == "" {
		t.Skip("takes long, and a machine of its own: VOLUMEKIT_LONG=1")
	}
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		top := mkdir(t, dir, "top")
		for i := range 100_000 {
			write(t, mkdir(t, top, itoa(i/1000)), itoa(i))
		}
		ctx, cancel := context.WithCancel(t.Context())
		var began time.Time
		timer := time.AfterFunc(20*time.Millisecond, func() {
			began = time.Now()
			cancel()
		})
		defer timer.Stop()
		wantErr(t, m.SetGroup(ctx, top, mount.Ownership{Group: someGroup()}), context.Canceled)
		took := time.Since(began)
		t.Logf("%v from the end of the context", took)
		if took > 100*time.Millisecond {
			t.Error("that is too long")
		}
	})
}

// TestHalfDoneIsNeverDone interrupts walks and then asks for OnRootMismatch.
func TestHalfDoneIsNeverDone(t *testing.T) {
	if !nstest.RealRoot() {
		t.Skip("a user namespace has one group alone")
	}
	boom := errors.New("boom")
	for name, fails := range map[string]func(ctx context.Context, cancel func()) error{
		"cancelled":    func(_ context.Context, cancel func()) error { cancel(); return nil },
		"entry failed": func(context.Context, func()) error { return boom },
	} {
		t.Run(name, func(t *testing.T) {
			hooked(t, func(t *testing.T, m *hostmount.Mounter, hook *func(string) error) {
				top := manyFiles(t, nstest.Dir(t), "top")
				ask := func(ctx context.Context, group int64) error {
					return m.SetGroup(ctx, top, mount.Ownership{Group: group, OnRootMismatch: true, Parallel: 1})
				}
				must(t, ask(t.Context(), 1))
				from := int64(1)
				for i := range 6 {
					to := 3 - from
					if i == 5 { // the group is right, only a bit is missing
						to = from
						must(t, os.Chmod(top, 0o705|os.ModeSetgid))
						must(t, os.Chmod(filepath.Join(top, "file-299"), 0))
					}
					ctx, cancel := context.WithCancel(t.Context())
					entries := 0
					*hook = func(string) error {
						if entries++; entries == 150 {
							return fails(ctx, cancel)
						}
						return nil
					}
					if err := ask(ctx, to); err == nil {
						t.Fatalf("the walk to group %d was not interrupted", to)
					}
					cancel()
					*hook = nil
					if i%2 == 0 { // else whoever had it before asks first
						from = to
					}
					must(t, ask(t.Context(), from))
					for j := range 300 {
						wantOwner(t, filepath.Join(top, fmt.Sprintf("file-%03d", j)), owner{from, 0o660})
					}
					if mode := lookAt(t, top).mode; mode&0o2770 != 0o2770 {
						t.Errorf("root has mode %o", mode)
					}
				}
			})
		})
	}
}

func TestSetGroupCountsFailures(t *testing.T) {
	boom := errors.New("boom")
	hooked(t, func(t *testing.T, m *hostmount.Mounter, hook *func(string) error) {
		top := manyFiles(t, nstest.Dir(t), "top")
		write(t, top, "\xff\n") // shown as it can be shown
		n := 0
		*hook = func(point string) error {
			if point == "own.entry" {
				if n++; n%10 == 0 {
					return boom
				}
			}
			return nil
		}
		err := m.SetGroup(t.Context(), top, mount.Ownership{Group: someGroup()})
		wantErr(t, err, boom)
		var told *mount.OwnershipError
		if !errors.As(err, &told) || told.Failed != 30 || told.Entries != 302 || len(told.First) != 8 {
			t.Fatalf("error is %v", err)
		}
		if text := err.Error(); !strings.Contains(text, top) || !strings.Contains(text, "30 of 302") || !strings.Contains(text, "22 more") || strings.Contains(text, "\n") || !utf8.ValidString(text) {
			t.Errorf("error is %q", text)
		}
		wantOwner(t, top, owner{someGroup(), 0o775}) // usable, and not taken for done
	})
}

func TestSetGroupGoesOnPastFailures(t *testing.T) {
	if !nstest.RealRoot() {
		t.Skip("only root can make files immutable")
	}
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		top := manyFiles(t, dir, "top")
		stuck := write(t, mkdir(t, top, "a"), "stuck")
		for _, path := range []string{stuck, mkdir(t, top, "b")} {
			must(t, os.Chown(path, 0, 0))
			must(t, os.Chmod(path, 0o750))
			write(t, top, "b/within")
			if err := setImmutable(path, true); err != nil {
				t.Skipf("no immutable files here: %v", err)
			}
			err := m.SetGroup(t.Context(), top, mount.Ownership{Group: 5})
			must(t, setImmutable(path, false))
			wantErr(t, err, unix.EPERM)
			if !strings.Contains(err.Error(), path) {
				t.Errorf("%v does not name %s", err, path)
			}
			wantOwner(t, filepath.Join(top, "file-000"), owner{5, 0o660})
			wantOwner(t, filepath.Join(top, "b/within"), owner{5, 0o660})
			wantOwner(t, top, owner{5, 0o775})
			must(t, m.SetGroup(t.Context(), top, mount.Ownership{Group: 5, OnRootMismatch: true}))
			wantOwner(t, path, owner{5, lookAt(t, path).mode})
			wantOwner(t, top, owner{5, 0o2775})
			must(t, os.Chmod(top, 0o755))
		}
	})
}

func TestSetGroupReadOnlyFilesystem(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		top := manyFiles(t, dir, "top")
		mt := tmpfs(mkdir(t, dir, "ro"))
		mt.Source, mt.FSType, mt.Options = top, "", mount.Options{Bind: true, ReadOnly: true}
		must(t, m.Mount(t.Context(), mt))
		before := openDescriptors(t)
		err := m.SetGroup(t.Context(), mt.Target, mount.Ownership{Group: someGroup()})
		wantErr(t, err, unix.EROFS)
		if errors.As(err, new(*mount.OwnershipError)) {
			t.Errorf("the walk went on: %v", err)
		}
		wantOwner(t, top, owner{0, 0o755})
		must(t, m.SetGroup(t.Context(), top, mount.Ownership{Group: someGroup()}))
		must(t, m.SetGroup(t.Context(), mt.Target, mount.Ownership{Group: someGroup()})) // nothing to do
		if now := openDescriptors(t); now > before {
			t.Errorf("%d descriptors are open, were %d", now, before)
		}
	})
}

func TestSetGroupWithoutNumber(t *testing.T) {
	if nstest.RealRoot() {
		t.Skip("all groups have a number here")
	}
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		top := manyFiles(t, dir, "top")
		err := m.SetGroup(t.Context(), top, mount.Ownership{Group: 4711})
		wantErr(t, err, unix.EINVAL)
		if !strings.Contains(err.Error(), "user namespace") || errors.As(err, new(*mount.OwnershipError)) {
			t.Errorf("error is %v", err)
		}
		wantOwner(t, top, owner{0, 0o755})
	})
}

func TestSetGroupProgress(t *testing.T) {
	dir := nstest.Dir(t)
	top := manyFiles(t, dir, "top")
	fake := clocktesting.NewFakeClock(time.Unix(0, 0))
	told := make(chan int64)
	entries := atomic.Int64{}
	m := hostmount.New(hostmount.Options{Clock: fake, Faults: func(point string) error {
		if point == "own.entry" && entries.Add(1) == 200 { // hangs until it was told twice
			for range 2 {
				for !fake.HasWaiters() {
					unix.Nanosleep(&unix.Timespec{Nsec: 1000}, nil)
				}
				fake.Step(time.Second)
				if n := <-told; n < 100 || n >= 300 {
					return fmt.Errorf("%d entries are told", n)
				}
			}
			close(told)
		}
		return nil
	}})
	var last int64
	must(t, m.SetGroup(t.Context(), top, mount.Ownership{Group: someGroup(), Parallel: 1, Progress: func(n int64) {
		if last = n; n < 300 {
			told <- n
		}
	}}))
	if last != 301 {
		t.Errorf("%d entries were told in the end", last)
	}
	calls := 0
	must(t, m.SetGroup(t.Context(), top, mount.Ownership{Group: someGroup(), OnRootMismatch: true, Progress: func(int64) { calls++ }}))
	if calls != 0 {
		t.Error("progress of nothing")
	}
}
