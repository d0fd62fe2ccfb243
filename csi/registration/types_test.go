package registration

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestInfoCheck(t *testing.T) {
	if err := (Info{Type: DevicePlugin, Name: "nvidia.com/gpu", Endpoint: "/var/lib/a b/x.sock"}).Check(); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*Info){
		"no type":              func(i *Info) { i.Type = "" },
		"long type":            func(i *Info) { i.Type = strings.Repeat("x", maxTypeLength+1) },
		"no name":              func(i *Info) { i.Name = "" },
		"long name":            func(i *Info) { i.Name = strings.Repeat("n", MaxNameLength+1) },
		"name not UTF-8":       func(i *Info) { i.Name = "a\xff" },
		"name with newline":    func(i *Info) { i.Name = "a\nb" },
		"name with space":      func(i *Info) { i.Name = "a b" },
		"name with bidi":       func(i *Info) { i.Name = "a\u202eb" },
		"no endpoint":          func(i *Info) { i.Endpoint = "" },
		"relative endpoint":    func(i *Info) { i.Endpoint = "csi.sock" },
		"dot-dot endpoint":     func(i *Info) { i.Endpoint = "/csi/../etc/x" },
		"endpoint as URL":      func(i *Info) { i.Endpoint = "unix:///csi.sock" },
		"endpoint with NUL":    func(i *Info) { i.Endpoint = "/csi\x00.sock" },
		"long endpoint":        func(i *Info) { i.Endpoint = "/" + strings.Repeat("e", MaxEndpointLength) },
		"endpoint not UTF-8":   func(i *Info) { i.Endpoint = "/\xff" },
		"many versions":        func(i *Info) { i.Versions = slices.Repeat([]string{"1.0.0"}, MaxVersions+1) },
		"long version":         func(i *Info) { i.Versions = []string{strings.Repeat("1", MaxVersionLength+1)} },
		"empty version":        func(i *Info) { i.Versions = []string{""} },
		"version not a word":   func(i *Info) { i.Versions = []string{"1.0\t"} },
		"version with newline": func(i *Info) { i.Versions = []string{"1.0.0", "1\n"} },
	} {
		i := info("d")
		change(&i)
		err := i.Check()
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		} else if s := err.Error(); len(s) > 2*MaxNameLength || strings.ContainsAny(s, "\n\x00") || !utf8.ValidString(s) {
			t.Errorf("%s: the error cannot be shown: %q", what, s)
		}
	}
}

func FuzzInfoCheck(f *testing.F) {
	f.Add("CSIPlugin", "a.b", "/x", "1.0.0")
	f.Add("", "a\nb", "x/../y", "\xff")
	f.Add("t", "n", "/a/..", "")
	f.Fuzz(func(t *testing.T, kind, name, endpoint, version string) {
		i := Info{kind, name, endpoint, []string{version}}
		if err := i.Check(); err != nil {
			if s := bounded(err.Error()); !utf8.ValidString(s) || len(s) > maxText+3 || strings.Contains(s, "\n") {
				t.Errorf("%q cannot be shown", s)
			}
			return
		}
		if !strings.HasPrefix(endpoint, "/") || strings.Contains(endpoint+"/", "/../") || strings.ContainsAny(kind+name+version, " \n\x00") {
			t.Errorf("accepted %+v", i)
		}
	})
}

func TestBounded(t *testing.T) {
	for in, want := range map[string]string{
		"plain":                            "plain",
		"two\nlines\x00\x1b[31m":           "two lines  [31m",
		"\xff\xfe":                         " ",
		strings.Repeat("é", maxText):       strings.Repeat("é", maxText/2) + "...",
		"a" + strings.Repeat("é", maxText): "a" + strings.Repeat("é", maxText/2-1) + " ...",
	} {
		if got := bounded(in); got != want {
			t.Errorf("bounded(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestIdentitySame(t *testing.T) {
	now := time.Now()
	id := Identity{1, 2, now, now}
	for _, c := range []struct {
		other Identity
		same  bool
	}{
		{id, true},
		{Identity{1, 2, now, now.Add(1)}, true}, // chmod
		{Identity{1, 2, now.Add(1), now}, false},
		{Identity{1, 3, now, now}, false},
		{Identity{2, 2, now, now}, false},
		{Identity{1, 2, time.Time{}, now}, false},
	} {
		if id.Same(c.other) != c.same || c.other.Same(id) != c.same {
			t.Errorf("%v and %v: same is not %v", id, c.other, c.same)
		}
	}
	old := Identity{1, 2, time.Time{}, now}
	if !old.Same(old) || old.Same(Identity{1, 2, time.Time{}, now.Add(1)}) {
		t.Error("without a birth time the time of change counts")
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{{}, {Dir: "relative"}, {Dir: "/x", Handlers: map[string]Handler{CSIPlugin: nil}}, {Dir: "/x", Handlers: map[string]Handler{"": newRecorder()}}} {
		if _, err := New(c); err == nil {
			t.Errorf("New accepts %+v", c)
		}
	}
	w, err := New(Config{Dir: "/does/not//exist/"})
	must(t, err)
	if s := w.Status(); s.Folder.Path != "/does/not/exist" || s.Folder.Exists {
		t.Errorf("status before Run: %+v", s)
	}
}

func TestBackoffDoublesToItsBound(t *testing.T) {
	c, err := Config{Dir: "/x"}.withDefaults()
	must(t, err)
	for failures, most := range map[int]time.Duration{1: 50 * time.Millisecond, 2: 100 * time.Millisecond, 5: 800 * time.Millisecond, 13: 2 * time.Minute, 1 << 40: 2 * time.Minute} {
		for range 50 {
			if got := c.backoff(failures); got > most || got < most*4/5 {
				t.Errorf("backoff after %d failures: %v, at most %v", failures, got, most)
			}
		}
	}
}
