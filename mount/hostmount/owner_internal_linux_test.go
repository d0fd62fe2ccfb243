package hostmount

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
)

// TestCopyMount checks what byName relies on: mounts that are there do not show
// in the copy, nor do later ones, be the original shared or not.
func TestCopyMount(t *testing.T) {
	dir := nstest.Dir(t)
	for _, name := range []string{"v/before", "v/after"} {
		folder(t, dir, name)
	}
	top := filepath.Join(dir, "v")
	mountOn := func(name string) {
		t.Helper()
		try(t, unix.Mount("x", filepath.Join(top, name), "tmpfs", 0, ""), unix.Mkdir(filepath.Join(top, name, "inside"), 0o700))
	}
	mountOn("before")
	fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	try(t, err)
	defer closeOpen(fd)
	own, err := copyMount(fd)
	if err != nil {
		t.Skipf("no mount of one's own here: %v", err)
	}
	defer closeOpen(own)
	mountOn("after")
	for _, name := range []string{"before", "after"} {
		if err := unix.Faccessat(own, name, unix.F_OK, 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := unix.Faccessat(own, name+"/inside", unix.F_OK, 0); err == nil {
			t.Errorf("the mount on %s is to be seen", name)
		}
	}
	for _, at := range []int{fd, own} {
		if id, err := identify(at); err != nil || id.mount == 0 {
			t.Errorf("identity %+v, %v", id, err)
		}
	}
}

// TestOpenEntersNoMount is about where there is no mount of one's own.
func TestOpenEntersNoMount(t *testing.T) {
	dir := nstest.Dir(t)
	source := folder(t, dir, "source")
	try(t, os.WriteFile(filepath.Join(source, "file"), nil, 0o600))
	top := folder(t, dir, "v")
	for _, name := range []string{"file", "over"} {
		try(t, os.WriteFile(filepath.Join(top, name), nil, 0o600))
	}
	for _, name := range []string{"tmpfs", "bind", "folder"} {
		folder(t, top, name)
	}
	try(t, os.Symlink(source, filepath.Join(top, "link")), os.Symlink("bind", filepath.Join(top, "inner")))
	try(t, unix.Mount("x", filepath.Join(top, "tmpfs"), "tmpfs", 0, ""),
		unix.Mount(source, filepath.Join(top, "bind"), "", unix.MS_BIND, ""),
		unix.Mount(filepath.Join(source, "file"), filepath.Join(top, "over"), "", unix.MS_BIND, ""))
	for _, classic := range []bool{false, true} {
		w := newOwning(t.Context(), New(Options{Classic: classic}), top, mount.Ownership{})
		fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		try(t, err)
		id, err := identify(fd)
		try(t, err)
		w.mount = id.mount
		for name, want := range map[string]error{
			"file": nil, "folder": nil, "link": nil, "inner": nil, "missing": unix.ENOENT,
			"tmpfs": unix.EXDEV, "bind": unix.EXDEV, "over": unix.EXDEV,
		} {
			got, err := w.open(fd, name)
			if !errors.Is(err, want) {
				t.Errorf("classic %t: %s gives %v, want %v", classic, name, err, want)
			}
			if err != nil {
				continue
			}
			if st, err := fstat(got); err != nil || (st.Mode&unix.S_IFMT == unix.S_IFLNK) != (name == "link" || name == "inner") {
				t.Errorf("classic %t: %s has mode %o, %v", classic, name, st.Mode, err)
			}
			closeOpen(got)
		}
		for _, name := range []string{"..", "folder/../../source", source} { // EAGAIN while others mount
			if got, err := w.open(fd, name); err == nil {
				t.Errorf("classic %t: %s can be opened", classic, name)
				closeOpen(got)
			}
		}
		closeOpen(fd)
	}
}
