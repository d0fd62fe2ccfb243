package hostmount_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
)

func raceRounds(t *testing.T) int {
	switch {
	case os.Getenv("VOLUMEKIT_LONG") != "":
		return 20_000
	case testing.Short():
		return 200
	}
	return 2000
}

// someFiles makes a folder with a few files.
func someFiles(t testing.TB, elements ...string) string {
	t.Helper()
	top := mkdir(t, elements...)
	for i := range 10 {
		write(t, top, fmt.Sprintf("file-%d", i))
	}
	return top
}

// meanwhile calls f over and over until the returned function is called.
func meanwhile(f func()) (stop func()) {
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
				f()
			}
		}
	})
	return func() {
		close(end)
		wg.Wait()
	}
}

func exchange(a, b string) {
	_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

// TestSetGroupInARace swaps folders and files of the volume with links to
// precious ones, and with each other, while it is walked.
func TestSetGroupInARace(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		precious := mkdir(t, dir, "precious")
		names := []string{".", "file", "b", "b/file", "b/d", "b/d/file"}
		write(t, precious, "file")
		write(t, mkdir(t, precious, "b"), "file")
		write(t, mkdir(t, precious, "b/d"), "file")
		before := make([]owner, len(names))
		for i, name := range names {
			before[i] = lookAt(t, filepath.Join(precious, name))
		}
		top := someFiles(t, dir, "top")
		write(t, mkdir(t, top, "a/b/d"), "file")
		write(t, mkdir(t, top, "a/b"), "file")
		write(t, mkdir(t, top, "c/b"), "file")
		spare := mkdir(t, dir, "spare")
		must(t, os.Symlink(precious, filepath.Join(spare, "folder")))
		must(t, os.Symlink(filepath.Join(precious, "file"), filepath.Join(spare, "file")))
		// Never through the link: that would be the test's own damage.
		a, err := unix.Open(filepath.Join(top, "a"), unix.O_PATH|unix.O_CLOEXEC, 0)
		must(t, err)
		defer func() { _ = unix.Close(a) }()
		stop := meanwhile(func() {
			exchange(filepath.Join(top, "a"), filepath.Join(spare, "folder"))
			exchange(filepath.Join(top, "file-3"), filepath.Join(spare, "file"))
			_ = unix.Renameat2(a, "b", unix.AT_FDCWD, filepath.Join(top, "c/b"), unix.RENAME_EXCHANGE)
			exchange(filepath.Join(top, "file-7"), filepath.Join(top, "c/b"))
			_ = os.Remove(filepath.Join(top, "file-9"))
			_ = os.WriteFile(filepath.Join(top, "file-9"), nil, 0o600)
		})
		defer stop()
		for round := range raceRounds(t) {
			group := someGroup() + int64(round%2)*someGroup() // another one each time
			if err := m.SetGroup(t.Context(), top, mount.Ownership{Group: group}); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			for i, name := range names {
				if is := lookAt(t, filepath.Join(precious, name)); is != before[i] {
					t.Fatalf("round %d: %s is %+v, was %+v", round, name, is, before[i])
				}
			}
		}
	})
}

// TestSetGroupWhileMountsMove moves mount points of this namespace from another
// one, where they are ordinary folders and files, under the walk.
func TestSetGroupWhileMountsMove(t *testing.T) {
	both(t, func(t *testing.T, m *hostmount.Mounter, dir string) {
		top := someFiles(t, dir, "top")
		mkdir(t, top, "a/x")
		mkdir(t, top, "point")
		over := write(t, top, "over")
		precious := mkdir(t, dir, "precious")
		write(t, precious, "file")
		for _, mt := range []mount.Mount{
			{Source: precious, Target: filepath.Join(top, "point"), Options: mount.Options{Bind: true}},
			{Source: filepath.Join(precious, "file"), Target: over, Options: mount.Options{Bind: true}},
		} {
			must(t, m.Mount(t.Context(), mt))
		}
		folder, file := lookAt(t, precious), lookAt(t, filepath.Join(precious, "file"))
		ready, end, done := make(chan error), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			ready <- elsewhere(top)
			for {
				select {
				case <-end:
					return
				default:
					exchange(filepath.Join(top, "a"), filepath.Join(top, "point"))
					exchange(filepath.Join(top, "file-7"), filepath.Join(top, "over"))
				}
			}
		}()
		err := <-ready
		defer func() {
			close(end)
			<-done
		}()
		must(t, err)
		for round := range raceRounds(t) {
			group := someGroup() + int64(round%2)*someGroup()
			if err := m.SetGroup(t.Context(), top, mount.Ownership{Group: group}); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if is := lookAt(t, precious); is != folder {
				t.Fatalf("round %d: the folder of a mount is %+v, was %+v", round, is, folder)
			}
			if is := lookAt(t, filepath.Join(precious, "file")); is != file {
				t.Fatalf("round %d: the file of a mount is %+v, was %+v", round, is, file)
			}
		}
	})
}

// elsewhere puts this thread into a mount namespace in which nothing is mounted
// on top's entries.
func elsewhere(top string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	for _, name := range []string{"point", "over"} {
		if err := unix.Unmount(filepath.Join(top, name), unix.MNT_DETACH); err != nil {
			return err
		}
	}
	return nil
}

// TestSetGroupChangesWhatItLookedAt swaps files between the look and the
// change: no file ever gets bits that another one had.
func TestSetGroupChangesWhatItLookedAt(t *testing.T) {
	hooked(t, func(t *testing.T, m *hostmount.Mounter, hook *func(string) error) {
		dir := nstest.Dir(t)
		for _, top := range []string{mkdir(t, dir, "small"), manyFiles(t, dir, "large")} {
			outside, spare := write(t, dir, "outside"), filepath.Join(dir, "link")
			_ = os.Remove(spare)
			must(t, os.Symlink(outside, spare))
			var paths []string
			for _, name := range []string{"a", "b", "c", "d"} {
				paths = append(paths, write(t, top, name))
			}
			for i, mode := range []uint32{0o4777, 0o600, 0o640, 0o660} {
				must(t, unix.Chmod(paths[i], mode))
			}
			*hook = func(point string) error {
				if point == "own.change" {
					for i := range paths {
						exchange(paths[i], paths[(i+1)%len(paths)])
					}
					exchange(paths[0], spare)
				}
				return nil
			}
			must(t, m.SetGroup(t.Context(), top, mount.Ownership{Group: someGroup(), Parallel: 1}))
			*hook = nil
			wantOwner(t, outside, owner{0, 0o600})
			for _, path := range append(paths, spare) {
				switch is := lookAt(t, path); is.mode {
				case 0o4777, 0o600, 0o640, 0o660, 0o777: // as before, a link
				default:
					t.Errorf("%s has mode %o", path, is.mode)
				}
			}
			suid := 0
			for _, path := range append(paths, spare) {
				if lookAt(t, path).mode&0o4000 != 0 {
					suid++
				}
			}
			if suid > 1 {
				t.Errorf("%d files have set-user-ID", suid)
			}
		}
	})
}

func TestSetGroupWhileFilesVanish(t *testing.T) {
	hooked(t, func(t *testing.T, m *hostmount.Mounter, hook *func(string) error) {
		dir := nstest.Dir(t)
		for _, point := range []string{"own.entry", "own.change"} {
			top := manyFiles(t, dir, point)
			deep := top
			for range 100 { // more than are kept open
				deep = mkdir(t, deep, "d")
				write(t, deep, "file")
				mkdir(t, deep, "z")
			}
			n := 0
			*hook = func(at string) error {
				if at != point {
					return nil
				}
				n++
				_ = os.Remove(filepath.Join(top, "file-000")) // the first ones, or any
				switch n {
				case 10:
					_ = os.Remove(filepath.Join(top, "file-299"))
				case 400: // somewhere deep
					return os.RemoveAll(filepath.Join(top, "d"))
				}
				return nil
			}
			must(t, m.SetGroup(t.Context(), top, mount.Ownership{Group: someGroup(), Parallel: 1}))
			if n < 400 {
				t.Errorf("%s: only %d times", point, n)
			}
			*hook = nil
			wantOwner(t, top, owner{someGroup(), 0o2775})
		}
	})
}

// TestSetGroupOfAMovedTree moves what is being walked: the rest may be missed,
// but then it is told, and nothing where it came from is touched.
func TestSetGroupOfAMovedTree(t *testing.T) {
	hooked(t, func(t *testing.T, m *hostmount.Mounter, hook *func(string) error) {
		dir := nstest.Dir(t)
		top := mkdir(t, dir, "top")
		deep := mkdir(t, top, "d")
		for range 100 {
			deep = mkdir(t, deep, "d")
			mkdir(t, deep, "z")
		}
		precious := write(t, mkdir(t, dir, "precious"), "file")
		n := 0
		*hook = func(at string) error {
			if at == "own.entry" {
				if n++; n == 150 { // from the middle, to beside the volume
					return os.Rename(filepath.Join(top, "d/d/d/d/d"), filepath.Join(dir, "precious/d"))
				}
			}
			return nil
		}
		err := m.SetGroup(t.Context(), top, mount.Ownership{Group: someGroup(), Parallel: 1})
		wantOwner(t, precious, owner{0, 0o600})
		wantOwner(t, filepath.Dir(precious), owner{0, 0o755})
		if err == nil {
			t.Fatal("nothing is told")
		}
		wantOwner(t, top, owner{someGroup(), 0o775}) // not taken for done
	})
}
