//go:build !linux

package hostmount

import (
	"context"
	"fmt"
	"runtime"

	"github.com/volumekit/volumekit/mount"
)

var (
	_ mount.Mounter    = (*Mounter)(nil)
	_ mount.Builder    = (*Mounter)(nil)
	_ mount.Watcher    = (*Mounter)(nil)
	_ mount.Propagator = (*Mounter)(nil)
	_ mount.Identifier = (*Mounter)(nil)
	_ mount.Resizer    = (*Mounter)(nil)
)

// host is empty: there is no mounter for this platform.
type host struct{}

func unsupported(what string) error {
	return fmt.Errorf("%s: no mounts on %s: %w", what, runtime.GOOS, mount.ErrUnsupported)
}

// Mount returns an error that wraps [mount.ErrUnsupported], like every method
// on this platform.
func (m *Mounter) Mount(context.Context, mount.Mount) error { return unsupported("mount") }

// Unmount returns an error that wraps [mount.ErrUnsupported].
func (m *Mounter) Unmount(context.Context, string, mount.UnmountOptions) error {
	return unsupported("unmount")
}

// Inspect returns an error that wraps [mount.ErrUnsupported].
func (m *Mounter) Inspect(context.Context, string) (mount.Point, error) {
	return mount.Point{}, unsupported("inspect")
}

// Table returns an error that wraps [mount.ErrUnsupported].
func (m *Mounter) Table(context.Context) (mount.Table, error) { return nil, unsupported("mount table") }

// RemoveAll returns an error that wraps [mount.ErrUnsupported].
func (m *Mounter) RemoveAll(context.Context, string) error { return unsupported("remove") }

// Build returns an error that wraps [mount.ErrUnsupported].
func (m *Mounter) Build(context.Context, mount.Mount) (mount.Detached, error) {
	return nil, unsupported("build")
}

// Resize returns an error that wraps [mount.ErrUnsupported].
func (m *Mounter) Resize(context.Context, string, int64) error { return unsupported("resize") }

// Watch returns an error that wraps [mount.ErrUnsupported].
func (m *Mounter) Watch(context.Context, func()) error { return unsupported("watch mounts") }

// Propagation returns an error that wraps [mount.ErrUnsupported].
func (m *Mounter) Propagation(context.Context, string) (mount.Propagation, error) {
	return "", unsupported("propagation")
}

// MakeShared returns an error that wraps [mount.ErrUnsupported].
func (m *Mounter) MakeShared(context.Context, string) error { return unsupported("make shared") }

// Namespace returns an error that wraps [mount.ErrUnsupported].
func (m *Mounter) Namespace(context.Context) (mount.Namespace, error) {
	return mount.Namespace{}, unsupported("namespace")
}
