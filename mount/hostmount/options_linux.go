package hostmount

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// param is one option of a file system.
type param struct {
	key, value string
	// flag is true for an option without a value.
	flag bool
	// wished options are left out where the kernel refuses them.
	wished bool
}

// request is a mount in the kernel's words.
type request struct {
	mount.Mount
	// attrs and clear are MOUNT_ATTR_* to be set and cleared.
	attrs, clear uint64
	// flags are the MS_* of mount(2) that say the same.
	flags uintptr
	// words are options of the superblock that the kernel knows by name in
	// fsconfig(2) and by MS_* in mount(2).
	words []string
	// params are the file system's own options.
	params []param
}

// attribute is a per-mount property in both dialects.
type attribute struct {
	set, clear uint64
	flag       uintptr
}

func attributeOf(word string) (attribute, bool) {
	switch word {
	case "ro":
		return attribute{unix.MOUNT_ATTR_RDONLY, 0, unix.MS_RDONLY}, true
	case "nosuid":
		return attribute{unix.MOUNT_ATTR_NOSUID, 0, unix.MS_NOSUID}, true
	case "nodev":
		return attribute{unix.MOUNT_ATTR_NODEV, 0, unix.MS_NODEV}, true
	case "noexec":
		return attribute{unix.MOUNT_ATTR_NOEXEC, 0, unix.MS_NOEXEC}, true
	case "nosymfollow":
		return attribute{unix.MOUNT_ATTR_NOSYMFOLLOW, 0, unix.MS_NOSYMFOLLOW}, true
	case "noatime":
		return attribute{unix.MOUNT_ATTR_NOATIME, unix.MOUNT_ATTR__ATIME, unix.MS_NOATIME}, true
	case "relatime":
		return attribute{unix.MOUNT_ATTR_RELATIME, unix.MOUNT_ATTR__ATIME, unix.MS_RELATIME}, true
	case "strictatime":
		return attribute{unix.MOUNT_ATTR_STRICTATIME, unix.MOUNT_ATTR__ATIME, unix.MS_STRICTATIME}, true
	case "nodiratime":
		return attribute{unix.MOUNT_ATTR_NODIRATIME, 0, unix.MS_NODIRATIME}, true
	case "diratime", "norelatime", "nostrictatime":
		return attribute{}, true // the kernel's default
	}
	return attribute{}, false
}

// superWord knows the options that every superblock has, and their MS_*.
func superWord(word string) (flag uintptr, known bool) {
	switch word {
	case "sync":
		return unix.MS_SYNCHRONOUS, true
	case "dirsync":
		return unix.MS_DIRSYNC, true
	case "lazytime":
		return unix.MS_LAZYTIME, true
	case "mand":
		return unix.MS_MANDLOCK, true
	case "async", "nolazytime", "nomand":
		return 0, true
	}
	return 0, false
}

// userWord reports whether an option is for programs that read fstab(5), or
// for mount(8) itself, and means nothing to the kernel.
func userWord(word string) bool {
	switch key, _, _ := strings.Cut(word, "="); key {
	case "defaults", "auto", "noauto", "user", "nouser", "users", "nousers", "owner", "noowner",
		"group", "nogroup", "_netdev", "nofail", "comment", "silent", "loud":
		return true
	default:
		return strings.HasPrefix(key, "x-") || strings.HasPrefix(key, "X-")
	}
}

// check refuses what no way of mounting could do right.
func check(m mount.Mount) error {
	switch {
	case !filepath.IsAbs(m.Target) || strings.ContainsRune(m.Target, 0):
		return fmt.Errorf("target %q is no absolute path", m.Target)
	case m.Options.Bind && m.FSType != "":
		return fmt.Errorf("%w: a bind mount of type %q", mount.ErrBadOption, m.FSType)
	case m.Options.Bind && m.Source == "":
		return fmt.Errorf("%w: a bind mount without a source", mount.ErrBadOption)
	case !m.Options.Bind && m.FSType == "":
		return fmt.Errorf("%w: no file system type", mount.ErrBadOption)
	case m.Options.Recursive && !m.Options.Bind:
		return fmt.Errorf("%w: recursive, but not a bind mount", mount.ErrBadOption)
	case strings.ContainsRune(m.Source+m.FSType, 0) || strings.ContainsAny(m.FSType, "/,\n"):
		return fmt.Errorf("%w: source or type cannot be used", mount.ErrBadOption)
	}
	return checkWords(m.Options)
}

// checkWords refuses options that would change another mount, or that cannot be
// said.
func checkWords(o mount.Options) error {
	for _, word := range o.Data {
		if slices.Contains([]string{"remount", "move", "bind", "rbind"}, word) || strings.ContainsRune(word, 0) {
			return fmt.Errorf("%w: %q", mount.ErrBadOption, word)
		}
	}
	for _, word := range o.Sensitive {
		if word == "" || strings.ContainsRune(word, 0) {
			return fmt.Errorf("%w: a hidden one", mount.ErrBadOption)
		}
	}
	return nil
}

// translate puts a mount into the kernel's words.
func translate(m mount.Mount) (request, error) {
	r := request{Mount: m}
	flags := m.Options
	flags.Bind, flags.Data = false, nil
	for _, word := range flags.Strings() {
		r.attribute(word)
	}
	for _, word := range m.Options.Data {
		if err := r.data(word); err != nil {
			return request{}, err
		}
	}
	for _, word := range m.Options.Sensitive {
		if m.Options.Bind {
			return request{}, fmt.Errorf("%w: a bind mount has no options of its own", mount.ErrBadOption)
		}
		r.params = append(r.params, newParam(word))
	}
	if r.Source == "" {
		r.Source = m.FSType
	}
	return r, nil
}

func (r *request) attribute(word string) bool {
	a, known := attributeOf(word)
	r.attrs = r.attrs&^a.clear | a.set
	r.clear |= a.clear
	r.flags |= a.flag
	return known
}

func (r *request) data(word string) error {
	flag, super := superWord(word)
	switch {
	case word == "" || userWord(word) || r.attribute(word):
	case r.Options.Bind:
		return fmt.Errorf("%w: %q: a bind mount has no options of its own", mount.ErrBadOption, word)
	case super:
		r.flags |= flag
		r.words = append(r.words, word)
	default:
		p := newParam(word)
		p.wished = r.FSType == "tmpfs" && word == "noswap"
		r.params = append(r.params, p)
	}
	return nil
}

// newParam splits an option. Quotes around a value, which keep its commas from
// being separators in a list, are no part of it.
func newParam(word string) param {
	key, value, found := strings.Cut(word, "=")
	if n := len(value); n >= 2 && value[0] == '"' && value[n-1] == '"' {
		value = value[1 : n-1]
	}
	return param{key: key, value: value, flag: !found}
}

// String writes p for the option list of mount(2).
func (p param) String() string {
	switch {
	case p.flag:
		return p.key
	case strings.Contains(p.value, ",") && !strings.Contains(p.value, `\,`):
		return p.key + `="` + p.value + `"`
	default:
		return p.key + "=" + p.value
	}
}

// listed reports whether p survives the option list of mount(2), in which a
// comma separates. Only the security modules (context=) understand quotes, and
// overlay a backslash.
func (p param) listed() bool {
	switch p.key {
	case "context", "fscontext", "defcontext", "rootcontext":
		return !strings.Contains(p.value, `"`)
	}
	return !strings.Contains(strings.ReplaceAll(p.value, `\,`, ""), ",") && !strings.Contains(p.key, ",")
}
