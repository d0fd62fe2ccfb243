package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/volumemanager"
)

// Patience is how long [Node.Await] waits at most. It is no claim about speed:
// only a test that fails waits that long.
const Patience = 30 * time.Second

// Node is a node whose agent runs in a process of its own.
type Node struct {
	// Dir holds everything; Layout is the tree of the volumes within it.
	Dir      string
	Layout   plugins.Layout
	Settings Settings

	t       testing.TB
	child   *exec.Cmd
	ended   chan struct{} // closed when the child has ended
	mounter *hostmount.Mounter
}

// New returns a node without a running agent. When the test ends its agent is
// killed and its mounts go.
func New(t testing.TB) *Node {
	t.Helper()
	dir := nstest.Dir(t)
	n := &Node{
		t: t, Dir: dir, Layout: plugins.Layout{Root: filepath.Join(dir, "root")},
		mounter:  hostmount.New(hostmount.Options{}),
		Settings: Settings{Root: filepath.Join(dir, "root")},
	}
	n.must(os.MkdirAll(filepath.Join(dir, "objects"), 0o700))
	t.Cleanup(n.Kill)
	return n
}

func (n *Node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// Start starts the agent.
func (n *Node) Start() {
	n.t.Helper()
	text, err := json.Marshal(n.Settings)
	n.must(err)
	n.must(replace(filepath.Join(n.Dir, "settings.json"), text))
	_ = os.Remove(filepath.Join(n.Dir, "state.json"))
	n.child = exec.Command("/proc/self/exe")
	n.child.Env = append(os.Environ(), agentVariable+"="+n.Dir)
	n.child.Stdout, n.child.Stderr = os.Stderr, os.Stderr
	n.must(n.child.Start())
	n.ended = make(chan struct{})
	go func(child *exec.Cmd, ended chan<- struct{}) {
		defer close(ended)
		_ = child.Wait() // how it ends is what the test is about
	}(n.child, n.ended)
}

// Kill kills the agent without warning and waits for its end.
func (n *Node) Kill() { n.end(syscall.SIGKILL) }

// Stop ends the agent in good order. Mounts stay.
func (n *Node) Stop() { n.end(syscall.SIGTERM) }

func (n *Node) end(s syscall.Signal) {
	if n.child == nil {
		return
	}
	_ = n.child.Process.Signal(s)
	<-n.ended
	n.child = nil
}

// AwaitDeath waits until the agent has died by itself, at a fail point.
func (n *Node) AwaitDeath() {
	n.t.Helper()
	select {
	case <-n.ended:
		n.child = nil
	case <-time.After(Patience):
		n.t.Fatalf("the agent did not die; %s", n.describe())
	}
}

// Apply stores an object or a pod.
func (n *Node) Apply(objects ...apiruntime.Object) {
	n.t.Helper()
	for _, o := range objects {
		text, err := json.Marshal(o)
		n.must(err)
		n.must(replace(n.file(o), text))
	}
}

// Delete removes objects. For a pod it means that its containers have ended.
func (n *Node) Delete(objects ...apiruntime.Object) {
	n.t.Helper()
	for _, o := range objects {
		n.must(os.Remove(n.file(o)))
	}
}

func (n *Node) file(o apiruntime.Object) string {
	kind := map[string]string{"*v1.Pod": "pod", "*v1.ConfigMap": "configmap", "*v1.Secret": "secret",
		"*v1.PersistentVolume": "pv", "*v1.PersistentVolumeClaim": "pvc",
		"*v1.CSIDriver": "csidriver", "*v1.VolumeAttachment": "va"}[fmt.Sprintf("%T", o)]
	return filepath.Join(n.Dir, "objects", kind+"-"+o.(metav1.Object).GetName()+".json")
}

// Fault makes reads of a kind fail ("error"), hang ("block", "wait") or answer
// "notfound". An empty mode ends it.
func (n *Node) Fault(kind, mode string) {
	n.t.Helper()
	name := filepath.Join(n.Dir, "fault-"+kind)
	if mode == "" {
		if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
			n.must(err)
		}
		return
	}
	n.must(replace(name, []byte(mode)))
}

// FailAt makes the agent die at the next passing of a fail point.
func (n *Node) FailAt(point string) {
	n.t.Helper()
	n.FailAtPassing(point, 1)
}

// FailAtPassing makes the agent die when it passes a fail point for the k-th
// time, counted from now.
func (n *Node) FailAtPassing(point string, k int) {
	n.t.Helper()
	n.must(replace(filepath.Join(n.Dir, "failpoint"), fmt.Appendf(nil, "%s %d", point, k)))
}

// DiesBefore waits until the agent has died at its fail point, or the
// condition holds and no fail point is left to wait for. It reports whether
// the agent died; else the fail point is taken back.
func (n *Node) DiesBefore(what string, holds func(s State) bool) bool {
	n.t.Helper()
	died := false
	n.Await(what+", or the agent dies", func(s State) bool {
		select {
		case <-n.ended:
			n.child, died = nil, true
		default:
		}
		return died || holds(s)
	})
	if died || os.Remove(filepath.Join(n.Dir, "failpoint")) == nil {
		return died
	}
	n.AwaitDeath() // it is about to: it has taken the file away
	return true
}

// State is what the agent wrote last, the zero value if nothing yet.
func (n *Node) State() State {
	var s State
	if text, err := os.ReadFile(filepath.Join(n.Dir, "state.json")); err == nil {
		n.must(json.Unmarshal(text, &s))
	}
	return s
}

// Await waits until the condition holds, and fails the test if it does not in
// time.
func (n *Node) Await(what string, holds func(s State) bool) State {
	n.t.Helper()
	return n.AwaitWithin(Patience, what, holds)
}

// AwaitWithin is Await with a deadline.
func (n *Node) AwaitWithin(limit time.Duration, what string, holds func(s State) bool) State {
	n.t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(poll / 2)
	defer tick.Stop()
	for {
		if s := n.State(); holds(s) {
			return s
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			n.t.Fatalf("after %v not: %s; %s", limit, what, n.describe())
		}
	}
}

func (n *Node) describe() string {
	text, _ := json.MarshalIndent(n.State(), "", " ")
	return "state: " + string(text)
}

// AwaitReady waits until all volumes of the pods are ready.
func (n *Node) AwaitReady(pods ...*v1.Pod) State {
	n.t.Helper()
	return n.Await("pods are ready", func(s State) bool {
		for _, pod := range pods {
			if !s.Ready(pod) {
				return false
			}
		}
		return true
	})
}

// AwaitGone waits until nothing of the pods is left, their folders included.
func (n *Node) AwaitGone(pods ...*v1.Pod) State {
	n.t.Helper()
	return n.Await("pods are gone", func(s State) bool {
		for _, pod := range pods {
			_, known := s.Pod(pod.UID)
			if _, err := os.Lstat(n.Layout.PodDir(pod.UID)); known || !errors.Is(err, fs.ErrNotExist) {
				return false
			}
		}
		return s.PID != 0
	})
}

// AwaitSteady waits until nothing is due or under way any more.
func (n *Node) AwaitSteady() State {
	n.t.Helper()
	return n.Await("steady", State.Steady)
}

// Steady reports whether nothing is due or under way any more.
func (s State) Steady() bool {
	if !s.Snapshot.Ready {
		return false
	}
	for _, v := range s.Snapshot.Volumes {
		if len(v.Plan.Steps) > 0 || len(v.Steps) > 0 {
			return false
		}
		for _, p := range v.Pods {
			if p.Found {
				return false
			}
		}
	}
	return true
}

// Ready reports whether all volumes of a pod are ready.
func (s State) Ready(pod *v1.Pod) bool {
	status, ok := s.Pod(pod.UID)
	return ok && status.Ready
}

// Pod finds the status of a pod.
func (s State) Pod(uid types.UID) (volumemanager.PodStatus, bool) {
	for _, p := range s.Snapshot.Pods {
		if p.Pod.UID == uid {
			return p, true
		}
	}
	return volumemanager.PodStatus{}, false
}

// Volume finds the status of a pod's volume.
func (s State) Volume(pod *v1.Pod, name string) volumemanager.VolumeStatus {
	status, _ := s.Pod(pod.UID)
	for _, v := range status.Volumes {
		if v.Name == name {
			return v
		}
	}
	return volumemanager.VolumeStatus{}
}

// Mounts returns the mounts below the root: their ids by target. Mounts that
// are stacked on one target fail the test.
func (n *Node) Mounts() map[string]uint64 {
	n.t.Helper()
	root, err := filepath.EvalSymlinks(n.Layout.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]uint64{}
	}
	n.must(err)
	text, err := os.ReadFile("/proc/self/mountinfo")
	n.must(err)
	mounts := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 4 && mount.Inside(root, f[4]) && f[4] != root {
			var id uint64
			_, err := fmt.Sscan(f[0], &id)
			n.must(err)
			if mounts[f[4]] != 0 {
				n.t.Errorf("mounts are stacked on %s", f[4])
			}
			mounts[f[4]] = id
		}
	}
	return mounts
}

// AwaitClean waits until nothing of any volume is left, and fails the test
// if something is: a mount, a folder of a pod, a record.
func (n *Node) AwaitClean() {
	n.t.Helper()
	n.Await("no volume and no pod is known", func(s State) bool {
		return s.Snapshot.Ready && len(s.Snapshot.Volumes) == 0 && len(s.Snapshot.Pods) == 0
	})
	if left := n.Mounts(); len(left) > 0 {
		n.t.Errorf("mounts are left: %v", left)
	}
	for _, dir := range []string{
		n.Layout.PodsDir(), DevicesDir(n.Layout), filepath.Join(n.Layout.PluginDir(DiskName), "mounts"),
	} {
		left, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			n.t.Fatal(err)
		}
		if len(left) > 0 {
			n.t.Errorf("left in %s: %v", dir, left)
		}
	}
	records, err := journal.Read(n.Layout.StateDir())
	n.must(err)
	if len(records.Records)+len(records.Damaged) > 0 {
		n.t.Errorf("the journal holds %+v, damaged: %+v", records.Records, records.Damaged)
	}
}

// Path is where a pod finds a volume.
func (n *Node) Path(pod *v1.Pod, plugin, name string, below ...string) string {
	path := n.Layout.PodVolume(plugins.PodVolume{Pod: pod.UID, Plugin: plugin, Name: name})
	return filepath.Join(append([]string{path}, below...)...)
}

// Pod builds a pod whose one container uses all of the volumes.
func Pod(name string, volumes ...v1.Volume) *v1.Pod {
	c := v1.Container{Name: "main", Image: "none"}
	for _, v := range volumes {
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": name}},
		Spec:       v1.PodSpec{ServiceAccountName: "default", Containers: []v1.Container{c}, Volumes: volumes},
	}
}

// Volume builds a volume.
func Volume(name string, source v1.VolumeSource) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: source}
}

// ClaimedDisk builds a persistent volume of [Disk] over a folder, and a claim
// that is bound to it.
func ClaimedDisk(name, folder string) (*v1.PersistentVolume, *v1.PersistentVolumeClaim) {
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("claim-" + name)},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name, AccessModes: modes},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: size},
	}
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
		Spec: v1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes,
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: folder}},
			ClaimRef:               &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: name, UID: claim.UID},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}
	return pv, claim
}

// Claim is a volume source by claim.
func Claim(name string) v1.VolumeSource {
	return v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}
