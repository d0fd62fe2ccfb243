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
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

// Points at which the host's Faults are called.
const (
	// FaultRecorded is behind the record, before anything else happened.
	FaultRecorded = "step.recorded"
	// FaultBegun is behind the entry as uncertain, before the plugin is called.
	FaultBegun = "step.begun"
	// FaultDone is behind a call of a plugin that made something.
	FaultDone = "step.done"
	// FaultUndone is behind a call that took something away, before the record
	// of it goes.
	FaultUndone = "step.undone"
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
	paths   paths
	events  eventFilter
	waits   waits
	// podsMount is the mount that the pods' folder lay on when it was first
	// looked at.
	podsMount atomic.Uint64
}

// New returns an executor. It does nothing by itself.
func New(c Config) *Executor {
	return &Executor{
		Config:  c,
		folders: podFolders{busy: map[string]*folderUse{}},
		paths:   paths{users: map[plugins.PodVolume]pathUse{}},
		events:  newEventFilter(),
		waits:   newWaits(),
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

// Parallel implements [reconciler.Engine]: where wishes and what is there
// disagree, the careful answer counts.
func (e *Executor) Parallel(id plugins.VolumeID) bool {
	wish, fact := e.look(id)
	known := there(&fact)
	if known && !fact.Identity.Parallel {
		return false
	}
	for i := range wish.Pods {
		if w := &wish.Pods[i]; w.State == dsw.Wanted {
			if !w.Identity.Parallel {
				return false
			}
			known = true
		}
	}
	return known
}

// Do implements [reconciler.Engine]. Its errors are of type [*Error]. A plugin
// that panics makes the step fail with an uncertain outcome.
func (e *Executor) Do(ctx context.Context, step reconciler.Step) (err error) {
	j, ok := e.prepare(step)
	if !ok {
		return nil // it no longer fits
	}
	e.tell("observer", func() {
		if e.Observer != nil {
			e.Observer.StepStarted(step)
		}
	})
	began, mark, returned := e.now(), e.waits.mark(), false
	defer func() {
		if !returned {
			err = e.panicked(j, recover())
		}
		err = e.finish(j, err, mark)
		e.tell("observer", func() {
			if e.Observer != nil {
				e.Observer.StepFinished(step, e.now().Sub(began), err)
			}
		})
		if e.Changed != nil {
			e.Changed(step.Volume)
		}
	}()
	err = e.run(ctx, j)
	returned = true
	return err
}

// tell calls code of the embedder that is told of something and has no say in
// it: that it panics is logged, and the step goes on.
func (e *Executor) tell(whom string, f func()) {
	defer func() {
		if value := recover(); value != nil {
			e.Host.Log.Error(fmt.Errorf("it panicked with a %T", value), "Told in vain", "whom", whom, "stack", string(debug.Stack()))
		}
	}()
	f()
}

// panicked makes an error of a panic, or of the end of the goroutine, without
// a value that could hold secrets.
func (e *Executor) panicked(j *job, value any) error {
	err := fmt.Errorf("plugin %s panicked with a %T", j.step.ID.Plugin(), value)
	switch value := value.(type) {
	case nil:
		err = fmt.Errorf("plugin %s ended its goroutine", j.step.ID.Plugin())
	case runtime.Error:
		err = fmt.Errorf("plugin %s panicked: %w", j.step.ID.Plugin(), value)
	}
	e.Host.Log.Error(err, "Step panicked", "op", j.step.Kind, "volume", j.step.ID, "stack", string(debug.Stack()))
	return plugins.Uncertain(err)
}

// finish tells of the outcome, and remembers what has to be known of it.
func (e *Executor) finish(j *job, err error, mark uint64) error {
	if err != nil {
		err = &Error{Step: j.step, Pod: j.pod, Err: err}
	}
	if e.waits.set(j.step.Key, plugins.WaitsFor(err), mark) && e.Wake != nil {
		e.Wake(j.step.ID) // what it waits for changed while it ran
	}
	e.event(j, err)
	if s := scopeOf(&j.step.Key); (e.events.has(s) || e.waits.has(s)) && !e.known(s) {
		e.drop(s) // nothing will come after this that would clear it
	}
	return err
}

// Waiting tells of a change of ref, and returns the volumes whose last step
// waits for it. A ref without a name means every object of its kind.
func (e *Executor) Waiting(ref plugins.Ref) []plugins.VolumeID { return e.waits.notice(ref) }

// AllWaiting returns all volumes whose last step waits.
func (e *Executor) AllWaiting() []plugins.VolumeID { return e.waits.all() }

// Forget drops what is remembered about the steps of a pod that is gone.
func (e *Executor) Forget(uid types.UID) {
	e.drop(scope{pod: uid})
	for _, s := range append(e.events.due(), e.waits.due()...) {
		if !e.known(s) {
			e.drop(s)
		}
	}
}

func (e *Executor) drop(s scope) {
	e.events.forget(s)
	e.waits.forget(s)
}

// known reports whether there is anything of which further steps may come.
func (e *Executor) known(s scope) bool {
	if s.id != "" {
		_, ok := e.Actual.Volume(s.id)
		return ok || len(e.Desired.Wish(s.id, nil).Pods) > 0
	}
	return e.podKnown(s.pod)
}

func (e *Executor) podKnown(uid types.UID) bool {
	return e.Desired.HasPod(uid) || e.Actual.HasPod(uid)
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

// put writes a record, and says of an error what it means for the step.
func (e *Executor) put(ctx context.Context, rec journal.Record) error {
	err := e.Journal.Put(ctx, rec)
	if err == nil {
		return nil
	}
	class := plugins.ClassOf(err)
	err = fmt.Errorf("record what undoing will need: %w", err)
	if class == plugins.ClassPermanent {
		return err
	}
	return plugins.Transient(err)
}

// unrecord deletes a record.
func (e *Executor) unrecord(ctx context.Context, key journal.Key, durable bool) error {
	if err := e.Journal.Delete(context.WithoutCancel(ctx), key, durable); err != nil {
		return plugins.Uncertain(fmt.Errorf("drop the record: %w", err))
	}
	return nil
}

// mountAt returns the id of the mount at path, or an error if there is none
// that works.
func (e *Executor) mountAt(ctx context.Context, path string) (uint64, error) {
	point, err := e.Host.Mounter.Inspect(ctx, path)
	switch {
	case err != nil:
		return 0, plugins.Uncertain(fmt.Errorf("check the mount: %w", err))
	case point.Corrupt != nil:
		return 0, plugins.Uncertain(fmt.Errorf("the mount at %s is dead: %w", path, point.Corrupt))
	case !point.Mounted:
		return 0, plugins.Uncertain(fmt.Errorf("%w: %s", errNoMount, path))
	}
	return point.MountID, nil
}

// noMountAt returns an error if a mount is at path, or if that cannot be seen.
func (e *Executor) noMountAt(ctx context.Context, path string) error {
	point, err := e.Host.Mounter.Inspect(ctx, path)
	switch {
	case err != nil:
		return plugins.Uncertain(fmt.Errorf("check that nothing is left at %s: %w", path, err))
	case point.Mounted:
		return plugins.Uncertain(fmt.Errorf("%w: %s", errStillMounted, path))
	}
	return nil
}

// nothingAt is noMountAt for a place where not even a folder may be left.
func (e *Executor) nothingAt(ctx context.Context, path string) error {
	point, err := e.Host.Mounter.Inspect(ctx, path)
	switch {
	case err != nil:
		return plugins.Uncertain(fmt.Errorf("check that nothing is left at %s: %w", path, err))
	case point.Exists:
		return plugins.Uncertain(fmt.Errorf("%w: %s", errLeft, path))
	}
	return nil
}

// leavesNothing reports whether a plugin says with err that nothing was left
// behind.
func leavesNothing(err error) bool { return plugins.ClassOf(err) != plugins.ClassUncertain }

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

var (
	errNoMount      = errors.New("the plugin promised a mount, but none is there")
	errStillMounted = errors.New("the plugin reported it gone, but a mount is still there")
	errLeft         = errors.New("the plugin reported that nothing was left, but something is there")
)

func joinUnless(err, other error) error {
	if other == nil {
		return err
	}
	return errors.Join(err, other)
}
