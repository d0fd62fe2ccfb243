package mounttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/volumekit/volumekit/mount"
)

// Subject is one of two mounters to be compared.
type Subject struct {
	// Name stands in what a failure says.
	Name string
	// Mounter does the operations.
	Mounter mount.Mounter
	// Dir is an empty folder below which it can mount.
	Dir string
}

// Compare does the same random operations with two mounters, as many as steps
// says, and fails the test as soon as they differ: in the class of an error, in
// what Inspect says, in the targets of the table, or in the files that can be
// seen. The same seed gives the same operations. What is mounted at the end
// stays.
//
// The propagation below both folders must be the same. What the in-memory
// mounter cannot imitate (see the package comment) is never tried, nor are bind
// mounts into their own source.
func Compare(t *testing.T, seed int64, steps int, a, b Subject) {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(seed), 0)) //nolint:gosec // repeatable on purpose
	c := &comparison{ctx: t.Context(), choose: r.IntN, a: a, b: b}
	for range steps {
		if err := c.step(); err != nil {
			t.Fatalf("seed %d: %v\nafter:\n%s", seed, err, strings.Join(c.done, "\n"))
		}
	}
}

// CompareScript is Compare for a fuzz target: the bytes of script are the
// choices in place of random numbers.
func CompareScript(t *testing.T, script []byte, a, b Subject) {
	t.Helper()
	choose := func(n int) int {
		if len(script) == 0 {
			return 0
		}
		next := int(script[0]) % n
		script = script[1:]
		return next
	}
	c := &comparison{ctx: t.Context(), choose: choose, a: a, b: b}
	for len(script) > 0 {
		if err := c.step(); err != nil {
			t.Fatalf("%v\nafter:\n%s", err, strings.Join(c.done, "\n"))
		}
	}
}

type comparison struct {
	ctx    context.Context //nolint:containedctx // one comparison, one call
	choose func(n int) int
	a, b   Subject
	done   []string
	// What there is now, by kind.
	folders, files []string
}

// action is one operation. What it says of a subject must be the same for
// both.
type action struct {
	name string
	// do returns the class of the result.
	do func(Subject) string
	// possible says whether both subjects are to do it.
	possible func(*view) bool
}

// step chooses an operation, does it on both sides and compares.
func (c *comparison) step() error {
	act := c.action()
	seen, err := newView(c.ctx, c.a)
	if err != nil {
		return err
	}
	if !act.possible(seen) {
		return nil
	}
	a, b := act.do(c.a), act.do(c.b)
	c.done = append(c.done, act.name+": "+a)
	if a != b {
		return fmt.Errorf("%s: %s says %q, %s says %q", act.name, c.a.Name, a, c.b.Name, b)
	}
	return c.same()
}

// The names of folders and files differ, so that no operation takes one for
// the other by chance.
var (
	folderNames = [...]string{"d1", "d2", "d3"}
	fileNames   = [...]string{"f1", "f2"}
)

// folder and file mostly return what there is.
func (c *comparison) folder() string {
	if n := len(c.folders); n > 0 && c.choose(4) > 0 {
		return c.folders[c.choose(n)]
	}
	return c.newFolder()
}

func (c *comparison) newFolder() string {
	p := folderNames[c.choose(len(folderNames))]
	for range []int{0, 0, 1, 1, 2}[c.choose(5)] {
		p = filepath.Join(p, folderNames[c.choose(len(folderNames))])
	}
	return p
}

func (c *comparison) file() string {
	if n := len(c.files); n > 0 && c.choose(4) > 0 {
		return c.files[c.choose(n)]
	}
	return c.newFile()
}

func (c *comparison) newFile() string {
	name := fileNames[c.choose(len(fileNames))]
	if c.choose(3) == 0 {
		return name
	}
	return filepath.Join(c.folder(), name)
}

// either is a folder or, more rarely, a file.
func (c *comparison) either() string {
	if c.choose(4) == 0 {
		return c.file()
	}
	return c.folder()
}

func (c *comparison) action() action {
	switch n := c.choose(20); {
	case n < 4:
		return c.mkdir()
	case n < 6:
		return c.write()
	case n < 10:
		return c.mountTmpfs()
	case n < 13:
		return c.bindMount()
	case n < 18:
		return c.unmount()
	default:
		return c.remove()
	}
}

func (c *comparison) mkdir() action {
	p := c.newFolder()
	return action{"mkdir " + p, func(s Subject) string {
		return plain(os.Mkdir(s.path(p), 0o755))
	}, func(v *view) bool { return !v.readOnly(filepath.Dir(p)) }}
}

func (c *comparison) write() action {
	p := c.newFile()
	return action{"write " + p, func(s Subject) string {
		return plain(os.WriteFile(s.path(p), []byte(p), 0o600))
	}, func(v *view) bool { return !v.readOnly(filepath.Dir(p)) && !v.readOnly(p) }}
}

func (c *comparison) mountTmpfs() action {
	p, ro := c.either(), c.choose(5) == 0
	return action{fmt.Sprintf("mount tmpfs at %s, read-only %t", p, ro), func(s Subject) string {
		return class(s.Mounter.Mount(c.ctx, mount.Mount{
			Source: "compare", Target: s.path(p), FSType: "tmpfs", Options: mount.Options{ReadOnly: ro},
		}))
	}, func(v *view) bool { return !v.elsewhere(p) }}
}

func (c *comparison) bindMount() action {
	from, to := c.either(), c.either()
	if c.choose(3) == 0 {
		from, to = c.file(), c.file()
	}
	o := mount.Options{Bind: true, Recursive: c.choose(3) == 0, ReadOnly: c.choose(6) == 0}
	return action{fmt.Sprintf("bind %s to %s, %s", from, to, o), func(s Subject) string {
		return class(s.Mounter.Mount(c.ctx, mount.Mount{Source: s.path(from), Target: s.path(to), Options: o}))
	}, func(v *view) bool { return !v.elsewhere(to) && v.bindable(from, to, o.Recursive) }}
}

func (c *comparison) unmount() action {
	p, how := c.either(), mount.UnmountOptions{Lazy: c.choose(4) == 0}
	return action{fmt.Sprintf("unmount %s, lazily %t", p, how.Lazy), func(s Subject) string {
		return class(s.Mounter.Unmount(c.ctx, s.path(p), how))
	}, func(*view) bool { return true }}
}

func (c *comparison) remove() action {
	p := c.either()
	return action{"remove " + p, func(s Subject) string {
		result := class(s.Mounter.RemoveAll(c.ctx, s.path(p)))
		if result == mount.ErrCrossesMount.Error() {
			// How much was removed before is not part of the contract.
			if err := s.purge(c.ctx, p); err != nil {
				return err.Error()
			}
		}
		return result
	}, func(v *view) bool { return v.removable(p) }}
}

func (s Subject) path(rel string) string { return filepath.Join(s.Dir, rel) }

// plain tells success from failure alone.
func plain(err error) string {
	if err != nil {
		return "error"
	}
	return "done"
}

// class tells the errors of package mount apart.
func class(err error) string {
	for _, e := range []error{mount.ErrCrossesMount, mount.ErrNotMounted, mount.ErrBusy, mount.ErrUnsupported, mount.ErrBadOption} {
		if errors.Is(err, e) {
			return e.Error()
		}
	}
	return plain(err)
}

// purge removes what RemoveAll could have removed.
func (s Subject) purge(ctx context.Context, rel string) error {
	table, err := s.Mounter.Table(ctx)
	if err != nil {
		return err
	}
	var walk func(p string) error
	walk = func(p string) error {
		if _, mounted := table.At(p); mounted {
			return nil
		}
		list, _ := os.ReadDir(p) // not a folder, or gone: nothing below
		for _, entry := range list {
			if err := walk(filepath.Join(p, entry.Name())); err != nil {
				return err
			}
		}
		if len(table.Below(p)) > 0 {
			return nil
		}
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return walk(s.path(rel))
}

// same compares all that can be seen of the two subjects.
func (c *comparison) same() error {
	a, err := observe(c.ctx, c.a)
	if err != nil {
		return err
	}
	b, err := observe(c.ctx, c.b)
	if err != nil {
		return err
	}
	for i := range max(len(a.lines), len(b.lines)) {
		switch {
		case i >= len(a.lines):
			return fmt.Errorf("%s alone sees %q", c.b.Name, b.lines[i])
		case i >= len(b.lines):
			return fmt.Errorf("%s alone sees %q", c.a.Name, a.lines[i])
		case a.lines[i] != b.lines[i]:
			return fmt.Errorf("%s sees %q where %s sees %q", c.a.Name, a.lines[i], c.b.Name, b.lines[i])
		}
	}
	c.folders, c.files = a.folders, a.files
	return nil
}

// observation is all that can be seen of a subject.
type observation struct {
	subject        Subject
	lines          []string
	folders, files []string
}

// observe lists the mounts and all visible paths with what Inspect says.
func observe(ctx context.Context, s Subject) (*observation, error) {
	table, err := s.Mounter.Table(ctx)
	if err != nil {
		return nil, err
	}
	o := &observation{subject: s}
	for _, e := range table {
		if e.Target != s.Dir && mount.Inside(s.Dir, e.Target) {
			o.lines = append(o.lines, fmt.Sprintf("mount at %s, read-only %t", s.rel(e.Target), e.ReadOnly))
		}
	}
	slices.Sort(o.lines)
	return o, o.walk(ctx, s.Dir, 0)
}

func (o *observation) walk(ctx context.Context, dir string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%s: %s is too deep", o.subject.Name, dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := filepath.Join(dir, entry.Name())
		p, err := o.subject.Mounter.Inspect(ctx, name)
		if err != nil {
			return err
		}
		rel := o.subject.rel(name)
		o.lines = append(o.lines, fmt.Sprintf("%s: exists %t, mounted %t, folder %t, read-only %t",
			rel, p.Exists, p.Mounted, p.IsDir, p.ReadOnly))
		if !p.IsDir {
			o.files = append(o.files, rel)
			continue
		}
		o.folders = append(o.folders, rel)
		if err := o.walk(ctx, name, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (s Subject) rel(p string) string {
	return strings.TrimPrefix(strings.TrimPrefix(p, s.Dir), string(filepath.Separator))
}

// maxDepth is deeper than anything that is made without a loop.
const maxDepth = 24
