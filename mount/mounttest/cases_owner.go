package mounttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"

	"github.com/volumekit/volumekit/mount"
)

func ownerCases() []testCase {
	return []testCase{
		{"set group", "SetGroup gives root and all below it to the group, adds rights and takes none away.", setGroup},
		{"set group read-only", "ReadOnly gives no right to write.", setGroupReadOnly},
		{"set group of a file", "Root may be a file.", setGroupFile},
		{"set group and links", "SetGroup follows no symbolic link: none below root, none on the way to it, nor root itself.", setGroupLinks},
		{"set group and mounts", "SetGroup enters no mount below root; root itself may be one.", setGroupMounts},
		{"set group on root mismatch", "OnRootMismatch changes nothing if the group and rights of root suffice, and all if not.", setGroupMismatch},
		{"set group progress", "Progress is told how many entries there were in the end, root included.", setGroupProgress},
		{"set group refused", "A missing root, a relative one, and what is no group's number are errors; an ended context is one, and nothing is changed.", setGroupRefused},
	}
}

// owned is what must be known of a file.
type owned struct {
	group int64
	mode  fs.FileMode // permission bits and set-group-ID
}

// owner returns the mounter's Owner and a group that files can be given to.
func (s *site) owner() (mount.Owner, int64, error) {
	o, ok := s.Mounter.(mount.Owner)
	if !ok {
		return nil, 0, &skip{"no mount.Owner"}
	}
	const made = 4711
	if _, ok := s.Mounter.(interface{ Group(string) (int64, bool) }); ok {
		return o, made, nil
	}
	probe := s.path("probe")
	defer func() { _ = os.Remove(probe) }()
	if err := os.Mkdir(probe, 0o700); err != nil {
		return nil, 0, err
	}
	if err := os.Lchown(probe, -1, made); err == nil {
		return o, made, nil
	}
	return o, int64(os.Getgid()), nil // the one that an ordinary user has for sure
}

// look returns the group and rights of a file.
func (s *site) look(name string) (owned, error) {
	info, err := os.Lstat(s.path(name))
	if err != nil {
		return owned{}, err
	}
	is := owned{-1, info.Mode() & (fs.ModePerm | fs.ModeSetgid)}
	if told, ok := s.Mounter.(interface{ Group(string) (int64, bool) }); ok {
		if group, ok := told.Group(s.path(name)); ok {
			is.group = group
		}
	} else if v := reflect.Indirect(reflect.ValueOf(info.Sys())); v.Kind() == reflect.Struct && v.FieldByName("Gid").IsValid() {
		is.group = int64(v.FieldByName("Gid").Uint()) //nolint:gosec // 32 bits
	}
	return is, nil
}

func (s *site) wantOwned(name string, want owned) error {
	is, err := s.look(name)
	if err != nil {
		return err
	}
	return expect(is == want, "%s has group %d and mode %v, want %d and %v", name, is.group, is.mode, want.group, want.mode)
}

// wantSame checks that do leaves the named files as they are.
func (s *site) wantSame(do func() error, names ...string) error {
	before := make(map[string]owned, len(names))
	for _, name := range names {
		is, err := s.look(name)
		if err != nil {
			return err
		}
		before[name] = is
	}
	if err := do(); err != nil {
		return err
	}
	for _, name := range names {
		if err := s.wantOwned(name, before[name]); err != nil {
			return err
		}
	}
	return nil
}

func (s *site) chmod(name string, mode fs.FileMode) error { return os.Chmod(s.path(name), mode) }

// volume makes a folder with something of everything.
func (s *site) volume() error {
	return all(
		func() error { return s.folders("outside", "v/a/b", "v/closed") },
		func() error { return s.write("outside/f") },
		func() error { return s.write("v/f") },
		func() error { return s.write("v/a/program") },
		func() error { return s.write("v/a/b/odd") },
		func() error { return s.chmod("v", 0o700) },
		func() error { return s.chmod("v/closed", 0o700) },
		func() error { return s.chmod("v/a/program", 0o755) },
		func() error { return s.chmod("v/a/b/odd", 0o604) },
		func() error { return os.Symlink(s.path("outside"), s.path("v", "link")) },
		func() error { return os.Symlink(s.path("outside", "f"), s.path("v", "a", "link")) },
		func() error { return os.Symlink("nowhere", s.path("v", "dangling")) },
	)
}

// wantVolume checks the files of volume.
func (s *site) wantVolume(group int64, modes map[string]fs.FileMode) error {
	for name, mode := range modes {
		if err := s.wantOwned(name, owned{group, mode}); err != nil {
			return err
		}
	}
	for _, name := range []string{"v/link", "v/a/link", "v/dangling"} {
		is, err := s.look(name)
		if err != nil {
			return err
		}
		if is.group != group {
			return fmt.Errorf("the link %s has group %d, want %d", name, is.group, group)
		}
	}
	return nil
}

func setGroup(s *site) error {
	o, group, err := s.owner()
	if err != nil {
		return err
	}
	want := map[string]fs.FileMode{
		"v": 0o770 | fs.ModeSetgid, "v/a": 0o775 | fs.ModeSetgid, "v/a/b": 0o775 | fs.ModeSetgid, "v/closed": 0o770 | fs.ModeSetgid,
		"v/f": 0o660, "v/a/program": 0o775, "v/a/b/odd": 0o664,
	}
	again := func() error {
		if err := o.SetGroup(s.ctx, s.path("v"), mount.Ownership{Group: group}); err != nil {
			return err
		}
		return s.wantVolume(group, want)
	}
	return all(
		s.volume, again, again,
		func() error { return s.chmod("v/f", 0o600) }, // a rogue one
		again,
	)
}

func setGroupReadOnly(s *site) error {
	o, group, err := s.owner()
	if err != nil {
		return err
	}
	return all(
		s.volume,
		func() error {
			return o.SetGroup(s.ctx, s.path("v"), mount.Ownership{Group: group, ReadOnly: true})
		},
		func() error {
			return s.wantVolume(group, map[string]fs.FileMode{
				"v": 0o750 | fs.ModeSetgid, "v/a": 0o755 | fs.ModeSetgid, "v/closed": 0o750 | fs.ModeSetgid,
				"v/f": 0o640, "v/a/program": 0o755, "v/a/b/odd": 0o644,
			})
		},
	)
}

func setGroupFile(s *site) error {
	o, group, err := s.owner()
	if err != nil {
		return err
	}
	return all(
		func() error { return s.write("f") },
		func() error { return o.SetGroup(s.ctx, s.path("f"), mount.Ownership{Group: group}) },
		func() error { return s.wantOwned("f", owned{group, 0o660}) },
	)
}

func setGroupLinks(s *site) error {
	o, group, err := s.owner()
	if err != nil {
		return err
	}
	give := func(name string) error {
		return o.SetGroup(s.ctx, s.path(name), mount.Ownership{Group: group})
	}
	return all(
		s.volume,
		func() error { return s.wantSame(func() error { return give("v") }, "outside", "outside/f") },
		func() error { return s.folders("outside/sub") },
		func() error { return s.write("outside/sub/f") },
		func() error {
			return s.wantSame(func() error {
				return all(
					func() error { return wantClass("root is a link", give("v/link"), mount.ErrNotConfined) },
					func() error { return wantClass("way through a link", give("v/link/sub"), mount.ErrNotConfined) },
				)
			}, "outside", "outside/f", "outside/sub", "outside/sub/f")
		},
	)
}

func setGroupMounts(s *site) error {
	o, group, err := s.owner()
	if err != nil {
		return err
	}
	return all(
		func() error { return s.folders("v", "data") },
		func() error { return s.tmpfs("v", mount.Options{Data: []string{"mode=0755"}}) },
		func() error { return s.folders("v/a/inner", "v/a/bound") },
		func() error { return s.write("v/a/over") },
		func() error { return s.write("data/f") },
		func() error { return s.tmpfs("v/a/inner", mount.Options{Data: []string{"mode=0700"}}) },
		func() error { return s.write("v/a/inner/f") },
		func() error { return s.bind("data", "v/a/bound", mount.Options{}) },
		func() error { return s.bind("data/f", "v/a/over", mount.Options{}) },
		func() error {
			return s.wantSame(func() error {
				return o.SetGroup(s.ctx, s.path("v"), mount.Ownership{Group: group})
			}, "v/a/inner", "v/a/inner/f", "v/a/bound", "v/a/over", "data", "data/f")
		},
		func() error { return s.wantOwned("v", owned{group, 0o775 | fs.ModeSetgid}) },
		func() error { return s.wantOwned("v/a", owned{group, 0o775 | fs.ModeSetgid}) },
	)
}

func setGroupMismatch(s *site) error {
	o, group, err := s.owner()
	if err != nil {
		return err
	}
	give := func() error {
		return o.SetGroup(s.ctx, s.path("v"), mount.Ownership{Group: group, OnRootMismatch: true})
	}
	return all(
		s.volume, give,
		func() error { return s.wantOwned("v/f", owned{group, 0o660}) },
		func() error { return s.chmod("v/f", 0o600) },
		func() error { return s.wantSame(give, "v", "v/f", "v/a") },
		func() error { return s.chmod("v", 0o750|fs.ModeSetgid) },
		give,
		func() error { return s.wantOwned("v/f", owned{group, 0o660}) },
		func() error { return s.chmod("v/f", 0o600) },
		func() error { return s.chmod("v", 0o770) }, // without set-group-ID
		give,
		func() error { return s.wantOwned("v/f", owned{group, 0o660}) },
	)
}

func setGroupProgress(s *site) error {
	o, group, err := s.owner()
	if err != nil {
		return err
	}
	var last int64
	return all(
		s.volume,
		func() error {
			return o.SetGroup(s.ctx, s.path("v"), mount.Ownership{Group: group, Progress: func(n int64) { last = n }})
		},
		func() error {
			const entries = 10 // of volume, and itself
			return expect(last == entries, "%d entries were told in the end, want %d", last, entries)
		},
	)
}

func setGroupRefused(s *site) error {
	o, group, err := s.owner()
	if err != nil {
		return err
	}
	ended, cancel := context.WithCancel(s.ctx)
	cancel()
	refuse := func(ctx context.Context, root string, group int64) error {
		return o.SetGroup(ctx, root, mount.Ownership{Group: group})
	}
	return all(
		s.volume,
		func() error {
			return wantClass("a missing root", refuse(s.ctx, s.path("missing"), group), fs.ErrNotExist)
		},
		func() error {
			return s.wantSame(func() error {
				return errors.Join(
					expect(refuse(s.ctx, "v", group) != nil, "a relative root: no error"),
					wantClass("group -1", refuse(s.ctx, s.path("v"), -1), mount.ErrBadOption),
					wantClass("group 2^32-1", refuse(s.ctx, s.path("v"), 1<<32-1), mount.ErrBadOption),
					wantClass("ended context", refuse(ended, s.path("v"), group), context.Canceled),
				)
			}, "v", "v/f", "v/a", "v/a/program")
		},
	)
}
