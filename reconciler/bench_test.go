package reconciler

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/volumekit/volumekit/plugins"
)

// benchEngine has steps that cost nothing: what is measured is the reconciler.
type benchEngine struct {
	ids   []plugins.VolumeID
	todo  map[plugins.VolumeID]*atomic.Int32
	left  atomic.Int64
	done  chan struct{}
	steps map[plugins.VolumeID][]Step
}

func newBench(volumes int) *benchEngine {
	e := &benchEngine{todo: map[plugins.VolumeID]*atomic.Int32{}, done: make(chan struct{}, 1), steps: map[plugins.VolumeID][]Step{}}
	for n := range volumes {
		id := volumeOf(fmt.Sprint(n%8), n)
		e.ids = append(e.ids, id)
		e.todo[id] = new(atomic.Int32)
		e.steps[id] = []Step{stepOf(SetUp, id, "one")}
	}
	return e
}

func (e *benchEngine) Plan(id plugins.VolumeID) Plan {
	if e.todo[id].Load() == 0 {
		return Plan{}
	}
	return Plan{Steps: e.steps[id]}
}

func (e *benchEngine) Do(_ context.Context, s Step) error {
	e.todo[s.ID].Store(0)
	if e.left.Add(-1) == 0 {
		e.done <- struct{}{}
	}
	return nil
}

func (e *benchEngine) Parallel(plugins.VolumeID) bool      { return false }
func (e *benchEngine) Volumes() iter.Seq[plugins.VolumeID] { return slices.Values(e.ids) }

func (e *benchEngine) run(b *testing.B, d *Default) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- d.Run(ctx, e) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
}

// BenchmarkWakeToDo is one volume at rest, from Wake to its step.
func BenchmarkWakeToDo(b *testing.B) {
	e, d := newBench(1), New(Options{})
	e.run(b, d)
	b.ReportAllocs()
	for b.Loop() {
		e.left.Store(1)
		e.todo[e.ids[0]].Store(1)
		d.Wake(e.ids[0])
		<-e.done
	}
}

// BenchmarkBurst is 5,000 volumes with a step each, from Wake to the last one.
func BenchmarkBurst(b *testing.B) {
	const volumes = 5000
	e, d := newBench(volumes), New(Options{})
	e.run(b, d)
	b.ReportAllocs()
	for b.Loop() {
		e.left.Store(volumes)
		for _, id := range e.ids {
			e.todo[id].Store(1)
		}
		d.Wake(e.ids...)
		<-e.done
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*volumes), "ns/step")
}

// BenchmarkSafetyPass is one pass over a slice while nothing has to be done.
func BenchmarkSafetyPass(b *testing.B) {
	for _, volumes := range []int{1000, 20_000} {
		b.Run(fmt.Sprint(volumes), func(b *testing.B) {
			e, d := newBench(volumes), New(Options{SafetyPeriod: -1})
			d.engine = e
			for range volumes/DefaultSafetySlice + 1 {
				d.safety() // a first round fills the list
			}
			b.ReportAllocs()
			for b.Loop() {
				d.safety()
			}
		})
	}
}
