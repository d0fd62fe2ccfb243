package memory

import (
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/volumekit/volumekit/plugins"
)

// notices tells subscribers what changed. The zero value is ready.
type notices struct {
	mu sync.Mutex
	// subscribers is replaced, never changed, so that it can be read without
	// mu once it was taken.
	subscribers []*subscriber
}

// subscriber is one subscription.
type subscriber struct {
	notify func(plugins.Ref)

	mu        sync.Mutex
	calls     int
	cancelled bool
	idle      *sync.Cond // on mu: calls became zero
}

// Subscribe implements [plugins.Notifier]: notify is called for each change,
// after the change can be read, in the goroutine that made it and with no lock
// held, so it may read the store and apply to it. Changes that happen side by
// side are told side by side.
//
// cancel waits for calls under way, except when it is called from within a
// notify: waiting could then mean waiting for itself.
func (n *notices) Subscribe(notify func(plugins.Ref)) (cancel func()) {
	s := &subscriber{notify: notify}
	s.idle = sync.NewCond(&s.mu)
	n.mu.Lock()
	n.subscribers = append(slices.Clip(n.subscribers), s)
	n.mu.Unlock()
	return func() { n.cancel(s) }
}

func (n *notices) cancel(s *subscriber) {
	n.mu.Lock()
	if i := slices.Index(n.subscribers, s); i >= 0 {
		n.subscribers = slices.Delete(slices.Clone(n.subscribers), i, i+1)
	}
	n.mu.Unlock()

	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancelled = true
	if s.calls > 0 && insideNotify() {
		return
	}
	for s.calls > 0 {
		s.idle.Wait()
	}
}

// tell calls the subscribers.
func (n *notices) tell(ref plugins.Ref) {
	n.mu.Lock()
	list := n.subscribers
	n.mu.Unlock()
	for _, s := range list {
		s.call(ref)
	}
}

// call is found by name in insideNotify.
//
//go:noinline
func (s *subscriber) call(ref plugins.Ref) {
	s.mu.Lock()
	if s.cancelled {
		s.mu.Unlock()
		return
	}
	s.calls++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.calls--; s.calls == 0 {
			s.idle.Broadcast()
		}
	}()
	s.notify(ref)
}

// insideNotify reports whether this goroutine is in a call of some subscriber.
// Its own stack is the only thing that can tell.
func insideNotify() bool {
	pcs := make([]uintptr, 64)
	for skip := 0; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs)
		frames := runtime.CallersFrames(pcs[:n])
		for {
			frame, more := frames.Next()
			if strings.HasSuffix(frame.Function, "/plugins/memory.(*subscriber).call") {
				return true
			}
			if !more {
				break
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}
