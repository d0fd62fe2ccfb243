package csi

import (
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/volumekit/volumekit/plugins"
)

func TestDriverNames(t *testing.T) {
	t.Parallel()
	good := []string{"a", "ebs.csi.aws.com", "A1", "my_driver.x", "csi-nfs", "9p", strings.Repeat("a", 63)}
	bad := []string{
		"", ".", "..", "-a", "a-", "a.", "_a", "a/b", "a b", "a\x00", "ä", "a^b", "../x", strings.Repeat("a", 64), strings.Repeat("/", 1<<20),
	}
	for _, name := range good {
		if err := CheckDriverName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range bad {
		err := CheckDriverName(name)
		if plugins.ClassOf(err) != plugins.ClassPermanent || len(err.Error()) > 500 {
			t.Errorf("%.80q: %.200v", name, err)
		}
	}
}

func FuzzDriverName(f *testing.F) {
	for _, s := range []string{"a", "a.b", "..", "a/..", "a\n", "é", strings.Repeat("x", 64)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if err := CheckDriverName(name); err != nil {
			if !utf8.ValidString(err.Error()) || strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("error %q", err)
			}
			return
		}
		if name == "" || len(name) > 63 || filepath.Base(name) != name || strings.HasPrefix(name, ".") || strings.ContainsAny(name, "/\\ :~^*\x00\n") {
			t.Errorf("%q was accepted", name)
		}
	})
}

func TestShorten(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"abc": "abc", "abcd": "abcd", "abcde": "abcd... (5 bytes)", "abcé": "abc... (5 bytes)"} {
		if got := shorten(in, 4); got != want {
			t.Errorf("%q gives %q", in, got)
		}
	}
}
