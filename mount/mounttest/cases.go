package mounttest

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/volumekit/volumekit/mount"
)

func cases() []testCase {
	return slices.Concat(mountCases(), unmountCases(), inspectCases(), removeCases(), ownerCases(), otherCases())
}

func mountCases() []testCase {
	return []testCase{
		{"mount", "Mount makes the file system visible at its target, and Unmount brings back what was there before.", mountAndBack},
		{"mount missing target", "Mount does not make its target: where there is none it fails and nothing is visible.", mountMissing},
		{"mount on file", "A file system cannot be mounted on a file; a failed Mount leaves nothing new.", mountOnFile},
		{"mount on symlink", "Mount never mounts through a symbolic link in the target's last component.", mountOnSymlink},
		{"mount stacks", "Mount mounts on top of what is mounted already; Unmount takes off the topmost alone.", mountStacks},
		{"bind folder", "A bind mount shows the source's files, both ways, and unmounting it leaves the source alone.", bindFolder},
		{"bind file", "A file can be bound over a file, a folder only over a folder.", bindFile},
		{"bind outlives source", "A bind mount of a mount keeps its content when the source is unmounted.", bindOutlives},
		{"bind recursive", "Only a recursive bind mount takes the mounts below its source along.", bindRecursive},
		{"read-only at once", "ReadOnly holds from the first moment at which the mount is visible.", readOnlyTmpfs},
		{"read-only bind at once", "ReadOnly of a bind mount holds from the first moment at which the mount is visible, and leaves the source writable.", readOnlyBind},
		{"bad option", "Options that no kernel takes give ErrBadOption and mount nothing.", badOption},
		{"mount side by side", "All methods are safe for concurrent use.", sideBySide},
	}
}

func mountAndBack(s *site) error {
	return all(
		func() error { return s.folders("a") },
		func() error { return s.write("a/before") },
		func() error { return s.tmpfs("a", mount.Options{Data: []string{"mode=0755"}}) },
		func() error { return s.wantPoint("a", true, true, true) },
		func() error { return expect(!s.holds("a/before"), "the covered file is still visible") },
		func() error { return s.write("a/inside") },
		func() error { return s.unmount("a") },
		func() error { return s.wantPoint("a", true, false, true) },
		func() error {
			return expect(s.holds("a/before") && !s.holds("a/inside"), "unmount did not bring back what was there before")
		},
	)
}

func mountMissing(s *site) error {
	if err := s.tmpfs("missing", mount.Options{}); err == nil {
		return errors.New("mount on a missing target: no error")
	}
	return s.wantPoint("missing", false, false, false)
}

func mountOnFile(s *site) error {
	return all(
		func() error { return s.write("f") },
		func() error {
			return expect(s.tmpfs("f", mount.Options{}) != nil, "tmpfs on a file: no error")
		},
		func() error { return s.wantPoint("f", true, false, false) },
		func() error { return s.noneLeft() },
	)
}

func mountOnSymlink(s *site) error {
	return all(
		func() error { return s.folders("a") },
		func() error { return os.Symlink("a", s.path("link")) },
		func() error {
			return expect(s.tmpfs("link", mount.Options{}) != nil, "mount on a symbolic link: no error")
		},
		func() error { return s.wantPoint("a", true, false, true) },
	)
}

func mountStacks(s *site) error {
	return all(
		func() error { return s.folders("a") },
		func() error { return s.tmpfs("a", mount.Options{}) },
		func() error { return s.write("a/first") },
		func() error { return s.tmpfs("a", mount.Options{}) },
		func() error { return expect(!s.holds("a/first"), "the lower mount shows through") },
		func() error { return s.write("a/second") },
		func() error { return s.stackOfTwo("a") },
		func() error { return s.unmount("a") },
		func() error {
			return expect(s.holds("a/first") && !s.holds("a/second"), "unmount did not take off the topmost mount")
		},
		func() error { return s.wantPoint("a", true, true, true) },
		func() error { return s.unmount("a") },
		func() error { return s.wantPoint("a", true, false, true) },
	)
}

// stackOfTwo checks that the table lists both mounts and that the one on top
// is what Inspect sees.
func (s *site) stackOfTwo(name string) error {
	own, err := s.own()
	if err != nil {
		return err
	}
	if len(own) != 2 || own[0].Target != s.path(name) || own[1].Target != s.path(name) {
		return fmt.Errorf("table after two mounts on one target: %v", own)
	}
	if own[1].Parent != own[0].ID {
		return fmt.Errorf("the second mount's parent is %d, want the first mount, %d", own[1].Parent, own[0].ID)
	}
	return nil
}

func bindFolder(s *site) error {
	return all(
		func() error { return s.folders("data", "a") },
		func() error { return s.write("data/one") },
		func() error { return s.bind("data", "a", mount.Options{}) },
		func() error { return s.wantPoint("a", true, true, true) },
		func() error { return s.wantPoint("data", true, false, true) },
		func() error { return expect(s.holds("a/one"), "the source's file is not at the target") },
		func() error { return s.write("a/two") },
		func() error { return expect(s.holds("data/two"), "what is written at the target is not in the source") },
		func() error { return s.unmount("a") },
		func() error {
			return expect(s.holds("data/one") && s.holds("data/two") && !s.holds("a/one"), "unmount harmed the source or left the target")
		},
	)
}

func bindFile(s *site) error {
	return all(
		func() error { return s.folders("data") },
		func() error { return s.write("data/f") },
		func() error { return s.write("g") },
		func() error { return s.bind("data/f", "g", mount.Options{}) },
		func() error { return s.wantPoint("g", true, true, false) },
		func() error { return s.wantContent("g", "content of data/f") },
		func() error { return os.WriteFile(s.path("g"), []byte("new"), 0o600) },
		func() error { return s.wantContent("data/f", "new") },
		func() error { return s.unmount("g") },
		func() error { return s.wantContent("g", "content of g") },
		func() error { return s.wantContent("data/f", "new") },
		func() error {
			return expect(s.bind("data", "g", mount.Options{}) != nil, "folder bound over a file: no error")
		},
		func() error {
			return expect(s.bind("g", "data", mount.Options{}) != nil, "file bound over a folder: no error")
		},
		func() error { return s.noneLeft() },
	)
}

func (s *site) wantContent(name, want string) error {
	got, err := os.ReadFile(s.path(name))
	if err != nil {
		return err
	}
	return expect(string(got) == want, "%s holds %q, want %q", name, got, want)
}

func (s *site) noneLeft() error {
	own, err := s.own()
	if err != nil {
		return err
	}
	return expect(len(own) == 0, "mounts left: %v", own)
}

func bindOutlives(s *site) error {
	return all(
		func() error { return s.folders("staged", "a") },
		func() error { return s.tmpfs("staged", mount.Options{}) },
		func() error { return s.write("staged/data") },
		func() error { return s.bind("staged", "a", mount.Options{}) },
		func() error { return s.unmount("staged") },
		func() error { return expect(!s.holds("staged/data"), "the source still shows its content") },
		func() error { return s.wantPoint("a", true, true, true) },
		func() error { return s.wantContent("a/data", "content of staged/data") },
		func() error { return s.unmount("a") },
		func() error { return expect(!s.holds("a/data"), "content stays after the last unmount") },
	)
}

func bindRecursive(s *site) error {
	return all(
		func() error { return s.folders("src/sub", "plain", "deep") },
		func() error { return s.tmpfs("src/sub", mount.Options{}) },
		func() error { return s.bind("src", "plain", mount.Options{}) },
		func() error { return s.wantPoint("plain/sub", true, false, true) },
		func() error { return s.bind("src", "deep", mount.Options{Recursive: true}) },
		func() error { return s.wantPoint("deep/sub", true, true, true) },
	)
}

// readOnlyAtOnce looks at a target all the time while it is mounted on.
func (s *site) readOnlyAtOnce(mountIt func() error) error {
	if err := s.folders("data", "a"); err != nil {
		return err
	}
	for range 30 {
		seen, stop := make(chan error, 1), make(chan struct{})
		go func() { seen <- s.watchWritable("a", stop) }()
		err := mountIt()
		close(stop)
		err = errors.Join(err, <-seen)
		if err != nil {
			return err
		}
		err = all(
			func() error { return s.wantReadOnly("a", true) },
			func() error { return s.wantReadOnly("data", false) },
			func() error { return s.unmount("a") },
		)
		if err != nil {
			return err
		}
	}
	return nil
}

func readOnlyTmpfs(s *site) error {
	return s.readOnlyAtOnce(func() error { return s.tmpfs("a", mount.Options{ReadOnly: true}) })
}

func readOnlyBind(s *site) error {
	return s.readOnlyAtOnce(func() error { return s.bind("data", "a", mount.Options{ReadOnly: true}) })
}

// watchWritable returns an error if a writable mount is seen at name.
func (s *site) watchWritable(name string, stop <-chan struct{}) error {
	for {
		p, err := s.Inspect(s.ctx, s.path(name))
		if err != nil {
			return err
		}
		if p.Mounted && !p.ReadOnly {
			return errors.New("a mount that was asked for read-only was seen writable")
		}
		select {
		case <-stop:
			return nil
		default:
		}
	}
}

func (s *site) wantReadOnly(name string, want bool) error {
	p, err := s.Inspect(s.ctx, s.path(name))
	if err != nil {
		return err
	}
	if e, ok := s.entry(name); ok && e.ReadOnly != want {
		return fmt.Errorf("table says read-only %t of %s, want %t", e.ReadOnly, name, want)
	}
	return expect(p.ReadOnly == want, "inspect %s: read-only %t, want %t", name, p.ReadOnly, want)
}

func (s *site) entry(name string) (mount.Entry, bool) {
	own, err := s.own()
	if err != nil {
		return mount.Entry{}, false
	}
	return own.At(s.path(name))
}

func badOption(s *site) error {
	return all(
		func() error { return s.folders("a") },
		func() error {
			err := s.tmpfs("a", mount.Options{Data: []string{"no_such_option_of_tmpfs"}})
			return wantClass("unknown option", err, mount.ErrBadOption)
		},
		func() error {
			return wantClass("recursive without bind", s.tmpfs("a", mount.Options{Recursive: true}), mount.ErrBadOption)
		},
		func() error {
			err := s.Mount(s.ctx, mount.Mount{Source: "x", Target: s.path("a")})
			return wantClass("neither type nor bind", err, mount.ErrBadOption)
		},
		func() error { return s.noneLeft() },
	)
}

func sideBySide(s *site) error {
	const workers = 8
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for i := range workers {
		name := fmt.Sprintf("w%d", i)
		if err := s.folders(name); err != nil {
			return err
		}
		wg.Go(func() {
			for range 5 {
				errs[i] = errors.Join(errs[i], all(
					func() error { return s.tmpfs(name, mount.Options{}) },
					func() error { return s.wantPoint(name, true, true, true) },
					func() error { _, err := s.Table(s.ctx); return err },
					func() error { return s.unmount(name) },
					func() error { return s.wantPoint(name, true, false, true) },
				))
			}
		})
	}
	wg.Wait()
	return errors.Join(errors.Join(errs...), s.noneLeft())
}
