package hostmount

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
)

// TestResize makes a full tmpfs larger, and sees that nothing else changes.
func TestResize(t *testing.T) {
	for _, classic := range []bool{false, true} {
		dir := folder(t, nstest.Dir(t), "m")
		m := New(Options{Classic: classic})
		mt := mount.Mount{Source: "x", Target: dir, FSType: "tmpfs", Options: mount.Options{
			NoSuid: true, NoDev: true, NoExec: true, Data: []string{"size=64k", "mode=0750"},
		}}
		try(t, m.Mount(t.Context(), mt))
		var before, after unix.Statfs_t
		try(t, unix.Statfs(dir, &before))
		file := filepath.Join(dir, "f")
		if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("classic %t: not full: %v", classic, err)
		}
		try(t, m.Resize(t.Context(), dir, 2<<20), os.WriteFile(file, make([]byte, 1<<20), 0o600), unix.Statfs(dir, &after))
		if size := int64(after.Blocks) * after.Bsize; size != 2<<20 || after.Flags != before.Flags {
			t.Errorf("classic %t: %d bytes, flags %#x, before %#x", classic, size, after.Flags, before.Flags)
		}
		info, err := os.Stat(dir)
		try(t, err)
		if info.Mode().Perm() != 0o750 {
			t.Errorf("classic %t: mode %v", classic, info.Mode())
		}
		if err := m.Resize(t.Context(), dir, 64<<10); err == nil {
			t.Errorf("classic %t: shrunk below what is in use", classic)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		other := folder(t, nstest.Dir(t), "other")
		try(t, unix.Mount(dir, other, "", unix.MS_BIND, ""))
		for name, c := range map[string]struct {
			ctx    context.Context
			target string
			bytes  int64
			want   error
		}{
			"a folder":      {t.Context(), filepath.Dir(dir) + "/none", 1 << 20, mount.ErrNotMounted},
			"a file":        {t.Context(), file, 1 << 20, mount.ErrNotMounted},
			"another":       {t.Context(), "/proc", 1 << 20, mount.ErrUnsupported},
			"no size":       {t.Context(), dir, 0, mount.ErrBadOption},
			"after its end": {ended, dir, 1 << 20, context.Canceled},
		} {
			if err := m.Resize(c.ctx, c.target, c.bytes); !errors.Is(err, c.want) {
				t.Errorf("classic %t: %s: %v", classic, name, err)
			}
		}
	}
}

// TestRemoveThroughLink is the suite's case for kernels without openat2(2).
func TestRemoveThroughLink(t *testing.T) {
	for _, classic := range []bool{false, true} {
		m := New(Options{Classic: classic})
		root := nstest.Dir(t)
		folder(t, root, "outside/pod/volume")
		file := filepath.Join(root, "outside/pod/volume/data")
		link := filepath.Join(root, "link")
		try(t, os.WriteFile(file, nil, 0o600), os.Symlink("outside", link))
		for _, path := range []string{"pod", "pod/volume", "pod/volume/data", "pod/none"} {
			if err := m.RemoveAll(t.Context(), filepath.Join(link, path)); !errors.Is(err, mount.ErrNotConfined) {
				t.Errorf("classic %t: %s: %v", classic, path, err)
			}
		}
		for _, path := range []string{"none/a", "outside/pod/volume/data/a"} {
			if err := m.RemoveAll(t.Context(), filepath.Join(root, path)); err != nil {
				t.Errorf("classic %t: missing %s: %v", classic, path, err)
			}
		}
		if _, err := os.Stat(file); err != nil {
			t.Errorf("classic %t: deleted: %v", classic, err)
		}
		try(t, m.RemoveAll(t.Context(), filepath.Join(root, "outside")))
	}
}
