package volumemanager

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/reconciler/steps"
)

// stepLog knows the steps that run, and how those ended that failed. The
// manager keeps it itself, for three reasons: a wait must see a failure when
// it is woken, which is before a reconciler has taken it in; what runs counts
// as in use before it has entered anything into the actual state; and a
// reconciler need not be able to report.
type stepLog struct {
	mu      sync.Mutex
	volumes map[plugins.VolumeID][]*stepRecord
	pods    map[types.UID]int // running steps
	running int
}

// stepRecord is one step that runs or failed.
type stepRecord struct {
	key     reconciler.Key
	running int // a lazy one may run beside a stuck one
	since   time.Time
	// again is true if something happened since the last outcome that will make
	// the step be tried anew. reset is that for the try under way.
	again, reset bool
	firstFailed  time.Time
	attempts     int
	err          error
}

func newStepLog() *stepLog {
	return &stepLog{volumes: map[plugins.VolumeID][]*stepRecord{}, pods: map[types.UID]int{}}
}

// begin enters that a step runs.
func (l *stepLog) begin(key reconciler.Key, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.find(key)
	if r == nil {
		r = &stepRecord{key: key}
		l.volumes[key.ID] = append(l.volumes[key.ID], r)
	}
	if r.running == 0 {
		r.since, r.reset = now, false
	}
	r.running++
	l.running++
	if key.Volume.Pod != "" {
		l.pods[key.Volume.Pod]++
	}
}

// end enters how it ended.
func (l *stepLog) end(key reconciler.Key, err error, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	if uid := key.Volume.Pod; uid != "" {
		if l.pods[uid]--; l.pods[uid] == 0 {
			delete(l.pods, uid)
		}
	}
	r := l.find(key)
	r.running--
	if err == nil {
		*r = stepRecord{key: key, running: r.running, since: r.since}
		l.prune(key.ID, func(other *stepRecord) bool { return other == r })
		return
	}
	if r.again {
		r.firstFailed, r.attempts = time.Time{}, 0
	}
	r.err, r.again = err, r.reset
	if r.firstFailed.IsZero() {
		r.firstFailed = now
	}
	if plugins.ClassOf(err) != plugins.ClassWaiting {
		r.attempts++
	}
}

// reset enters that steps of the volume will be tried anew.
func (l *stepLog) reset(ids []plugins.VolumeID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		for _, r := range l.volumes[id] {
			r.again, r.reset = true, true
		}
	}
}

// keep forgets failed steps that are no longer planned.
func (l *stepLog) keep(id plugins.VolumeID, planned []reconciler.Step) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.volumes[id]) == 0 {
		return
	}
	l.prune(id, func(r *stepRecord) bool {
		return !slices.ContainsFunc(planned, func(s reconciler.Step) bool { return s.Key == r.key })
	})
}

// prune drops records that do not run; mu is held.
func (l *stepLog) prune(id plugins.VolumeID, drop func(*stepRecord) bool) {
	left := slices.DeleteFunc(l.volumes[id], func(r *stepRecord) bool { return r.running == 0 && drop(r) })
	if len(left) == 0 {
		delete(l.volumes, id)
		return
	}
	l.volumes[id] = left
}

func (l *stepLog) find(key reconciler.Key) *stepRecord {
	for _, r := range l.volumes[key.ID] {
		if r.key == key {
			return r
		}
	}
	return nil
}

// failed reports whether the last outcome of any step of a volume was a failure.
func (l *stepLog) failed(id plugins.VolumeID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.volumes[id], func(r *stepRecord) bool { return r.err != nil })
}

// runs counts the steps that run for a pod, or of all volumes for anyPod.
func (l *stepLog) runs(uid types.UID) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if uid == anyPod {
		return l.running
	}
	return l.pods[uid]
}

// attaching lists the volumes that are just being attached.
func (l *stepLog) attaching() []plugins.VolumeID {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ids []plugins.VolumeID
	for id, list := range l.volumes {
		if slices.ContainsFunc(list, func(r *stepRecord) bool { return r.key.Kind == reconciler.Attach && r.running > 0 }) {
			ids = append(ids, id)
		}
	}
	return ids
}

// stepReport is what is known of one step.
type stepReport struct {
	reconciler.StepReport
	again bool // as in stepRecord
}

// report lists the steps of a volume that run, failed or wait for a slot. The
// reconciler adds what it alone knows.
func (l *stepLog) report(id plugins.VolumeID, by reconciler.Reconciler) []stepReport {
	l.mu.Lock()
	list := make([]stepReport, 0, len(l.volumes[id]))
	for _, r := range l.volumes[id] {
		report := stepReport{again: r.again || r.running > 0, StepReport: reconciler.StepReport{
			Key: r.key, Running: r.running > 0, FirstFailed: r.firstFailed, Attempts: r.attempts, Err: r.err,
		}}
		if report.Running {
			report.Since = r.since
		}
		list = append(list, report)
	}
	l.mu.Unlock()
	for _, told := range reportOf(by, id) {
		i := slices.IndexFunc(list, func(r stepReport) bool { return r.Key == told.Key })
		switch {
		case i >= 0:
			list[i].Stuck = told.Stuck && list[i].Running
			list[i].Queued, list[i].NextTry = told.Queued, told.NextTry
		case told.Queued:
			list = append(list, stepReport{StepReport: reconciler.StepReport{Key: told.Key, Queued: true}})
		}
	}
	return list
}

// reportOf asks a reconciler how the steps of a volume fare, if it can tell.
func reportOf(r reconciler.Reconciler, id plugins.VolumeID) []reconciler.StepReport {
	if reporter, ok := r.(reconciler.Reporter); ok {
		return reporter.Report(id)
	}
	return nil
}

// loggedEngine is the executor as the reconciler drives it: with a log of its
// steps, and a notice to those who wait.
type loggedEngine struct {
	*steps.Executor
	m *Manager
}

// Plan implements [reconciler.Engine].
func (e loggedEngine) Plan(id plugins.VolumeID) reconciler.Plan {
	plan := e.Executor.Plan(id)
	e.m.log.keep(id, plan.Steps)
	return plan
}

// Do implements [reconciler.Engine].
func (e loggedEngine) Do(ctx context.Context, step reconciler.Step) (err error) {
	m := e.m
	// First of all: whoever removes the pod after this sees a step that runs.
	m.log.begin(step.Key, m.host.Time().Now())
	err = errPanicked // unless it returns
	defer func() {
		m.log.end(step.Key, err, m.host.Time().Now())
		m.stepEnded(step.Key)
	}()
	return e.Executor.Do(ctx, step)
}

// stepEnded wakes those whose volume the step was about.
func (m *Manager) stepEnded(key reconciler.Key) {
	if uid := key.Volume.Pod; uid != "" {
		m.watchers.notify(uid)
		return
	}
	for _, w := range m.desired.Wish(key.ID, nil).Pods {
		m.watchers.notify(w.Volume.Pod)
	}
	m.watchers.notify(anyPod)
}
