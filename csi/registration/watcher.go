package registration

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// Watcher watches a folder for plugins and registers them. Its methods are safe
// for concurrent use.
type Watcher struct {
	config Config
	open   opener
	poke   chan struct{}
	busy   atomic.Bool
	// generation is the last one that was given; Run alone uses it.
	generation uint64
	// changed is called by Run after each change of the status.
	changed func()

	mu     sync.Mutex
	status Status
}

// New returns a watcher that does nothing until Run. The error says what in the
// config is missing or wrong.
func New(config Config) (*Watcher, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	w := &Watcher{config: config, open: openEvents, poke: make(chan struct{}, 1), changed: func() {}}
	w.status.Folder = Folder{Path: config.Dir, Watch: Periodic}
	return w, nil
}

// Run watches until ctx ends, and returns nil when every goroutine that it
// started has ended: attempts under way are cut short, but a handler that is
// being called is waited for. Nothing is deregistered then. It may be called
// again after that: every socket is then registered anew.
func (w *Watcher) Run(ctx context.Context) error {
	if w.busy.Swap(true) {
		return errors.New("registration: Run is under way already")
	}
	defer w.busy.Store(false)
	ctx, cancel := context.WithCancel(ctx)
	r := newRun(w)
	defer func() {
		r.end(cancel)
		w.generation = r.generation
	}()
	r.loop(ctx)
	return nil
}

// Rescan has the folder looked at now. It does not block.
func (w *Watcher) Rescan() {
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// Status returns what is known now. It costs a copy and does no I/O.
func (w *Watcher) Status() Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status.clone()
}

func (w *Watcher) setStatus(s Status) {
	w.mu.Lock()
	w.status = s.clone()
	w.mu.Unlock()
	w.changed()
}
