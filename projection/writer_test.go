package projection

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/volumekit/volumekit/plugins"
)

// files makes a tree: "path" or "path:mode" -> content.
func files(t testing.TB, m map[string]string) *Tree {
	t.Helper()
	tree := &Tree{}
	for name, data := range m {
		mode := uint32(0o644)
		if p, text, ok := strings.Cut(name, ":"); ok {
			name = p
			if _, err := fmt.Sscanf(text, "%o", &mode); err != nil {
				t.Fatal(err)
			}
		}
		if err := tree.Add(name, File{Data: []byte(data), Mode: mode, Source: "test"}); err != nil {
			t.Fatal(err)
		}
	}
	return tree
}

func openRoot(t testing.TB, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

func write(t testing.TB, dir string, tree *Tree) WriteResult {
	t.Helper()
	res, err := (&Writer{Root: openRoot(t, dir)}).Write(context.Background(), tree)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// shown reads a volume as a container does: every name, links followed.
func shown(t testing.TB, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	var visit func(rel string)
	visit = func(rel string) {
		entries, err := os.ReadDir(filepath.Join(dir, rel))
		if err != nil {
			t.Errorf("read folder: %v", err)
		}
		for _, e := range entries {
			name := filepath.Join(rel, e.Name())
			if strings.HasPrefix(name, "..") {
				continue
			}
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil {
				t.Errorf("dangling name: %v", err)
				continue
			}
			if info.IsDir() {
				visit(name)
				continue
			}
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Error(err)
			}
			got[fmt.Sprintf("%s:%o", filepath.ToSlash(name), info.Mode().Perm())] = string(data)
		}
	}
	visit("")
	return got
}

func normal(m map[string]string) map[string]string {
	out := map[string]string{}
	for name, data := range m {
		if !strings.Contains(name, ":") {
			name += ":644"
		}
		p, mode, _ := strings.Cut(name, ":")
		out[filepath.ToSlash(filepath.Clean(p))+":"+strings.TrimLeft(mode, "0")] = data
	}
	return out
}

// tidy checks the invariants of the layout.
func tidy(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var hidden []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			hidden = append(hidden, e.Name())
		}
	}
	live, err := os.Readlink(filepath.Join(dir, "..data"))
	if err != nil || !isVersion(live) {
		t.Errorf("..data -> %q, %v", live, err)
	}
	if !slices.Equal(hidden, []string{live, "..data"}) && !slices.Equal(hidden, []string{"..data", live}) {
		t.Errorf("left in the folder: %q", hidden)
	}
}

func TestWriterSequence(t *testing.T) {
	steps := []struct {
		name    string
		content map[string]string
		changed []string
	}{
		{"first", map[string]string{"a": "1", "b:0600": "2", ".dot": "3", "d/e/f:0755": "4", "d//g/": "5", "empty": ""}, []string{".dot", "a", "b", "d/e/f", "d/g", "empty"}},
		{"same", map[string]string{"a": "1", "b:0600": "2", ".dot": "3", "d/e/f:0755": "4", "d/g": "5", "empty": ""}, nil},
		{"content", map[string]string{"a": "X", "b:0600": "2", ".dot": "3", "d/e/f:0755": "4", "d/g": "5", "empty": ""}, []string{"a"}},
		{"longer", map[string]string{"a": "XX", "b:0600": "2", ".dot": "3", "d/e/f:0755": "4", "d/g": "5", "empty": ""}, []string{"a"}},
		{"mode", map[string]string{"a": "XX", "b:0400": "2", ".dot": "3", "d/e/f:0755": "4", "d/g": "5", "empty": ""}, []string{"b"}},
		{"add and remove", map[string]string{"a": "XX", "n": "new", ".dot": "3", "d/e/f:0755": "4", "d/h": "6", "empty": ""}, []string{"b", "d/g", "d/h", "n"}},
		{"remove folder", map[string]string{"a": "XX"}, []string{".dot", "d/e/f", "d/h", "empty", "n"}},
		{"file becomes folder", map[string]string{"a/b": "1"}, []string{"a", "a/b"}},
		{"folder becomes file", map[string]string{"a": "1"}, []string{"a", "a/b"}},
		{"nothing", map[string]string{}, []string{"a"}},
		{"still nothing", map[string]string{}, nil},
		{"again", map[string]string{"a": "1", "z/y": "2"}, []string{"a", "z/y"}},
	}
	dir := memory(t)
	version := ""
	for i, step := range steps {
		res := write(t, dir, files(t, step.content))
		if !slices.Equal(res.Changed, step.changed) {
			t.Errorf("%s: changed %q, want %q", step.name, res.Changed, step.changed)
		}
		if want := step.changed != nil || i == 0; res.Wrote != want || (res.Version != version) != want {
			t.Errorf("%s: wrote %t, version %s after %s", step.name, res.Wrote, res.Version, version)
		}
		version = res.Version
		if got := shown(t, dir); !maps.Equal(got, normal(step.content)) {
			t.Errorf("%s: shown %q", step.name, got)
		}
		tidy(t, dir)
	}
}

func TestWriterLayout(t *testing.T) {
	dir := memory(t)
	clk := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 29, 13, 32, 14, 0, time.UTC))
	w := &Writer{Root: openRoot(t, dir), Clock: clk, Sync: true, Empty: true}
	res, err := w.Write(context.Background(), files(t, map[string]string{"a": "1", "d/e": "2", "d/f": "3"}))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(res.Version, "..2026_11_29_13_32_14.") {
		t.Errorf("version %q", res.Version)
	}
	for link, want := range map[string]string{"..data": res.Version, "a": "..data/a", "d": "..data/d"} {
		if got, err := os.Readlink(filepath.Join(dir, link)); got != want {
			t.Errorf("%s -> %q, %v", link, got, err)
		}
	}
	for _, folder := range []string{"..data/", "..data/d"} {
		if info, err := os.Stat(filepath.Join(dir, folder)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", folder, info.Mode(), err)
		}
	}
}

// A kubelet's folder has the same shape, with rights that it sets otherwise.
func TestWriterTakesOver(t *testing.T) {
	dir := memory(t)
	old := "..2020_01_02_03_04_05.1234"
	for _, err := range []error{
		os.Mkdir(filepath.Join(dir, old), 0o700),
		os.WriteFile(filepath.Join(dir, old, "a"), []byte("1"), 0o644),
		os.WriteFile(filepath.Join(dir, old, "gone"), []byte("1"), 0o644),
		os.Symlink(old, filepath.Join(dir, "..data")),
		os.Symlink("..data/a", filepath.Join(dir, "a")),
		os.Symlink("..data/gone", filepath.Join(dir, "gone")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	tree := files(t, map[string]string{"a": "1", "gone": "1"})
	if res := write(t, dir, tree); res.Wrote || res.Version != old {
		t.Errorf("unchanged content was written again: %+v", res)
	}
	want := map[string]string{"a": "2", "b": "3"}
	if res := write(t, dir, files(t, want)); !slices.Equal(res.Changed, []string{"a", "b", "gone"}) {
		t.Errorf("changed %q", res.Changed)
	}
	if got := shown(t, dir); !maps.Equal(got, normal(want)) {
		t.Errorf("shown %q", got)
	}
	tidy(t, dir)
}

func TestWriterRepairs(t *testing.T) {
	content := map[string]string{"a": "1", "b": "2", "d/e": "3"}
	for name, damage := range map[string]func(dir string) error{
		"links lost":        func(dir string) error { return errors.Join(os.Remove(dir+"/a"), os.Remove(dir+"/d")) },
		"link wrong":        func(dir string) error { return errors.Join(os.Remove(dir+"/a"), os.Symlink("/etc/passwd", dir+"/a")) },
		"link dangling":     func(dir string) error { return os.Symlink("..data/gone", dir+"/gone") },
		"temp link":         func(dir string) error { return os.Symlink("..2020_01_02.gone", dir+"/..data_tmp") },
		"temp folder":       func(dir string) error { return os.MkdirAll(dir+"/..data_tmp/x/y", 0o755) },
		"stray version":     func(dir string) error { return os.MkdirAll(dir+"/..2020_01_02_03_04_05.1/x/y", 0o755) },
		"folder in a place": func(dir string) error { return errors.Join(os.Remove(dir+"/b"), os.Mkdir(dir+"/b", 0o755)) },
		"data link gone":    func(dir string) error { return os.Remove(dir + "/..data") },
		"data link dangling": func(dir string) error {
			return errors.Join(os.Remove(dir+"/..data"), os.Symlink("..2020_01_02_03_04_05.1", dir+"/..data"))
		},
		"data link escapes": func(dir string) error {
			return errors.Join(os.Remove(dir+"/..data"), os.Symlink("/etc", dir+"/..data"))
		},
		"file replaced by a link": func(dir string) error {
			return errors.Join(os.Remove(dir+"/..data/a"), os.Symlink("/etc/passwd", dir+"/..data/a"))
		},
		"file lost":  func(dir string) error { return os.Remove(dir + "/..data/d/e") },
		"empty file": func(dir string) error { return os.Truncate(dir+"/..data/b", 0) },
	} {
		dir := memory(t)
		write(t, dir, files(t, content))
		if err := damage(dir); err != nil {
			t.Fatal(err)
		}
		write(t, dir, files(t, content))
		if got := shown(t, dir); !maps.Equal(got, normal(content)) {
			t.Errorf("%s: shown %q", name, got)
		}
		tidy(t, dir)
	}
	dir := memory(t)
	if err := os.WriteFile(dir+"/mine", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, dir, files(t, content))
	if _, err := os.Lstat(dir + "/mine"); err != nil {
		t.Errorf("a foreign file was removed: %v", err)
	}
	if _, err := (&Writer{Root: openRoot(t, dir)}).Write(context.Background(), files(t, map[string]string{"mine/x": ""})); err != nil {
		t.Errorf("a plain file in a key's place: %v", err)
	}
}

var faultPoints = []string{FaultVersionMade, FaultDataWritten, FaultLinkMade, FaultSwitched, FaultLinksMade, FaultLinksRemoved, FaultOldRemoved}

// At each point the process dies; the next one finds all names, one version
// and no leftovers.
func TestWriterSurvivesKill(t *testing.T) {
	old, next := map[string]string{"a": "1", "b": "1", "d/x": "1"}, map[string]string{"a": "2", "c": "2", "d/y": "2"}
	for _, point := range faultPoints {
		for _, before := range []map[string]string{nil, old} {
			for _, after := range []map[string]string{old, next, nil} {
				dir := memory(t)
				if before != nil {
					write(t, dir, files(t, before))
				}
				killed := func() (killed bool) {
					defer func() { killed = recover() != nil }()
					w := &Writer{Root: openRoot(t, dir), Faults: func(p string) error {
						if p == point {
							panic("killed")
						}
						return nil
					}}
					_, _ = w.Write(context.Background(), files(t, next))
					return false
				}()
				if !killed {
					t.Fatalf("%s was not passed", point)
				}
				write(t, dir, files(t, after))
				if got := shown(t, dir); !maps.Equal(got, normal(after)) {
					t.Errorf("%s: shown %q, want %q", point, got, after)
				}
				tidy(t, dir)
			}
		}
	}
}

// An error at a point leaves whole content: the old one before the switch,
// the new one after it, and nothing else.
func TestWriterFails(t *testing.T) {
	old, next := map[string]string{"a": "1", "b": "1"}, map[string]string{"a": "2", "c": "2"}
	cause := errors.New("no space")
	for i, point := range faultPoints {
		for _, first := range []bool{true, false} {
			dir := memory(t)
			if !first {
				write(t, dir, files(t, old))
			}
			w := &Writer{Root: openRoot(t, dir), Faults: func(p string) error {
				if p == point {
					return cause
				}
				return nil
			}}
			_, err := w.Write(context.Background(), files(t, next))
			want, class := old, plugins.ClassTransient
			if i >= slices.Index(faultPoints, FaultSwitched) {
				want, class = next, plugins.ClassUncertain
			} else if first {
				want = nil
			}
			if !errors.Is(err, cause) || plugins.ClassOf(err) != class {
				t.Errorf("%s: %v of class %s", point, err, plugins.ClassOf(err))
			}
			if got := shown(t, dir); !maps.Equal(got, normal(want)) {
				t.Errorf("%s: shown %q", point, got)
			}
			if want != nil {
				tidy(t, dir)
			} else if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("%s: left %v", point, left)
			}
		}
	}
	dir := memory(t)
	write(t, dir, files(t, old))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := (&Writer{Root: openRoot(t, dir)}).Write(ctx, files(t, next)); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
	if got := shown(t, dir); !maps.Equal(got, normal(old)) {
		t.Errorf("after an ended context: %q", got)
	}
	tidy(t, dir)
}

func TestWriterMountPoints(t *testing.T) {
	dir := memory(t)
	tree := func(content map[string]string, points ...string) *Tree {
		tree := files(t, content)
		for _, p := range points {
			if err := tree.AddMountPoint(p, "container c"); err != nil {
				t.Fatal(err)
			}
		}
		return tree
	}
	content := map[string]string{"a": "1", "d/x": "1", "d/e/y": "1", "d/e/z/w": "1"}
	// A kubelet would have linked d and hidden what is in it.
	write(t, dir, tree(content))
	write(t, dir, tree(content, "own/deep", "d/e/point"))
	if got := shown(t, dir); !maps.Equal(got, normal(content)) {
		t.Errorf("shown %q", got)
	}
	for _, point := range []string{"own/deep", "d/e/point"} {
		if info, err := os.Lstat(filepath.Join(dir, point)); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", point, err)
		}
	}
	for link, want := range map[string]string{"d/x": "../..data/d/x", "d/e/y": "../../..data/d/e/y", "d/e/z": "../../..data/d/e/z", "a": "..data/a"} {
		if got, err := os.Readlink(filepath.Join(dir, link)); got != want {
			t.Errorf("%s -> %q, %v", link, got, err)
		}
	}
	// An update keeps the folders: a mount on one of them must survive it.
	before, _ := os.Stat(filepath.Join(dir, "d/e/point"))
	next := map[string]string{"a": "2", "d/e/y": "2", "d/n": "2"}
	if res := write(t, dir, tree(next, "own/deep", "d/e/point")); !slices.Equal(res.Changed, []string{"a", "d/e/y", "d/e/z/w", "d/n", "d/x"}) {
		t.Errorf("changed %q", res.Changed)
	}
	if got := shown(t, dir); !maps.Equal(got, normal(next)) {
		t.Errorf("shown %q", got)
	}
	if after, err := os.Stat(filepath.Join(dir, "d/e/point")); err != nil || !os.SameFile(before, after) {
		t.Errorf("the mount point was made anew: %v", err)
	}
	tidy(t, dir)
	if res := write(t, dir, tree(next, "own/deep", "d/e/point")); res.Wrote {
		t.Error("unchanged content was written again")
	}
}

func TestWriterOwners(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no numeric owners on windows")
	}
	dir := memory(t)
	own := func(uid, gid *int64) *Tree {
		tree := &Tree{}
		if err := tree.Add("a", File{Data: []byte("1"), Mode: 0o600, UID: uid, GID: gid, Source: "test"}); err != nil {
			t.Fatal(err)
		}
		return tree
	}
	id := func(n int) *int64 { v := int64(n); return &v }
	me, group := id(os.Geteuid()), id(os.Getegid())
	write(t, dir, own(nil, nil))
	if res := write(t, dir, own(me, group)); res.Wrote {
		t.Error("the owner that the file has was set again")
	}
	root := openRoot(t, dir)
	_, err := (&Writer{Root: root}).Write(context.Background(), own(id(12345), id(54321)))
	if err != nil { // no right to, or no such id in this user namespace
		if plugins.ClassOf(err) != plugins.ClassUnsupported || !strings.Contains(err.Error(), "12345") {
			t.Errorf("%v of class %s", err, plugins.ClassOf(err))
		}
		if got := shown(t, dir); len(got) != 1 {
			t.Errorf("shown %q", got)
		}
		tidy(t, dir)
		return
	}
	info, err := root.Stat("a")
	if got := ownerOf(info); err != nil || got != (owner{12345, 54321}) {
		t.Errorf("owner %v, %v", got, err)
	}
	if res := write(t, dir, own(id(12345), id(54321))); res.Wrote {
		t.Error("unchanged owner was written again")
	}
	if res := write(t, dir, own(nil, id(54321))); !slices.Equal(res.Changed, []string{"a"}) {
		t.Errorf("changed %q", res.Changed)
	}
}
