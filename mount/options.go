package mount

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Options are the options of one mount. The zero value is a plain read-write
// mount.
type Options struct {
	// Bind makes the source visible a second time instead of mounting a file
	// system. Recursive takes the mounts below the source along.
	Bind, Recursive bool
	// ReadOnly, NoSuid, NoDev, NoExec, NoAtime and NoSymfollow are the per-mount flags of
	// mount(8). They hold from the first moment at which the mount is visible.
	ReadOnly, NoSuid, NoDev, NoExec, NoAtime, NoSymfollow bool
	// Data are the file system's own options, "key" or "key=value", in order.
	Data []string
	// Sensitive are options like Data that must never be logged or shown.
	Sensitive []string `json:"-"`
}

// flag maps the words of mount(8) to the field that they set and to the
// word that takes them back.
func (o *Options) flag(word string) (field *bool, value, known bool) {
	switch word {
	case "ro":
		return &o.ReadOnly, true, true
	case "rw":
		return &o.ReadOnly, false, true
	case "nosuid":
		return &o.NoSuid, true, true
	case "suid":
		return &o.NoSuid, false, true
	case "nodev":
		return &o.NoDev, true, true
	case "dev":
		return &o.NoDev, false, true
	case "noexec":
		return &o.NoExec, true, true
	case "exec":
		return &o.NoExec, false, true
	case "noatime":
		return &o.NoAtime, true, true
	case "atime":
		return &o.NoAtime, false, true
	case "nosymfollow":
		return &o.NoSymfollow, true, true
	case "symfollow":
		return &o.NoSymfollow, false, true
	case "bind":
		return &o.Bind, true, true
	}
	return nil, false, false
}

// ParseOptions reads a list as it stands in PersistentVolume.spec.mountOptions
// or on the command line of mount(8): each element may hold several options
// separated by commas; a comma between double quotes separates nothing
// (context="system_u:object_r:container_file_t:s0:c1,c2"). Words that take another word back (ro and rw) are a
// contradiction, not a question of order: the error wraps [ErrBadOption].
// Empty elements are dropped, order is kept.
func ParseOptions(list []string) (Options, error) {
	var o Options
	seen := map[*bool]string{}
	for _, element := range list {
		for word := range splitOptions(element) {
			word = strings.TrimSpace(word)
			if strings.ContainsAny(word, "\x00\n\t ") || strings.Count(word, `"`)%2 != 0 {
				return Options{}, fmt.Errorf("%w: %q holds white space, NUL or a single quote mark", ErrBadOption, word)
			}
			switch field, value, known := o.flag(word); {
			case word == "" || word == "defaults":
			case word == "rbind":
				o.Bind, o.Recursive = true, true
			case !known:
				o.Data = append(o.Data, word)
			case seen[field] != "" && seen[field] != word:
				return Options{}, fmt.Errorf("%w: %q contradicts %q", ErrBadOption, word, seen[field])
			default:
				*field, seen[field] = value, word
			}
		}
	}
	return o, nil
}

// splitOptions yields what stands between the commas outside of double quotes.
func splitOptions(list string) iter.Seq[string] {
	return func(yield func(string) bool) {
		from, quoted := 0, false
		for i := range len(list) {
			switch {
			case list[i] == '"':
				quoted = !quoted
			case list[i] == ',' && !quoted:
				if !yield(list[from:i]) {
					return
				}
				from = i + 1
			}
		}
		yield(list[from:])
	}
}

// With returns o with the flags and data of system added. What the system
// demands always holds: no option of a user takes it back.
func (o Options) With(system Options) Options {
	o.Bind = o.Bind || system.Bind
	o.Recursive = o.Recursive || system.Recursive
	o.ReadOnly = o.ReadOnly || system.ReadOnly
	o.NoSuid = o.NoSuid || system.NoSuid
	o.NoDev = o.NoDev || system.NoDev
	o.NoExec = o.NoExec || system.NoExec
	o.NoAtime = o.NoAtime || system.NoAtime
	o.NoSymfollow = o.NoSymfollow || system.NoSymfollow
	o.Data = slices.Concat(o.Data, system.Data)
	o.Sensitive = slices.Concat(o.Sensitive, system.Sensitive)
	return o
}

// Strings returns the options as mount(8) takes them, flags first, without the
// sensitive ones.
func (o Options) Strings() []string {
	var list []string
	add := func(set bool, word string) {
		if set {
			list = append(list, word)
		}
	}
	add(o.Bind && !o.Recursive, "bind")
	add(o.Bind && o.Recursive, "rbind")
	add(o.NoSuid, "nosuid")
	add(o.NoDev, "nodev")
	add(o.NoExec, "noexec")
	add(o.NoAtime, "noatime")
	add(o.NoSymfollow, "nosymfollow")
	list = append(list, o.Data...)
	add(o.ReadOnly, "ro") // last, so that it is final for whoever reads in order
	return list
}

// String is what logs and errors show. Sensitive options are only counted.
func (o Options) String() string {
	s := strings.Join(o.Strings(), ",")
	if n := len(o.Sensitive); n > 0 {
		s += fmt.Sprintf(" (%d hidden)", n)
	}
	return s
}

// GoString is String: no verb shows a sensitive option.
func (o Options) GoString() string { return o.String() }
