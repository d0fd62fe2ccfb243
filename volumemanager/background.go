package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/volumekit/volumekit/plugins"
)

// notice is called by every notifier.
func (m *Manager) notice(ref plugins.Ref) {
	m.apply(m.desired.Touch(ref))
	m.reset(m.steps.Waiting(ref)...)
}

// runSources starts what plugins and the host's sources have to do in the
// background, and listens to their notices.
func (m *Manager) runSources(ctx context.Context, all *group) {
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
			all.run(ctx, "a source", func(ctx context.Context) error {
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
				m.reset(m.steps.Waiting(plugins.Ref{Kind: kind})...)
			default:
				m.notice(plugins.Ref{Kind: kind})
			}
		}
		if round%othersEvery == 0 {
			m.reset(m.steps.AllWaiting()...)
		}
	}
}

// keepRunning calls run again after a pause whenever it returns, or panics,
// before ctx ends.
func (m *Manager) keepRunning(ctx context.Context, what string, run func(context.Context) error) error {
	for {
		err := m.guarded(what, func() error { return run(ctx) })
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			err = errEnded
		}
		m.host.Log.Error(err, "background work ended and is started again", "source", what)
		select {
		case <-m.host.Time().After(m.config.pause()):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

var errEnded = errors.New("it ended by itself")

// guarded turns a panic of foreign code into an error, and so the end of its
// goroutine: it gets one of its own. The value of a panic is not told: it may
// hold a secret.
func (m *Manager) guarded(what string, call func() error) error {
	result := make(chan error, 1)
	go func() {
		returned := false
		defer func() {
			if !returned {
				result <- m.panicked(what, recover())
			}
		}()
		err := call()
		returned = true
		result <- err
	}()
	return <-result
}

// contained turns a panic of foreign code into an error, on the caller's
// goroutine.
func (m *Manager) contained(what string, call func() error) (err error) {
	returned := false
	defer func() {
		if !returned {
			err = m.panicked(what, recover())
		}
	}()
	err = call()
	returned = true
	return err
}

func (m *Manager) panicked(what string, value any) error {
	err := fmt.Errorf("%w with a %T", errPanicked, value)
	switch value := value.(type) {
	case nil:
		err = fmt.Errorf("%w: it ended its goroutine", errPanicked)
	case runtime.Error:
		err = fmt.Errorf("%w: %w", errPanicked, value)
	}
	m.host.Log.Error(err, "panic", "source", what, "stack", string(debug.Stack()))
	return err
}

// group runs the parts of the manager until the first of them ends, and waits
// for all.
type group struct {
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	ends   []func()

	mu   sync.Mutex
	errs []error
}

func (g *group) run(ctx context.Context, part string, f func(context.Context) error) {
	g.wg.Go(func() {
		err := f(ctx)
		if ctx.Err() == nil { // one part cannot do without another
			if err == nil {
				err = errEnded
			}
			g.fail(fmt.Errorf("%s: %w", part, err))
			g.cancel(err)
			return
		}
		if err != nil && !errors.Is(err, context.Cause(ctx)) && !errors.Is(err, ctx.Err()) {
			g.fail(fmt.Errorf("%s: %w", part, err))
		}
	})
}

func (g *group) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.errs = append(g.errs, err)
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
