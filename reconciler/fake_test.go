package reconciler

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeEngine plans what is in todo; a step that succeeds is taken out. It
// checks that no two steps run together that must not.
type fakeEngine struct {
	mu       sync.Mutex
	todo     map[plugins.VolumeID][]Step
	next     map[plugins.VolumeID]time.Time
	parallel bool
	// lane, if set, names the lane of a volume.
	lane func(id plugins.VolumeID) string
	// act is the step; nil succeeds at once.
	act func(ctx context.Context, step Step) error
	// keep leaves successful steps in the plan.
	keep bool
	// planned, if set, is called after a plan is made and before it is returned.
	planned func(id plugins.VolumeID)

	running map[plugins.VolumeID][]*inFlight
	now     int // steps that run, over all
	most    int // and how many did at most
	byName  map[string]int
	mostBy  map[string]int
	log     []tried
	faults  []string
}

// inFlight is a call that has not returned.
type inFlight struct {
	Step
	ctx context.Context
}

// tried is one call of Do.
type tried struct {
	Step
	at time.Time
}

func newFake(act func(context.Context, Step) error) *fakeEngine {
	return &fakeEngine{
		todo: map[plugins.VolumeID][]Step{}, next: map[plugins.VolumeID]time.Time{}, act: act,
		running: map[plugins.VolumeID][]*inFlight{}, byName: map[string]int{}, mostBy: map[string]int{},
	}
}

// volumeOf and stepOf name things of plugin p/<plugin>.
func volumeOf(plugin string, n int) plugins.VolumeID {
	return plugins.VolumeID(fmt.Sprintf("p/%s/%05d", plugin, n))
}

func stepOf(kind Kind, id plugins.VolumeID, pod string) Step {
	s := Step{Key: Key{Kind: kind, ID: id}, Reason: "test"}
	if pod != "" {
		s.Volume = plugins.PodVolume{Pod: types.UID(pod), Plugin: id.Plugin(), Name: "v"}
	}
	return s
}

// add plans steps and returns their volumes.
func (e *fakeEngine) add(steps ...Step) []plugins.VolumeID {
	e.mu.Lock()
	defer e.mu.Unlock()
	var ids []plugins.VolumeID
	for _, s := range steps {
		e.todo[s.ID] = append(slices.Clone(e.todo[s.ID]), s)
		ids = append(ids, s.ID)
	}
	return ids
}

func (e *fakeEngine) set(id plugins.VolumeID, steps ...Step) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.todo[id] = steps
}

func (e *fakeEngine) Plan(id plugins.VolumeID) Plan {
	e.mu.Lock()
	plan, planned := Plan{Steps: slices.Clone(e.todo[id]), Next: e.next[id]}, e.planned
	if e.lane != nil {
		plan.Lane = e.lane(id)
	}
	e.mu.Unlock()
	if planned != nil {
		planned(id)
	}
	return plan
}

// whilePlanning calls f during the next plan.
func (e *fakeEngine) whilePlanning(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.planned = func(plugins.VolumeID) {
		e.mu.Lock()
		e.planned = nil
		e.mu.Unlock()
		f()
	}
}

func (e *fakeEngine) Parallel(plugins.VolumeID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.parallel
}

func (e *fakeEngine) Volumes() iter.Seq[plugins.VolumeID] {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Values(slices.Sorted(maps.Keys(e.todo)))
}

func (e *fakeEngine) Do(ctx context.Context, step Step) (err error) {
	own := e.enter(ctx, step)
	defer e.leave(own)
	if e.act != nil {
		err = e.act(ctx, step)
	}
	if err == nil && !e.keep {
		e.mu.Lock()
		e.todo[step.ID] = slices.DeleteFunc(slices.Clone(e.todo[step.ID]), func(s Step) bool { return s.Key == step.Key })
		e.mu.Unlock()
	}
	return err
}

func (e *fakeEngine) enter(ctx context.Context, step Step) *inFlight {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, other := range e.running[step.ID] {
		beside := e.parallel && !standsAlone(step.Kind) && !standsAlone(other.Kind) && step.Volume != other.Volume
		frees := step.Lazy && step.Key == other.Key && !other.Lazy && other.ctx.Err() != nil
		if !beside && !frees {
			e.faults = append(e.faults, fmt.Sprintf("%v (lazy %v) runs beside %v (lazy %v, ended: %v)",
				step.Key, step.Lazy, other.Key, other.Lazy, other.ctx.Err()))
		}
	}
	own := &inFlight{step, ctx}
	e.running[step.ID] = append(e.running[step.ID], own)
	e.now++
	e.most = max(e.most, e.now)
	e.byName[step.ID.Plugin()]++
	e.mostBy[step.ID.Plugin()] = max(e.mostBy[step.ID.Plugin()], e.byName[step.ID.Plugin()])
	e.log = append(e.log, tried{step, time.Now()})
	return own
}

func (e *fakeEngine) leave(step *inFlight) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := slices.Index(e.running[step.ID], step)
	if e.running[step.ID] = slices.Delete(e.running[step.ID], at, at+1); len(e.running[step.ID]) == 0 {
		delete(e.running, step.ID)
	}
	e.now--
	e.byName[step.ID.Plugin()]--
}

// tries are the calls of a kind so far.
func (e *fakeEngine) tries(kind Kind) []tried {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []tried
	for _, t := range e.log {
		if t.Kind == kind {
			list = append(list, t)
		}
	}
	return list
}

// calls are all calls so far.
func (e *fakeEngine) calls() []tried {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.log)
}

// left counts the steps that have not been done.
func (e *fakeEngine) left() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, steps := range e.todo {
		n += len(steps)
	}
	return n
}

// inBubble runs body beside a running reconciler, in virtual time, and checks
// that the engine saw nothing forbidden and that Run ends without an error.
func inBubble(t *testing.T, o Options, e *fakeEngine, body func(t *testing.T, d *Default)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d := New(o)
		done := make(chan error)
		go func() { done <- d.Run(ctx, e) }()
		defer func() { // also after a Fatal
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
			for _, f := range e.faults {
				t.Error(f)
			}
		}()
		body(t, d)
	})
}

// atRest checks that nothing is kept, once everything is done.
func atRest(t *testing.T, d *Default, e *fakeEngine) {
	t.Helper()
	synctest.Wait()
	if n := e.left(); n > 0 {
		t.Errorf("%d steps are left", n)
	}
	if n := d.size(); n > 0 {
		t.Errorf("%d things are kept at rest", n)
	}
}

// gate lets steps hang until it is closed. It has to be made in the bubble.
type gate chan struct{}

func (g gate) pass(ctx context.Context) error {
	select {
	case <-g:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// elapse lets the time of a bubble pass.
func elapse(d time.Duration) { <-time.After(d) }
