package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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

// WaitForAttachAndMount returns nil once every volume that the pod's containers
// use is ready. It returns early, with an error that wraps [ErrNotReady], when
// a volume has failed in a way that trying again will not cure, and with
// [ErrPodRemoved] when the pod is removed meanwhile. When ctx ends first, the
// error wraps ErrNotReady, ctx's cause, and what each missing volume suffers
// from. A pod that the source has not told yet is waited for. Any number of
// callers may wait for one pod; none takes anything from another.
func (m *Manager) WaitForAttachAndMount(ctx context.Context, pod *v1.Pod) error {
	if pod == nil {
		return nil
	}
	seen := false
	return m.watchers.wait(ctx, pod.UID, func(ended error) (done bool, err error) {
		status, known := m.status(pod.UID)
		if !known {
			if seen {
				return true, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, ErrPodRemoved)
			}
			if ended != nil {
				return true, fmt.Errorf("%w: the pod source has not told pod %s/%s: %w", ErrNotReady, pod.Namespace, pod.Name, ended)
			}
			return false, nil
		}
		seen = true
		return notReady(status, ended)
	})
}

// notReady turns a pod's status into the outcome of a wait.
func notReady(status PodStatus, ended error) (done bool, err error) {
	if status.Err != nil {
		return true, fmt.Errorf("pod %s: %w: %w", status.Pod, ErrNotReady, status.Err)
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
			faults = append(faults, fmt.Errorf("volume %s: %s", v.Name, v.Message))
		}
		hopeless = hopeless || v.Class == plugins.ClassPermanent || v.Class == plugins.ClassUnsupported
	}
	switch {
	case len(missing) == 0:
		return true, nil
	case ended != nil:
		faults = append(faults, ended)
	case !hopeless:
		return false, nil
	}
	return true, fmt.Errorf("pod %s: %w: %s: %w", status.Pod, ErrNotReady, strings.Join(missing, ", "), errors.Join(faults...))
}

// WaitForUnmount returns nil once nothing of the pod's volumes is left on the
// node. What may be left counts: an uncertain volume is waited for. The pod
// must have been removed from its source, or the wait ends with ctx only.
func (m *Manager) WaitForUnmount(ctx context.Context, pod *v1.Pod) error {
	if pod == nil {
		return nil
	}
	return m.watchers.wait(ctx, pod.UID, func(ended error) (done bool, err error) {
		left := m.actual.Pod(pod.UID)
		if len(left) == 0 {
			return true, nil
		}
		if ended == nil {
			return false, nil
		}
		status, _ := m.status(pod.UID)
		faults := make([]error, 0, len(left))
		for _, v := range status.Volumes {
			if v.Err != nil {
				faults = append(faults, v.Err)
			}
		}
		names := make([]string, len(left))
		for i, entry := range left {
			names[i] = entry.Volume.Name + " (" + entry.State.String() + ")"
		}
		return true, fmt.Errorf("pod %s/%s: %w: %s: %w", pod.Namespace, pod.Name, ErrStillMounted,
			strings.Join(names, ", "), errors.Join(append(faults, ended)...))
	})
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
	pods map[types.UID]chan struct{} // closed at the next change; only where somebody waits
}

// wait calls check until it says done: now, after each change of the pod, and
// once more with ctx's cause when ctx ends.
func (w *watchers) wait(ctx context.Context, uid types.UID, check func(ended error) (done bool, err error)) error {
	for {
		changed := w.next(uid) // before the check, so that no change is missed
		if done, err := check(nil); done {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if done, err := check(context.Cause(ctx)); done {
				return err
			}
			return context.Cause(ctx)
		}
	}
}

func (w *watchers) next(uid types.UID) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pods[uid] == nil {
		w.pods[uid] = make(chan struct{})
	}
	return w.pods[uid]
}

func (w *watchers) notify(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range []types.UID{uid, anyPod} {
		if c := w.pods[key]; c != nil {
			close(c)
			delete(w.pods, key)
		}
	}
}

func (w *watchers) notifyAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid, c := range w.pods {
		close(c)
		delete(w.pods, uid)
	}
}
