package mounttest

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/mount"
)

// Namespace implements [mount.Identifier].
func (m *Mounter) Namespace(ctx context.Context) (ns mount.Namespace, err error) {
	err = m.do(ctx, Call{Op: OpNamespace}, func() error {
		ns = m.namespace
		return nil
	})
	return ns, err
}

// SetNamespace sets what [Mounter.Namespace] says, and nothing else.
func (m *Mounter) SetNamespace(ns mount.Namespace) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.namespace = ns
}

// Reboot takes all mounts away at once, as a reboot does: what they covered is
// seen again, what was on tmpfs is lost, nothing is busy, and the boot id is
// another one. Faults stay. Detached file systems become useless but must
// still be closed.
func (m *Mounter) Reboot() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.boots++
	m.namespace.BootID = bootID(m.boots)
	clear(m.busy)
	set := append([]*mounted(nil), m.tree.mounts[1:]...)
	if err := m.tree.remove(set); err != nil {
		return fmt.Errorf("reboot: %w", err)
	}
	return nil
}

// Propagation implements [mount.Propagator].
func (m *Mounter) Propagation(ctx context.Context, path string) (p mount.Propagation, err error) {
	err = m.do(ctx, Call{Op: OpPropagation, Target: path}, func() error {
		s, _, err := m.tree.lookup(path, true)
		if err != nil {
			return fmt.Errorf("propagation of %s: %w", path, err)
		}
		p = s.mount.entry().Propagation
		return nil
	})
	return p, err
}

// MakeShared implements [mount.Propagator].
func (m *Mounter) MakeShared(ctx context.Context, path string) error {
	return m.do(ctx, Call{Op: OpMakeShared, Target: path}, func() error {
		if err := m.makeShared(path); err != nil {
			return fmt.Errorf("make %s shared: %w", path, err)
		}
		return nil
	})
}

func (m *Mounter) makeShared(path string) error {
	s, err := m.tree.writable(path)
	if err != nil {
		return err
	}
	if !s.isRoot() {
		self := mount.Mount{Source: path, Target: path, Options: mount.Options{Bind: true, Recursive: true}}
		if err := m.tree.bind(self, s); err != nil {
			return err
		}
		s = m.tree.cross(s)
		s.mount.ground = true
	}
	for _, one := range m.tree.mounts {
		above := one
		for above != nil && above != s.mount {
			above = above.parent
		}
		if above != nil && one.group == nil {
			one.group = &group{members: []*mounted{one}}
		}
	}
	return nil
}

// Watch implements [mount.Watcher]: changed is called after changes made
// through [Mounter.Foreign], several at once possibly by one call.
func (m *Mounter) Watch(ctx context.Context, changed func()) error {
	notice := make(chan struct{}, 1)
	err := m.do(ctx, Call{Op: OpWatch}, func() error {
		m.watchers[notice] = true
		return nil
	})
	if err != nil {
		return err
	}
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, notice)
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-notice:
			changed()
		}
	}
}

// Foreign returns the same mounts as another program reaches them: no fault
// strikes it, its calls are not logged, and its changes wake [Mounter.Watch].
func (m *Mounter) Foreign() mount.Mounter { return foreign{m} }

type foreign struct{ m *Mounter }

func (f foreign) do(ctx context.Context, change func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := change(); err != nil {
		return err
	}
	for notice := range f.m.watchers {
		select {
		case notice <- struct{}{}:
		default: // one is pending, which covers this change
		}
	}
	return nil
}

func (f foreign) Mount(ctx context.Context, mo mount.Mount) error {
	return f.do(ctx, func() error { return f.m.mount(mo) })
}

func (f foreign) Unmount(ctx context.Context, target string, how mount.UnmountOptions) error {
	return f.do(ctx, func() error { return f.m.unmount(target, how) })
}

func (f foreign) RemoveAll(ctx context.Context, path string) error {
	return f.do(ctx, func() error { return f.m.removeAll(path) })
}

func (f foreign) Inspect(ctx context.Context, path string) (mount.Point, error) {
	if err := ctx.Err(); err != nil {
		return mount.Point{}, err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return f.m.inspect(path)
}

func (f foreign) Table(ctx context.Context) (mount.Table, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return f.m.tree.table(), nil
}
