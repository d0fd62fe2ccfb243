package mounttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/volumekit/volumekit/mount"
)

func fresh(t *testing.T) (*Mounter, *site) {
	t.Helper()
	dir := t.TempDir()
	m := New(Options{Dir: dir})
	return m, &site{Mounter: m, ctx: t.Context(), dir: dir}
}

func must(t *testing.T, steps ...error) {
	t.Helper()
	for i, err := range steps {
		if err != nil {
			t.Fatalf("step %d: %v", i+1, err)
		}
	}
}

// clean checks that nothing is mounted and nothing lies in the stash.
func clean(t *testing.T, m *Mounter) {
	t.Helper()
	if left := m.Leftovers(); len(left) > 0 {
		t.Errorf("left mounted: %v", left)
	}
	if list, err := m.stashed(); err != nil || len(list) > 0 {
		t.Errorf("left in the stash: %v, %v", list, err)
	}
}

func TestStashIsEmptyInTheEnd(t *testing.T) {
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			m, s := fresh(t)
			err := c.check(s.ctx, m, s.dir)
			if s := new(skip); err != nil && !errors.As(err, &s) {
				t.Fatal(err)
			}
			for _, e := range m.tree.mounts[1:] {
				if !e.ground {
					t.Errorf("left mounted: %v", e.entry())
				}
			}
			must(t, m.Reboot())
			clean(t, m)
		})
	}
}

func TestFilesystemIsAFolder(t *testing.T) {
	m, s := fresh(t)
	must(t, s.folders("a"), s.tmpfs("a", mount.Options{Data: []string{"mode=0750"}}))
	info, err := os.Lstat(s.path("a"))
	if err != nil || !info.IsDir() || info.Mode().Perm() != 0o750 {
		t.Errorf("target is %v, %v", info.Mode(), err)
	}
	root, err := os.OpenRoot(s.dir)
	must(t, err, root.WriteFile("a/f", nil, 0o600), root.Close())
	must(t, s.unmount("a"))
	clean(t, m)
}

func TestContentOfNamedStorageIsKept(t *testing.T) {
	m, s := fresh(t)
	nfs := mount.Mount{Source: "server:/export", Target: s.path("a"), FSType: "nfs"}
	twin := nfs
	twin.Target = s.path("b")
	must(t, s.folders("a", "b"), m.Mount(s.ctx, nfs), s.write("a/f"), m.Mount(s.ctx, twin))
	must(t, s.wantContent("b/f", "content of a/f"), s.unmount("a"), s.wantContent("b/f", "content of a/f"))
	must(t, m.Reboot(), s.wantPoint("b", true, false, true))
	if s.holds("b/f") {
		t.Error("content is visible without a mount")
	}
	must(t, m.Mount(s.ctx, nfs), s.wantContent("a/f", "content of a/f"))
}

func TestReboot(t *testing.T) {
	m, s := fresh(t)
	before, err := m.Namespace(s.ctx)
	must(t, err, s.folders("a", "data", "b"), s.write("a/under"), s.tmpfs("a", mount.Options{}), s.folders("a/sub"))
	must(t, s.tmpfs("a/sub", mount.Options{}), s.bind("data", "b", mount.Options{}), s.write("b/f"))
	m.Busy(s.path("a"))
	must(t, m.Reboot())
	after, err := m.Namespace(s.ctx)
	must(t, err, s.wantContent("a/under", "content of a/under"), s.wantContent("data/f", "content of b/f"))
	if after.BootID == before.BootID || after.MountNS != before.MountNS {
		t.Errorf("namespace was %v and is %v", before, after)
	}
	must(t, s.tmpfs("a", mount.Options{}), s.unmount("a")) // not busy any more
	clean(t, m)
	want := mount.Namespace{BootID: "x", MountNS: "y"}
	m.SetNamespace(want)
	if got, err := m.Namespace(s.ctx); err != nil || got != want {
		t.Errorf("namespace is %v, %v", got, err)
	}
}

func TestBusyCounts(t *testing.T) {
	m, s := fresh(t)
	must(t, s.folders("a"), s.tmpfs("a", mount.Options{}))
	m.Busy(s.path("a"))
	m.Busy(s.path("a"))
	m.Free(s.path("a"))
	must(t, wantClass("unmount", s.unmount("a"), mount.ErrBusy))
	m.Free(s.path("a"))
	m.Free(s.path("a")) // one too many has no effect
	must(t, s.unmount("a"))
}

func TestCorrupt(t *testing.T) {
	m, s := fresh(t)
	must(t, s.folders("a"), wantClass("not mounted", m.Corrupt(s.path("a"), syscall.ENOTCONN), mount.ErrNotMounted))
	must(t, s.tmpfs("a", mount.Options{}), s.write("a/f"), m.Corrupt(s.path("a"), syscall.ENOTCONN))
	p, err := m.Inspect(s.ctx, s.path("a"))
	if err != nil || !p.Exists || !p.Mounted || !errors.Is(p.Corrupt, syscall.ENOTCONN) {
		t.Errorf("inspect: %+v, %v", p, err)
	}
	if _, err := m.Inspect(s.ctx, s.path("a", "f")); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("inspect behind it: %v", err)
	}
	must(t, m.Corrupt(s.path("a"), nil), s.wantPoint("a/f", true, false, false))
	must(t, m.Corrupt(s.path("a"), syscall.ENOTCONN), s.unmount("a"), s.tmpfs("a", mount.Options{}))
	if p, err := m.Inspect(s.ctx, s.path("a")); err != nil || p.Corrupt != nil {
		t.Errorf("a new mount is corrupt: %+v, %v", p, err)
	}
}

func TestFaults(t *testing.T) {
	boom := errors.New("boom")
	m, s := fresh(t)
	must(t, s.folders("pods/a", "pods/b"))
	undo := m.Fail(OpMount, "pods/a", boom)
	must(t, wantClass("mount a", s.tmpfs("pods/a", mount.Options{}), boom), s.tmpfs("pods/b", mount.Options{}))
	undo()
	must(t, s.tmpfs("pods/a", mount.Options{}))

	m.Inject(Fault{Op: OpUnmount, Target: "*", Err: boom, Times: 2})
	must(t, wantClass("1st", s.unmount("pods/a"), boom), wantClass("2nd", s.unmount("pods/b"), boom), s.unmount("pods/a"))

	m.Inject(Fault{Op: OpUnmount, Err: boom, Times: 1, After: true})
	must(t, wantClass("after", s.unmount("pods/b"), boom), s.wantPoint("pods/b", true, false, true))
	m.Inject(Fault{Op: OpUnmount, Err: boom, After: true})
	must(t, wantClass("own error", s.unmount("pods/b"), mount.ErrNotMounted))
	m.Inject(Fault{Err: boom})
	if _, err := m.Table(s.ctx); !errors.Is(err, boom) {
		t.Errorf("any step: %v", err)
	}
	clean(t, m)
}

func TestPatterns(t *testing.T) {
	path := filepath.FromSlash
	for _, tt := range []struct {
		pattern, target string
		want            bool
	}{
		{"", "/any", true},
		{"/x/data", "/x/data", true},
		{"data", "/x/data", true},
		{"*/data", "/x/vol-1/data", true},
		{"vol-*/data", "/x/vol-1/data", true},
		{"vol-2/data", "/x/vol-1/data", false},
		{"ata", "/x/data", false},
		{"/data", "/x/data", false},
		{"[", "/x/data", false},
		{"[", "[", true},
	} {
		if got := matches(path(tt.pattern), path(tt.target)); got != tt.want {
			t.Errorf("pattern %q matches %q: %t", tt.pattern, tt.target, got)
		}
	}
}

func TestHang(t *testing.T) {
	m, s := fresh(t)
	must(t, s.folders("a", "b"))
	h := m.Hang(OpMount, "a")
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan error)
	go func() { done <- m.Mount(ctx, mount.Mount{Target: s.path("a"), FSType: "tmpfs"}) }()
	<-h.Reached()
	must(t, s.tmpfs("b", mount.Options{})) // nobody else is held up
	cancel()
	must(t, wantClass("ended", <-done, context.Canceled), s.wantPoint("a", true, false, true))

	go func() { done <- s.tmpfs("a", mount.Options{}) }()
	h.Release()
	h.Release()
	must(t, <-done, s.wantPoint("a", true, true, true), s.unmount("a"), s.unmount("b"))

	hard := m.HangHard(OpMount, "a")
	ctx, cancel = context.WithCancel(s.ctx)
	go func() { done <- m.Mount(ctx, mount.Mount{Target: s.path("a"), FSType: "tmpfs"}) }()
	<-hard.Reached()
	cancel()
	select {
	case err := <-done:
		t.Fatalf("a hard hang ended with its context: %v", err)
	default:
	}
	hard.Release()
	must(t, <-done, s.wantPoint("a", true, true, true)) // the kernel finished what it had begun
}

func TestCalls(t *testing.T) {
	m, s := fresh(t)
	must(t, s.folders("a"), s.tmpfs("a", mount.Options{ReadOnly: true, Sensitive: []string{"mode=0777"}}))
	_ = s.unmount("missing")
	calls := m.Calls(OpMount, OpUnmount)
	if len(calls) != 2 || calls[0].Op != OpMount || !calls[0].Mount.Options.ReadOnly || calls[0].Err != nil ||
		calls[1].Target != s.path("missing") || !errors.Is(calls[1].Err, mount.ErrNotMounted) {
		t.Errorf("calls: %+v", calls)
	}
	if text := fmt.Sprintf("%+v", calls); strings.Contains(text, "0777") {
		t.Errorf("a sensitive option is printed: %s", text)
	}
	m.ForgetCalls()
	if calls := m.Calls(); len(calls) != 0 {
		t.Errorf("calls after forgetting: %v", calls)
	}
}

func TestWatchSeesOthersAlone(t *testing.T) {
	m, s := fresh(t)
	must(t, s.folders("a", "b"))
	ctx, cancel := context.WithCancel(s.ctx)
	changed, ended := make(chan struct{}, 10), make(chan error)
	go func() { ended <- m.Watch(ctx, func() { changed <- struct{}{} }) }()
	for m.Calls(OpWatch) == nil { // until it watches
		must(t, s.wantPoint("a", true, false, true))
	}
	must(t, s.tmpfs("b", mount.Options{}), s.unmount("b"))
	other := m.Foreign()
	must(t, other.Mount(s.ctx, mount.Mount{Target: s.path("a"), FSType: "tmpfs"}))
	<-changed
	must(t, other.Unmount(s.ctx, s.path("a"), mount.UnmountOptions{}))
	<-changed
	cancel()
	must(t, wantClass("watch", <-ended, context.Canceled))
	if len(changed) != 0 || len(m.Calls(OpMount)) != 1 {
		t.Errorf("%d notices too many; logged mounts: %v", len(changed), m.Calls(OpMount))
	}
}

func TestOutsideIsNeverTouched(t *testing.T) {
	m, s := fresh(t)
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "keep"), nil, 0o600), os.Symlink(outside, s.path("way")))
	for _, target := range []string{outside, s.path("way", "keep"), filepath.Dir(s.dir)} {
		must(t, wantClass("remove "+target, m.RemoveAll(s.ctx, target), mount.ErrUnsupported))
	}
	must(t, os.Mkdir(filepath.Join(outside, "sub"), 0o755))
	err := m.Mount(s.ctx, mount.Mount{Target: s.path("way", "sub"), FSType: "tmpfs"})
	must(t, wantClass("mount outside", err, mount.ErrUnsupported))
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Error(err)
	}
	if err := New(Options{}).Mount(s.ctx, mount.Mount{Target: s.path("a"), FSType: "tmpfs"}); !errors.Is(err, errNoDir) {
		t.Errorf("mount without Dir: %v", err)
	}
}

func TestRemovedSourceLeavesAnEmptyBind(t *testing.T) {
	m, s := fresh(t)
	must(t, s.folders("data/sub", "a", "b"), s.write("data/f"), s.write("g"), s.write("data/keep"))
	must(t, s.bind("data", "a", mount.Options{}), s.bind("data/sub", "b", mount.Options{}), s.bind("data/f", "g", mount.Options{}))
	must(t, m.RemoveAll(s.ctx, s.path("data")), s.wantPoint("data", false, false, false))
	must(t, s.wantPoint("a", true, true, true), s.wantPoint("b", true, true, true), s.wantPoint("g", true, true, false))
	must(t, s.wantContent("g", "content of data/f"))
	if list, err := os.ReadDir(s.path("a")); err != nil || len(list) != 0 {
		t.Errorf("bind of a removed folder: %v, %v", list, err)
	}
	must(t, s.unmount("g"), s.unmount("b"), s.unmount("a"), s.wantContent("g", "content of g"))
	clean(t, m)
}

func TestTargetDeletedByTheProgram(t *testing.T) {
	m, s := fresh(t)
	must(t, s.folders("pod/a", "pod/b"), s.tmpfs("pod/a", mount.Options{}), s.bind("pod/a", "pod/b", mount.Options{}))
	must(t, os.RemoveAll(s.path("pod")))
	must(t, s.unmount("pod/b"), s.unmount("pod/a"))
	clean(t, m)
}

func TestNoBuild(t *testing.T) {
	dir := t.TempDir()
	m := New(Options{Dir: dir, NoBuild: true})
	_, err := m.Build(t.Context(), mount.Mount{FSType: "tmpfs"})
	must(t, wantClass("build", err, mount.ErrUnsupported))
	_, err = New(Options{Dir: dir}).Build(t.Context(), mount.Mount{Source: dir, Options: mount.Options{Bind: true}})
	must(t, wantClass("build a bind", err, mount.ErrUnsupported))
}

func TestPropagationIsPrivateIfAsked(t *testing.T) {
	dir := t.TempDir()
	m := New(Options{Dir: dir, Private: true})
	s := &site{Mounter: m, ctx: t.Context(), dir: dir}
	must(t, s.folders("a/m", "b"), s.bind("a", "b", mount.Options{}), s.tmpfs("a/m", mount.Options{}))
	must(t, s.wantPoint("a/m", true, true, true), s.wantPoint("b/m", true, false, true))
	if p, err := m.Propagation(t.Context(), dir); err != nil || p != mount.Private {
		t.Errorf("propagation: %v, %v", p, err)
	}
	must(t, wantClass("remove", m.RemoveAll(s.ctx, s.path("b", "m")), mount.ErrBusy))
}

func TestPropagationSpreads(t *testing.T) {
	m, s := fresh(t)
	must(t, s.folders("a/m", "b"), s.bind("a", "b", mount.Options{}), s.tmpfs("a/m", mount.Options{}), s.write("a/m/f"))
	must(t, s.wantPoint("b/m", true, true, true), s.wantContent("b/m/f", "content of a/m/f"))
	must(t, s.unmount("b/m"), s.wantPoint("a/m", true, false, true), s.unmount("b"))
	clean(t, m)
}

func TestDetachedAcrossReboot(t *testing.T) {
	m, s := fresh(t)
	must(t, s.folders("a"))
	d, err := m.Build(s.ctx, mount.Mount{FSType: "tmpfs"})
	must(t, err, d.Attach(s.ctx, s.path("a")), m.Reboot(), s.wantPoint("a", true, false, true))
	if err := d.Attach(s.ctx, s.path("a")); !errors.Is(err, errAttached) {
		t.Errorf("second attach: %v", err)
	}
	must(t, d.Close(), d.Close())
	clean(t, m)
}

func TestManyAtOnce(t *testing.T) {
	m, s := fresh(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			name := fmt.Sprintf("p%d", i)
			err := errors.Join(s.folders(name+"/v", name+"/d"), s.write(name+"/d/f"))
			for range 10 {
				err = errors.Join(err, s.tmpfs(name+"/v", mount.Options{}), s.bind(name+"/d", name+"/v", mount.Options{}),
					s.unmount(name+"/v"), s.unmount(name+"/v"))
			}
			if err := errors.Join(err, m.RemoveAll(s.ctx, s.path(name))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	clean(t, m)
	if list, err := os.ReadDir(s.dir); err != nil || len(list) > 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}

func TestRemoveAllObeysReadOnly(t *testing.T) {
	m, s := fresh(t)
	must(t, s.folders("data/sub", "a"), s.bind("data", "a", mount.Options{ReadOnly: true}))
	must(t, wantClass("remove", m.RemoveAll(s.ctx, s.path("a", "sub")), syscall.EROFS))
	must(t, s.wantPoint("data/sub", true, false, true))
}

func TestErrorsShowNoStash(t *testing.T) {
	m, s := fresh(t)
	must(t, s.folders("a"), s.tmpfs("a", mount.Options{}), s.tmpfs("a", mount.Options{}))
	err := s.tmpfs("a/missing", mount.Options{})
	if !errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), m.options.Stash) {
		t.Errorf("error: %v", err)
	}
}

// FuzzMemory does random operations in memory and takes all away again.
func FuzzMemory(f *testing.F) {
	f.Add([]byte("a few folders, and mounts on them: 0123456789"), false)
	f.Add([]byte("\x00\x01\x00\x00\x06\x01\x01\x0a\x02\x03\x00\x0f\x01\x01\x13\x00\x00\x00\x07\x08\x09"), true)
	f.Fuzz(func(t *testing.T, script []byte, private bool) {
		one, two := t.TempDir(), t.TempDir()
		a, b := New(Options{Dir: one, Private: private}), New(Options{Dir: two, Private: private})
		CompareScript(t, script[:min(len(script), 500)], Subject{"one", a, one}, Subject{"two", b, two})
		must(t, (&site{Mounter: a, ctx: t.Context(), dir: one}).sweep(), b.Reboot())
		clean(t, a)
		clean(t, b)
		if err := errors.Join(a.RemoveAll(t.Context(), one), b.RemoveAll(t.Context(), two)); err != nil {
			t.Error(err)
		}
	})
}
