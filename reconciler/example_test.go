package reconciler_test

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

// engine stands for the manager: it has one volume that has to be attached,
// mounted and set up.
type engine struct{ done int }

const id = plugins.VolumeID("example.com/disk/d1")

func (e *engine) Plan(plugins.VolumeID) reconciler.Plan {
	way := []reconciler.Kind{reconciler.Attach, reconciler.MountDevice, reconciler.SetUp}
	if e.done == len(way) {
		return reconciler.Plan{}
	}
	key := reconciler.Key{Kind: way[e.done], ID: id}
	return reconciler.Plan{Steps: []reconciler.Step{{Key: key, Reason: "a pod wants it"}}}
}

func (e *engine) Do(context.Context, reconciler.Step) error { e.done++; return nil }

func (e *engine) Parallel(plugins.VolumeID) bool { return false }

func (e *engine) Volumes() iter.Seq[plugins.VolumeID] {
	return slices.Values([]plugins.VolumeID{id})
}

// narrator is a replacement made by an embedder: it wraps another reconciler
// and tells every step. It gives that one an engine of its own, which is where
// all steps go through.
type narrator struct {
	reconciler.Reconciler
}

func (n narrator) Run(ctx context.Context, e reconciler.Engine) error {
	return n.Reconciler.Run(ctx, told{e})
}

type told struct{ reconciler.Engine }

func (t told) Do(ctx context.Context, step reconciler.Step) error {
	fmt.Printf("%s: %s\n", step.Kind, step.Reason)
	return t.Engine.Do(ctx, step)
}

// An embedder replaces the reconciler by any other implementation. Here it is
// the one for tests that runs a step only when it is told to, in a wrapper
// that tells what it does.
func Example_replacement() {
	steps := reconciler.NewSequential()
	var replacement reconciler.Reconciler = narrator{steps} // goes into the manager's configuration

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- replacement.Run(ctx, &engine{}) }() // done by the manager

	for {
		did, err := steps.Step(ctx)
		if !did {
			break
		}
		fmt.Println("-> error:", err)
	}
	cancel()
	fmt.Println("ended:", <-done)
	// Output:
	// attach: a pod wants it
	// -> error: <nil>
	// mountDevice: a pod wants it
	// -> error: <nil>
	// setUp: a pod wants it
	// -> error: <nil>
	// ended: <nil>
}

// The default reconciler is driven by Wake.
func ExampleDefault() {
	finished := make(chan struct{})
	e := &engine{}
	r := reconciler.New(reconciler.Options{MaxInFlight: 8})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- r.Run(ctx, watched{told{e}, e, finished}) }()
	r.Wake(id)
	<-finished
	cancel()
	fmt.Println("ended:", <-done)
	// Output:
	// attach: a pod wants it
	// mountDevice: a pod wants it
	// setUp: a pod wants it
	// ended: <nil>
}

// watched says when the last step is done.
type watched struct {
	reconciler.Engine
	e        *engine
	finished chan struct{}
}

func (w watched) Do(ctx context.Context, step reconciler.Step) error {
	err := w.Engine.Do(ctx, step)
	if w.e.done == 3 {
		close(w.finished)
	}
	return err
}
