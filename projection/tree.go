package projection

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/volumekit/volumekit/plugins"
)

// Errors of a [Tree], each of class permanent.
var (
	// ErrBadPath says that a path cannot be a place inside a volume.
	ErrBadPath = errors.New("bad path")
	// ErrConflict says that two things claim the same place.
	ErrConflict = errors.New("conflict")
)

// maxPath and maxElement are the limits of Linux (PATH_MAX, NAME_MAX).
const (
	maxPath    = 4096
	maxElement = 255
)

// File is one rendered file. It does not print its data.
type File struct {
	// Data is the content. It is shared and must not be changed.
	Data []byte `json:"-"`
	// Mode holds the permission bits, at most 0777.
	Mode uint32
	// UID and GID own the file; nil leaves what a new file gets.
	UID, GID *int64
	// Source says for people who put it there, such as "secret ns/a key k".
	Source string
}

// String describes the file without its data.
func (f File) String() string {
	return fmt.Sprintf("%d bytes, mode %04o, of %s", len(f.Data), f.Mode, f.Source)
}

// GoString hides the data.
func (f File) GoString() string { return f.String() }

// Format hides the data from every verb.
func (f File) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte(f.String())) }

// Tree is the content of a volume: files by clean relative path, and the
// places inside the volume where other volumes of the pod get mounted. The
// zero value is an empty tree. It is built by one goroutine; after that it may
// be read by many.
type Tree struct {
	files  []namedFile       // sorted by name
	points map[string]string // mount point -> who wants it
}

// namedFile is a file and its clean path.
type namedFile struct {
	name string
	File
}

// Add puts a file into the tree. The path may be unclean ("a//b/"). It fails
// with [ErrBadPath], or with [ErrConflict] where another file or mount point
// is in the way; the error names both sources and is of class permanent.
func (t *Tree) Add(name string, f File) error {
	clean, err := CleanPath(name)
	if err != nil {
		return plugins.Permanent(fmt.Errorf("%s: %w", f.Source, err))
	}
	if f.Mode&^0o777 != 0 {
		return plugins.Permanentf("%s: mode %#o of %s is not within 0 and 0777", f.Source, f.Mode, quote(clean))
	}
	for _, id := range []*int64{f.UID, f.GID} {
		if id != nil {
			if err := plugins.CheckID(*id); err != nil {
				return plugins.Permanent(fmt.Errorf("%s: owner of %s: %w", f.Source, quote(clean), err))
			}
		}
	}
	at, taken := t.find(clean)
	if taken {
		return conflict(clean, f.Source, "file", t.files[at].Source)
	}
	if below := t.below(clean, at); below != nil {
		return conflict(clean, f.Source, "folder", below.Source)
	}
	for point, other := range t.points {
		if within(clean, point) {
			return conflict(clean, f.Source, "mount point", other)
		}
	}
	for dir := path.Dir(clean); dir != "."; dir = path.Dir(dir) {
		if other, taken := t.File(dir); taken {
			return conflict(dir, f.Source, "file", other.Source)
		}
	}
	t.files = slices.Insert(t.files, at, namedFile{clean, f})
	return nil
}

// find is the place of a file, or where it would be.
func (t *Tree) find(name string) (int, bool) {
	// Most files come sorted.
	if n := len(t.files); n == 0 || t.files[n-1].name < name {
		return n, false
	}
	return slices.BinarySearchFunc(t.files, name, func(f namedFile, name string) int { return strings.Compare(f.name, name) })
}

// below returns a file that lies in the folder dir, nil if there is none. at is
// where a file of that name would be: those below come after it.
func (t *Tree) below(dir string, at int) *namedFile {
	if at == len(t.files) {
		return nil
	}
	if first, _ := t.find(dir + "/"); first < len(t.files) && within(dir, t.files[first].name) {
		return &t.files[first]
	}
	return nil
}

// AddMountPoint asks for a folder on which another volume can be mounted,
// because this one is read-only in containers and a runtime could not create
// it. It fails as Add does.
func (t *Tree) AddMountPoint(name, source string) error {
	clean, err := CleanPath(name)
	if err != nil {
		return plugins.Permanent(fmt.Errorf("%s: %w", source, err))
	}
	for dir := clean; dir != "."; dir = path.Dir(dir) {
		if other, taken := t.File(dir); taken {
			return conflict(dir, source, "file", other.Source)
		}
	}
	if t.points == nil {
		t.points = map[string]string{}
	}
	t.points[clean] = source
	return nil
}

func conflict(where, source, kind, other string) error {
	return plugins.Permanent(fmt.Errorf("%w: %s wants %s, which is a %s of %s", ErrConflict, source, quote(where), kind, other))
}

// Len is the number of files.
func (t *Tree) Len() int { return len(t.files) }

// Paths lists the files, sorted.
func (t *Tree) Paths() []string {
	paths := make([]string, len(t.files))
	for i := range t.files {
		paths[i] = t.files[i].name
	}
	return paths
}

// MountPoints lists the mount points, sorted.
func (t *Tree) MountPoints() []string { return slices.Sorted(maps.Keys(t.points)) }

// File returns one file.
func (t *Tree) File(name string) (File, bool) {
	at, ok := t.find(name)
	if !ok {
		return File{}, false
	}
	return t.files[at].File, true
}

// Size is the number of bytes in all files.
func (t *Tree) Size() int64 {
	var sum int64
	for i := range t.files {
		sum += int64(len(t.files[i].Data))
	}
	return sum
}

// setGroup gives every file to a group that may read it, which is what fsGroup
// means for a volume that is read-only.
func (t *Tree) setGroup(gid int64) error {
	if err := plugins.CheckID(gid); err != nil {
		return plugins.Permanent(fmt.Errorf("the pod's fsGroup: %w", err))
	}
	for i := range t.files {
		f := &t.files[i]
		f.GID, f.Mode = &gid, f.Mode|0o440
	}
	return nil
}

// String counts, and shows nothing of the content.
func (t *Tree) String() string { return fmt.Sprintf("tree of %d files", len(t.files)) }

// GoString is String.
func (t *Tree) GoString() string { return t.String() }

// Format hides the content from every verb. It has a value receiver so that
// copies are covered too.
func (t Tree) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte(t.String())) }

// CleanPath checks a path that comes from an API object, and cleans it. It
// refuses with [ErrBadPath] what is empty, absolute, longer than 4096 bytes,
// holds NUL, an element ".." or one longer than 255 bytes, names the folder
// itself, or begins with ".." at the top, where the writer keeps its own.
func CleanPath(name string) (string, error) {
	bad := func(why string) (string, error) { return "", fmt.Errorf("%w: %s %s", ErrBadPath, quote(name), why) }
	switch {
	case name == "":
		return bad("is empty")
	case len(name) > maxPath:
		return bad("is too long")
	case strings.IndexByte(name, 0) >= 0:
		return bad("holds NUL")
	case path.IsAbs(name):
		return bad("is absolute")
	}
	for element := range strings.SplitSeq(name, "/") {
		switch {
		case element == "..":
			return bad("leads upward")
		case len(element) > maxElement:
			return bad("has an element that is too long")
		}
	}
	switch clean := path.Clean(name); {
	case clean == ".":
		return bad("is the volume itself")
	case strings.HasPrefix(clean, ".."):
		return bad("begins with two dots")
	case !filepath.IsLocal(filepath.FromSlash(clean)):
		return bad("is not a plain relative path")
	default:
		return clean, nil
	}
}

// quote shortens hostile text for messages.
func quote(s string) string {
	const most = 80
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strconv.Quote(s)
}

// within reports whether p is dir or lies below it; both are clean.
func within(dir, p string) bool {
	return p == dir || strings.HasPrefix(p, dir) && p[len(dir)] == '/'
}
