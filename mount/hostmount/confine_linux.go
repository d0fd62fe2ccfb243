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
func (m *Mounter) Confined(ctx context.Context, base, path string) (mountID uint64, whole bool, err error) {
	if err := ctx.Err(); err != nil {
		return 0, false, fmt.Errorf("look at the way to %s: %w", path, err)
	}
	way, err := filepath.Rel(base, path)
	if err != nil || way == "." || !filepath.IsLocal(way) {
		return 0, false, fmt.Errorf("%w: %s is not below %s", mount.ErrNotConfined, path, base)
	}
	way = filepath.Dir(way)
	dir, err := unix.Open(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, false, fmt.Errorf("look at the way from %s: %w", base, err)
	}
	defer func() { _ = unix.Close(dir) }()
	id, err := identify(dir)
	if err != nil {
		return 0, false, fmt.Errorf("look at the way from %s: %w", base, err)
	}
	whole, err = m.walk(dir, way)
	if err != nil { // slower, to name the place
		whole, err = m.findObstacle(dir, base, way)
	}
	return id.mount, whole, err
}

// walk opens a folder below another one, crossing no mount and following no
// link. A way that ends early is no error, but not whole.
func (m *Mounter) walk(dir int, way string) (whole bool, err error) {
	if way == "." {
		return true, nil
	}
	if m.options.Classic || m.host.noOpenat2.Load() {
		return false, unix.ENOSYS
	}
	fd, err := m.openat(dir, way, unix.O_PATH)
	if err == nil {
		return true, unix.Close(fd)
	}
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return false, err
}

// findObstacle goes the way component by component.
func (m *Mounter) findObstacle(dir int, at, way string) (whole bool, err error) {
	for name := range strings.SplitSeq(way, "/") {
		at = filepath.Join(at, name)
		fd, err := m.openat(dir, name, unix.O_PATH)
		if err != nil {
			if errors.Is(err, unix.ENOENT) {
				return false, nil
			}
			return false, fmt.Errorf("%w: %s: %w", mount.ErrNotConfined, at, err)
		}
		defer func() { _ = unix.Close(fd) }() // a way has few components
		dir = fd
	}
	return true, nil
}
