package volumemanager

import (
	"context"
	"errors"
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
	if err := plugins.ValidatePod(pod); err != nil {
		pod = m.refuse(pod, err)
	} else {
		m.mu.Lock()
		delete(m.invalid, pod.UID)
		m.mu.Unlock()
	}
	if pod.UID == "" {
		return
	}
	m.apply(m.desired.SetPod(pod))
	if m.draining.Load() { // a drain has begun meanwhile, and may have missed it
		m.gone(pod.UID, m.desired.RemovePod(pod.UID))
	}
	m.watchers.notify(pod.UID)
}

// refusal is why a pod cannot be taken.
type refusal struct {
	pod plugins.PodRef
	err error
	// unseen is true if no version of it was ever taken.
	unseen bool
}

// refuse notes that a pod cannot be taken, tells it if that is news, and
// returns what is put in the pod's place. The pod exists, so that nothing of it
// may be taken away: the version that was taken before stays, or else a pod of
// which no volume can be resolved.
func (m *Manager) refuse(pod *v1.Pod, err error) *v1.Pod {
	ref := plugins.PodRef{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	state, known := m.desired.Pod(pod.UID)
	m.mu.Lock()
	before, again := m.invalid[pod.UID]
	if pod.UID != "" { // nothing can be kept under no name
		m.invalid[pod.UID] = refusal{pod: ref, err: err, unseen: !known || again && before.unseen}
	}
	m.mu.Unlock()
	if !again || before.err.Error() != err.Error() {
		m.host.Log.Error(err, "pod refused", "pod", ref.String())
		m.host.Event(pod, v1.EventTypeWarning, steps.ReasonMountFailed, err.Error())
	}
	if known {
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
	m.gone(uid, m.desired.RemovePod(uid))
}

// gone follows up on a pod that has left.
func (m *Manager) gone(uid types.UID, change dsw.Change) {
	m.mu.Lock()
	delete(m.invalid, uid)
	m.mu.Unlock()
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
	if m.draining.Load() {
		m.removeAll()
	}
	m.watchers.notifyAll()
}

// removeAll treats all pods as removed.
func (m *Manager) removeAll() {
	for _, uid := range m.desired.PodUIDs() {
		m.gone(uid, m.desired.RemovePod(uid))
	}
}

// apply resolves and plans what a change of the desired state asks for. What
// needs no API call is resolved on the spot, so that a dead API server holds
// up nothing but claims.
func (m *Manager) apply(change dsw.Change) {
	var later []plugins.VolumeID
	for _, u := range change.Resolve {
		pod := m.desired.PodObject(u.Pod)
		if pod == nil {
			continue
		}
		if m.resolver.Immediate(pod, u.Name) {
			m.resolve(context.Background(), u) //nolint:errcheck,forbidigo // kept in the desired state; nothing is waited for
			continue
		}
		m.unresolved.add(u)
		later = append(later, resolveID(u.Pod, u.Name))
	}
	ids := slices.Clip(change.Volumes)
	for _, uid := range change.Pods {
		ids = append(ids, m.actual.VolumesOf(uid)...)
	}
	m.reset(ids...)
	if change.All {
		m.reset(slices.Collect(m.actual.Volumes())...)
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
	resolution, err := m.lookUp(ctx, task.Pod, task.Name)
	if err != nil {
		err = fmt.Errorf("volume %s of pod %s/%s: %w", u.Name, task.Pod.Namespace, task.Pod.Name, err)
		if err.Error() != m.lastFailure(u) {
			m.host.Event(task.Pod, v1.EventTypeWarning, steps.ReasonMountFailed, err.Error())
		}
		m.unresolved.tried(u)
		m.apply(m.desired.SetFailed(task, err, resolution.SpecRefs))
	} else {
		m.unresolved.done(u)
		m.apply(m.desired.SetResolved(task, resolution))
	}
	m.watchers.notify(u.Pod)
	return err
}

// lookUp finds out what a pod's volume is, whatever its plugin does.
func (m *Manager) lookUp(ctx context.Context, pod *v1.Pod, name string) (dsw.Resolution, error) {
	var resolution dsw.Resolution
	err := m.contained("resolving", func() (err error) {
		resolution, err = m.resolver.Resolve(ctx, pod, name)
		return err
	})
	if errors.Is(err, errPanicked) {
		err = plugins.Permanent(err)
	}
	return resolution, err
}

// lastFailure is why the volume could not be resolved last time, if so.
func (m *Manager) lastFailure(u dsw.Unresolved) string {
	state, _ := m.desired.Pod(u.Pod)
	for _, v := range state.Volumes {
		if v.Name == u.Name && v.Err != nil {
			return v.Err.Error()
		}
	}
	return ""
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

// unresolved is what is still to be resolved with the help of the API. The
// value is true while a try is due whose outcome is not known yet.
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

// tried says that a try has failed. It will be repeated.
func (u *unresolved) tried(v dsw.Unresolved) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, ok := u.pods[v.Pod][v.Name]; ok {
		u.pods[v.Pod][v.Name] = false
	}
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

// has reports whether the volume is to be resolved, and whether the outcome of
// the next try is not known yet.
func (u *unresolved) has(v dsw.Unresolved) (due, again bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	again, due = u.pods[v.Pod][v.Name]
	return due, again
}

// resolveEngine implements [reconciler.Engine].
type resolveEngine Manager

// Plan implements [reconciler.Engine].
func (r *resolveEngine) Plan(id plugins.VolumeID) reconciler.Plan {
	u, ok := splitResolveID(id)
	if due, _ := r.unresolved.has(u); !ok || !due {
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
