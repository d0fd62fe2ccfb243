package hostmount

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/nstest"
)

// TestOpenBelow checks the one call that keeps a removal inside, also where
// nothing before it has noticed a mount or a link.
func TestOpenBelow(t *testing.T) {
	for name, m := range map[string]*Mounter{"new": New(Options{}), "classic": New(Options{Classic: true})} {
		t.Run(name, func(t *testing.T) {
			dir := nstest.Dir(t)
			for _, sub := range []string{"plain", "bound", "tmpfs"} {
				if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, err := range []error{
				os.WriteFile(filepath.Join(dir, "file"), nil, 0o600),
				os.Symlink("plain", filepath.Join(dir, "link")),
				unix.Mount(filepath.Join(dir, "plain"), filepath.Join(dir, "bound"), "", unix.MS_BIND, ""),
				unix.Mount("x", filepath.Join(dir, "tmpfs"), "tmpfs", 0, ""),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			top, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = top.Close() }()
			for sub, want := range map[string]error{
				"plain": nil, "bound": unix.EXDEV, "tmpfs": unix.EXDEV, "link": unix.ENOTDIR, "file": unix.ENOTDIR, "none": unix.ENOENT,
			} {
				fd, err := m.openBelow(int(top.Fd()), sub)
				if !errors.Is(err, want) {
					t.Errorf("%s: %v, want %v", sub, err, want)
				}
				if err == nil {
					_ = unix.Close(fd)
				}
			}
		})
	}
}
