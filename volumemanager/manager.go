package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/dsw"
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
	// ErrStopped says that Run has returned, so that nothing will change any
	// more.
	ErrStopped = errors.New("the manager has stopped")

	errPanicked = errors.New("it panicked")
)

// Manager manages the volumes of one node under one root folder. Several
// managers with different roots can live in one process.
type Manager struct {
	config   Config
	host     *plugins.VolumeHost
	layout   atomic.Pointer[plugins.Layout] // the host's, whose root Run resolves
	desired  *dsw.World
	actual   *asw.World
	resolver dsw.Resolver
	steps    *steps.Executor
	journal  lateJournal

	volumes   reconciler.Reconciler // works on volumes
	resolving *reconciler.Default   // reads claims and persistent volumes
	log       *stepLog              // of steps on volumes
	// unresolved are the pods' volumes that wait for the API.
	unresolved unresolved

	started  atomic.Bool
	draining atomic.Bool
	loaded   chan struct{} // closed when it is known what an earlier process left
	ready    chan struct{}
	isReady  sync.Once
	stopped  end // of Run
	watchers watchers
	measured measured

	mu       sync.Mutex
	invalid  map[types.UID]refusal // pods that cannot be taken
	findings asw.Findings          // what the start found
	hidden   string                // why mounts may not be seen by containers
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
		log:        newStepLog(),
		unresolved: unresolved{pods: map[types.UID]map[string]bool{}},
		loaded:     make(chan struct{}),
		ready:      make(chan struct{}),
		stopped:    end{done: make(chan struct{})},
		watchers:   watchers{pods: map[types.UID]*watched{}},
		invalid:    map[types.UID]refusal{},
	}
	layout := c.Host.Layout
	m.layout.Store(&layout)
	if m.volumes == nil {
		m.volumes = reconciler.New(c.stepOptions(c.Steps))
	}
	if c.Resolving.SafetyPeriod == 0 {
		c.Resolving.SafetyPeriod = -1 // see resolveEngine.Volumes
	}
	m.resolving = reconciler.New(c.stepOptions(c.Resolving))
	m.steps = steps.New(steps.Config{
		Host: c.Host, Registry: c.Plugins, Desired: m.desired, Actual: m.actual, Journal: &m.journal,
		Observer: c.Observer, QuietMounts: c.QuietMounts,
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
// The error is nil when ctx has ended and all steps have returned; else it says
// what was wrong at the start, which part of the manager ended by itself, or
// which steps do not return. When Run has returned, waits that are under way
// end with [ErrStopped] and its error. Run works once.
func (m *Manager) Run(ctx context.Context) (err error) {
	if !m.started.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer func() {
		m.stopped.cause = err
		close(m.stopped.done)
	}()
	closeJournal, err := m.start(ctx)
	if err != nil {
		return fmt.Errorf("start the volume manager: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	all := group{cancel: cancel}
	all.run(ctx, "the reconciler", func(ctx context.Context) error {
		return m.volumes.Run(ctx, loggedEngine{m.steps, m})
	})
	all.run(ctx, "the resolver", func(ctx context.Context) error {
		return m.resolving.Run(ctx, (*resolveEngine)(m))
	})
	m.runSources(ctx, &all)
	all.run(ctx, "the pod watcher", m.watchPods)
	all.run(ctx, "the refresher", m.lookAgain)
	err = all.wait()
	return errors.Join(err, closeJournal())
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

// reset plans volumes again after something happened that gives hope.
func (m *Manager) reset(ids ...plugins.VolumeID) {
	if len(ids) > 0 {
		m.log.reset(ids) // first: a wait must not take the old failure for the answer
		m.volumes.Reset(ids...)
	}
}

// anythingOf reports whether a step runs for the pod, or anything of its
// volumes is or may be there.
func (m *Manager) anythingOf(uid types.UID) bool {
	return m.log.runs(uid) > 0 || m.actual.HasPod(uid)
}

func (m *Manager) contentChanged(v plugins.PodVolume, pod plugins.PodRef, content plugins.Content) {
	if m.config.ContentChanged == nil {
		return
	}
	entry, _ := m.actual.PodVolume(v)
	m.config.ContentChanged(ContentChange{
		Pod: pod, Names: entry.Names, Path: m.layout.Load().PodVolume(v),
		Files: content.Changed, Version: content.Version,
	})
}

// closed reports whether a channel is closed.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
