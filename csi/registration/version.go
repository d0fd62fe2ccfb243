package registration

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// PickVersion chooses the version of the CSI registration that both sides
// speak: the highest of major version 1, whatever the order. A version is
// major.minor or major.minor.patch, may begin with "v", and may carry a
// pre-release and build part, ordered as semver.org 2.0.0 says in its section
// 11. What does not parse and other major versions are passed over. The result
// is as it was offered. The error lists what was offered.
func PickVersion(offered []string) (string, error) {
	best, found, text := version{}, false, ""
	for _, s := range offered {
		v, ok := parseVersion(s)
		if ok && v.major == 1 && (!found || v.compare(best) > 0) {
			best, found, text = v, true, s
		}
	}
	if !found {
		return "", fmt.Errorf("no version 1.x among those offered: %s", listed(offered))
	}
	return text, nil
}

// listed shows hostile words in bounded space.
func listed(words []string) string {
	if len(words) == 0 {
		return "none"
	}
	const most = 8
	var b strings.Builder
	for i, w := range words {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(words)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		if len(w) > 32 {
			w = w[:32] + "..."
		}
		b.WriteString(strconv.Quote(w))
	}
	return b.String()
}

type version struct {
	major, minor, patch uint64
	pre                 []string // nil for a release
}

func parseVersion(s string) (version, bool) {
	if len(s) > MaxVersionLength {
		return version{}, false
	}
	s = strings.TrimPrefix(s, "v")
	s, build, hasBuild := strings.Cut(s, "+")
	s, pre, hasPre := strings.Cut(s, "-")
	var v version
	if hasBuild && !identifiers(build, false) || hasPre && !identifiers(pre, true) {
		return version{}, false
	}
	if hasPre {
		v.pre = strings.Split(pre, ".")
	}
	parts := strings.Split(s, ".")
	if len(parts) < 2 || len(parts) > 3 {
		return version{}, false
	}
	for i, field := range []*uint64{&v.major, &v.minor, &v.patch}[:len(parts)] {
		n, ok := number(parts[i])
		if !ok {
			return version{}, false
		}
		*field = n
	}
	return v, true
}

// number parses digits without a leading zero.
func number(s string) (uint64, bool) {
	if s == "" || len(s) > 1 && s[0] == '0' || !digits(s) {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// identifiers checks dot-separated identifiers; numeric ones of a pre-release
// have no leading zero.
func identifiers(s string, pre bool) bool {
	for id := range strings.SplitSeq(s, ".") {
		if id == "" || pre && len(id) > 1 && id[0] == '0' && digits(id) {
			return false
		}
		for _, c := range []byte(id) {
			if c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
				return false
			}
		}
	}
	return true
}

func (v version) compare(o version) int {
	if c := cmp.Or(cmp.Compare(v.major, o.major), cmp.Compare(v.minor, o.minor), cmp.Compare(v.patch, o.patch)); c != 0 {
		return c
	}
	switch {
	case v.pre == nil && o.pre == nil:
		return 0
	case v.pre == nil:
		return 1
	case o.pre == nil:
		return -1
	}
	for i := range min(len(v.pre), len(o.pre)) {
		if c := compareIdentifier(v.pre[i], o.pre[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(v.pre), len(o.pre))
}

func compareIdentifier(a, b string) int {
	switch an, bn := digits(a), digits(b); {
	case an && bn: // no leading zeros: the longer one is greater
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	case an:
		return -1
	case bn:
		return 1
	}
	return strings.Compare(a, b)
}
