package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/mount"
)

// start prepares the root, opens the journal and loads what an earlier process
// left.
func (m *Manager) start(ctx context.Context) (closeJournal func() error, err error) {
	if err := m.prepareRoot(ctx); err != nil {
		return nil, err
	}
	namespace, err := m.namespace(ctx)
	if err != nil {
		return nil, err
	}
	log, err := journal.Open(ctx, m.host.Layout.StateDir(), journal.Options{
		Namespace: namespace, Faults: m.host.Faults, Log: m.host.Log,
	})
	if err != nil {
		return nil, err
	}
	finder := asw.Finder{Layout: m.host.Layout, Registry: m.config.Plugins, Log: m.host.Log}
	findings, err := finder.Find(ctx, log.Contents(), m.host.Time().Now())
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	m.journal.set(log)
	if err := m.actual.Load(findings.Volumes); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	m.mu.Lock()
	m.findings = findings
	m.mu.Unlock()
	close(m.loaded)
	m.watchers.notifyAll()
	return log.Close, nil
}

// prepareRoot makes the folders that the kubelet's tree has at its top, and
// checks how mounts under the root spread.
func (m *Manager) prepareRoot(ctx context.Context) error {
	root := m.host.Layout.Root
	if err := os.MkdirAll(root, 0o750); err != nil {
		return fmt.Errorf("make the root folder: %w", err)
	}
	resolved, err := filepath.EvalSymlinks(root)
	if err != nil {
		return fmt.Errorf("resolve the root folder: %w", err)
	}
	if resolved != root { // a manager that runs on this root reads it
		m.host.Layout.Root = resolved
	}
	l := m.host.Layout
	m.layout.Store(&l)
	for _, dir := range []string{l.PodsDir(), filepath.Join(l.Root, "plugins"), l.RegistryDir()} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("make a folder of the root: %w", err)
		}
	}
	return m.checkPropagation(ctx)
}

func (m *Manager) checkPropagation(ctx context.Context) error {
	propagator, ok := m.host.Mounter.(mount.Propagator)
	if !ok {
		return nil // the mounter knows of no such thing
	}
	root := m.host.Layout.Root
	how, err := propagator.Propagation(ctx, root)
	if m.config.Root == AnyPropagation && errors.Is(err, mount.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the propagation of %s: %w", root, err)
	}
	if how == mount.Shared {
		return nil
	}
	switch m.config.Root {
	case MakeShared:
		if err := propagator.MakeShared(ctx, root); err != nil {
			return fmt.Errorf("make %s a shared mount: %w", root, err)
		}
	case AnyPropagation:
		m.mu.Lock()
		defer m.mu.Unlock()
		m.hidden = fmt.Sprintf("mounts under %s are %s: a container in another mount namespace may not see them", root, how)
	default:
		return fmt.Errorf("%w: %s is %s; run `mount --make-rshared` on it, or set Config.Root to MakeShared or AnyPropagation",
			ErrNotShared, root, how)
	}
	return nil
}

func (m *Manager) namespace(ctx context.Context) (mount.Namespace, error) {
	identifier, ok := m.host.Mounter.(mount.Identifier)
	if !ok {
		return mount.Namespace{}, nil
	}
	namespace, err := identifier.Namespace(ctx)
	if err != nil {
		return mount.Namespace{}, fmt.Errorf("identify the mount namespace: %w", err)
	}
	return namespace, nil
}

// lateJournal is a journal that is opened when Run starts.
type lateJournal struct {
	at atomic.Pointer[journal.Journal]
}

var errNoJournal = errors.New("the journal is not open")

func (l *lateJournal) set(j *journal.Journal) { l.at.Store(j) }

// Put implements [steps.Journal].
func (l *lateJournal) Put(ctx context.Context, rec journal.Record) error {
	if j := l.at.Load(); j != nil {
		return j.Put(ctx, rec)
	}
	return errNoJournal
}

// Delete implements [steps.Journal].
func (l *lateJournal) Delete(ctx context.Context, key journal.Key, durable bool) error {
	if j := l.at.Load(); j != nil {
		return j.Delete(ctx, key, durable)
	}
	return errNoJournal
}
