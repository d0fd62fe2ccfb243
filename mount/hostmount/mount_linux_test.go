package hostmount_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
)

// both runs a test with and without the newer system calls.
func both(t *testing.T, test func(t *testing.T, m *hostmount.Mounter, dir string)) {
	t.Helper()
	for name, o := range map[string]hostmount.Options{"new": {}, "classic": {Classic: true}} {
		t.Run(name, func(t *testing.T) { test(t, hostmount.New(o), nstest.Dir(t)) })
	}
}

func mkdir(t testing.TB, elements ...string) string {
	t.Helper()
	path := filepath.Join(elements...)
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func write(t testing.TB, elements ...string) string {
	t.Helper()
	path := filepath.Join(elements...)
	if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t testing.TB, err error, classes ...error) {
	t.Helper()
	for _, class := range classes {
		if !errors.Is(err, class) {
			t.Fatalf("error %v, want %v", err, class)
		}
	}
}

func tmpfs(target string, data ...string) mount.Mount {
	return mount.Mount{Source: "test", Target: target, FSType: "tmpfs", Options: mount.Options{Data: data}}
}

func unmount(t testing.TB, m *hostmount.Mounter, target string) {
	t.Helper()
	must(t, m.Unmount(t.Context(), target, mount.UnmountOptions{}))
}

func inspect(t testing.TB, m *hostmount.Mounter, path string) mount.Point {
	t.Helper()
	p, err := m.Inspect(t.Context(), path)
	must(t, err)
	return p
}

// flagsOf are the per-mount options that the kernel shows for the topmost
// mount at a path.
func flagsOf(t testing.TB, path string) []string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	var flags []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[4] == path {
			flags = strings.Split(f[5], ",")
		}
	}
	return flags
}

func TestTmpfsOptions(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		target := mkdir(t, dir, "a")
		mt := tmpfs(target, "size=1048576", "mode=0711", "strictatime", "x-note=1", "nofail")
		mt.Options.NoSuid, mt.Options.NoDev, mt.Options.NoExec = true, true, true
		must(t, m.Mount(t.Context(), mt))
		var st unix.Statfs_t
		must(t, unix.Statfs(target, &st))
		if size := int64(st.Blocks) * int64(st.Bsize); size != 1<<20 { //nolint:unconvert // its width depends on the architecture
			t.Errorf("size %d", size)
		}
		info, err := os.Stat(target)
		must(t, err)
		if info.Mode().Perm() != 0o711 {
			t.Errorf("mode %v", info.Mode())
		}
		flags := flagsOf(t, target)
		for _, want := range []string{"rw", "nosuid", "nodev", "noexec"} {
			if !slices.Contains(flags, want) {
				t.Errorf("%q lacks %s", flags, want)
			}
		}
		if slices.Contains(flags, "relatime") {
			t.Errorf("%q is not strictatime", flags)
		}
		p := inspect(t, m, target)
		if !p.Exists || !p.Mounted || !p.IsDir || p.FSType != "tmpfs" || p.ReadOnly || p.MountID == 0 {
			t.Errorf("inspect gives %+v", p)
		}
		unmount(t, m, target)
		if p := inspect(t, m, target); p.Mounted || !p.Exists {
			t.Errorf("after unmount: %+v", p)
		}
		wantErr(t, m.Unmount(t.Context(), target, mount.UnmountOptions{}), mount.ErrNotMounted)
	})
}

func TestNoSwapIsAWish(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		for _, name := range []string{"a", "b"} { // the second time it is known
			target := mkdir(t, dir, name)
			must(t, m.Mount(t.Context(), tmpfs(target, "noswap", "mode=0700")))
			if p := inspect(t, m, target); !p.Mounted {
				t.Errorf("%s is not mounted", name)
			}
		}
		// It is set where the kernel takes it.
		raw := mkdir(t, dir, "raw")
		if unix.Mount("raw", raw, "tmpfs", 0, "noswap") == nil {
			text, err := os.ReadFile("/proc/self/mountinfo")
			must(t, err)
			if n := strings.Count(string(text), "noswap"); n < 3 {
				t.Errorf("noswap stands %d times in the table, want 3", n)
			}
		}
	})
}

func TestBadOptionsSayWhy(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		target := mkdir(t, dir, "a")
		err := m.Mount(t.Context(), tmpfs(target, "nonsense=1"))
		wantErr(t, err, mount.ErrBadOption)
		secret := tmpfs(target)
		secret.Options.Sensitive = []string{"size=hunter2"}
		err = m.Mount(t.Context(), secret)
		wantErr(t, err, mount.ErrBadOption)
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows a secret: %v", err)
		}
		if p := inspect(t, m, target); p.Mounted {
			t.Error("something is mounted all the same")
		}
		unknown := tmpfs(target)
		unknown.FSType = "nosuchfs"
		wantErr(t, m.Mount(t.Context(), unknown), mount.ErrUnsupported)
		for name, bad := range map[string]mount.Mount{
			"relative":        tmpfs("a"),
			"no type":         {Source: "x", Target: target},
			"bind with type":  {Source: dir, Target: target, FSType: "tmpfs", Options: mount.Options{Bind: true}},
			"bind of nothing": {Target: target, Options: mount.Options{Bind: true}},
			"bind with data":  {Source: dir, Target: target, Options: mount.Options{Bind: true, Data: []string{"size=1"}}},
			"recursive":       {Source: dir, Target: target, FSType: "tmpfs", Options: mount.Options{Recursive: true}},
			"remount":         tmpfs(target, "remount"),
			"NUL":             tmpfs(target, "a\x00b"),
		} {
			if err := m.Mount(t.Context(), bad); err == nil {
				t.Errorf("%s is accepted", name)
			}
		}
		wantErr(t, m.Mount(t.Context(), tmpfs(filepath.Join(dir, "missing"))), unix.ENOENT)
	})
}

func TestCommaInAnOptionIsNotTwoOptions(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		target := mkdir(t, dir, "a")
		wantErr(t, m.Mount(t.Context(), tmpfs(target, "size=1m,mode=0777")), mount.ErrBadOption)
		if inspect(t, m, target).Mounted {
			t.Error("mounted")
		}
	})
}

func TestOverlayWithLongPaths(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		lower := mkdir(t, dir, strings.Repeat("l", 200), strings.Repeat("m", 100))
		write(t, lower, "f")
		target := mkdir(t, dir, "target")
		mt := mount.Mount{Target: target, FSType: "overlay", Options: mount.Options{
			Data: []string{"lowerdir=" + lower + ":" + mkdir(t, dir, "other")},
		}}
		must(t, m.Mount(t.Context(), mt))
		if _, err := os.Stat(filepath.Join(target, "f")); err != nil {
			t.Error(err)
		}
	})
}

func TestBindFlags(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		source, target := mkdir(t, dir, "s"), mkdir(t, dir, "t")
		locked := tmpfs(source)
		locked.Options.NoSuid, locked.Options.NoDev = true, true
		must(t, m.Mount(t.Context(), locked))
		write(t, source, "f")
		must(t, m.Mount(t.Context(), mount.Mount{
			Source: source, Target: target,
			Options: mount.Options{Bind: true, ReadOnly: true, NoExec: true},
		}))
		flags := flagsOf(t, target)
		for _, want := range []string{"ro", "nosuid", "nodev", "noexec"} {
			if !slices.Contains(flags, want) {
				t.Errorf("%q lacks %s", flags, want)
			}
		}
		if err := os.WriteFile(filepath.Join(target, "f"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing gives %v", err)
		}
		write(t, source, "f") // the source stays writable
		p := inspect(t, m, target)
		if !p.Mounted || !p.ReadOnly || p.FSType != "tmpfs" {
			t.Errorf("inspect gives %+v", p)
		}
	})
}

func TestBindInheritsLockedFlags(t *testing.T) {
	// In a user namespace the flags of what was there before are locked; a bind
	// mount that would drop them is refused.
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		for _, source := range []string{"/proc/sys/kernel", "/dev/null"} {
			if _, err := os.Stat(source); err != nil {
				continue
			}
			target := filepath.Join(dir, filepath.Base(source))
			if source == "/dev/null" {
				write(t, target)
			} else {
				mkdir(t, target)
			}
			err := m.Mount(t.Context(), mount.Mount{
				Source: source, Target: target, Options: mount.Options{Bind: true, Recursive: true, ReadOnly: true},
			})
			if err != nil {
				t.Errorf("%s: %v", source, err)
			} else if p := inspect(t, m, target); !p.Mounted || !p.ReadOnly {
				t.Errorf("%s: %+v", source, p)
			}
		}
	})
}

func TestRecursiveBindIsReadOnlyBelow(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		source, target := mkdir(t, dir, "s"), mkdir(t, dir, "t")
		must(t, m.Mount(t.Context(), tmpfs(source)))
		must(t, m.Mount(t.Context(), tmpfs(mkdir(t, source, "in"))))
		must(t, m.Mount(t.Context(), mount.Mount{
			Source: source, Target: target, Options: mount.Options{Bind: true, Recursive: true, ReadOnly: true},
		}))
		for _, path := range []string{target, filepath.Join(target, "in")} {
			if p := inspect(t, m, path); !p.Mounted || !p.ReadOnly {
				t.Errorf("%s: %+v", path, p)
			}
		}
		must(t, m.Unmount(t.Context(), target, mount.UnmountOptions{Lazy: true}))
		if p := inspect(t, m, target); p.Mounted {
			t.Error("still there")
		}
	})
}

func TestBindOfAFile(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		source, target := write(t, dir, "s"), write(t, dir, "t")
		must(t, m.Mount(t.Context(), mount.Mount{Source: source, Target: target, Options: mount.Options{Bind: true}}))
		p := inspect(t, m, target)
		if !p.Mounted || p.IsDir || !p.Exists {
			t.Errorf("%+v", p)
		}
		wantErr(t, m.RemoveAll(t.Context(), target), mount.ErrCrossesMount)
		unmount(t, m, target)
	})
}

func TestTargetThatIsALinkIsNotFollowed(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		precious := mkdir(t, dir, "precious")
		link := filepath.Join(dir, "link")
		must(t, os.Symlink(precious, link))
		if err := m.Mount(t.Context(), tmpfs(link)); err == nil {
			t.Error("mounted on a link")
		}
		if inspect(t, m, precious).Mounted {
			t.Error("mounted behind a link")
		}
		must(t, m.Mount(t.Context(), tmpfs(precious)))
		wantErr(t, m.Unmount(t.Context(), link, mount.UnmountOptions{}), mount.ErrNotMounted)
		p := inspect(t, m, link)
		if p.Mounted || p.IsDir || !p.Exists {
			t.Errorf("the link: %+v", p)
		}
	})
}

func TestDescriptorsAsSourceAndTarget(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		source := mkdir(t, dir, "s")
		write(t, source, "f")
		target := mkdir(t, dir, "t")
		var paths []string
		for _, p := range []string{source, target} {
			fd, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0)
			must(t, err)
			f := os.NewFile(uintptr(fd), p)
			defer func() { _ = f.Close() }()
			paths = append(paths, filepath.Join("/proc/self/fd", itoa(fd)))
		}
		must(t, m.Mount(t.Context(), mount.Mount{Source: paths[0], Target: paths[1], Options: mount.Options{Bind: true}}))
		if _, err := os.Stat(filepath.Join(target, "f")); err != nil {
			t.Error(err)
		}
	})
}

func TestStackBusyLazy(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		target := mkdir(t, dir, "a")
		must(t, m.Mount(t.Context(), tmpfs(target)))
		first := inspect(t, m, target)
		must(t, m.Mount(t.Context(), tmpfs(target)))
		second := inspect(t, m, target)
		if first.MountID == second.MountID {
			t.Error("both mounts have one id")
		}
		f, err := os.Create(filepath.Join(target, "open"))
		must(t, err)
		wantErr(t, m.Unmount(t.Context(), target, mount.UnmountOptions{}), mount.ErrBusy)
		must(t, m.Unmount(t.Context(), target, mount.UnmountOptions{Lazy: true}))
		must(t, f.Close())
		if p := inspect(t, m, target); p.MountID != first.MountID {
			t.Errorf("below is %+v, want %+v", p, first)
		}
		unmount(t, m, target)
		wantErr(t, m.Unmount(t.Context(), filepath.Join(dir, "none"), mount.UnmountOptions{}), mount.ErrNotMounted)
	})
}

func TestEndedContextDoesNothing(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		target := mkdir(t, dir, "a")
		_, inspectErr := m.Inspect(ctx, target)
		_, tableErr := m.Table(ctx)
		_, buildErr := m.Build(ctx, tmpfs(""))
		_, nsErr := m.Namespace(ctx)
		for _, err := range []error{
			m.Mount(ctx, tmpfs(target)), m.Unmount(ctx, target, mount.UnmountOptions{}), m.RemoveAll(ctx, target),
			m.Watch(ctx, func() {}), inspectErr, tableErr, buildErr, nsErr,
		} {
			wantErr(t, err, context.Canceled)
		}
		if p := inspect(t, m, target); !p.Exists || p.Mounted {
			t.Errorf("%+v", p)
		}
	})
}

func TestFaultPoints(t *testing.T) {
	var at string
	boom := errors.New("boom")
	dir := nstest.Dir(t)
	m := hostmount.New(hostmount.Options{Faults: func(point string) error {
		if point == at {
			return boom
		}
		return nil
	}})
	target := mkdir(t, dir, "a")
	for _, c := range []struct {
		point   string
		call    func() error
		mounted bool
	}{
		{"mount.before", func() error { return m.Mount(t.Context(), tmpfs(target)) }, false},
		{"mount.after", func() error { return m.Mount(t.Context(), tmpfs(target)) }, true},
		{"unmount.before", func() error { return m.Unmount(t.Context(), target, mount.UnmountOptions{}) }, true},
		{"unmount.after", func() error { return m.Unmount(t.Context(), target, mount.UnmountOptions{}) }, false},
		{"remove.entry", func() error { return m.RemoveAll(t.Context(), target) }, false},
	} {
		at = c.point
		wantErr(t, c.call(), boom)
		if p := inspect(t, m, target); p.Mounted != c.mounted || !p.Exists {
			t.Errorf("%s: %+v", c.point, p)
		}
	}
}

func TestDeadMount(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		target := mkdir(t, dir, "dead")
		fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Skipf("/dev/fuse: %v", err)
		}
		data := "fd=" + itoa(fd) + ",rootmode=40000,user_id=0,group_id=0"
		if err := unix.Mount("test", target, "fuse", 0, data); err != nil {
			_ = unix.Close(fd)
			t.Skipf("mount fuse: %v", err)
		}
		must(t, unix.Close(fd)) // the daemon is gone
		p := inspect(t, m, target)
		if !p.Exists || !p.Mounted || !p.IsDir || !errors.Is(p.Corrupt, unix.ENOTCONN) {
			t.Errorf("%+v", p)
		}
		if _, err := m.Inspect(t.Context(), filepath.Join(target, "sub")); err == nil {
			t.Error("what lies below a dead mount is not known, and no mount")
		}
		wantErr(t, m.RemoveAll(t.Context(), dir+"/dead"), mount.ErrCrossesMount)
		table, err := m.Table(t.Context())
		must(t, err)
		if e, ok := table.At(target); !ok || e.FSType != "fuse" {
			t.Errorf("table has %+v, %v", e, ok)
		}
		unmount(t, m, target)
		if p := inspect(t, m, target); p.Mounted || p.Corrupt != nil {
			t.Errorf("%+v", p)
		}
	})
}

func TestInspectOfWhatIsNotThere(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		file := write(t, dir, "file")
		for _, path := range []string{filepath.Join(dir, "no"), filepath.Join(dir, "no/no"), filepath.Join(file, "x")} {
			if p := inspect(t, m, path); p != (mount.Point{}) {
				t.Errorf("%s: %+v", path, p)
			}
		}
		if p := inspect(t, m, file); !p.Exists || p.IsDir || p.Mounted || p.FSType != "tmpfs" {
			t.Errorf("%+v", p)
		}
	})
}

func TestPropagation(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		sub := mkdir(t, dir, "sub")
		for path, want := range map[string]mount.Propagation{dir: mount.Shared, sub: mount.Shared} {
			if got, err := m.Propagation(t.Context(), path); err != nil || got != want {
				t.Errorf("%s: %s, %v", path, got, err)
			}
		}
		must(t, unix.Mount("", dir, "", unix.MS_PRIVATE, ""))
		if got, err := m.Propagation(t.Context(), sub); err != nil || got != mount.Private {
			t.Errorf("made private: %s, %v", got, err)
		}
		must(t, m.MakeShared(t.Context(), sub))
		if p := inspect(t, m, sub); !p.Mounted {
			t.Error("no mount of its own")
		}
		if got, err := m.Propagation(t.Context(), sub); err != nil || got != mount.Shared {
			t.Errorf("made shared: %s, %v", got, err)
		}
		if got, err := m.Propagation(t.Context(), dir); err != nil || got != mount.Private {
			t.Errorf("above: %s, %v", got, err)
		}
		id := inspect(t, m, sub).MountID
		must(t, m.MakeShared(t.Context(), sub))
		if inspect(t, m, sub).MountID != id {
			t.Error("bound a second time")
		}
		wantErr(t, m.MakeShared(t.Context(), filepath.Join(dir, "no")), unix.ENOENT)
	})
}

func TestNamespace(t *testing.T) {
	ns, err := hostmount.New(hostmount.Options{}).Namespace(t.Context())
	if err != nil || len(ns.BootID) != 36 || !strings.HasPrefix(ns.MountNS, "mnt:[") {
		t.Errorf("%+v, %v", ns, err)
	}
}
