package registration

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPickVersion(t *testing.T) {
	for _, c := range []struct {
		offered, want string // want is empty for a refusal
	}{
		{"v1.0.0", "v1.0.0"},
		{"0.2.0 1.0.0", "1.0.0"},
		{"0.2.0 1.2.3", "1.2.3"},
		{"1.2.3 0.2.0", "1.2.3"},
		{"1.2.3 1.10.0 1.9.9", "1.10.0"},
		{"2.0.0 1.2.3 4.9.12", "1.2.3"},
		{"v1.2.3 v4.9.12 v2.0.1", "v1.2.3"},
		{"garbage 1.0.0 x.y.z", "1.0.0"},
		{"1.0 1.0.0", "1.0"},
		{"1.1", "1.1"},
		{"1.0.0-rc1 1.0.0-rc.2 1.0.0", "1.0.0"},
		{"1.0.0-alpha.1 1.0.0-alpha.beta 1.0.0-alpha", "1.0.0-alpha.beta"},
		{"1.0.0-9 1.0.0-10", "1.0.0-10"},
		{"1.0.0-rc 1.0.0-rc.1", "1.0.0-rc.1"},
		{"1.0.0+build.7", "1.0.0+build.7"},
		{"1.18446744073709551615.0 1.2.0", "1.18446744073709551615.0"},
		{"0.1.0", ""},
		{"v0.2.0 0.3.0", ""},
		{"0.1.0 0.2.0 0.3.0", ""},
		{"2.0.0 4.9.12", ""},
		{"", ""},
		{"hello", ""},
		{"1 v1 1. 1.x 1..0 01.0 1.00 1.0.0.0 1.0.0- 1.0.0+ 1.0.0-01 1.0.0-a..b vv1.0 V1.0 -1.0 +1.0 1.-0 1.18446744073709551616", ""},
	} {
		got, err := PickVersion(strings.Fields(c.offered))
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("PickVersion(%s) = %q, %v; want %q", c.offered, got, err, c.want)
		}
	}
}

func TestPickVersionListsWhatWasOffered(t *testing.T) {
	_, err := PickVersion([]string{"0.3.0", "2.0\n", strings.Repeat("9", 1000)})
	has(t, err.Error(), `"0.3.0"`, `"2.0\n"`)
	if len(err.Error()) > 200 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
	_, err = PickVersion(make([]string, 1000))
	has(t, err.Error(), "and 992 more")
	_, err = PickVersion(nil)
	has(t, err.Error(), "none")
}

func FuzzPickVersion(f *testing.F) {
	for _, s := range []string{"1.0.0", "v1.2.3-rc.1+x", "1.0 0.3 2.1.0", "", "1.", "\xff", "1.0.0-00", "1.99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		offered := strings.Split(s, " ")
		got, err := PickVersion(offered)
		if err != nil {
			if !utf8.ValidString(err.Error()) {
				t.Errorf("error %q is not UTF-8", err)
			}
			return
		}
		best, ok := parseVersion(got)
		if !ok || best.major != 1 {
			t.Fatalf("picked %q of %q", got, offered)
		}
		for _, o := range offered {
			v, ok := parseVersion(o)
			if ok && v.compare(v) != 0 {
				t.Errorf("%q is not equal to itself", o)
			}
			if ok && v.major == 1 && (v.compare(best) > 0 || best.compare(v) < 0) {
				t.Errorf("picked %q although %q is higher", got, o)
			}
		}
	})
}
