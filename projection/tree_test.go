package projection

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/volumekit/volumekit/plugins"
)

func TestCleanPath(t *testing.T) {
	long := strings.Repeat("x", 255)
	for in, want := range map[string]string{
		"a": "a", "a/b": "a/b", "a//b/": "a/b", "./a": "a", "a/./b": "a/b", ".hidden": ".hidden", "a/..b": "a/..b", long: long,
		strings.Repeat("a/", 2047) + "a": strings.Repeat("a/", 2047) + "a",
		"":                               "", "/a": "", ".": "", "./": "", "..": "", "../a": "", "a/..": "", "a/../b": "", "..a": "", "./..a": "", "..data": "",
		"a\x00b": "", long + "x": "", "a/" + long + "x": "", strings.Repeat("a/", 2048) + "a": "", "...": "",
	} {
		got, err := CleanPath(in)
		if got != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, ErrBadPath) {
			t.Errorf("%.40q: got %.40q, %v", in, got, err)
		}
	}
}

func FuzzCleanPath(f *testing.F) {
	for _, seed := range []string{"", "a", "a/b", "../x", "a/../../b", "/etc/passwd", "..data/x", "a\x00", "./..", "a//..//b", ".../x", strings.Repeat("a/", 3000)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, err := CleanPath(in)
		if err != nil {
			if got != "" || len(err.Error()) > 600 {
				t.Fatalf("error %v with %q", err, got)
			}
			return
		}
		if again, err := CleanPath(got); err != nil || again != got {
			t.Fatalf("%q became %q and then %q, %v", in, got, again, err)
		}
		joined := path.Join("/volume", got)
		if !strings.HasPrefix(joined, "/volume/") || strings.HasPrefix(joined, "/volume/..") || strings.ContainsRune(got, 0) || len(got) > maxPath {
			t.Fatalf("%q was accepted as %q", in, got)
		}
	})
}

func TestTreeConflicts(t *testing.T) {
	for _, tc := range []struct {
		name   string
		files  []string
		points []string
		bad    bool
	}{
		{"different files", []string{"a", "b", "c/d", "c/e"}, nil, false},
		{"one path", []string{"a", "a"}, nil, true},
		{"one path in two spellings", []string{"a", "./a"}, nil, true},
		{"file and folder", []string{"a", "a/b"}, nil, true},
		{"folder and file", []string{"a/b/c", "a/b"}, nil, true},
		{"names that share a beginning", []string{"a", "ab/c"}, nil, false},
		{"mount point beside files", []string{"a/b"}, []string{"a/c", "d"}, false},
		{"mount point on a folder", []string{"a/b"}, []string{"a"}, false},
		{"mount point on a file", []string{"a"}, []string{"a"}, true},
		{"mount point in a file", []string{"a/b"}, []string{"a/b/c"}, true},
		{"mount point upward", nil, []string{"../a"}, true},
		{"mount point in the writer's place", nil, []string{"..data"}, true},
	} {
		for _, pointsFirst := range []bool{false, true} {
			tree := &Tree{}
			var errs []error
			addPoints := func() {
				for _, p := range tc.points {
					errs = append(errs, tree.AddMountPoint(p, "the mount"))
				}
			}
			if pointsFirst {
				addPoints()
			}
			for i, p := range tc.files {
				errs = append(errs, tree.Add(p, File{Source: fmt.Sprint("source", i)}))
			}
			if !pointsFirst {
				addPoints()
			}
			err := errors.Join(errs...)
			if (err != nil) != tc.bad {
				t.Errorf("%s (points first: %t): %v", tc.name, pointsFirst, err)
			}
			if err != nil && plugins.ClassOf(err) != plugins.ClassPermanent {
				t.Errorf("%s: class %s", tc.name, plugins.ClassOf(err))
			}
		}
	}
	tree := &Tree{}
	_ = tree.Add("a/b", File{Source: "secret x"})
	if err := tree.Add("a", File{Source: "configMap y"}); !errors.Is(err, ErrConflict) ||
		!strings.Contains(err.Error(), "secret x") || !strings.Contains(err.Error(), "configMap y") {
		t.Errorf("the conflict does not name both sources: %v", err)
	}
	if err := tree.Add("x", File{Mode: 0o1644, Source: "z"}); plugins.ClassOf(err) != plugins.ClassPermanent {
		t.Errorf("sticky bit: %v", err)
	}
	for _, id := range []int64{-1, 1 << 31, 1 << 32, 1<<32 + 5} {
		for _, f := range []File{{UID: &id, Source: "z"}, {GID: &id, Source: "z"}} {
			if err := tree.Add("x", f); plugins.ClassOf(err) != plugins.ClassPermanent || !errors.Is(err, plugins.ErrBadID) {
				t.Errorf("owner %d: %v", id, err)
			}
		}
		if err := tree.setGroup(id); plugins.ClassOf(err) != plugins.ClassPermanent || !errors.Is(err, plugins.ErrBadID) {
			t.Errorf("group %d: %v", id, err)
		}
	}
	if got := tree.Paths(); !slices.Equal(got, []string{"a/b"}) || tree.Len() != 1 {
		t.Errorf("refused files got in: %q", got)
	}
}

func TestSecretsDoNotPrint(t *testing.T) {
	tree := &Tree{}
	f := File{Data: []byte("hunter2"), Mode: 0o600, Source: "secret ns/a key k"}
	if err := tree.Add("k", f); err != nil {
		t.Fatal(err)
	}
	encoded, _ := json.Marshal([]any{f, tree, Rendered{Tree: tree}})
	text := string(encoded)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		text += fmt.Sprintf(verb+verb+verb+verb, f, &f, tree, *tree) + fmt.Sprintf(verb, Rendered{Tree: tree}) + fmt.Sprintf(verb, []File{f})
	}
	for _, bad := range []string{"hunter2", "68756e74657232", "104 117", "aHVudGVyMg"} {
		if strings.Contains(text, bad) {
			t.Errorf("%q is shown in %s", bad, text)
		}
	}
}
