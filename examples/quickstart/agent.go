package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/builtin"
	"github.com/volumekit/volumekit/plugins/memory"
	"github.com/volumekit/volumekit/volumemanager"
)

// agent is a node agent in miniature: files are its API server, and no
// container ever runs.
type agent struct {
	options
	out     *console
	mounter *hostmount.Mounter
	store   *memory.Store
	pods    *memory.Pods
	manager *volumemanager.Manager

	mu      sync.Mutex
	objects map[string]object // what the folder held when it was read last
	faults  []error           // what could not be read then
	told    map[string]bool   // faults that were shown
}

// run shows the volumes until ctx ends, or once. ok is false if a pod's
// volumes did not become ready, a manifest was bad, or something was left.
func run(ctx context.Context, o options) (ok bool, err error) {
	a := &agent{
		options: o, out: newConsole(os.Stdout), mounter: hostmount.New(hostmount.Options{}),
		store: memory.NewStore(), pods: memory.NewPods(),
		objects: map[string]object{}, told: map[string]bool{},
	}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "quickstart"}}
	if err := a.store.Apply(node); err != nil {
		return false, err
	}
	host := a.store.Host(plugins.Layout{Root: o.root}, a.mounter)
	host.NodeName = "quickstart"
	registry, err := builtin.Registry(host, builtin.Options{})
	if err != nil {
		return false, err
	}
	a.manager, err = volumemanager.New(volumemanager.Config{
		Host: host, Plugins: registry, Pods: a.pods, Root: volumemanager.MakeShared,
		ContentChanged: a.contentChanged,
	})
	if err != nil {
		return false, err
	}

	// The manager outlives ctx: it still has to take everything away.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	ended := make(chan error, 1)
	go func() { ended <- a.manager.Run(life) }()

	a.read()
	a.pods.MarkSynced()
	select {
	case <-a.manager.Ready():
	case err := <-ended:
		return false, err
	}
	ok = a.show(ctx)
	if !a.once {
		a.follow(ctx)
	}
	drained, err := a.drain(life)
	end()
	if stopped := <-ended; stopped != nil && !errors.Is(stopped, context.Canceled) {
		err = errors.Join(err, stopped)
	}
	return ok && drained, err
}

// read brings the store and the pods to what the folder says now.
func (a *agent) read() {
	objects, faults := readFolder(a.manifests)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults = faults
	for _, fault := range faults {
		if !a.told[fault.Error()] {
			a.told[fault.Error()] = true
			a.out.line("bad manifest: %v", fault)
		}
	}
	now := map[string]object{}
	for _, o := range objects {
		now[o.key()] = o
	}
	if len(faults) > 0 { // a file that cannot be read for now takes nothing away
		for key, o := range a.objects {
			if _, still := now[key]; !still {
				now[key] = o
			}
		}
	}
	for key, o := range now {
		if reflect.DeepEqual(a.objects[key].Object, o.Object) {
			continue
		}
		if pod, isPod := o.Object.(*v1.Pod); isPod {
			a.pods.Set(pod)
		} else if err := a.store.Apply(o.Object); err != nil {
			a.out.line("%s: %v", o.from, err)
		}
	}
	for key, o := range a.objects {
		if _, still := now[key]; still {
			continue
		}
		if pod, isPod := o.Object.(*v1.Pod); isPod {
			a.pods.Remove(pod.UID)
		} else if err := a.store.Delete(o.Object); err != nil {
			a.out.line("%s: %v", o.from, err)
		}
	}
	a.objects = now
}

func (a *agent) podList() []*v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []*v1.Pod
	for _, o := range a.objects {
		if pod, ok := o.Object.(*v1.Pod); ok {
			list = append(list, pod)
		}
	}
	sortPods(list)
	return list
}

// show waits until every pod is ready or cannot become so, with progress, and
// prints what each pod sees.
func (a *agent) show(ctx context.Context) (ok bool) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	began := time.Now()
	list := a.podList()
	var wg sync.WaitGroup
	faults := make([]error, len(list))
	done := make(chan struct{})
	go func() { // progress, until the waits have ended
		defer close(done)
		a.progress(ctx, list)
	}()
	for i, pod := range list {
		wg.Go(func() { faults[i] = a.manager.WaitForAttachAndMount(ctx, pod) })
	}
	wg.Wait()
	cancel()
	<-done
	a.out.clear()
	ok = true
	ready := 0
	for i, pod := range list {
		switch status, _ := a.manager.Status(pod); {
		case faults[i] == nil:
			ready++
		case onlyUnsupported(status):
		default:
			ok = false
		}
	}
	a.mu.Lock()
	ok = ok && len(a.faults) == 0
	a.mu.Unlock()
	if a.json {
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(a.manager.Snapshot())
		return ok
	}
	a.out.line("%d of %d pods are ready after %v", ready, len(list), time.Since(began).Round(100*time.Microsecond))
	for _, pod := range list {
		a.tree(pod)
	}
	return ok
}

// follow keeps up with the folder until ctx ends.
func (a *agent) follow(ctx context.Context) {
	a.out.line("")
	a.out.line("agent pid %d; manifests: %s; volumes: %s", os.Getpid(), a.manifests, a.root)
	a.out.line("Edit, add or delete files there; `kill -9 %d`; Ctrl-C ends.", os.Getpid())
	err := watch(ctx, a.manifests, func() {
		before := a.podList()
		a.read()
		a.report(ctx, before, a.podList())
	})
	if err != nil {
		a.out.line("the folder can no longer be watched: %v", err)
		<-ctx.Done()
	}
}

// report tells how the pods that came, changed or went fare.
func (a *agent) report(ctx context.Context, before, after []*v1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	was := map[string]*v1.Pod{}
	for _, pod := range before {
		was[string(pod.UID)] = pod
	}
	for _, pod := range after {
		old := was[string(pod.UID)]
		delete(was, string(pod.UID))
		if old == pod {
			continue
		}
		began := time.Now()
		err := a.manager.WaitForAttachAndMount(ctx, pod)
		a.out.line("pod %s/%s: looked at after %v", pod.Namespace, pod.Name, time.Since(began).Round(100*time.Microsecond))
		if err != nil {
			a.out.line("  %v", err)
		}
		if old == nil {
			a.tree(pod)
		}
	}
	for _, pod := range was {
		if err := a.manager.WaitForUnmount(ctx, pod); err != nil {
			a.out.line("pod %s/%s: %v", pod.Namespace, pod.Name, err)
			continue
		}
		a.out.line("pod %s/%s is gone, and so are its volumes", pod.Namespace, pod.Name)
	}
}

func (a *agent) contentChanged(c volumemanager.ContentChange) {
	a.mu.Lock()
	quiet := a.once
	a.mu.Unlock()
	if !quiet {
		a.out.line("pod %s: volume %v changed: %v", c.Pod, c.Names, c.Files)
	}
}

// drain takes everything away and proves that nothing is left.
func (a *agent) drain(ctx context.Context) (ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	report, err := a.manager.Drain(ctx)
	for _, pod := range report.Pods {
		for _, v := range pod.Volumes {
			a.out.line("left: pod %s volume %s: %s %s", pod.Pod, v.Name, v.Code, v.Message)
		}
	}
	if err != nil {
		return false, err
	}
	table, err := a.mounter.Table(ctx)
	if err != nil {
		return false, err
	}
	root, err := filepath.EvalSymlinks(a.root)
	if err != nil {
		return false, err
	}
	mounts := len(table.Below(root))
	pods, err := os.ReadDir(filepath.Join(root, "pods"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	a.out.line("")
	a.out.line("drained: %d mounts and %d pod folders are left under %s", mounts, len(pods), root)
	if mounts > 0 || len(pods) > 0 {
		return false, fmt.Errorf("%d mounts and %d pod folders are left", mounts, len(pods))
	}
	return true, nil
}
