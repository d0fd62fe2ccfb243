package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
)

// Errors of the waits, to be tested with errors.Is.
var (
	// ErrNotReady says that some volumes of a pod were not ready in time, or
	// cannot become so.
	ErrNotReady = errors.New("volumes are not ready")
	// ErrPodRemoved says that the pod was removed while it was waited for.
	ErrPodRemoved = errors.New("the pod has been removed")
	// ErrStillMounted says that some volumes of a pod were not taken away in
	// time.
	ErrStillMounted = errors.New("volumes are still mounted")
)

// waitError is the end of a wait that did not bring what was waited for. It is
// like its sentinel, and has the class of its cause.
type waitError struct {
	is    error
	pod   string
	cause error
}

func outcome(is error, pod string, cause error) error { return &waitError{is, pod, cause} }

func (e *waitError) Error() string {
	return "pod " + e.pod + ": " + e.is.Error() + ": " + e.cause.Error()
}
func (e *waitError) Is(target error) bool { return target == e.is }
func (e *waitError) Unwrap() error        { return e.cause }

func podName(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name }

// WaitForAttachAndMount returns nil once every volume that the pod's containers
// use is ready. It returns early, with an error that wraps [ErrNotReady], when
// a volume has failed in a way that trying again will not cure, or the pod as a
// whole cannot be taken; and with [ErrPodRemoved] when the pod is removed
// meanwhile. When ctx ends first, the error wraps ErrNotReady, ctx's cause, and
// what each missing volume suffers from; when Run ends first, likewise with
// [ErrStopped]. A pod that the source has not told yet is waited for. Any
// number of callers may wait for one pod; none takes anything from another.
func (m *Manager) WaitForAttachAndMount(ctx context.Context, pod *v1.Pod) error {
	if pod == nil {
		return nil
	}
	if err := plugins.CheckName(string(pod.UID)); err != nil {
		return outcome(ErrNotReady, podName(pod), plugins.Permanent(fmt.Errorf("metadata.uid: %w", err)))
	}
	seen, uses := false, dsw.UsedVolumes(pod, m.config.AllVolumes)
	return m.watchers.wait(ctx, &m.stopped, pod.UID, func(ended error) (done bool, err error) {
		state, known := m.desired.Pod(pod.UID)
		if missing := untold(state, uses); known && missing != "" {
			seen = true // an older version of it
			if ended != nil {
				return true, outcome(ErrNotReady, podName(pod), fmt.Errorf("the pod source has not told its volume %s: %w", missing, ended))
			}
			return false, nil
		}
		if ended == nil {
			if ready, decided := m.glance(pod.UID, state); known && decided {
				seen = true
				return ready, nil
			}
		}
		status, _ := m.status(pod.UID)
		switch {
		case status.Known:
			seen = true
			return notReady(status, ended)
		case seen:
			return true, fmt.Errorf("pod %s: %w", podName(pod), ErrPodRemoved)
		case ended != nil:
			return true, outcome(ErrNotReady, podName(pod), fmt.Errorf("the pod source has not told it: %w", ended))
		}
		return false, nil
	})
}

// untold names a volume that the pod uses and that the source's version of it
// does not.
func untold(state dsw.PodState, uses []dsw.Use) string {
	for _, use := range uses {
		if !slices.ContainsFunc(state.Volumes, func(v dsw.VolumeState) bool { return v.Name == use.Name }) {
			return use.Name
		}
	}
	return ""
}

// glance decides whether a pod is ready without explaining why it is not, which
// would be done for each step of each volume. It decides only where the source
// has the pod and nothing of it has failed.
func (m *Manager) glance(uid types.UID, state dsw.PodState) (ready, decided bool) {
	m.mu.Lock()
	_, invalid := m.invalid[uid]
	m.mu.Unlock()
	if invalid {
		return false, false
	}
	ready = true
	for _, v := range state.Volumes {
		if !v.Resolved {
			return false, false
		}
		entry, _ := m.actual.PodVolume(v.Volume)
		if entry.State == asw.Present && entry.ID == v.ID {
			continue
		}
		if m.log.failed(v.ID) {
			return false, false
		}
		ready = false
	}
	return ready, true
}

// notReady turns a pod's status into the outcome of a wait.
func notReady(status PodStatus, ended error) (done bool, err error) {
	if status.Err != nil {
		return true, outcome(ErrNotReady, status.Pod.String(), status.Err)
	}
	var faults []error
	var missing []string
	hopeless := false
	for _, v := range status.Volumes {
		if v.Ready {
			continue
		}
		missing = append(missing, v.Name)
		if v.Err != nil {
			faults = append(faults, v.Err)
		} else if v.Message != "" {
			// On its way: that says nothing about how the others have failed.
			faults = append(faults, plugins.Transientf("volume %s: %s", v.Name, v.Message))
		}
		hopeless = hopeless || !v.again && (v.Class == plugins.ClassPermanent || v.Class == plugins.ClassUnsupported)
	}
	switch {
	case len(missing) == 0:
		return true, nil
	case ended != nil:
		faults = append(faults, ended)
	case !hopeless:
		return false, nil
	}
	cause := fmt.Errorf("%s: %w", strings.Join(missing, ", "), errors.Join(faults...))
	return true, outcome(ErrNotReady, status.Pod.String(), cause)
}

// WaitForUnmount returns nil once nothing of the pod's volumes is left on the
// node. What may be left counts: an uncertain volume is waited for, and so is a
// step that runs. The pod must have been removed from its source, which need not
// have told that yet; else the wait ends with ctx, or with Run. The error then
// wraps [ErrStillMounted] and ctx's cause or [ErrStopped].
func (m *Manager) WaitForUnmount(ctx context.Context, pod *v1.Pod) error {
	if pod == nil {
		return nil
	}
	return m.watchers.wait(ctx, &m.stopped, pod.UID, func(ended error) (done bool, err error) {
		if m.unmounted(pod.UID) {
			return true, nil
		}
		if ended == nil {
			return false, nil
		}
		return true, outcome(ErrStillMounted, podName(pod), m.stillMounted(pod.UID, ended))
	})
}

// unmounted reports whether nothing of the pod is there, nor will be.
func (m *Manager) unmounted(uid types.UID) bool {
	if !closed(m.loaded) { // it is not known yet what an earlier process left
		return false
	}
	// In this order: once the pod is gone from the desired state no step begins
	// that makes something of it.
	if state, known := m.desired.Pod(uid); known && len(state.Volumes) > 0 {
		return false
	}
	return !m.anythingOf(uid)
}

// stillMounted says what is left of a pod.
func (m *Manager) stillMounted(uid types.UID, ended error) error {
	var faults []error
	status, known := m.status(uid)
	switch {
	case !closed(m.loaded):
		faults = append(faults, errors.New("it is not known yet what an earlier process left"))
	case status.Known:
		faults = append(faults, errors.New("the pod source still has the pod"))
	case !known:
		faults = append(faults, errors.New("a step of it still runs"))
	}
	for _, v := range status.Volumes {
		what := string(v.Phase)
		if entry, ok := m.actual.PodVolume(v.Volume); ok {
			what = entry.State.String()
		}
		if fault := fmt.Errorf("%s (%s)", v.Name, what); v.Err != nil {
			faults = append(faults, fmt.Errorf("%w: %w", fault, v.Err))
		} else {
			faults = append(faults, fault)
		}
	}
	return errors.Join(append(faults, ended)...)
}

// WaitForAllPodsUnmount waits for all of the pods at once, and joins one error
// for each pod that still has volumes when ctx ends.
func (m *Manager) WaitForAllPodsUnmount(ctx context.Context, pods []*v1.Pod) error {
	faults := make([]error, len(pods))
	var wg sync.WaitGroup
	for i, pod := range pods {
		wg.Go(func() { faults[i] = m.WaitForUnmount(ctx, pod) })
	}
	wg.Wait()
	return errors.Join(faults...)
}

// watchers wakes those who wait for changes of a pod.
type watchers struct {
	mu   sync.Mutex
	pods map[types.UID]*watched // only where somebody waits
}

// watched is a pod that somebody waits for.
type watched struct {
	changed chan struct{} // closed and replaced at each change
	waiters int
}

// anyPod is the key of those who wait for a change of any pod. No pod has it:
// an empty UID is refused.
const anyPod = ""

// wait calls check until it says done: now, after each change of the pod, and
// once more with the cause when ctx ends, or with ErrStopped when Run has ended.
func (w *watchers) wait(
	ctx context.Context, stopped *end, uid types.UID, check func(ended error) (done bool, err error),
) error {
	w.enter(uid)
	defer w.leave(uid)
	for {
		changed := w.next(uid) // before the check, so that no change is missed
		if done, err := check(nil); done {
			return err
		}
		var ended error
		select {
		case <-changed:
			continue
		case <-ctx.Done():
			ended = context.Cause(ctx)
		case <-stopped.done:
			ended = stopped.err()
		}
		if done, err := check(ended); done {
			return err
		}
		return ended
	}
}

// end is the end of Run.
type end struct {
	done  chan struct{} // closed when Run has returned
	cause error         // what it returned; set before
}

// err is ErrStopped together with what Run returned.
func (e *end) err() error {
	if e.cause == nil {
		return ErrStopped
	}
	return fmt.Errorf("%w: %w", ErrStopped, e.cause)
}

func (w *watchers) enter(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods[uid] == nil {
		w.pods[uid] = &watched{changed: make(chan struct{})}
	}
	w.pods[uid].waiters++
}

func (w *watchers) leave(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods[uid].waiters--; w.pods[uid].waiters == 0 {
		delete(w.pods, uid)
	}
}

func (w *watchers) next(uid types.UID) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pods[uid].changed
}

func (w *watchers) notify(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods[uid].tell()
	if uid != anyPod {
		w.pods[anyPod].tell()
	}
}

func (w *watchers) notifyAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.pods {
		p.tell()
	}
}

func (p *watched) tell() {
	if p != nil {
		close(p.changed)
		p.changed = make(chan struct{})
	}
}
