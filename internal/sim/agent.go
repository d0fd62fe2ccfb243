// Package sim is a node in miniature for tests that need a real process to
// kill: an agent that embeds the library, is steered by files, and writes what
// it knows to a file. [Node] is the test's side of it.
//
// A package that uses it starts its TestMain with
//
//	if sim.IsAgent() { sim.RunAgent() }
package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/builtin"
	"github.com/volumekit/volumekit/plugins/memory"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/volumemanager"
)

// agentVariable names the node's folder to the agent.
const agentVariable = "VOLUMEKIT_SIM_NODE"

// poll is how often the agent looks at the files that steer it.
const poll = 10 * time.Millisecond

// IsAgent reports whether this process was started as an agent.
func IsAgent() bool { return os.Getenv(agentVariable) != "" }

// Settings are how an agent is started.
type Settings struct {
	// Root is the root folder of the volumes.
	Root string
	// Propagation of the root as in volumemanager.Config.
	Propagation volumemanager.Propagation
	// StepDeadline and LazyAfter are the reconciler's; zero means its defaults.
	StepDeadline, LazyAfter time.Duration
	// Unsynced is true for a pod source that never syncs.
	Unsynced bool
	// CSI is set for an agent that has the plugin for CSI drivers.
	CSI *CSI
	// Count makes the agent count the fail points that it passes.
	Count bool
}

// State is what an agent writes down.
type State struct {
	PID        int
	Error      string
	Snapshot   volumemanager.Snapshot
	Goroutines int
	// Changes are the content changes so far, "pod volume: files".
	Changes []string
	// Events are the reasons and messages of the events so far.
	Events []string
	// Passed counts the fail points that were passed, with [Settings.Count].
	Passed map[string]int
}

// agent is the child's side of a [Node].
type agent struct {
	dir      string
	settings Settings
	store    *memory.Store
	pods     *memory.Pods
	recorder *memory.Recorder
	manager  *volumemanager.Manager
	objects  map[string]apiruntime.Object

	mu      sync.Mutex
	changes []string
	err     error
	passed  map[string]int
	// armed is what the file "failpoint" held last, and left how often that
	// point may still be passed.
	armed string
	left  int
}

// RunAgent runs the agent until SIGTERM and ends the process.
func RunAgent() {
	a := &agent{dir: os.Getenv(agentVariable), objects: map[string]apiruntime.Object{}, passed: map[string]int{}}
	if err := a.run(); err != nil {
		fmt.Fprintln(os.Stderr, "sim agent:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (a *agent) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	text, err := os.ReadFile(filepath.Join(a.dir, "settings.json"))
	if err == nil {
		err = json.Unmarshal(text, &a.settings)
	}
	if err != nil {
		return err
	}
	if err := a.assemble(); err != nil {
		return err
	}
	a.read()
	ended := make(chan error, 1)
	go func() { ended <- a.manager.Run(ctx) }()
	if !a.settings.Unsynced {
		a.pods.MarkSynced()
	}
	for {
		select {
		case err := <-ended:
			a.mu.Lock()
			a.err = err
			a.mu.Unlock()
			a.write()
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		case <-time.After(poll):
			a.read()
			a.write()
		}
	}
}

func (a *agent) assemble() error {
	a.store, a.pods, a.recorder = memory.NewStore(), memory.NewPods(), memory.NewRecorder(1000)
	a.store.SetFault(a.fault)
	mounter := hostmount.New(hostmount.Options{Faults: a.failpoint})
	host := a.store.Host(plugins.Layout{Root: a.settings.Root}, mounter)
	host.NodeName, host.Events, host.Faults = "sim", a.recorder, a.failpoint
	if err := a.store.Apply(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "sim"}}); err != nil {
		return err
	}
	list := append(builtin.New(host, builtin.Options{}), &Disk{Host: host})
	if a.settings.CSI != nil {
		plugin, err := a.settings.CSI.plugin(host)
		if err != nil {
			return err
		}
		list = append(list, plugin)
	}
	registry, err := plugins.NewRegistry(list...)
	if err != nil {
		return err
	}
	steps := reconciler.Options{LazyAfter: a.settings.LazyAfter}
	if d := a.settings.StepDeadline; d > 0 {
		steps.Deadline = func(reconciler.Step) time.Duration { return d }
	}
	a.manager, err = volumemanager.New(volumemanager.Config{
		Host: host, Plugins: registry, Pods: a.pods, Root: a.settings.Propagation, Steps: steps,
		ContentChanged: func(c volumemanager.ContentChange) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.changes = append(a.changes, fmt.Sprintf("%s %s: %s", c.Pod.Name, strings.Join(c.Names, ","), strings.Join(c.Files, " ")))
		},
	})
	return err
}

// fault answers reads of the API as the file "fault-<kind>" says.
func (a *agent) fault(ctx context.Context, _ string, ref plugins.Ref) error {
	text, err := os.ReadFile(filepath.Join(a.dir, "fault-"+ref.Kind))
	if err != nil {
		return nil
	}
	switch string(text) {
	case "block":
		select {} // as if the server were gone and the client ignored its context
	case "wait":
		<-ctx.Done()
		return ctx.Err()
	case "notfound":
		return apierrors.NewNotFound(schema.GroupResource{Resource: ref.Kind}, ref.Name)
	}
	return errors.New("the API server is on fire")
}

// failpoint dies when the point that the file "failpoint" names is passed for
// the time that stands there too, and takes the file away before.
func (a *agent) failpoint(point string) error {
	name := filepath.Join(a.dir, "failpoint")
	text, err := os.ReadFile(name)
	if err != nil && !a.settings.Count {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.settings.Count {
		a.passed[point]++
	}
	if armed := string(text); armed != a.armed {
		a.armed, a.left = armed, 0
		var at string
		if _, err := fmt.Sscan(armed, &at, &a.left); err != nil {
			a.left = 0 // nothing is armed
		}
	}
	if a.left == 0 || !strings.HasPrefix(a.armed, point+" ") {
		return nil
	}
	if a.left--; a.left > 0 || os.Remove(name) != nil {
		return nil
	}
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	select {}
}

// read brings objects and pods to what the files say.
func (a *agent) read() {
	now := map[string]apiruntime.Object{}
	for kind, empty := range kinds() {
		names, _ := filepath.Glob(filepath.Join(a.dir, "objects", kind+"-*.json"))
		for _, name := range names {
			o := empty()
			if text, err := os.ReadFile(name); err == nil && json.Unmarshal(text, o) == nil {
				now[name] = o
			}
		}
	}
	for name, o := range now {
		if reflect.DeepEqual(a.objects[name], o) {
			continue
		}
		if pod, ok := o.(*v1.Pod); ok {
			if err := a.pods.Set(pod); err != nil {
				fmt.Fprintln(os.Stderr, "sim agent: pod:", err)
			}
		} else if err := a.store.Apply(o.DeepCopyObject()); err != nil {
			fmt.Fprintln(os.Stderr, "sim agent: apply:", err)
		}
	}
	for name, o := range a.objects {
		if now[name] != nil {
			continue
		}
		if pod, ok := o.(*v1.Pod); ok {
			a.pods.Remove(pod.UID)
		} else {
			_ = a.store.Delete(o)
		}
	}
	a.objects = now
}

func (a *agent) write() {
	s := State{PID: os.Getpid(), Snapshot: a.manager.Snapshot(), Goroutines: runtime.NumGoroutine()}
	a.mu.Lock()
	s.Changes = append(s.Changes, a.changes...)
	s.Passed = maps.Clone(a.passed)
	if a.err != nil {
		s.Error = a.err.Error()
	}
	a.mu.Unlock()
	for _, e := range a.recorder.List() {
		s.Events = append(s.Events, e.Reason+": "+e.Message)
	}
	text, err := json.Marshal(s)
	if err == nil {
		err = replace(filepath.Join(a.dir, "state.json"), text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim agent: state:", err)
	}
}

func kinds() map[string]func() apiruntime.Object {
	return map[string]func() apiruntime.Object{
		"pod":       func() apiruntime.Object { return &v1.Pod{} },
		"configmap": func() apiruntime.Object { return &v1.ConfigMap{} },
		"secret":    func() apiruntime.Object { return &v1.Secret{} },
		"pv":        func() apiruntime.Object { return &v1.PersistentVolume{} },
		"pvc":       func() apiruntime.Object { return &v1.PersistentVolumeClaim{} },
		"csidriver": func() apiruntime.Object { return &storagev1.CSIDriver{} },
		"va":        func() apiruntime.Object { return &storagev1.VolumeAttachment{} },
	}
}

// replace puts a file in place at once.
func replace(name string, text []byte) error {
	next := name + ".next"
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, name)
}
