package mounttest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/volumekit/volumekit/mount"
)

// Build implements [mount.Builder]. The file system's folder rests in the
// stash until it is attached. Bind mounts cannot be built.
func (m *Mounter) Build(ctx context.Context, mo mount.Mount) (mount.Detached, error) {
	d := &detached{m: m, mount: mo}
	err := m.do(ctx, Call{Op: OpBuild, Mount: mo}, func() error { return m.build(d) })
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (m *Mounter) build(d *detached) error {
	mo := d.mount
	mo.Target = m.options.Dir
	err := checkMount(mo)
	if m.options.NoBuild || mo.Options.Bind {
		err = mount.ErrUnsupported
	}
	if err == nil {
		d.fs, err = m.tree.open(mo)
	}
	if err != nil {
		return fmt.Errorf("build %s: %w", describe(mo), err)
	}
	d.fs.refs++
	if d.root, err = os.OpenRoot(m.tree.real(d.fs, "")); err != nil {
		d.fs.refs--
		_ = m.tree.discard(d.fs)
		return fmt.Errorf("build %s: %w", describe(mo), err)
	}
	return nil
}

// detached implements mount.Detached.
type detached struct {
	m        *Mounter
	mount    mount.Mount
	fs       *filesystem
	root     *os.Root
	attached bool
	once     sync.Once
}

var errAttached = errors.New("attached already")

func (d *detached) Root() (*os.Root, error) { return d.root, nil }

func (d *detached) Attach(ctx context.Context, target string) error {
	mo := d.mount
	mo.Target = target
	return d.m.do(ctx, Call{Op: OpAttach, Target: target, Mount: mo}, func() error {
		if err := d.attach(target); err != nil {
			return fmt.Errorf("attach %s at %s: %w", mo.FSType, target, err)
		}
		return nil
	})
}

func (d *detached) attach(target string) error {
	if d.attached {
		return errAttached
	}
	dest, err := d.m.tree.writable(target)
	if err == nil {
		err = d.m.tree.attachFS(d.fs, d.mount.Options, dest)
	}
	d.attached = err == nil
	return err
}

func (d *detached) Close() (err error) {
	d.once.Do(func() {
		err = d.root.Close()
		d.m.mu.Lock()
		defer d.m.mu.Unlock()
		d.fs.refs--
		err = errors.Join(err, d.m.tree.discard(d.fs))
	})
	return err
}
