package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/reconciler/steps"
)

// Errors of a [Manager].
var (
	// ErrNotShared says that the root is not on a shared mount.
	ErrNotShared = errors.New("the root folder is not on a shared mount")
	// ErrRunning says that Run was called more than once.
	ErrRunning = errors.New("the manager has been run already")
)

// Manager manages the volumes of one node under one root folder. Several
// managers with different roots can live in one process.
type Manager struct {
	config   Config
	host     *plugins.VolumeHost
	desired  *dsw.World
	actual   *asw.World
	resolver dsw.Resolver
	steps    *steps.Executor
	journal  lateJournal

	volumes   reconciler.Reconciler // works on volumes
	resolving *reconciler.Default   // reads claims and persistent volumes

	started  atomic.Bool
	draining atomic.Bool
	ready    chan struct{}
	isReady  sync.Once
	watchers watchers
	// unresolved are the pods' volumes that wait for the API.
	unresolved unresolved

	mu       sync.Mutex
	invalid  map[types.UID]error // pods that cannot be taken
	findings asw.Findings        // what the start found
	hidden   string              // why mounts may not be seen by containers
}

// New checks the configuration and returns a manager. It does no I/O and
// starts nothing. The error lists everything that is wrong.
func New(c Config) (*Manager, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("volume manager: %w", err)
	}
	m := &Manager{
		config:     c,
		host:       c.Host,
		desired:    dsw.New(dsw.Options{AllVolumes: c.AllVolumes}),
		actual:     asw.New(),
		resolver:   dsw.Resolver{Host: c.Host, Registry: c.Plugins, Translator: c.Translator},
		volumes:    c.Reconciler,
		ready:      make(chan struct{}),
		watchers:   watchers{pods: map[types.UID]chan struct{}{}},
		unresolved: unresolved{pods: map[types.UID]map[string]bool{}},
		invalid:    map[types.UID]error{},
	}
	if m.volumes == nil {
		m.volumes = reconciler.New(c.stepOptions(c.Steps))
	}
	m.resolving = reconciler.New(c.stepOptions(c.Resolving))
	m.steps = steps.New(steps.Config{
		Host: c.Host, Registry: c.Plugins, Desired: m.desired, Actual: m.actual, Journal: &m.journal,
		Observer: c.Observer, QuietMounts: c.QuietMounts,
		Changed:        func(v plugins.PodVolume) { m.watchers.notify(v.Pod) },
		Wake:           m.volumes.Wake,
		ContentChanged: m.contentChanged,
	})
	return m, nil
}

// Ready is closed when Run knows what an earlier process left and the pod
// source has told all its pods: from then on queries are complete, and volumes
// that nobody wants are taken away.
func (m *Manager) Ready() <-chan struct{} { return m.ready }

// Run does the manager's work until ctx ends, and returns when everything that
// it started has ended. What is mounted stays mounted: see [Manager.Drain].
// The error is ctx's, unless the start failed or a step could not be stopped.
// Run works once.
func (m *Manager) Run(ctx context.Context) error {
	if !m.started.CompareAndSwap(false, true) {
		return ErrRunning
	}
	closeJournal, err := m.start(ctx)
	if err != nil {
		return fmt.Errorf("start the volume manager: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all group
	all.run(ctx, cancel, func(ctx context.Context) error { return m.volumes.Run(ctx, m.steps) })
	all.run(ctx, cancel, func(ctx context.Context) error { return m.resolving.Run(ctx, (*resolveEngine)(m)) })
	m.runSources(ctx, cancel, &all)
	all.run(ctx, cancel, m.watchPods)
	all.run(ctx, cancel, m.lookAgain)
	err = all.wait()
	m.watchers.notifyAll()
	return errors.Join(err, closeJournal())
}

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
	for _, v := range findings.Volumes {
		m.volumes.Wake(v.ID)
	}
	return log.Close, nil
}

// prepareRoot makes the folders that the kubelet's tree has at its top, and
// checks how mounts under the root spread.
func (m *Manager) prepareRoot(ctx context.Context) error {
	l := &m.host.Layout
	if err := os.MkdirAll(l.Root, 0o750); err != nil {
		return fmt.Errorf("make the root folder: %w", err)
	}
	resolved, err := filepath.EvalSymlinks(l.Root)
	if err != nil {
		return fmt.Errorf("resolve the root folder: %w", err)
	}
	l.Root = resolved // nothing that reads it runs yet
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
	return identifier.Namespace(ctx)
}

// synced says that the pod source has told all its pods.
func (m *Manager) synced() {
	m.isReady.Do(func() { close(m.ready) })
	m.mu.Lock()
	empty := m.findings.EmptyPods
	m.findings.EmptyPods = nil
	m.mu.Unlock()
	for _, uid := range empty {
		m.steps.RemovePodFolder(uid)
	}
}

// notice is called by every notifier.
func (m *Manager) notice(ref plugins.Ref) {
	m.apply(m.desired.Touch(ref))
	m.volumes.Reset(m.steps.Waiting(ref)...)
}

// runSources starts what plugins and the host's sources have to do in the
// background, and listens to their notices.
func (m *Manager) runSources(ctx context.Context, cancel context.CancelCauseFunc, all *group) {
	list := m.host.Sources()
	for _, name := range m.config.Plugins.Names() {
		if p, err := m.config.Plugins.ByName(name); err == nil {
			list = append(list, p)
		}
	}
	for _, source := range list {
		can := plugins.CapabilitiesOf(source)
		if can.Notifier != nil {
			all.atEnd(can.Notifier.Subscribe(m.notice))
		}
		if can.Runner != nil {
			all.run(ctx, cancel, func(ctx context.Context) error {
				return m.keepRunning(ctx, fmt.Sprintf("%T", source), can.Runner.Run)
			})
		}
	}
}

// lookAgain ends waits that no notice ends: those for objects whose source
// cannot notify, each refresh interval, and now and then all others, should a
// plugin have named the wrong object or a source have missed a change.
func (m *Manager) lookAgain(ctx context.Context) error {
	const othersEvery = 5 // intervals
	ticker := m.host.Time().NewTicker(m.host.Interval())
	defer ticker.Stop()
	for round := 1; ; round++ {
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for kind, notifies := range m.host.Notifying() {
			switch {
			case notifies:
			case kind == plugins.KindSecret || kind == plugins.KindConfigMap || kind == plugins.KindTrustBundle:
				// What is set up already says itself when it is to be read again.
				m.volumes.Reset(m.steps.Waiting(plugins.Ref{Kind: kind})...)
			default:
				m.notice(plugins.Ref{Kind: kind})
			}
		}
		if round%othersEvery == 0 {
			m.volumes.Reset(m.steps.AllWaiting()...)
		}
	}
}

// keepRunning calls run again after a pause whenever it returns before ctx ends.
func (m *Manager) keepRunning(ctx context.Context, what string, run func(context.Context) error) error {
	for {
		err := run(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		m.host.Log.Error(err, "background work ended and is started again", "source", what)
		select {
		case <-m.host.Time().After(m.config.pause()):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (m *Manager) contentChanged(v plugins.PodVolume, pod plugins.PodRef, content plugins.Content) {
	if m.config.ContentChanged == nil {
		return
	}
	entry, _ := m.actual.PodVolume(v)
	m.config.ContentChanged(ContentChange{
		Pod: pod, Names: entry.Names, Path: m.host.Layout.PodVolume(v),
		Files: content.Changed, Version: content.Version,
	})
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

// group runs functions until the first of them fails, and waits for all.
type group struct {
	wg   sync.WaitGroup
	ends []func()
	mu   sync.Mutex
	errs []error
}

func (g *group) run(ctx context.Context, cancel context.CancelCauseFunc, f func(context.Context) error) {
	g.wg.Go(func() {
		err := f(ctx)
		g.mu.Lock()
		defer g.mu.Unlock()
		if err != nil && !errors.Is(err, context.Cause(ctx)) {
			g.errs = append(g.errs, err)
		}
		if ctx.Err() == nil {
			cancel(err) // one part cannot do without another
		}
	})
}

// atEnd calls f when all have ended.
func (g *group) atEnd(f func()) { g.ends = append(g.ends, f) }

func (g *group) wait() error {
	g.wg.Wait()
	for _, end := range g.ends {
		end()
	}
	return errors.Join(g.errs...)
}
