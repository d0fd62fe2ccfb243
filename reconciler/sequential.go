package reconciler

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/volumekit/volumekit/plugins"
)

// ErrStopped is returned by [Sequential] Step after Run has ended.
var ErrStopped = errors.New("the reconciler has stopped")

// Sequential is a [Reconciler] that does nothing by itself: each call of Step
// runs one step, in an order that depends on the engine alone. It is for tests
// that look at the world between any two steps, and shows how small a
// replacement of [Default] can be. It knows no backoff, deadline or limit, so
// it is not for production.
type Sequential struct {
	running chan struct{} // closed when Run has begun
	turn    chan struct{} // holds one token, which Step takes

	mu      sync.Mutex // guards what follows
	engine  Engine
	stopped bool
	cancel  context.CancelFunc // of the step that runs
	current plugins.VolumeID   // its volume
	again   bool               // that volume was woken meanwhile
	records map[plugins.VolumeID]map[Key]*record
}

var _ Reconciler = (*Sequential)(nil)

// NewSequential returns a reconciler that waits for Run and Step.
func NewSequential() *Sequential {
	s := &Sequential{
		running: make(chan struct{}), turn: make(chan struct{}, 1),
		records: map[plugins.VolumeID]map[Key]*record{},
	}
	s.turn <- struct{}{}
	return s
}

// Run implements [Reconciler]: it lends engine to Step until ctx ends, and
// returns when no step runs any more. The context of a running step ends with
// ctx.
func (s *Sequential) Run(ctx context.Context, engine Engine) error {
	s.mu.Lock()
	again := s.engine != nil
	if !again {
		s.engine = engine
	}
	s.mu.Unlock()
	if again {
		return errors.New("the reconciler was run before")
	}
	close(s.running)
	<-ctx.Done()
	s.mu.Lock()
	s.stopped = true
	if s.cancel != nil {
		s.cancel()
	}
	s.mu.Unlock()
	<-s.turn
	s.turn <- struct{}{}
	return nil
}

// Wake implements [Reconciler]: steps of the volumes that wait are due again.
func (s *Sequential) Wake(ids ...plugins.VolumeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.again = s.again || id == s.current
		maps.DeleteFunc(s.records[id], func(_ Key, r *record) bool { return r.waits() })
	}
}

// Reset implements [Reconciler]: all steps of the volumes are due again.
func (s *Sequential) Reset(ids ...plugins.VolumeID) {
	s.Wake(ids...)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		delete(s.records, id)
	}
}

// Step runs one step that is due: of those tried least often the first, by
// volume and then as planned. It reports whether there was one, and its error.
// A step that failed is due again at once, but for one that waits (until Wake)
// and one that failed for good (until Reset). Step waits for Run to begin and
// for another Step to end, at most until ctx ends. It may be called by several
// goroutines.
func (s *Sequential) Step(ctx context.Context) (did bool, err error) {
	for _, wait := range []<-chan struct{}{s.running, s.turn} {
		select {
		case <-wait:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	defer func() { s.turn <- struct{}{} }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !s.begin(cancel) {
		return false, ErrStopped
	}
	step := s.choose()
	if step == nil {
		return false, nil
	}
	s.aim(step.ID)
	err = s.engine.Do(ctx, *step)
	s.end(step, err)
	return true, err
}

// choose plans every volume and picks a step.
func (s *Sequential) choose() *Step {
	var best *Step
	least := 0
	for _, id := range slices.Sorted(s.engine.Volumes()) {
		plan := s.engine.Plan(id)
		s.mu.Lock()
		s.prune(id, plan.Steps)
		pick(plan.Steps, func(step *Step) bool {
			tried := 0
			if r := s.records[id][step.Key]; r != nil {
				if r.parked {
					return false
				}
				tried = r.attempts
			}
			if best == nil || tried < least {
				best, least = step, tried
			}
			return least == 0
		})
		s.mu.Unlock()
		if best != nil && least == 0 {
			break
		}
	}
	return best
}

// prune forgets the steps that are not planned any more.
func (s *Sequential) prune(id plugins.VolumeID, steps []Step) {
	maps.DeleteFunc(s.records[id], func(key Key, _ *record) bool {
		return !slices.ContainsFunc(steps, func(step Step) bool { return step.Key == key })
	})
	if len(s.records[id]) == 0 {
		delete(s.records, id)
	}
}

func (s *Sequential) begin(cancel context.CancelFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel = cancel
	return !s.stopped
}

// aim says which volume's wakes a running step must not miss.
func (s *Sequential) aim(id plugins.VolumeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current, s.again = id, false
}

func (s *Sequential) end(step *Step, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = ""
	if err == nil {
		delete(s.records[step.ID], step.Key)
		return
	}
	byKey := s.records[step.ID]
	if byKey == nil {
		byKey = map[Key]*record{}
		s.records[step.ID] = byKey
	}
	r := byKey[step.Key]
	if r == nil {
		r = &record{}
		byKey[step.Key] = r
	}
	r.fail(time.Time{}, err)
	if s.again && r.waits() {
		r.parked = false // what it waits for may have come meanwhile
	}
}
