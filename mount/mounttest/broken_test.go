package mounttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/volumekit/volumekit/mount"
)

// Each of the following breaks one rule.

type removesThrough struct{ *Mounter }

// RemoveAll deletes what lies behind a mount as well.
func (b removesThrough) RemoveAll(ctx context.Context, path string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	_ = filepath.WalkDir(path, func(p string, e fs.DirEntry, err error) error {
		if err == nil && e.Type()&fs.ModeSymlink != 0 { // an imitated bind mount
			if to, err := os.Readlink(p); err == nil {
				list, _ := os.ReadDir(to)
				for _, one := range list {
					_ = os.RemoveAll(filepath.Join(to, one.Name()))
				}
			}
		}
		return nil
	})
	return os.RemoveAll(path)
}

type forgivesUnmount struct{ *Mounter }

func (b forgivesUnmount) Unmount(ctx context.Context, target string, how mount.UnmountOptions) error {
	if err := b.Mounter.Unmount(ctx, target, how); !errors.Is(err, mount.ErrNotMounted) {
		return err
	}
	return nil
}

type alwaysLazy struct{ *Mounter }

func (b alwaysLazy) Unmount(ctx context.Context, target string, how mount.UnmountOptions) error {
	how.Lazy = true
	return b.Mounter.Unmount(ctx, target, how)
}

type neverLazy struct{ *Mounter }

func (b neverLazy) Unmount(ctx context.Context, target string, how mount.UnmountOptions) error {
	how.Lazy = false
	return b.Mounter.Unmount(ctx, target, how)
}

type unmountsStack struct{ *Mounter }

func (b unmountsStack) Unmount(ctx context.Context, target string, how mount.UnmountOptions) error {
	err := b.Mounter.Unmount(ctx, target, how)
	if err == nil {
		_ = b.Mounter.Unmount(ctx, target, how)
	}
	return err
}

type followsLinks struct{ *Mounter }

func (b followsLinks) Inspect(ctx context.Context, path string) (mount.Point, error) {
	if to, err := os.Readlink(path); err == nil && !filepath.IsAbs(to) {
		path = filepath.Join(filepath.Dir(path), to)
	}
	return b.Mounter.Inspect(ctx, path)
}

type missingIsError struct{ *Mounter }

func (b missingIsError) Inspect(ctx context.Context, path string) (mount.Point, error) {
	p, err := b.Mounter.Inspect(ctx, path)
	if err == nil && !p.Exists {
		err = fs.ErrNotExist
	}
	return p, err
}

type mountedByDevice struct{ *Mounter }

// Inspect takes all that lies in a mount for a mount point.
func (b mountedByDevice) Inspect(ctx context.Context, path string) (mount.Point, error) {
	p, err := b.Mounter.Inspect(ctx, path)
	p.Mounted = p.Exists && p.FSType == "tmpfs"
	return p, err
}

type readOnlyLater struct{ *Mounter }

// Mount makes a writable mount and then one that is read-only.
func (b readOnlyLater) Mount(ctx context.Context, m mount.Mount) error {
	if !m.Options.ReadOnly {
		return b.Mounter.Mount(ctx, m)
	}
	first := m
	first.Options.ReadOnly = false
	if err := b.Mounter.Mount(ctx, first); err != nil {
		return err
	}
	if p, err := b.Mounter.Inspect(ctx, m.Target); err != nil || !p.Mounted {
		return err
	}
	for range 20 { // let the watching case look
		if _, err := b.Mounter.Inspect(ctx, m.Target); err != nil {
			return err
		}
	}
	if err := b.Mounter.Unmount(ctx, m.Target, mount.UnmountOptions{}); err != nil {
		return err
	}
	return b.Mounter.Mount(ctx, m)
}

type writable struct{ *Mounter }

func (b writable) Mount(ctx context.Context, m mount.Mount) error {
	m.Options.ReadOnly = false
	return b.Mounter.Mount(ctx, m)
}

type refusesStack struct{ *Mounter }

func (b refusesStack) Mount(ctx context.Context, m mount.Mount) error {
	if p, err := b.Mounter.Inspect(ctx, m.Target); err == nil && p.Mounted {
		return nil
	}
	return b.Mounter.Mount(ctx, m)
}

type makesTarget struct{ *Mounter }

func (b makesTarget) Mount(ctx context.Context, m mount.Mount) error {
	if ctx.Err() == nil {
		_ = os.MkdirAll(m.Target, 0o755)
	}
	return b.Mounter.Mount(ctx, m)
}

type deafToContext struct{ *Mounter }

func (b deafToContext) Mount(ctx context.Context, m mount.Mount) error {
	return b.Mounter.Mount(context.WithoutCancel(ctx), m)
}

type alwaysRecursive struct{ *Mounter }

func (b alwaysRecursive) Mount(ctx context.Context, m mount.Mount) error {
	m.Options.Recursive = m.Options.Bind
	return b.Mounter.Mount(ctx, m)
}

type reversedTable struct{ *Mounter }

func (b reversedTable) Table(ctx context.Context) (mount.Table, error) {
	t, err := b.Mounter.Table(ctx)
	slices.Reverse(t)
	return t, err
}

type namesNoMount struct{ *Mounter }

func (b namesNoMount) RemoveAll(ctx context.Context, path string) error {
	if err := b.Mounter.RemoveAll(ctx, path); errors.Is(err, mount.ErrCrossesMount) {
		return mount.ErrCrossesMount
	} else if err != nil {
		return err
	}
	return nil
}

type ownsNothing struct{ *Mounter }

func (b ownsNothing) SetGroup(context.Context, string, mount.Ownership) error { return nil }

type ownsAlways struct{ *Mounter }

func (b ownsAlways) SetGroup(ctx context.Context, root string, o mount.Ownership) error {
	o.OnRootMismatch = false
	return b.Mounter.SetGroup(ctx, root, o)
}

type ownsByPath struct{ *Mounter }

// SetGroup goes by names, through links and mounts.
func (b ownsByPath) SetGroup(ctx context.Context, root string, o mount.Ownership) error {
	if err := b.Mounter.SetGroup(ctx, root, o); err != nil && !errors.Is(err, mount.ErrNotConfined) {
		return err
	}
	return filepath.WalkDir(root, func(p string, _ fs.DirEntry, _ error) error {
		if info, err := os.Stat(p); err == nil {
			_ = os.Chmod(p, info.Mode().Perm()|0o660)
		}
		if inside, err := os.ReadDir(p); err == nil && p != root {
			for _, e := range inside {
				_ = os.Chmod(filepath.Join(p, e.Name()), 0o660)
			}
		}
		return nil
	})
}

type ownsForWriting struct{ *Mounter }

func (b ownsForWriting) SetGroup(ctx context.Context, root string, o mount.Ownership) error {
	o.ReadOnly = false
	return b.Mounter.SetGroup(ctx, root, o)
}

type ownsSilently struct{ *Mounter }

func (b ownsSilently) SetGroup(ctx context.Context, root string, o mount.Ownership) error {
	o.Progress = nil
	return b.Mounter.SetGroup(ctx, root, o)
}

type attachesEarly struct{ *Mounter }

// Build makes the file system visible at once.
func (b attachesEarly) Build(ctx context.Context, m mount.Mount) (mount.Detached, error) {
	d, err := b.Mounter.Build(ctx, m)
	if err != nil {
		return nil, err
	}
	at := filepath.Join(b.options.Dir, "early")
	return d, errors.Join(os.Mkdir(at, 0o755), d.Attach(ctx, at))
}

func TestSuiteCatches(t *testing.T) {
	const control = "inspect type" // every one of them passes this
	for _, tt := range []struct {
		broken func(*Mounter) mount.Mounter
		want   []string // cases that must fail
	}{
		{func(m *Mounter) mount.Mounter { return removesThrough{m} }, []string{"remove mount point", "remove above mount", "remove above bind of same file system", "remove above bind of file"}},
		{func(m *Mounter) mount.Mounter { return forgivesUnmount{m} }, []string{"unmount not mounted", "unmount symlink", "unmount twice"}},
		{func(m *Mounter) mount.Mounter { return alwaysLazy{m} }, []string{"unmount busy", "unmount parent"}},
		{func(m *Mounter) mount.Mounter { return neverLazy{m} }, []string{"unmount busy", "unmount parent"}},
		{func(m *Mounter) mount.Mounter { return unmountsStack{m} }, []string{"mount stacks"}},
		{func(m *Mounter) mount.Mounter { return followsLinks{m} }, []string{"inspect symlink"}},
		{func(m *Mounter) mount.Mounter { return missingIsError{m} }, []string{"inspect kinds", "mount missing target"}},
		{func(m *Mounter) mount.Mounter { return mountedByDevice{m} }, []string{"inspect mount", "bind folder"}},
		{func(m *Mounter) mount.Mounter { return readOnlyLater{m} }, []string{"read-only at once"}},
		{func(m *Mounter) mount.Mounter { return writable{m} }, []string{"read-only at once", "read-only bind at once", "table fields"}},
		{func(m *Mounter) mount.Mounter { return refusesStack{m} }, []string{"mount stacks"}},
		{func(m *Mounter) mount.Mounter { return makesTarget{m} }, []string{"mount missing target"}},
		{func(m *Mounter) mount.Mounter { return deafToContext{m} }, []string{"context ended"}},
		{func(m *Mounter) mount.Mounter { return alwaysRecursive{m} }, []string{"bind recursive"}},
		{func(m *Mounter) mount.Mounter { return reversedTable{m} }, []string{"table order", "mount stacks"}},
		{func(m *Mounter) mount.Mounter { return namesNoMount{m} }, []string{"remove mount point", "remove above mount"}},
		{func(m *Mounter) mount.Mounter { return ownsNothing{m} }, []string{"set group", "set group progress", "set group refused"}},
		{func(m *Mounter) mount.Mounter { return ownsAlways{m} }, []string{"set group on root mismatch"}},
		{func(m *Mounter) mount.Mounter { return ownsByPath{m} }, []string{"set group and links", "set group and mounts"}},
		{func(m *Mounter) mount.Mounter { return ownsForWriting{m} }, []string{"set group read-only"}},
		{func(m *Mounter) mount.Mounter { return ownsSilently{m} }, []string{"set group progress"}},
		{func(m *Mounter) mount.Mounter { return attachesEarly{m} }, []string{"build", "build and drop"}},
	} {
		t.Run(fmt.Sprintf("%T", tt.broken(New(Options{}))), func(t *testing.T) {
			for _, c := range cases() {
				wanted := slices.Contains(tt.want, c.name)
				if !wanted && c.name != control {
					continue
				}
				dir := t.TempDir()
				err := c.check(t.Context(), tt.broken(New(Options{Dir: dir})), dir)
				if (err != nil) != wanted {
					t.Errorf("case %q: %v", c.name, err)
				}
			}
		})
	}
}

func TestCasesAreNamed(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range cases() {
		if c.name == "" || c.rule == "" || seen[c.name] {
			t.Errorf("case %q lacks a name or a rule, or is there twice", c.name)
		}
		seen[c.name] = true
	}
}
