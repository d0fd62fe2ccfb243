package registration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/csi/registration/registrationtest"
)

// A stale socket; a real server; a second one behind another socket; the first
// goes; the second dies and comes back as a new file; it fails five times.
func TestLifeCycle(t *testing.T) {
	b := setUp(t, func(c *Config) { c.BackoffMin = 10 * time.Millisecond })
	mkdir(t, b.dir)
	one, two := b.path("one.sock"), b.path("two.sock")
	deaf(t, one)
	b.start()
	stale := b.waitState(one, Stale)
	if stale.Registered || stale.NextTry.IsZero() {
		t.Errorf("stale socket: %+v", stale)
	}
	has(t, stale.LastError, "nobody listens", "refused", one)

	first := plugin(t, one, info("d"))
	registered := b.csi.expect(t, "register d one.sock")[0]
	welcome(t, first)

	second := plugin(t, two, info("d"))
	b.csi.expect(t, "register d two.sock")
	welcome(t, second)
	if s := b.waitState(two, Registered); s.LastError != "" || s.Attempts != 0 || !s.NextTry.IsZero() {
		t.Errorf("registered socket: %+v", s)
	}

	first.Stop()
	gone := b.csi.expect(t, "deregister d one.sock")[0]
	if gone.Generation != registered.Generation {
		t.Errorf("deregistered generation %d, registered was %d", gone.Generation, registered.Generation)
	}

	second.Kill()
	b.wait("loss of the connection", func(s Status) bool {
		sock, _ := find(s, two)
		return sock.State == Stale && sock.Registered
	})
	b.csi.none(t)
	must(t, os.Remove(two))
	b.csi.expect(t, "deregister d two.sock")
	third, err := registrationtest.StartHeld(two, registrationtest.Info(info("d")))
	must(t, err)
	t.Cleanup(third.Kill)
	third.FailInfo(5, status.Error(codes.Internal, "not yet"))
	third.Release()
	b.csi.expect(t, "register d two.sock")
	welcome(t, third)
	if third.Asked() < 6 {
		t.Errorf("asked %d times", third.Asked())
	}
	s := b.wait("one socket", func(s Status) bool { return len(s.Sockets) == 1 && s.Sockets[0].State == Registered })
	if len(b.csi.live) != 1 || s.Sockets[0].Info.Name != "d" {
		t.Errorf("in the end: %+v", s)
	}
}

func TestFoundAtEveryDepth(t *testing.T) {
	b := setUp(t)
	mkdir(t, b.path("before", "deep"))
	here := plugin(t, b.path("before", "deep", "a.sock"), info("a"))
	b.start()
	b.csi.expect(t, "register a a.sock")
	welcome(t, here)
	for depth, dir := range []string{b.dir, mkdir(t, b.path("x")), mkdir(t, b.path("x", "y")), mkdir(t, b.path("p", "q", "r", "s"))} {
		name := fmt.Sprintf("d%d", depth)
		p := plugin(t, filepath.Join(dir, "s.sock"), info(name))
		c := b.csi.expect(t, "register "+name+" s.sock")[0]
		if c.Socket != p.Path() || c.Endpoint != "/csi/"+name+".sock" || !slices.Equal(c.Versions, []string{"1.0.0"}) || c.Type != CSIPlugin {
			t.Errorf("registered %+v", c.Instance)
		}
		p.Stop()
		b.csi.expect(t, "deregister "+name+" s.sock")
	}
	must(t, os.RemoveAll(b.path("before")))
	b.csi.expect(t, "deregister a a.sock")
}

func TestIgnoredNames(t *testing.T) {
	b := setUp(t)
	for _, dir := range []string{b.dir, b.path(".hidden"), b.path("x", ".y")} {
		mkdir(t, dir)
	}
	places := []string{b.path(".s.sock"), b.path(".hidden", "s.sock"), b.path("x", ".y", "s.sock"), b.path("x", ".s.sock")}
	for _, p := range places[:2] {
		plugin(t, p, info("hidden"))
	}
	must(t, os.WriteFile(b.path("file.sock"), nil, 0o600))
	must(t, os.Symlink(b.path("file.sock"), b.path("link-to-file")))
	must(t, os.Symlink(b.path("x"), b.path("link-to-folder")))
	must(t, os.Symlink("/nowhere", b.path("dangling")))
	must(t, os.Symlink(b.path("loop"), b.path("loop")))
	b.start()
	for _, p := range places[2:] {
		plugin(t, p, info("hidden"))
	}
	plugin(t, b.path("x", "real.sock"), info("real"))
	b.csi.expect(t, "register real real.sock")
	s := b.waitState(b.path("x", "real.sock"), Registered)
	if all := b.w.Status(); len(all.Sockets) != 1 || all.Folder.Folders != 2 || all.Folder.Problem != "" {
		t.Errorf("%+v beside %+v", all, s)
	}
	b.csi.none(t)
}

func TestSymlinkToASocket(t *testing.T) {
	b := begin(t)
	elsewhere := filepath.Join(shortDir(t), "real.sock")
	p := plugin(t, elsewhere, info("d"))
	must(t, os.Symlink(elsewhere, b.path("link.sock")))
	b.csi.expect(t, "register d link.sock")
	welcome(t, p)
	must(t, os.Remove(b.path("link.sock")))
	b.csi.expect(t, "deregister d link.sock")
}

func TestTenComeAndGo(t *testing.T) {
	b := begin(t)
	var all []*registrationtest.Plugin
	for i := range 10 {
		name := fmt.Sprintf("d%d", i)
		all = append(all, plugin(t, b.path(name), info(name)))
		b.csi.expect(t, "register "+name+" "+name)
		b.wait("desired state", func(s Status) bool { return len(s.Sockets) == i+1 })
	}
	for i, p := range all {
		p.Stop()
		b.csi.expect(t, fmt.Sprintf("deregister d%d d%d", i, i))
		b.wait("desired state", func(s Status) bool { return len(s.Sockets) == 9-i })
	}
}

func TestTenSocketsOfOneName(t *testing.T) {
	b := begin(t)
	for i := range 10 {
		plugin(t, b.path(fmt.Sprint(i)), info("d"))
	}
	b.wait("ten registrations", func(s Status) bool {
		n := 0
		for _, one := range s.Sockets {
			if one.State == Registered {
				n++
			}
		}
		return n == 10
	})
	generations := map[uint64]bool{}
	for range 10 {
		generations[b.csi.next(t).Generation] = true
	}
	if len(generations) != 10 {
		t.Errorf("generations: %v", generations)
	}
}

// remake binds a new socket and moves it over the old one, so that no look
// finds the path empty.
func remake(t *testing.T, path string, i Info) *registrationtest.Plugin {
	t.Helper()
	aside := filepath.Join(filepath.Dir(path), ".aside")
	p := plugin(t, aside, i)
	must(t, os.Rename(aside, path))
	return p
}

func TestRemadeSocket(t *testing.T) {
	b := begin(t)
	path := b.path("s.sock")
	plugin(t, path, info("d"))
	first := b.csi.expect(t, "register d s.sock")[0]
	p := remake(t, path, info("d"))
	got := b.csi.expect(t, "register d s.sock", "deregister d s.sock")
	if got[0].Generation <= first.Generation || got[1].Generation != first.Generation || got[0].File == first.File {
		t.Errorf("registered %+v, then %+v and gone %+v", first, got[0], got[1])
	}
	welcome(t, p)
	remake(t, path, info("other"))
	b.csi.expect(t, "register other s.sock", "deregister d s.sock")
	if s := b.waitState(path, Registered); len(b.w.Status().Sockets) != 1 || s.Info.Name != "other" {
		t.Errorf("%+v", s)
	}
}

// A plugin that removes and binds, as they do: both orders are allowed.
func TestRestartedPlugin(t *testing.T) {
	b := begin(t)
	path := b.path("s.sock")
	p := plugin(t, path, info("d"))
	b.csi.expect(t, "register d s.sock")
	for range 5 {
		b.waitState(path, Registered)
		p.Kill()
		p = plugin(t, path, info("d"))
		got := []string{b.csi.next(t).verb, b.csi.next(t).verb}
		slices.Sort(got)
		if !slices.Equal(got, []string{"deregister", "register"}) {
			t.Fatalf("calls: %v", got)
		}
		welcome(t, p)
	}
}

func TestRemadeSocketThatFails(t *testing.T) {
	b := begin(t)
	path := b.path("s.sock")
	plugin(t, path, info("d"))
	b.csi.expect(t, "register d s.sock")
	aside := b.path(".aside")
	p, err := registrationtest.StartHeld(aside, registrationtest.Info(info("d")))
	must(t, err)
	t.Cleanup(p.Kill)
	p.FailInfo(1<<20, status.Error(codes.Internal, "broken"))
	p.Release()
	must(t, os.Rename(aside, path))
	b.csi.expect(t, "deregister d s.sock")
	s := b.waitState(path, Failed)
	has(t, s.LastError, "Internal", "broken")
	must(t, os.Remove(path))
	b.wait("no socket", func(s Status) bool { return len(s.Sockets) == 0 })
	b.csi.none(t)
}

func TestRename(t *testing.T) {
	b := begin(t)
	mkdir(t, b.path("sub"))
	p := plugin(t, b.path("a"), info("d"))
	first := b.csi.expect(t, "register d a")[0]
	welcome(t, p)

	must(t, os.Rename(b.path("a"), b.path("b")))
	got := b.csi.expect(t, "register d b", "deregister d a")
	if got[1].Generation != first.Generation {
		t.Errorf("%+v gone, registered was %+v", got[1], first)
	}
	must(t, os.Rename(b.path("b"), b.path("sub", "c")))
	b.csi.expect(t, "register d c", "deregister d b")
	must(t, os.Rename(b.path("sub"), b.path("other")))
	b.csi.expect(t, "register d c", "deregister d c")
	b.waitState(b.path("other", "c"), Registered)

	must(t, os.Rename(b.path("other", "c"), b.path(".hidden")))
	b.csi.expect(t, "deregister d c")
	b.wait("no socket", func(s Status) bool { return len(s.Sockets) == 0 })
	outside := filepath.Join(filepath.Dir(b.dir), "outside")
	must(t, os.Rename(b.path(".hidden"), outside))
	must(t, os.Rename(outside, b.path("back")))
	b.csi.expect(t, "register d back")
	must(t, os.Rename(b.path("back"), outside))
	b.csi.expect(t, "deregister d back")
}

func TestRenameOverAnother(t *testing.T) {
	b := begin(t)
	plugin(t, b.path("a"), info("a"))
	b.csi.expect(t, "register a a")
	plugin(t, b.path("b"), info("b"))
	b.csi.expect(t, "register b b")
	must(t, os.Rename(b.path("a"), b.path("b")))
	b.csi.expect(t, "register a b")
	gone := []string{b.csi.next(t).String(), b.csi.next(t).String()}
	slices.Sort(gone)
	if !slices.Equal(gone, []string{"deregister a a", "deregister b b"}) {
		t.Errorf("gone: %q", gone)
	}
	b.waitState(b.path("b"), Registered)
}

// The socket of a driver that still listens keeps the old folder alive, and the
// kernel silent about it.
func TestFolderMadeAnew(t *testing.T) {
	b := begin(t, func(c *Config) { c.Create = false })
	b.wait("a watched parent", func(s Status) bool { return s.Folder.Watch == Notified || rarely() < time.Minute })
	if s := b.w.Status(); s.Folder.Exists || s.Folder.Problem != "" {
		t.Errorf("a folder that is not there yet: %+v", s.Folder)
	}
	for range 3 {
		mkdir(t, b.dir)
		p := plugin(t, b.path("s.sock"), info("d"))
		b.csi.expect(t, "register d s.sock")
		welcome(t, p)
		must(t, os.RemoveAll(b.dir))
		b.csi.expect(t, "deregister d s.sock")
		b.wait("no folder", func(s Status) bool { return !s.Folder.Exists })
	}
	// Moved away as a whole, another in its place.
	mkdir(t, b.dir)
	plugin(t, b.path("old"), info("old"))
	b.csi.expect(t, "register old old")
	must(t, os.Rename(b.dir, b.dir+".away"))
	b.csi.expect(t, "deregister old old")
	mkdir(t, b.dir)
	plugin(t, b.path("new"), info("new"))
	b.csi.expect(t, "register new new")
	// What happens in the old one is not ours.
	plugin(t, filepath.Join(b.dir+".away", "stranger"), info("stranger"))
	plugin(t, b.path("next"), info("next"))
	b.csi.expect(t, "register next next")
	b.csi.none(t)
}

func TestFolderAppearsWithItsParents(t *testing.T) {
	root := shortDir(t)
	b := begin(t, func(c *Config) { c.Create, c.Dir = false, filepath.Join(root, "a", "b", "c", "reg") })
	mkdir(t, b.dir)
	plugin(t, b.path("s"), info("d"))
	b.csi.expect(t, "register d s")
	must(t, os.RemoveAll(filepath.Join(root, "a")))
	b.csi.expect(t, "deregister d s")
	mkdir(t, b.dir)
	plugin(t, b.path("s"), info("d"))
	b.csi.expect(t, "register d s")
}

func TestFolderIsMade(t *testing.T) {
	b := begin(t)
	st, err := os.Stat(b.dir)
	must(t, err)
	if !st.IsDir() || st.Mode().Perm()&^0o750 != 0 {
		t.Errorf("the folder's mode is %v", st.Mode())
	}
	must(t, os.Remove(b.dir))
	b.wait("the folder again", func(s Status) bool {
		_, err := os.Stat(b.dir)
		return err == nil && s.Folder.Exists
	})
}

func TestFolderIsAFile(t *testing.T) {
	b := setUp(t)
	must(t, os.WriteFile(b.dir, nil, 0o600))
	b.start()
	s := b.wait("a look", func(s Status) bool { return !s.Folder.LastLook.IsZero() })
	if s.Folder.Exists || s.Folder.Problem == "" {
		t.Errorf("%+v", s.Folder)
	}
	must(t, os.Remove(b.dir))
	b.wait("the folder", func(s Status) bool { return s.Folder.Exists && s.Folder.Problem == "" })
}

func TestRunAgain(t *testing.T) {
	b := begin(t)
	plugin(t, b.path("s"), info("d"))
	first := b.csi.expect(t, "register d s")[0]
	if err := b.w.Run(context.Background()); err == nil {
		t.Error("Run works twice at the same time")
	}
	b.stop()
	b.start()
	if again := b.csi.expect(t, "register d s")[0]; again.Generation <= first.Generation {
		t.Errorf("generation %d after %d", again.Generation, first.Generation)
	}
}

func TestNothingIsDeregisteredAtTheEnd(t *testing.T) {
	b := begin(t)
	plugin(t, b.path("s"), info("d"))
	b.csi.expect(t, "register d s")
	b.waitState(b.path("s"), Registered)
	b.stop()
	b.csi.none(t)
}

func TestStatusIsACopy(t *testing.T) {
	b := begin(t)
	plugin(t, b.path("s"), info("d"))
	b.waitState(b.path("s"), Registered)
	s := b.w.Status()
	s.Sockets[0].Path, s.Sockets[0].Info.Versions[0] = "x", "x"
	if again := b.w.Status(); again.Sockets[0].Path == "x" || again.Sockets[0].Info.Versions[0] == "x" {
		t.Error("the status can be changed from outside")
	}
	c := b.csi.next(t)
	c.Versions[0] = "x"
	if again := b.w.Status(); again.Sockets[0].Info.Versions[0] == "x" {
		t.Error("a handler can change the status")
	}
}

func TestBoundsOnSocketsAndFolders(t *testing.T) {
	b := begin(t, func(c *Config) { c.MaxSockets, c.MaxFolders = 2, 3 })
	for _, name := range []string{"m", "n"} {
		plugin(t, b.path(name), info(name))
		b.csi.expect(t, "register "+name+" "+name)
	}
	// Earlier in the alphabet, and too many.
	for _, name := range []string{"a", "b", "c"} {
		deaf(t, b.path(name))
	}
	b.wait("skipped sockets", func(s Status) bool { return s.Folder.Skipped == 3 && len(s.Sockets) == 2 })
	for i := range 5 {
		mkdir(t, b.path(fmt.Sprint(i)))
	}
	s := b.wait("too many folders", func(s Status) bool { return s.Folder.Problem != "" })
	has(t, s.Folder.Problem, "more than 3 folders")
	if s.Folder.Folders > 3 {
		t.Errorf("%d folders", s.Folder.Folders)
	}
	b.csi.none(t)
	// A known socket that goes is missed all the same, and makes room.
	must(t, os.Remove(b.path("m")))
	b.csi.expect(t, "deregister m m")
}

func TestKnownSocketsOfAnIncompleteLook(t *testing.T) {
	dir := shortDir(t)
	there, replaced := filepath.Join(dir, "there"), filepath.Join(dir, "replaced")
	deaf(t, there)
	must(t, os.WriteFile(replaced, nil, 0o600))
	id, _, err := identify(there)
	must(t, err)
	sockets := map[string]Identity{}
	keepKnown(sockets, map[string]Identity{
		there: {}, replaced: id, filepath.Join(dir, "gone"): id, filepath.Join(there, "below"): id,
		filepath.Join(dir, strings.Repeat("x", 300)): id, // ENAMETOOLONG says nothing about what is there
	})
	if len(sockets) != 2 || sockets[there] != id {
		t.Errorf("kept: %v", sockets)
	}
}

func TestKnownSocketInAFolderThatIsNotReadAnyMore(t *testing.T) {
	dir := shortDir(t)
	path := filepath.Join(mkdir(t, filepath.Join(dir, "sub")), "s")
	deaf(t, path)
	s := &scanner{dir: dir, maxFolders: 2, open: openEvents, notice: func() {}}
	defer s.close()
	first := s.scan(nil)
	if len(first.sockets) != 1 || first.incomplete {
		t.Fatalf("%+v", first)
	}
	s.maxFolders = 1
	if r := s.scan(nil); len(r.sockets) != 0 || !r.incomplete {
		t.Errorf("an unknown socket beyond the bound: %+v", r)
	}
	if r := s.scan(first.sockets); r.sockets[path] != first.sockets[path] {
		t.Errorf("a known socket beyond the bound: %+v", r)
	}
	must(t, os.Remove(path))
	if r := s.scan(first.sockets); len(r.sockets) != 0 {
		t.Errorf("a socket that has gone: %+v", r)
	}
}

func TestRegisteredSoonAfterItListens(t *testing.T) {
	b := begin(t)
	var times []time.Duration
	for i := range 20 {
		begun := time.Now()
		plugin(t, b.path(fmt.Sprint(i)), info("d"))
		b.csi.next(t)
		times = append(times, time.Since(begun))
	}
	slices.Sort(times)
	t.Logf("median %v, slowest %v", times[10], times[19])
	if times[10] > 100*time.Millisecond {
		t.Errorf("half of the plugins took more than %v", times[10])
	}
}
