// Package steps carries out what the planner decides: each step is written to
// the journal, entered into the actual state as uncertain, handed to a plugin,
// checked, and entered as what it turned out to be, in that order. So a
// process may die at any point and the next one still knows what to undo.
//
// An embedder does not use this package directly; package volumemanager wires
// it. Its [Observer] is the seam for metrics and traces.
package steps

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

// Journal is where records go before side effects.
type Journal interface {
	Put(ctx context.Context, rec journal.Record) error
	Delete(ctx context.Context, key journal.Key, durable bool) error
}

// Observer sees every step. Its methods are called from many goroutines and
// must not block.
type Observer interface {
	// StepStarted is called before a step's first side effect.
	StepStarted(step reconciler.Step)
	// StepFinished is called when the step's outcome has been entered. err is
	// nil for success, else a [*Error].
	StepFinished(step reconciler.Step, took time.Duration, err error)
}

// Config is what an [Executor] needs. Observer and what follows are optional.
type Config struct {
	Host     *plugins.VolumeHost
	Registry *plugins.Registry
	Desired  *dsw.World
	Actual   *asw.World
	Journal  Journal
	Observer Observer
	// Changed is called after every change of a pod's volumes, without locks.
	Changed func(v plugins.PodVolume)
	// Wake asks for another volume to be planned, whose way a step has freed.
	Wake func(ids ...plugins.VolumeID)
	// ContentChanged is called when files of a volume were added, changed or
	// removed, without locks.
	ContentChanged func(v plugins.PodVolume, pod plugins.PodRef, content plugins.Content)
	// QuietMounts leaves out the event SuccessfulMountVolume.
	QuietMounts bool
}

// Executor implements [reconciler.Engine] over the two states, the journal and
// the plugins. It is safe for concurrent use.
type Executor struct {
	Config
	folders podFolders
	events  eventFilter

	waits waits
}

// New returns an executor. It does nothing by itself.
func New(c Config) *Executor {
	return &Executor{
		Config:  c,
		folders: podFolders{busy: map[string]*folderUse{}},
		events:  eventFilter{pods: map[types.UID]map[reconciler.Key]string{}},
		waits:   waits{pods: map[types.UID]map[reconciler.Key][]plugins.Ref{}},
	}
}

// Plan implements [reconciler.Engine].
func (e *Executor) Plan(id plugins.VolumeID) reconciler.Plan {
	wish, fact := e.look(id)
	return reconciler.PlanVolume(e.now(), wish, fact)
}

// Volumes implements [reconciler.Engine].
func (e *Executor) Volumes() iter.Seq[plugins.VolumeID] {
	return func(yield func(plugins.VolumeID) bool) {
		for id := range e.Desired.Volumes() {
			if !yield(id) {
				return
			}
		}
		for id := range e.Actual.Volumes() {
			if !yield(id) {
				return
			}
		}
	}
}

// Parallel implements [reconciler.Engine].
func (e *Executor) Parallel(id plugins.VolumeID) bool {
	wish, fact := e.look(id)
	if fact.Identity.Parallel {
		return true
	}
	return len(wish.Pods) > 0 && wish.Pods[0].Identity.Parallel
}

// Do implements [reconciler.Engine]. Its errors are of type [*Error].
func (e *Executor) Do(ctx context.Context, step reconciler.Step) error {
	job, ok := e.prepare(step)
	if !ok {
		return nil // it no longer fits
	}
	if e.Observer != nil {
		e.Observer.StepStarted(step)
	}
	began, mark := e.now(), e.waits.mark()
	err := e.run(ctx, job)
	if err != nil {
		err = &Error{Step: step, Pod: job.pod, Err: err}
	}
	if e.waits.set(step.Key, plugins.WaitsFor(err), mark) && e.Wake != nil {
		e.Wake(step.ID) // what it waits for changed while it ran
	}
	e.event(job, err)
	if e.Observer != nil {
		e.Observer.StepFinished(step, e.now().Sub(began), err)
	}
	if e.Changed != nil {
		e.Changed(step.Volume)
	}
	return err
}

// Waiting tells of a change of ref, and returns and forgets the volumes whose
// last step waits for it. A ref without a name means every object of its kind.
func (e *Executor) Waiting(ref plugins.Ref) []plugins.VolumeID { return e.waits.notice(ref) }

// AllWaiting returns and forgets all volumes whose last step waits.
func (e *Executor) AllWaiting() []plugins.VolumeID { return e.waits.all() }

// Forget drops what is remembered about the steps of a pod that is gone.
func (e *Executor) Forget(uid types.UID) {
	e.events.forget(uid)
	e.waits.forget(uid)
}

// job is one step with all that it needs, looked up once.
type job struct {
	step   reconciler.Step
	plugin plugins.VolumePlugin
	can    plugins.Capabilities
	wish   dsw.PodWish // of the step's pod; zero for node-wide steps
	wishes []dsw.PodWish
	fact   asw.Volume
	entry  asw.PodVolume // zero if there is none
	pod    plugins.PodRef
	// missing is why there is no plugin.
	missing error
}

// prepare looks everything up and says whether the step still fits.
func (e *Executor) prepare(step reconciler.Step) (*job, bool) {
	wish, fact := e.look(step.ID)
	plan := reconciler.PlanVolume(e.now(), wish, fact)
	fits := false
	for _, s := range plan.Steps {
		fits = fits || s.Key == step.Key
	}
	if !fits && !step.Lazy {
		return nil, false
	}
	j := &job{step: step, fact: fact, wishes: wish.Pods}
	j.plugin, j.missing = e.Registry.ByName(step.ID.Plugin())
	j.can = plugins.CapabilitiesOf(j.plugin)
	for _, w := range wish.Pods {
		if w.Volume == step.Volume {
			j.wish = w
		}
	}
	for _, p := range fact.Pods {
		if p.Volume == step.Volume {
			j.entry = p
		}
	}
	j.pod = j.entry.Pod
	if p := j.wish.Pod; p != nil {
		j.pod = plugins.PodRef{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	}
	return j, true
}

func (e *Executor) run(ctx context.Context, j *job) error {
	if j.missing != nil {
		return j.missing
	}
	switch j.step.Kind {
	case reconciler.Attach:
		return e.attach(ctx, j)
	case reconciler.MountDevice:
		return e.mountDevice(ctx, j)
	case reconciler.SetUp:
		return e.setUp(ctx, j)
	case reconciler.Expand:
		return e.expand(ctx, j)
	case reconciler.Refresh:
		return e.refresh(ctx, j)
	case reconciler.TearDown:
		return e.tearDown(ctx, j)
	case reconciler.UnmountDevice:
		return e.unmountDevice(ctx, j)
	case reconciler.Detach:
		return e.detach(ctx, j)
	}
	return plugins.Permanentf("step %q is not known", j.step.Kind)
}

// look takes one consistent enough picture of a volume: the actual state
// first, so that every entry in it gets a wish.
func (e *Executor) look(id plugins.VolumeID) (dsw.Wish, asw.Volume) {
	fact, ok := e.Actual.Volume(id)
	if !ok {
		fact.ID = id
	}
	var there []plugins.PodVolume
	if n := len(fact.Pods); n > 0 {
		there = make([]plugins.PodVolume, n)
		for i, p := range fact.Pods {
			there[i] = p.Volume
		}
	}
	return e.Desired.Wish(id, there), fact
}

func (e *Executor) now() time.Time { return e.Host.Time().Now() }

// Error is a failed step. Its class is that of its cause.
type Error struct {
	// Step is what was tried.
	Step reconciler.Step
	// Pod is whose volume it was; zero for node-wide steps.
	Pod plugins.PodRef
	// Err is the cause.
	Err error
}

// Error names step, volume and pod before the cause.
func (e *Error) Error() string {
	if e.Step.Volume.Name == "" {
		return fmt.Sprintf("%s of volume %s: %v", e.Step.Kind, e.Step.ID, e.Err)
	}
	return fmt.Sprintf("%s of volume %s (%s) for pod %s: %v", e.Step.Kind, e.Step.Volume.Name, e.Step.Volume.Plugin, e.Pod, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// errLacks says that a plugin lacks an optional part that the plan needs.
func errLacks(name, part string) error {
	return plugins.Unsupported(fmt.Errorf("plugin %s cannot %s", name, part))
}

var errNoMount = errors.New("the plugin promised a mount, but none is there")
