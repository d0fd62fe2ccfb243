package hostmount_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
)

func gone(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", path, err)
	}
}

func kept(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("%s is lost: %v", path, err)
	}
}

func TestRemoveOrdinaryTrees(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		precious := mkdir(t, dir, "precious")
		write(t, precious, "file")
		top := mkdir(t, dir, "top")
		write(t, top, "file")
		write(t, mkdir(t, top, "a/b/c"), "file")
		mkdir(t, top, "empty")
		must(t, os.Symlink(precious, filepath.Join(top, "link")))
		must(t, os.Symlink("/nowhere", filepath.Join(top, "a/dangling")))
		must(t, unix.Mkfifo(filepath.Join(top, "fifo"), 0o600))
		must(t, os.Link(filepath.Join(precious, "file"), filepath.Join(top, "hard")))
		for _, name := range []string{"top", "top", "none/none", "precious/file/x"} { // again: no error
			must(t, m.RemoveAll(t.Context(), filepath.Join(dir, name)))
		}
		gone(t, top)
		kept(t, filepath.Join(precious, "file"))
		link := filepath.Join(dir, "link")
		must(t, os.Symlink(precious, link))
		must(t, m.RemoveAll(t.Context(), link))
		gone(t, link)
		kept(t, filepath.Join(precious, "file"))
		must(t, m.RemoveAll(t.Context(), filepath.Join(precious, "file")))
		must(t, m.RemoveAll(t.Context(), precious+"/"))
		gone(t, precious)
		for _, bad := range []string{"", "/", "relative", "/..", dir + "/\x00"} {
			if m.RemoveAll(t.Context(), bad) == nil {
				t.Errorf("%q is accepted", bad)
			}
		}
	})
}

func TestRemoveManyEntries(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		top := mkdir(t, dir, "top")
		for i := range 3000 {
			write(t, top, fmt.Sprintf("%d-%s", i, strings.Repeat("x", 100)))
		}
		must(t, m.RemoveAll(t.Context(), top))
		gone(t, top)
	})
}

func TestRemoveDeepTree(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		const depth = 3000
		top := mkdir(t, dir, "top")
		fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		for range depth {
			for _, name := range []string{"d", "before", "z"} {
				must(t, unix.Mkdirat(fd, name, 0o755))
			}
			next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
			must(t, err)
			must(t, unix.Close(fd))
			fd = next
		}
		must(t, unix.Close(fd))
		var limit unix.Rlimit
		must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
		low := limit
		low.Cur = 128
		must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
		err = m.RemoveAll(t.Context(), top)
		must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
		must(t, err)
		gone(t, top)
	})
}

func TestRemoveStopsAtMounts(t *testing.T) {
	for name, attack := range map[string]func(t *testing.T, precious, inside string){
		"bind of a folder of the same file system": func(t *testing.T, precious, inside string) {
			must(t, unix.Mount(precious, mkdir(t, inside), "", unix.MS_BIND, ""))
		},
		"tmpfs": func(t *testing.T, _, inside string) {
			must(t, unix.Mount("x", mkdir(t, inside), "tmpfs", 0, ""))
			write(t, inside, "file")
		},
		"bind of a file": func(t *testing.T, precious, inside string) {
			must(t, os.WriteFile(inside, nil, 0o600))
			must(t, unix.Mount(filepath.Join(precious, "file"), inside, "", unix.MS_BIND, ""))
		},
		"empty mount": func(t *testing.T, _, inside string) {
			must(t, unix.Mount("x", mkdir(t, inside), "tmpfs", 0, ""))
		},
		"bind of an empty folder": func(t *testing.T, precious, inside string) {
			must(t, unix.Mount(mkdir(t, precious, "empty"), mkdir(t, inside), "", unix.MS_BIND, ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
				precious := mkdir(t, dir, "precious")
				write(t, precious, "file")
				inside := filepath.Join(mkdir(t, dir, "top/a/b"), "inside")
				write(t, dir, "top/a/file")
				attack(t, precious, inside)
				for _, path := range []string{filepath.Join(dir, "top"), inside} {
					err := m.RemoveAll(t.Context(), path)
					wantErr(t, err, mount.ErrCrossesMount, mount.ErrBusy)
					if !strings.Contains(err.Error(), inside) {
						t.Errorf("%v does not name %s", err, inside)
					}
				}
				if p := inspect(t, m, inside); !p.Mounted {
					t.Error("the mount is gone")
				}
				kept(t, filepath.Join(precious, "file"))
				unmount(t, m, inside)
				must(t, m.RemoveAll(t.Context(), filepath.Join(dir, "top")))
				gone(t, filepath.Join(dir, "top"))
				kept(t, filepath.Join(precious, "file"))
			})
		})
	}
}

func TestRemoveUnderMountedTop(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		top := mkdir(t, dir, "top")
		write(t, top, "hidden")
		must(t, m.Mount(t.Context(), tmpfs(top)))
		write(t, top, "file")
		wantErr(t, m.RemoveAll(t.Context(), top), mount.ErrCrossesMount)
		kept(t, filepath.Join(top, "file"))
	})
}

// TestRemoveInARace swaps folders of the tree with links to, and for, a
// precious folder while the tree is removed.
func TestRemoveInARace(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		precious := mkdir(t, dir, "precious")
		for _, sub := range []string{".", "a", "a/b"} {
			write(t, mkdir(t, precious, sub), "file")
		}
		spare := filepath.Join(mkdir(t, dir, "spare"), "link")
		must(t, os.Symlink(precious, spare))
		top := filepath.Join(dir, "top")
		swapped := filepath.Join(top, "a")
		stop := make(chan struct{})
		var swapper sync.WaitGroup
		swapper.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				_ = unix.Renameat2(unix.AT_FDCWD, swapped, unix.AT_FDCWD, spare, unix.RENAME_EXCHANGE)
			}
		})
		rounds := 2000
		if testing.Short() {
			rounds = 200
		}
		for range rounds {
			_ = os.MkdirAll(filepath.Join(swapped, "b"), 0o755) // a link may be in the way
			for _, name := range []string{"file", "a/file", "a/b/file"} {
				// Never through the link: that would be the test's own damage.
				if fd, err := openNoLinks(top, name); err == nil {
					_ = unix.Close(fd)
				}
			}
			if info, err := os.Lstat(spare); err != nil || info.IsDir() {
				_ = os.RemoveAll(spare)
				_ = os.Symlink(precious, spare)
			}
			_ = m.RemoveAll(t.Context(), top) // may fail while things move
		}
		close(stop)
		swapper.Wait()
		for _, name := range []string{"file", "a/file", "a/b/file"} {
			kept(t, filepath.Join(precious, name))
		}
	})
}

func openNoLinks(top, name string) (int, error) {
	fd, err := unix.Open(top, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Openat2(fd, name, &unix.OpenHow{
		Flags: unix.O_CREAT | unix.O_WRONLY, Mode: 0o600, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
}

func TestRemoveOpensClosedFolders(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		top := mkdir(t, dir, "top")
		for _, sub := range []string{"none", "noexec", "nowrite", "noread"} {
			write(t, mkdir(t, top, sub, "sub"), "file")
		}
		for sub, mode := range map[string]os.FileMode{"none": 0, "noexec": 0o600, "nowrite": 0o500, "noread": 0o300} {
			must(t, os.Chmod(filepath.Join(top, sub), mode))
		}
		must(t, os.Chmod(top, 0o500))
		obeyingModes(t, func() error {
			if err := os.Remove(filepath.Join(top, "none")); !errors.Is(err, unix.EACCES) {
				return fmt.Errorf("permission bits do not count here: %w", err)
			}
			return m.RemoveAll(context.Background(), top)
		})
		gone(t, top)
	})
}

func TestRemoveGoesOnPastFailures(t *testing.T) {
	if !nstest.RealRoot() {
		t.Skip("only root can make files immutable")
	}
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		top := mkdir(t, dir, "top")
		for _, name := range []string{"a/1", "b/2", "c/3"} {
			write(t, mkdir(t, top, filepath.Dir(name)), filepath.Base(name))
		}
		stuck := filepath.Join(top, "b/2")
		if err := setImmutable(stuck, true); err != nil {
			t.Skipf("no immutable files here: %v", err)
		}
		err := m.RemoveAll(t.Context(), top)
		must(t, setImmutable(stuck, false))
		wantErr(t, err, unix.EPERM)
		if !strings.Contains(err.Error(), stuck) {
			t.Errorf("%v does not name %s", err, stuck)
		}
		kept(t, stuck)
		gone(t, filepath.Join(top, "a"))
		gone(t, filepath.Join(top, "c"))
		must(t, m.RemoveAll(t.Context(), top))
	})
}

func setImmutable(path string, on bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	flags := 0
	if on {
		flags = 0x10 // FS_IMMUTABLE_FL
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
}

func TestRemoveEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	entries := 0
	m := hostmount.New(hostmount.Options{Faults: func(string) error {
		if entries++; entries == 5 {
			cancel()
		}
		return nil
	}})
	dir := nstest.Dir(t)
	top := mkdir(t, dir, "top")
	for i := range 20 {
		write(t, top, itoa(i))
	}
	wantErr(t, m.RemoveAll(ctx, top), context.Canceled)
	left, err := os.ReadDir(top)
	must(t, err)
	if len(left) != 16 { // the first was the top itself
		t.Errorf("%d entries are left", len(left))
	}
}

func TestRemoveReturnsTheFault(t *testing.T) {
	boom := errors.New("boom")
	n := 0
	m := hostmount.New(hostmount.Options{Faults: func(string) error {
		if n++; n == 3 {
			return boom
		}
		return nil
	}})
	top := mkdir(t, nstest.Dir(t), "top")
	for i := range 4 {
		write(t, top, itoa(i))
	}
	wantErr(t, m.RemoveAll(t.Context(), top), boom)
	kept(t, top)
}
