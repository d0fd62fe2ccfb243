// Package reconciler turns the difference between what should be (package dsw)
// and what is (package asw) into steps. [PlanVolume] is the pure function that
// decides; a [Reconciler] runs what it decides. [Default] is driven by events
// and bounded in every direction; an embedder can replace it by its own.
package reconciler

import (
	"context"
	"iter"
	"time"

	"github.com/volumekit/volumekit/plugins"
)

// Kind is the kind of a step.
type Kind string

// The steps, in the order in which a volume comes up and goes down.
const (
	Attach        Kind = "attach"
	MountDevice   Kind = "mountDevice"
	SetUp         Kind = "setUp"
	Expand        Kind = "expand"
	Refresh       Kind = "refresh"
	TearDown      Kind = "tearDown"
	UnmountDevice Kind = "unmountDevice"
	Detach        Kind = "detach"
)

// Undoes reports whether the step takes something away.
func (k Kind) Undoes() bool { return k == TearDown || k == UnmountDevice || k == Detach }

// Key names a step: a kind of work on a volume, or on one pod's part of it.
// Backoff is kept by key.
type Key struct {
	Kind Kind             `json:"kind"`
	ID   plugins.VolumeID `json:"id"`
	// Volume is the zero value for the steps of the node-wide part.
	Volume plugins.PodVolume `json:"volume,omitzero"`
}

// Step is one piece of work that may be done now.
type Step struct {
	Key
	// Reason says why, in a few words for people.
	Reason string `json:"reason"`
	// Lazy allows a TearDown or UnmountDevice to detach what hangs or is busy
	// instead of waiting for it. A plan never sets it; a [Reconciler] may, as
	// a matter of policy.
	Lazy bool `json:"lazy,omitempty"`
}

// Hold says why something is not done now.
type Hold struct {
	// Volume is what is held; the zero value for the node-wide part.
	Volume plugins.PodVolume `json:"volume,omitzero"`
	// Code is a stable word, one of the Hold constants.
	Code string `json:"code"`
	// Reason is for people. By names who or what is in the way.
	Reason string `json:"reason"`
	By     string `json:"by,omitempty"`
}

// Codes of a [Hold].
const (
	// HoldUnknown: the wish is not known, so what is there stays.
	HoldUnknown = "DesiredStateUnknown"
	// HoldExclusive: another pod still has a ReadWriteOncePod volume.
	HoldExclusive = "InUseByAnotherPod"
	// HoldConflict: the volume is mounted with properties that another pod
	// still needs.
	HoldConflict = "ConflictingParameters"
	// HoldNode: the device waits for its pods, or a pod for the device.
	HoldNode = "WaitingForOtherStep"
)

// Plan is what may be done for one volume now. Its steps do not depend on each
// other: any of them can be run next, and after it the volume is planned anew.
type Plan struct {
	Steps []Step `json:"steps,omitempty"`
	Holds []Hold `json:"holds,omitempty"`
	// Lane is that of the volume, see [plugins.Identity].
	Lane string `json:"lane,omitempty"`
	// Next is when the plan will change although nothing happens, the zero
	// time if it will not.
	Next time.Time `json:"next,omitzero"`
}

// Engine is what a [Reconciler] drives. It is safe for concurrent use.
type Engine interface {
	// Plan plans one volume. It is cheap and does no I/O.
	Plan(id plugins.VolumeID) Plan
	// Do runs one step and enters its outcome into the actual state before it
	// returns. For one volume at most one step may run at a time, unless
	// Parallel says otherwise, or the step is Lazy: it may run beside the step
	// of the same key that it is to free, one that is not Lazy, whose context
	// has ended and that has not returned. The class of the error says how to go on. A step that
	// no longer fits does nothing and returns nil.
	Do(ctx context.Context, step Step) error
	// Parallel reports whether SetUp, TearDown and Refresh for different pods
	// may run at the same time on this volume.
	Parallel(id plugins.VolumeID) bool
	// Volumes lists every volume that is wished for or there. It is consumed
	// at once, without another call to the engine in between.
	Volumes() iter.Seq[plugins.VolumeID]
}

// Reconciler brings volumes from what is to what should be.
type Reconciler interface {
	// Run works until ctx ends; it returns when every step that it started
	// has returned, or with an error that names those that do not return in
	// bounded time. It is called once.
	Run(ctx context.Context, engine Engine) error
	// Wake says that something about the volumes changed. It does not block,
	// may be called before and after Run, and from within Engine.Do.
	Wake(ids ...plugins.VolumeID)
	// Reset is Wake, and forgets the backoff of the volumes' steps: what
	// happened gives reason to hope.
	Reset(ids ...plugins.VolumeID)
}

// Reporter is implemented by reconcilers that can say how their steps fare.
type Reporter interface {
	// Report returns what is known about steps of the volume: running ones and
	// those whose last try failed.
	Report(id plugins.VolumeID) []StepReport
}

// StepReport says how one step fares.
type StepReport struct {
	Key Key `json:"key"`
	// Running is true while a call is under way, since Since. Stuck is true if
	// it has outlived its deadline.
	Running bool      `json:"running,omitempty"`
	Stuck   bool      `json:"stuck,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	// Queued is true for a step that is due and waits for a free slot, or for
	// stuck steps of its plugin to return.
	Queued bool `json:"queued,omitempty"`
	// FirstFailed is when the present row of failures, or the wait, began;
	// Attempts is how many failures there were.
	FirstFailed time.Time `json:"firstFailed,omitzero"`
	Attempts    int       `json:"attempts,omitempty"`
	// Err is the last failure, nil if there is none.
	Err error `json:"-"`
	// NextTry is when it is tried again; the zero time where that depends on a
	// change.
	NextTry time.Time `json:"nextTry,omitzero"`
}
