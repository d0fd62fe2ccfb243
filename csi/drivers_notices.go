package csi

import (
	"slices"
	"sync"

	"github.com/volumekit/volumekit/plugins"
)

// notices tells subscribers what changed. The zero value is ready.
type notices struct {
	mu sync.Mutex
	// list is replaced, never changed, so that it can be read without mu once
	// it was taken.
	list []*subscriber
}

type subscriber struct {
	notify func(plugins.Ref)

	mu        sync.Mutex
	calls     int
	cancelled bool
	idle      sync.Cond // on mu: calls became zero
}

func (n *notices) subscribe(notify func(plugins.Ref)) (cancel func()) {
	s := &subscriber{notify: notify}
	s.idle.L = &s.mu
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(slices.Clip(n.list), s)
	return func() {
		n.mu.Lock()
		n.list = slices.DeleteFunc(slices.Clone(n.list), func(o *subscriber) bool { return o == s })
		n.mu.Unlock()
		s.cancel()
	}
}

// tell calls the subscribers. No lock may be held.
func (n *notices) tell(ref plugins.Ref) {
	n.mu.Lock()
	list := n.list
	n.mu.Unlock()
	for _, s := range list {
		s.call(ref)
	}
}

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

// cancel returns when no call is under way.
func (s *subscriber) cancel() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancelled = true
	for s.calls > 0 {
		s.idle.Wait()
	}
}
