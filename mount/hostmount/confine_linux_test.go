package hostmount_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
)

func TestConfined(t *testing.T) {
	for name, classic := range map[string]bool{"openat2": false, "classic": true} {
		t.Run(name, func(t *testing.T) {
			base := nstest.Dir(t)
			m := hostmount.New(hostmount.Options{Classic: classic})
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(os.MkdirAll(filepath.Join(base, "a/b/c"), 0o755))
			must(os.Mkdir(filepath.Join(base, "away"), 0o755))
			must(os.Symlink(filepath.Join(base, "a"), filepath.Join(base, "link")))
			must(os.Symlink("b", filepath.Join(base, "a/inner")))
			must(os.MkdirAll(filepath.Join(base, "m/sub"), 0o755))
			must(unix.Mount(filepath.Join(base, "away"), filepath.Join(base, "m/sub"), "", unix.MS_BIND, ""))
			must(os.WriteFile(filepath.Join(base, "file"), nil, 0o600))
			for path, ok := range map[string]bool{
				"a/b/c": true, "a": true, "x/y/z": true, "a/b/x/y": true,
				"link": true, "m/sub": true, // the last component may be anything
				"link/b": false, "a/inner/c": false, "m/sub/x": false, "file/x": false, "../x": false, "": false, "..": false,
			} {
				_, whole, err := m.Confined(t.Context(), base, filepath.Join(base, path))
				if want := ok && !strings.Contains(path, "/y"); whole != want {
					t.Errorf("%s: whole %v, want %v", path, whole, want)
				}
				if ok != (err == nil) || !ok && !errors.Is(err, mount.ErrNotConfined) {
					t.Errorf("%s: %v", path, err)
				}
				if path == "m/sub/x" && err != nil && !strings.Contains(err.Error(), filepath.Join(base, "m/sub")) {
					t.Errorf("the place is not named: %v", err)
				}
			}
			before, _, err := m.Confined(t.Context(), base, filepath.Join(base, "a"))
			must(err)
			must(unix.Mount("over", base, "tmpfs", 0, ""))
			after, _, err := m.Confined(t.Context(), base, filepath.Join(base, "a"))
			must(err)
			if before == after {
				t.Error("a mount over the base is not seen")
			}
			must(unix.Unmount(base, 0))
		})
	}
}
