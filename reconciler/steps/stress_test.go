package steps_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/reconciler/steps"
)

// flaky makes calls fail in every way, some after they had their effect.
type flaky struct {
	mu   sync.Mutex
	rand *rand.Rand
	calm bool
}

func (f *flaky) err(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calm {
		return nil
	}
	switch f.rand.IntN(12) {
	case 0:
		return plugins.Transientf("busy")
	case 1:
		return plugins.WaitFor(secretRef, nil)
	case 2:
		return plugins.Uncertain(errors.New("silence"))
	case 3:
		panic("flaky")
	}
	return nil
}

// after is err for the end of a call that had its effect: it may not say that
// nothing is left.
func (f *flaky) after(ctx context.Context) error {
	if err := f.err(ctx); err != nil {
		return plugins.Uncertain(err)
	}
	return nil
}

func (f *flaky) journal() error {
	if err := f.after(context.Background()); err != nil {
		return plugins.Transient(err)
	}
	return nil
}

// Many pods come and go at random while plugin and journal fail at random.
// When it is calm again and all pods have gone, nothing is left.
func TestStress(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { stress(t, seed) })
	}
}

func stress(t *testing.T, seed uint64) {
	r := newRig(t)
	r.journal.log = nil
	f := &flaky{rand: rand.New(rand.NewPCG(seed, 1))}
	for _, call := range stressed {
		r.plugin.hook(call, f.err)
		r.plugin.hook(call+" done", f.after)
	}
	calmly := func(do func() error) error { // the journal does not panic
		defer func() { _ = recover() }()
		return do()
	}
	r.journal.put = func(journal.Record) error { return calmly(f.journal) }
	r.journal.wrote = func() error { return calmly(f.journal) }
	r.journal.del = func(journal.Key) error { return calmly(f.journal) }
	r.plugin.mapped = r.host.Layout.Root

	loop := reconciler.New(reconciler.Options{
		Backoff: reconciler.Backoff{Base: time.Millisecond, Max: 4 * time.Millisecond}, SafetyPeriod: 20 * time.Millisecond,
	})
	r.exec.Wake = loop.Wake
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- loop.Run(ctx, r.exec) }()

	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() { r.churn(rand.New(rand.NewPCG(seed, uint64(worker)+2)), worker, loop) })
	}
	wg.Wait()
	f.mu.Lock()
	f.calm = true
	f.mu.Unlock()
	deadline := time.Now().Add(time.Minute)
	for {
		loop.Reset(slices.Collect(r.actual.Volumes())...)
		if volumes, _ := r.actual.Len(); volumes == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("still there: %v", slices.Collect(r.actual.Volumes()))
			break
		}
		<-time.After(time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	// A set-up may have been about to begin when the last volume was gone.
	for id := range r.actual.Volumes() {
		for plan := r.exec.Plan(id); len(plan.Steps) > 0; plan = r.exec.Plan(id) {
			r.must(plan.Steps[0].Key)
		}
	}
	r.exec.Forget("")
	r.clean()
	if !r.busyEnough() {
		calls := map[string]int{}
		for _, call := range stressed {
			calls[call] = r.plugin.count(call)
		}
		t.Errorf("too few calls to tell anything: %v", calls)
	}
	if folders, taken := r.exec.Busy(); folders+taken > 0 {
		t.Errorf("in use for ever: %d folders, %d paths", folders, taken)
	}
}

// stressed are the calls that the stress test makes.
var stressed = []string{"setUp", "tearDown", "mapDevice", "unmapDevice", "refresh", "attach", "detach", "mountDevice", "unmountDevice"}

// busyEnough reports whether each of them was made often.
func (r *rig) busyEnough() bool {
	return !slices.ContainsFunc(stressed, func(call string) bool { return r.plugin.count(call) < 10 })
}

// churn sets pods up and takes them away again, in several shapes.
func (r *rig) churn(random *rand.Rand, worker int, loop *reconciler.Default) {
	shared := plugins.Identity{Storage: fmt.Sprint("shared-", worker/2), Attach: true, Device: true, Parallel: true}
	shapes := []wish{{volume: "own"}, {volume: "block", block: true}, {volume: "shared", identity: shared}, {volume: "other", identity: plugins.Identity{Storage: fmt.Sprint("other-", worker/2), Device: true}}}
	content := plugins.Ref{Kind: "Secret", Namespace: "ns", Name: "content"}
	for end := time.Now().Add(20 * time.Second); !r.busyEnough() && time.Now().Before(end); {
		w := shapes[random.IntN(len(shapes))]
		w.pod = fmt.Sprintf("pod-%d-%d", worker, random.IntN(2))
		switch random.IntN(8) {
		case 0, 1, 2, 3:
			r.gone(w)
		case 4:
			change := r.desired.Touch(content)
			loop.Wake(change.Volumes...)
			loop.Reset(r.exec.Waiting(secretRef)...)
		default:
			r.want(w)
		}
		loop.Wake(w.id())
		<-time.After(time.Millisecond)
	}
	for pod := range 2 {
		for _, w := range shapes {
			w.pod = fmt.Sprintf("pod-%d-%d", worker, pod)
			r.gone(w)
			loop.Wake(w.id())
		}
	}
}

// The points of a step come in their order.
func TestOrderOfThePoints(t *testing.T) {
	r := newRig(t)
	w := simple("pod", "vol")
	r.want(w)
	r.must(w.key(reconciler.SetUp))
	r.unwant(w)
	r.must(w.key(reconciler.TearDown))
	want := []string{steps.FaultRecorded, steps.FaultBegun, steps.FaultDone, steps.FaultBegun, steps.FaultUndone}
	if !slices.Equal(r.points, want) {
		t.Errorf("points: %v", r.points)
	}
}
