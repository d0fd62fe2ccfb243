package hostmount

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// Confined implements [mount.Confiner] with one openat2(2) where the kernel has
// it (since 5.6), else with one openat(2) for each component.
func (m *Mounter) Confined(ctx context.Context, base, path string) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("look at the way to %s: %w", path, err)
	}
	way, err := filepath.Rel(base, filepath.Dir(path))
	if err != nil || way == ".." || strings.HasPrefix(way, "../") {
		return 0, fmt.Errorf("%w: %s is not below %s", mount.ErrNotConfined, path, base)
	}
	dir, err := unix.Open(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("look at the way from %s: %w", base, err)
	}
	defer func() { _ = unix.Close(dir) }()
	id, err := identify(dir)
	if err != nil {
		return 0, fmt.Errorf("look at the way from %s: %w", base, err)
	}
	if err := m.walk(dir, way); err != nil {
		// Slower, to name the place.
		return id.mount, m.findObstacle(dir, base, way)
	}
	return id.mount, nil
}

// walk opens a folder below another one, crossing no mount and following no
// link. A way that ends early is no error.
func (m *Mounter) walk(dir int, way string) error {
	if way == "." {
		return nil
	}
	if m.options.Classic || m.host.noOpenat2.Load() {
		return unix.ENOSYS
	}
	fd, err := m.openat(dir, way, unix.O_PATH)
	if err == nil {
		return unix.Close(fd)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// findObstacle goes the way component by component.
func (m *Mounter) findObstacle(dir int, at, way string) error {
	for name := range strings.SplitSeq(way, "/") {
		at = filepath.Join(at, name)
		fd, err := m.openat(dir, name, unix.O_PATH)
		if err != nil {
			if errors.Is(err, unix.ENOENT) {
				return nil
			}
			return fmt.Errorf("%w: %s: %w", mount.ErrNotConfined, at, err)
		}
		defer func() { _ = unix.Close(fd) }() // a way has few components
		dir = fd
	}
	return nil
}
