package mount_test

import (
	"testing"

	"github.com/volumekit/volumekit/mount"
)

func table() mount.Table {
	return mount.Table{
		{ID: 1, Target: "/"},
		{ID: 2, Target: "/a", Parent: 1},
		{ID: 3, Target: "/a/b", Parent: 2},
		{ID: 4, Target: "/ab", Parent: 1},
		{ID: 5, Target: "/a/b", Parent: 3},
	}
}

func TestAtIsTheTopmost(t *testing.T) {
	for p, want := range map[string]uint64{"/": 1, "/a": 2, "/a/b": 5, "/a/": 0, "/c": 0} {
		e, ok := table().At(p)
		if ok != (want != 0) || e.ID != want {
			t.Errorf("at %s is %d, %v, want %d", p, e.ID, ok, want)
		}
	}
}

func TestBelowIsTheOrderOfUnmounting(t *testing.T) {
	for p, want := range map[string][]uint64{"/": {5, 4, 3, 2}, "/a": {5, 3}, "/a/b": nil, "/a/b/c": nil} {
		var got []uint64
		for _, e := range table().Below(p) {
			got = append(got, e.ID)
		}
		if len(got) != len(want) {
			t.Errorf("below %s are %v, want %v", p, got, want)
			continue
		}
		for i := range got {
			if got[i] != want[i] {
				t.Errorf("below %s are %v, want %v", p, got, want)
				break
			}
		}
	}
}

func TestInside(t *testing.T) {
	for _, c := range []struct {
		root, p string
		want    bool
	}{
		{"/a", "/a", true},
		{"/a", "/a/b", true},
		{"/a", "/ab", false},
		{"/a/", "/a/b", true},
		{"/", "/x", true},
		{"/a/b", "/a", false},
		{"/a", "/a/../b", false},
	} {
		if got := mount.Inside(c.root, c.p); got != c.want {
			t.Errorf("Inside(%q, %q) is %v", c.root, c.p, got)
		}
	}
}
