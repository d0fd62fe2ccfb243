package mounttest

import (
	"os"
	"strings"

	"github.com/volumekit/volumekit/mount"
)

func unmountCases() []testCase {
	return []testCase{
		{"unmount not mounted", "Unmount of what is no mount point gives ErrNotMounted: a folder, a file, a missing path, a folder in a mount.", unmountNot},
		{"unmount symlink", "Unmount does not follow a symbolic link.", unmountSymlink},
		{"unmount busy", "Unmount of a mount in use gives ErrBusy and leaves it; a lazy unmount takes it away at once.", unmountBusy},
		{"unmount parent", "A mount with another below it is busy; a lazy unmount takes both away.", unmountParent},
		{"unmount twice", "A second Unmount finds nothing mounted.", unmountTwice},
	}
}

func unmountNot(s *site) error {
	steps := []func() error{
		func() error { return s.folders("a", "m") },
		func() error { return s.write("f") },
		func() error { return s.tmpfs("m", mount.Options{}) },
		func() error { return s.folders("m/sub") },
	}
	for _, lazy := range []bool{false, true} {
		for _, name := range []string{"a", "f", "missing", "missing/too", "m/sub"} {
			steps = append(steps, func() error {
				err := s.Unmount(s.ctx, s.path(name), mount.UnmountOptions{Lazy: lazy})
				return wantClass("unmount "+name, err, mount.ErrNotMounted)
			})
		}
	}
	return all(append(steps, func() error { return s.wantPoint("m", true, true, true) })...)
}

func unmountSymlink(s *site) error {
	return all(
		func() error { return s.folders("m") },
		func() error { return s.tmpfs("m", mount.Options{}) },
		func() error { return os.Symlink("m", s.path("link")) },
		func() error { return wantClass("unmount of a link", s.unmount("link"), mount.ErrNotMounted) },
		func() error { return s.wantPoint("m", true, true, true) },
	)
}

func unmountBusy(s *site) error {
	err := all(
		func() error { return s.folders("a") },
		func() error { return s.tmpfs("a", mount.Options{}) },
	)
	if err != nil {
		return err
	}
	done, err := s.use("a")
	if err != nil {
		return err
	}
	defer done()
	return all(
		func() error { return wantClass("unmount", s.unmount("a"), mount.ErrBusy) },
		func() error { return s.wantPoint("a", true, true, true) },
		func() error { return s.Unmount(s.ctx, s.path("a"), mount.UnmountOptions{Lazy: true}) },
		func() error { return s.wantPoint("a", true, false, true) },
		func() error { return s.noneLeft() },
	)
}

func unmountParent(s *site) error {
	return all(
		func() error { return s.folders("a") },
		func() error { return s.tmpfs("a", mount.Options{}) },
		func() error { return s.folders("a/b") },
		func() error { return s.tmpfs("a/b", mount.Options{}) },
		func() error { return wantClass("unmount", s.unmount("a"), mount.ErrBusy) },
		func() error { return s.wantPoint("a/b", true, true, true) },
		func() error { return s.Unmount(s.ctx, s.path("a"), mount.UnmountOptions{Lazy: true}) },
		func() error { return s.wantPoint("a", true, false, true) },
		func() error { return s.wantPoint("a/b", false, false, false) },
		func() error { return s.noneLeft() },
	)
}

func unmountTwice(s *site) error {
	return all(
		func() error { return s.folders("a") },
		func() error { return s.tmpfs("a", mount.Options{}) },
		func() error { return s.unmount("a") },
		func() error { return wantClass("second unmount", s.unmount("a"), mount.ErrNotMounted) },
	)
}

func removeCases() []testCase {
	return []testCase{
		{"remove tree", "RemoveAll removes a file, and a folder with all below it.", removeTree},
		{"remove missing", "RemoveAll of a path that does not exist is no error.", removeMissing},
		{"remove mount point", "RemoveAll of a mount point removes nothing behind it and gives ErrCrossesMount.", removeMountPoint},
		{"remove above mount", "RemoveAll stops at a mount below its path, with an error that wraps ErrCrossesMount and names the mount.", removeAboveMount},
		{"remove above bind of same file system", "RemoveAll knows a bind mount of the same file system too: nothing is deleted through it.", removeAboveBind},
		{"remove above bind of file", "RemoveAll knows a bind mount of a file, too.", removeAboveFile},
		{"remove keeps symlink targets", "RemoveAll removes symbolic links and never follows one.", removeSymlinks},
		{"remove through symlink", "RemoveAll of a path that leads through a symbolic link removes nothing and gives ErrNotConfined and the link's name.", removeThrough},
		{"remove inside mount", "RemoveAll of a path inside a mount removes it there.", removeInside},
		{"remove deep", "RemoveAll removes deep trees.", removeDeep},
	}
}

func removeTree(s *site) error {
	return all(
		func() error { return s.folders("a/b/c", "a/empty", "beside") },
		func() error { return s.write("a/f") },
		func() error { return s.write("a/b/c/f") },
		func() error { return s.write("g") },
		func() error { return os.Chmod(s.path("a/b/c/f"), 0o400) },
		func() error { return s.RemoveAll(s.ctx, s.path("a")) },
		func() error { return s.RemoveAll(s.ctx, s.path("g")) },
		func() error { return s.wantPoint("a", false, false, false) },
		func() error { return s.wantPoint("g", false, false, false) },
		func() error { return s.wantPoint("beside", true, false, true) },
	)
}

func removeMissing(s *site) error {
	return all(
		func() error { return s.RemoveAll(s.ctx, s.path("missing")) },
		func() error { return s.RemoveAll(s.ctx, s.path("missing", "too")) },
		func() error { return s.folders("a") },
		func() error { return s.RemoveAll(s.ctx, s.path("a")) },
		func() error { return s.RemoveAll(s.ctx, s.path("a")) },
	)
}

// refused checks that RemoveAll of name fails because of the mount at target.
func (s *site) refused(name, target string) error {
	err := s.RemoveAll(s.ctx, s.path(name))
	if err := wantClass("remove "+name, err, mount.ErrCrossesMount); err != nil {
		return err
	}
	return expect(strings.Contains(err.Error(), s.path(target)), "the error does not name %s: %v", s.path(target), err)
}

func removeMountPoint(s *site) error {
	return all(
		func() error { return s.folders("a") },
		func() error { return s.tmpfs("a", mount.Options{}) },
		func() error { return s.write("a/keep") },
		func() error { return s.refused("a", "a") },
		func() error { return s.wantPoint("a", true, true, true) },
		func() error { return s.wantContent("a/keep", "content of a/keep") },
	)
}

func removeAboveMount(s *site) error {
	return all(
		func() error { return s.folders("a/b/m") },
		func() error { return s.tmpfs("a/b/m", mount.Options{}) },
		func() error { return s.write("a/b/m/keep") },
		func() error { return s.refused("a", "a/b/m") },
		func() error { return s.wantPoint("a/b/m", true, true, true) },
		func() error { return s.wantContent("a/b/m/keep", "content of a/b/m/keep") },
		func() error { return s.unmount("a/b/m") },
		func() error { return s.RemoveAll(s.ctx, s.path("a")) },
		func() error { return s.wantPoint("a", false, false, false) },
	)
}

func removeAboveBind(s *site) error {
	return all(
		func() error { return s.folders("data/sub", "a/m") },
		func() error { return s.write("data/keep") },
		func() error { return s.write("data/sub/keep") },
		func() error { return s.bind("data", "a/m", mount.Options{}) },
		func() error { return s.refused("a", "a/m") },
		func() error { return s.refused("a/m", "a/m") },
		func() error { return s.wantPoint("a/m", true, true, true) },
		func() error { return s.wantContent("data/keep", "content of data/keep") },
		func() error { return s.wantContent("data/sub/keep", "content of data/sub/keep") },
	)
}

func removeAboveFile(s *site) error {
	return all(
		func() error { return s.folders("data", "a") },
		func() error { return s.write("data/keep") },
		func() error { return s.write("a/f") },
		func() error { return s.bind("data/keep", "a/f", mount.Options{}) },
		func() error { return s.refused("a", "a/f") },
		func() error { return s.refused("a/f", "a/f") },
		func() error { return s.wantPoint("a/f", true, true, false) },
		func() error { return s.wantContent("data/keep", "content of data/keep") },
	)
}

func removeSymlinks(s *site) error {
	return all(
		func() error { return s.folders("outside", "a") },
		func() error { return s.write("outside/keep") },
		func() error { return os.Symlink(s.path("outside"), s.path("a", "link")) },
		func() error { return os.Symlink(s.path("outside", "keep"), s.path("a", "file")) },
		func() error { return os.Symlink("nowhere", s.path("a", "dangling")) },
		func() error { return os.Symlink("outside", s.path("link")) },
		func() error { return s.RemoveAll(s.ctx, s.path("a")) },
		func() error { return s.RemoveAll(s.ctx, s.path("link")) },
		func() error { return s.wantPoint("a", false, false, false) },
		func() error { return s.wantPoint("link", false, false, false) },
		func() error { return s.wantContent("outside/keep", "content of outside/keep") },
	)
}

func removeThrough(s *site) error {
	named := func(name string) func() error {
		return func() error {
			err := s.RemoveAll(s.ctx, s.path("pods", "link", name))
			return all(
				func() error { return wantClass("remove "+name, err, mount.ErrNotConfined) },
				func() error {
					return expect(strings.Contains(err.Error(), s.path("pods", "link")), "remove %s: %q does not name the link", name, err.Error())
				},
			)
		}
	}
	return all(
		func() error { return s.folders("outside/full/sub", "outside/empty", "pods") },
		func() error { return s.write("outside/full/keep") },
		func() error { return s.write("outside/file") },
		func() error { return os.Symlink(s.path("outside"), s.path("pods", "link")) },
		named("full"), named("empty"), named("file"), named("full/keep"), named("full/sub"),
		func() error { return s.wantContent("outside/full/keep", "content of outside/full/keep") },
		func() error { return s.wantContent("outside/file", "content of outside/file") },
		func() error { return s.wantPoint("outside/empty", true, false, true) },
		func() error { return s.wantPoint("outside/full/sub", true, false, true) },
		func() error { return s.RemoveAll(s.ctx, s.path("pods", "link")) }, // the link itself
		func() error { return s.wantPoint("outside/empty", true, false, true) },
	)
}

func removeInside(s *site) error {
	return all(
		func() error { return s.folders("m") },
		func() error { return s.tmpfs("m", mount.Options{}) },
		func() error { return s.folders("m/a/b") },
		func() error { return s.write("m/a/b/f") },
		func() error { return s.write("m/keep") },
		func() error { return s.RemoveAll(s.ctx, s.path("m", "a")) },
		func() error { return s.wantPoint("m/a", false, false, false) },
		func() error { return s.wantPoint("m/keep", true, false, false) },
		func() error { return s.wantPoint("m", true, true, true) },
	)
}

func removeDeep(s *site) error {
	deep := "a" + strings.Repeat("/d", 100)
	return all(
		func() error { return s.folders(deep) },
		func() error { return s.write(deep + "/f") },
		func() error { return s.RemoveAll(s.ctx, s.path("a")) },
		func() error { return s.wantPoint("a", false, false, false) },
	)
}
