package volumemanager

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/reconciler/steps"
)

// watchPods listens to the pod source until ctx ends.
func (m *Manager) watchPods(ctx context.Context) error {
	return m.keepRunning(ctx, "pods", func(ctx context.Context) error {
		m.desired.BeginList()
		return m.config.Pods.WatchPods(ctx, (*podSink)(m))
	})
}

// podSink is the manager as its pod source sees it.
type podSink Manager

// SetPod implements [plugins.PodSink].
func (s *podSink) SetPod(pod *v1.Pod) {
	m := (*Manager)(s)
	if m.draining.Load() || pod == nil {
		return
	}
	pod = plugins.DefaultPod(pod)
	err := plugins.ValidatePod(pod)
	m.mu.Lock()
	if err != nil {
		m.invalid[pod.UID] = err
	} else {
		delete(m.invalid, pod.UID)
	}
	m.mu.Unlock()
	if err != nil {
		m.host.Log.Error(err, "pod refused", "pod", pod.Namespace+"/"+pod.Name)
		m.host.Event(pod, v1.EventTypeWarning, steps.ReasonMountFailed, err.Error())
		pod = m.refused(pod)
	}
	if pod.UID != "" {
		m.apply(m.desired.SetPod(pod))
	}
	m.watchers.notify(pod.UID)
}

// refused is what is put in the place of a pod that cannot be taken. The pod
// exists, so that nothing of it may be taken away: the version that was taken
// before stays, or else a pod of which no volume can be resolved.
func (m *Manager) refused(pod *v1.Pod) *v1.Pod {
	if state, known := m.desired.Pod(pod.UID); known {
		return state.Pod
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Spec:       v1.PodSpec{Containers: []v1.Container{{VolumeMounts: []v1.VolumeMount{{Name: "refused"}}}}},
	}
}

// RemovePod implements [plugins.PodSink].
func (s *podSink) RemovePod(uid types.UID) {
	m := (*Manager)(s)
	m.mu.Lock()
	delete(m.invalid, uid)
	m.mu.Unlock()
	m.gone(uid, m.desired.RemovePod(uid))
}

// gone follows up on a pod that has left.
func (m *Manager) gone(uid types.UID, change dsw.Change) {
	m.steps.Forget(uid)
	m.unresolved.forget(uid)
	m.apply(change)
	m.steps.RemovePodFolder(uid)
	m.watchers.notify(uid)
}

// Synced implements [plugins.PodSink].
func (s *podSink) Synced() {
	m := (*Manager)(s)
	change := m.desired.EndList()
	m.apply(change)
	for _, uid := range change.Pods {
		if _, known := m.desired.Pod(uid); !known {
			m.gone(uid, dsw.Change{})
		}
	}
	m.synced()
	m.watchers.notifyAll()
}

// apply resolves and plans what a change of the desired state asks for. What
// needs no API call is resolved on the spot, so that a dead API server holds
// up nothing but claims.
func (m *Manager) apply(change dsw.Change) {
	var later []plugins.VolumeID
	for _, u := range change.Resolve {
		state, _ := m.desired.Pod(u.Pod)
		if state.Pod == nil {
			continue
		}
		if m.resolver.Immediate(state.Pod, u.Name) {
			m.resolve(context.Background(), u) //nolint:errcheck,forbidigo // kept in the desired state; nothing is waited for
			continue
		}
		m.unresolved.add(u)
		later = append(later, resolveID(u.Pod, u.Name))
	}
	ids := change.Volumes
	for _, uid := range change.Pods {
		for _, entry := range m.actual.Pod(uid) {
			ids = append(ids, entry.ID)
		}
	}
	if len(ids) > 0 {
		m.volumes.Reset(ids...)
	}
	if change.All {
		m.volumes.Reset(slices.Collect(m.actual.Volumes())...)
	}
	if len(later) > 0 {
		m.resolving.Reset(later...)
	}
}

// resolve finds out what a pod's volume is, and enters the outcome.
func (m *Manager) resolve(ctx context.Context, u dsw.Unresolved) error {
	task, needed := m.desired.Begin(u)
	if !needed {
		m.unresolved.done(u)
		return nil
	}
	resolution, err := m.resolver.Resolve(ctx, task.Pod, task.Name)
	if err != nil {
		err = fmt.Errorf("volume %s of pod %s/%s: %w", u.Name, task.Pod.Namespace, task.Pod.Name, err)
		m.apply(m.desired.SetFailed(task, err, resolution.SpecRefs))
	} else {
		m.unresolved.done(u)
		m.apply(m.desired.SetResolved(task, resolution))
	}
	m.watchers.notify(u.Pod)
	return err
}

// Resolving a volume is a step like any other: it may hang, fail, wait, and
// needs limits, a deadline and backoff. So a second default reconciler drives
// it, whose volumes are the pods' volumes that are to be resolved.

// resolveStep is the kind of that step.
const resolveStep reconciler.Kind = "resolve"

// resolveLane stands where a plugin's name stands in the id of a volume.
const resolveLane = "volumekit/resolve"

func resolveID(uid types.UID, name string) plugins.VolumeID {
	return plugins.VolumeID(resolveLane + "/" + string(uid) + "/" + name)
}

func splitResolveID(id plugins.VolumeID) (dsw.Unresolved, bool) {
	rest, ok := strings.CutPrefix(string(id), resolveLane+"/")
	if !ok {
		return dsw.Unresolved{}, false
	}
	uid, name, ok := strings.Cut(rest, "/")
	return dsw.Unresolved{Pod: types.UID(uid), Name: name}, ok
}

// unresolved is what is still to be resolved with the help of the API.
type unresolved struct {
	mu   sync.Mutex
	pods map[types.UID]map[string]bool
}

func (u *unresolved) add(v dsw.Unresolved) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pods[v.Pod] == nil {
		u.pods[v.Pod] = map[string]bool{}
	}
	u.pods[v.Pod][v.Name] = true
}

func (u *unresolved) done(v dsw.Unresolved) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if delete(u.pods[v.Pod], v.Name); len(u.pods[v.Pod]) == 0 {
		delete(u.pods, v.Pod)
	}
}

func (u *unresolved) forget(uid types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.pods, uid)
}

func (u *unresolved) has(v dsw.Unresolved) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.pods[v.Pod][v.Name]
}

// resolveEngine implements [reconciler.Engine].
type resolveEngine Manager

// Plan implements [reconciler.Engine].
func (r *resolveEngine) Plan(id plugins.VolumeID) reconciler.Plan {
	u, ok := splitResolveID(id)
	if !ok || !r.unresolved.has(u) {
		return reconciler.Plan{}
	}
	key := reconciler.Key{Kind: resolveStep, ID: id}
	return reconciler.Plan{Steps: []reconciler.Step{{Key: key, Reason: "its claim is to be looked up"}}}
}

// Do implements [reconciler.Engine].
func (r *resolveEngine) Do(ctx context.Context, step reconciler.Step) error {
	u, _ := splitResolveID(step.ID)
	return (*Manager)(r).resolve(ctx, u)
}

// Parallel implements [reconciler.Engine].
func (r *resolveEngine) Parallel(plugins.VolumeID) bool { return false }

// Volumes implements [reconciler.Engine]. The safety pass has nothing to find
// here that the pass over volumes and the notices do not.
func (r *resolveEngine) Volumes() iter.Seq[plugins.VolumeID] {
	return func(func(plugins.VolumeID) bool) {}
}
