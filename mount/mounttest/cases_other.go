package mounttest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/volumekit/volumekit/mount"
)

func inspectCases() []testCase {
	return []testCase{
		{"inspect kinds", "Inspect tells folder, file and missing path apart; a missing path is no error.", inspectKinds},
		{"inspect mount", "Mounted is true for the root of a mount alone, not for what lies in it or above it.", inspectMount},
		{"inspect symlink", "Inspect does not follow a symbolic link in the last component.", inspectSymlink},
		{"inspect mount id", "MountID tells the mount that a path lies on: the same throughout a mount, another for another mount.", inspectID},
		{"inspect type", "FSType names tmpfs.", inspectType},
		{"table order", "Table lists mounts in mount order; Below returns them in an order in which they can be unmounted.", tableOrder},
		{"table fields", "A table entry says target, type, root and propagation of the mount.", tableFields},
	}
}

func inspectKinds(s *site) error {
	return all(
		func() error { return s.folders("a") },
		func() error { return s.write("f") },
		func() error { return s.wantPoint("a", true, false, true) },
		func() error { return s.wantPoint("f", true, false, false) },
		func() error { return s.wantPoint("missing", false, false, false) },
		func() error { return s.wantPoint("missing/too", false, false, false) },
		func() error { return s.wantPoint("f/below", false, false, false) },
	)
}

func inspectMount(s *site) error {
	return all(
		func() error { return s.folders("a/m") },
		func() error { return s.tmpfs("a/m", mount.Options{}) },
		func() error { return s.folders("a/m/sub") },
		func() error { return s.write("a/m/f") },
		func() error { return s.wantPoint("a", true, false, true) },
		func() error { return s.wantPoint("a/m", true, true, true) },
		func() error { return s.wantPoint("a/m/sub", true, false, true) },
		func() error { return s.wantPoint("a/m/f", true, false, false) },
	)
}

func inspectSymlink(s *site) error {
	return all(
		func() error { return s.folders("m") },
		func() error { return s.tmpfs("m", mount.Options{}) },
		func() error { return s.folders("m/sub") },
		func() error { return os.Symlink("m", s.path("link")) },
		func() error { return os.Symlink("nowhere", s.path("dangling")) },
		func() error { return s.wantPoint("link", true, false, false) },
		func() error { return s.wantPoint("dangling", true, false, false) },
		func() error { return s.wantPoint("link/sub", true, false, true) },
	)
}

func inspectID(s *site) error {
	ids := map[string]uint64{}
	err := all(
		func() error { return s.folders("a", "b") },
		func() error { return s.tmpfs("a", mount.Options{}) },
		func() error { return s.bind("a", "b", mount.Options{}) },
		func() error { return s.write("a/f") },
		func() error {
			for _, name := range []string{".", "a", "a/f", "b", "b/f"} {
				p, err := s.Inspect(s.ctx, s.path(name))
				if err != nil {
					return err
				}
				ids[name] = p.MountID
			}
			return nil
		},
	)
	if err != nil {
		return err
	}
	if ids["a"] == 0 {
		return &skip{"mount ids are unknown here"}
	}
	return expect(ids["a"] == ids["a/f"] && ids["b"] == ids["b/f"] && ids["a"] != ids["b"] && ids["a"] != ids["."], "mount ids: %v", ids)
}

func inspectType(s *site) error {
	return all(
		func() error { return s.folders("a") },
		func() error { return s.tmpfs("a", mount.Options{}) },
		func() error {
			p, err := s.Inspect(s.ctx, s.path("a"))
			return errors.Join(err, expect(p.FSType == "tmpfs", "type of a tmpfs is %q", p.FSType))
		},
	)
}

func tableOrder(s *site) error {
	err := all(
		func() error { return s.folders("a", "b") },
		func() error { return s.tmpfs("b", mount.Options{}) },
		func() error { return s.tmpfs("a", mount.Options{}) },
		func() error { return s.folders("a/x") },
		func() error { return s.tmpfs("a/x", mount.Options{}) },
		func() error { return s.tmpfs("b", mount.Options{}) },
	)
	if err != nil {
		return err
	}
	own, err := s.own()
	if err != nil {
		return err
	}
	var got []string
	for _, e := range own {
		rel, err := filepath.Rel(s.dir, e.Target)
		if err != nil {
			return err
		}
		got = append(got, filepath.ToSlash(rel))
	}
	if want := []string{"b", "a", "a/x", "b"}; !slices.Equal(got, want) {
		return fmt.Errorf("table lists %q, want %q", got, want)
	}
	for _, e := range own.Below(s.dir) {
		if err := s.Unmount(s.ctx, e.Target, mount.UnmountOptions{}); err != nil {
			return fmt.Errorf("in the order of Below: %w", err)
		}
	}
	return s.noneLeft()
}

func tableFields(s *site) error {
	return all(
		func() error { return s.folders("a", "b") },
		func() error { return s.tmpfs("a", mount.Options{ReadOnly: false}) },
		func() error { return s.folders("a/sub") },
		func() error { return s.bind("a/sub", "b", mount.Options{ReadOnly: true}) },
		func() error {
			a, okA := s.entry("a")
			b, okB := s.entry("b")
			if !okA || !okB {
				return errors.New("a mount is missing in the table")
			}
			switch {
			case a.FSType != "tmpfs" || b.FSType != "tmpfs" || a.Device != b.Device:
				return fmt.Errorf("type or device of a bind mount differ from its source's: %+v, %+v", a, b)
			case a.Root != "/" || b.Root != "/sub":
				return fmt.Errorf("roots are %q and %q, want / and /sub", a.Root, b.Root)
			case a.ReadOnly || !b.ReadOnly:
				return fmt.Errorf("read-only: %t and %t, want false and true", a.ReadOnly, b.ReadOnly)
			case a.Propagation == "" || a.ID == b.ID:
				return fmt.Errorf("no propagation, or one id twice: %+v, %+v", a, b)
			}
			return nil
		},
	)
}

func otherCases() []testCase {
	return []testCase{
		{"context ended", "A call whose context has ended returns its error and has no effect.", contextEnded},
		{"build", "A built file system is nowhere to be seen until Attach, and then with all its files.", build},
		{"build and drop", "Close of a file system that was never attached leaves nothing.", buildAndDrop},
		{"build read-only", "A file system built read-only can be filled through Root and is read-only when visible.", buildReadOnly},
		{"attach missing target", "Attach to a missing target fails; another target can be tried.", attachMissing},
		{"make shared", "MakeShared makes a path a shared mount of its own, and may be repeated.", makeShared},
		{"namespace", "Namespace gives the same answer while nothing changes, with a boot id and a mount namespace.", namespace},
	}
}

func contextEnded(s *site) error {
	ended, cancel := context.WithCancel(s.ctx)
	cancel()
	mo := mount.Mount{Source: "x", Target: s.path("a"), FSType: "tmpfs"}
	return all(
		func() error { return s.folders("a", "m", "r") },
		func() error { return s.tmpfs("m", mount.Options{}) },
		func() error { return wantClass("mount", s.Mount(ended, mo), context.Canceled) },
		func() error {
			return wantClass("unmount", s.Unmount(ended, s.path("m"), mount.UnmountOptions{Lazy: true}), context.Canceled)
		},
		func() error { return wantClass("remove", s.RemoveAll(ended, s.path("r")), context.Canceled) },
		func() error {
			_, err := s.Inspect(ended, s.path("m"))
			return wantClass("inspect", err, context.Canceled)
		},
		func() error {
			_, err := s.Table(ended)
			return wantClass("table", err, context.Canceled)
		},
		func() error { return s.wantPoint("a", true, false, true) },
		func() error { return s.wantPoint("m", true, true, true) },
		func() error { return s.wantPoint("r", true, false, true) },
	)
}

// built builds a tmpfs, hands it to use, and closes it.
func (s *site) built(o mount.Options, use func(mount.Detached) error) (err error) {
	b, ok := s.Mounter.(mount.Builder)
	if !ok {
		return &skip{"no mount.Builder"}
	}
	d, err := b.Build(s.ctx, mount.Mount{Source: "mounttest", FSType: "tmpfs", Options: o})
	if errors.Is(err, mount.ErrUnsupported) {
		return &skip{err.Error()}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return use(d)
}

func fill(d mount.Detached) error { return write(d, "f", "content of f") }

func write(d mount.Detached, name, content string) error {
	root, err := d.Root()
	if err != nil {
		return err
	}
	return root.WriteFile(name, []byte(content), 0o600)
}

func build(s *site) error {
	if err := s.folders("a"); err != nil {
		return err
	}
	err := s.built(mount.Options{}, func(d mount.Detached) error {
		return all(
			func() error { return fill(d) },
			func() error { return s.noneLeft() },
			func() error { return d.Attach(s.ctx, s.path("a")) },
			func() error { return s.wantPoint("a", true, true, true) },
			func() error { return s.wantContent("a/f", "content of f") },
			func() error { return write(d, "later", "") },
			func() error { return expect(s.holds("a/later"), "Root does not reach the attached file system") },
		)
	})
	if err != nil {
		return err
	}
	return all(
		func() error { return s.wantContent("a/f", "content of f") },
		func() error { return s.unmount("a") },
		func() error { return s.wantPoint("a/f", false, false, false) },
	)
}

func buildAndDrop(s *site) error {
	err := s.built(mount.Options{}, fill)
	if err != nil {
		return err
	}
	return s.noneLeft()
}

func buildReadOnly(s *site) error {
	if err := s.folders("a"); err != nil {
		return err
	}
	return s.built(mount.Options{ReadOnly: true}, func(d mount.Detached) error {
		return all(
			func() error { return fill(d) },
			func() error { return d.Attach(s.ctx, s.path("a")) },
			func() error { return s.wantReadOnly("a", true) },
			func() error { return s.wantContent("a/f", "content of f") },
		)
	})
}

func attachMissing(s *site) error {
	return s.built(mount.Options{}, func(d mount.Detached) error {
		return all(
			func() error { return fill(d) },
			func() error {
				return expect(d.Attach(s.ctx, s.path("missing")) != nil, "attach to a missing target: no error")
			},
			func() error { return s.folders("a") },
			func() error { return d.Attach(s.ctx, s.path("a")) },
			func() error { return s.wantContent("a/f", "content of f") },
		)
	})
}

func makeShared(s *site) error {
	p, ok := s.Mounter.(mount.Propagator)
	if !ok {
		return &skip{"no mount.Propagator"}
	}
	shared := func(name string) error {
		got, err := p.Propagation(s.ctx, s.path(name))
		return errors.Join(err, expect(got == mount.Shared, "propagation of %s is %q", name, got))
	}
	return all(
		func() error { return s.folders("a/m") },
		func() error { return s.write("a/f") },
		func() error { return p.MakeShared(s.ctx, s.path("a")) },
		func() error { return p.MakeShared(s.ctx, s.path("a")) },
		func() error { return s.wantPoint("a", true, true, true) },
		func() error { return s.wantContent("a/f", "content of a/f") },
		func() error {
			own, err := s.own()
			return errors.Join(err, expect(len(own) == 1, "mounts after MakeShared twice: %v", own))
		},
		func() error { return s.tmpfs("a/m", mount.Options{}) },
		func() error { return shared("a") },
		func() error { return shared("a/f") },
		func() error { return shared("a/m") },
	)
}

func namespace(s *site) error {
	i, ok := s.Mounter.(mount.Identifier)
	if !ok {
		return &skip{"no mount.Identifier"}
	}
	one, err := i.Namespace(s.ctx)
	if err != nil {
		return err
	}
	two, err := i.Namespace(s.ctx)
	if err != nil {
		return err
	}
	return expect(one == two && one.BootID != "" && one.MountNS != "", "namespace is %+v, then %+v", one, two)
}
