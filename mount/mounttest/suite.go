package mounttest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/volumekit/volumekit/mount"
)

// TestMounter checks that a mounter keeps every rule of [mount.Mounter], and
// of [mount.Builder], [mount.Propagator], [mount.Identifier] and [mount.Owner]
// where it implements them. Each rule is a subtest; one that fails prints the rule.
//
// newMounter returns a mounter and an existing empty folder below which it can
// mount tmpfs and bind mounts, whose propagation may be shared or private. It is called once for each
// subtest and cleans up with t.Cleanup or t.TempDir; what a subtest left
// mounted is unmounted lazily before that. A mounter whose mounts are not made
// busy by open files has methods Busy(target string) and Free(target string)
// like [Mounter]'s, and one that keeps the group of a file to itself has its
// Group.
//
// The cases named in except are skipped. They are for rules which a mounter
// says in its documentation that it cannot keep.
func TestMounter(t *testing.T, newMounter func(t *testing.T) (m mount.Mounter, dir string), except ...string) {
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			if slices.Contains(except, c.name) {
				t.Skip("excepted: ", c.rule)
			}
			m, dir := newMounter(t)
			err := c.check(t.Context(), m, dir)
			if s := new(skip); errors.As(err, &s) {
				t.Skip(s.why)
			}
			if err != nil {
				t.Errorf("%v\nrule: %s", err, c.rule)
			}
		})
	}
}

// testCase is one rule and what finds out whether it is kept.
type testCase struct {
	name string
	rule string
	run  func(*site) error
}

// check runs the case and leaves nothing mounted.
func (c testCase) check(ctx context.Context, m mount.Mounter, dir string) error {
	s := &site{ctx: ctx, Mounter: m, dir: dir}
	return errors.Join(c.run(s), s.sweep())
}

// skip is the error of a case that does not apply.
type skip struct{ why string }

func (s *skip) Error() string { return "skipped: " + s.why }

// site is where one case runs. Its helpers return errors rather than fail a
// test, so that the suite itself can be tested.
type site struct {
	mount.Mounter
	ctx context.Context //nolint:containedctx // one case, one call
	dir string
}

func (s *site) path(elements ...string) string {
	return filepath.Join(append([]string{s.dir}, elements...)...)
}

// folders makes folders below the site.
func (s *site) folders(names ...string) error {
	for _, name := range names {
		if err := os.MkdirAll(s.path(name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (s *site) write(name string) error {
	return os.WriteFile(s.path(name), []byte("content of "+name), 0o600)
}

// tmpfs mounts an empty file system.
func (s *site) tmpfs(name string, o mount.Options) error {
	return s.Mount(s.ctx, mount.Mount{Source: "mounttest", Target: s.path(name), FSType: "tmpfs", Options: o})
}

func (s *site) bind(from, to string, o mount.Options) error {
	o.Bind = true
	return s.Mount(s.ctx, mount.Mount{Source: s.path(from), Target: s.path(to), Options: o})
}

func (s *site) unmount(name string) error {
	return s.Unmount(s.ctx, s.path(name), mount.UnmountOptions{})
}

// holds says whether there is something at a path, following links.
func (s *site) holds(name string) bool {
	_, err := os.Stat(s.path(name))
	return err == nil
}

// all runs steps until one fails.
func all(steps ...func() error) error {
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

// wantClass checks the class of an error.
func wantClass(what string, got, want error) error {
	if !errors.Is(got, want) {
		return fmt.Errorf("%s: error is %q, want one that wraps %q", what, fmt.Sprint(got), want.Error())
	}
	return nil
}

// expect is an error unless ok.
func expect(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// wantPoint checks what Inspect says about existence, mount and kind.
func (s *site) wantPoint(name string, exists, mounted, isDir bool) error {
	p, err := s.Inspect(s.ctx, s.path(name))
	if err != nil {
		return fmt.Errorf("inspect %s: %w", name, err)
	}
	return expect(p.Exists == exists && p.Mounted == mounted && p.IsDir == isDir,
		"inspect %s: exists %t, mounted %t, folder %t; want %t, %t, %t",
		name, p.Exists, p.Mounted, p.IsDir, exists, mounted, isDir)
}

// own returns the mounts below the site's folder, in mount order.
func (s *site) own() (mount.Table, error) {
	table, err := s.Table(s.ctx)
	if err != nil {
		return nil, fmt.Errorf("table: %w", err)
	}
	var own mount.Table
	for _, e := range table {
		if mount.Inside(s.dir, e.Target) && e.Target != s.dir {
			own = append(own, e)
		}
	}
	return own, nil
}

// sweep takes down what a case left.
func (s *site) sweep() error {
	ctx := context.WithoutCancel(s.ctx)
	table, err := s.Table(ctx)
	if err != nil {
		return err
	}
	for _, e := range table.Below(s.dir) {
		err := s.Unmount(ctx, e.Target, mount.UnmountOptions{Lazy: true})
		if err != nil && !errors.Is(err, mount.ErrNotMounted) { // propagation may have taken it along
			return fmt.Errorf("sweep: %w", err)
		}
	}
	return nil
}

// use makes the mount at name busy: by an open file and, where a mounter wants
// to be told, by telling it.
func (s *site) use(name string) (done func(), err error) {
	f, err := os.Create(s.path(name, "open"))
	if err != nil {
		return nil, err
	}
	told, ok := s.Mounter.(interface {
		Busy(string)
		Free(string)
	})
	if ok {
		told.Busy(s.path(name))
	}
	return func() {
		_ = f.Close()
		if ok {
			told.Free(s.path(name))
		}
	}, nil
}
