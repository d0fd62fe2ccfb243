package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/volumemanager"
)

const (
	// idle is how long nothing may move before pods that wait are no longer
	// waited for: nothing but an edit can help them.
	idle = 500 * time.Millisecond
	// glance is how often progress is looked at.
	glance = 50 * time.Millisecond
)

// settle waits until every pod is ready or cannot become so now, with
// progress, and says how long it took. ok is false if a pod is not ready for
// another reason than that this node cannot provide its volumes.
func (a *agent) settle(ctx context.Context) (ok bool) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	began := time.Now()
	list := a.folder.pods()
	faults := make([]error, len(list))
	var waits, watching sync.WaitGroup
	for i, pod := range list {
		waits.Go(func() { faults[i] = a.manager.WaitForAttachAndMount(ctx, pod) })
	}
	watching.Go(func() { a.progress(ctx, cancel, list) })
	waits.Wait()
	took := time.Since(began)
	cancel()
	watching.Wait()
	a.out.clear()

	ready, skipped := 0, 0
	for i, pod := range list {
		switch status, _ := a.manager.Status(pod); {
		case faults[i] == nil:
			ready++
			a.shown.Store(pod.UID, true)
		case onlyUnsupported(status):
			skipped++
			a.shown.Store(pod.UID, true)
		}
	}
	text := fmt.Sprintf("%d of %d pods are ready after %v", ready, len(list), round(took))
	if skipped > 0 {
		text += fmt.Sprintf("; %d skipped: this node or user cannot mount all of their volumes", skipped)
	}
	a.out.line("%s", wrap(text, a.out.width(), 0))
	return ready+skipped == len(list)
}

// progress shows how far the pods are until ctx ends. It calls enough when
// those that are left do nothing but wait.
func (a *agent) progress(ctx context.Context, enough func(), pods []*v1.Pod) {
	ticker := time.NewTicker(glance)
	defer ticker.Stop()
	moved := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		ready, moving := 0, false
		var missing []string
		for _, pod := range pods {
			status, _ := a.manager.Status(pod)
			if status.Ready {
				ready++
				continue
			}
			moving = moving || !a.held(status)
			for _, v := range status.Volumes {
				if !v.Ready {
					missing = append(missing, fmt.Sprintf("%s/%s %s", pod.Name, v.Name, v.Phase))
				}
			}
		}
		if moving {
			moved = time.Now()
		} else if time.Since(moved) > idle {
			enough()
		}
		text := fmt.Sprintf("%d/%d pods ready", ready, len(pods))
		if len(missing) > 0 {
			text += "; " + strings.Join(missing, ", ")
		}
		a.out.progress(text)
	}
}

// held reports whether nothing is being done for the pod until something else
// changes or, for a program that stays, until the next try.
func (a *agent) held(status volumemanager.PodStatus) bool {
	if status.Err != nil {
		return true
	}
	for _, v := range status.Volumes {
		switch {
		case v.Ready:
		case v.Running:
			return false
		case v.Code == volumemanager.CodeBlocked:
		case v.Class == plugins.ClassWaiting || v.Class == plugins.ClassPermanent || v.Class == plugins.ClassUnsupported:
		case v.Err == nil || a.once:
			return false
		}
	}
	return len(status.Volumes) > 0
}

// follow keeps up with the folder until ctx ends.
func (a *agent) follow(ctx context.Context) {
	if !a.restarted {
		a.out.line("")
		a.out.line("Edit, add or delete files in %s", a.folder.dir)
		a.out.line("`kill -9 %d` kills the agent; Ctrl-C takes everything away and ends.", os.Getpid())
	}
	f := &follower{agent: a, reports: map[types.UID]context.CancelFunc{}}
	defer f.all.Wait()
	for _, pod := range a.folder.pods() {
		if status, _ := a.manager.Status(pod); !status.Ready && !onlyUnsupported(status) {
			f.report(ctx, change{name: "pod " + pod.Namespace + "/" + pod.Name, now: pod})
		}
	}
	err := watch(ctx, a.folder.dir, a.out, func(since time.Time) {
		a.folder.noticed(since)
		for _, c := range a.folder.read() {
			f.report(ctx, c)
		}
		if a.folder.good() {
			a.pods.MarkSynced()
		}
	})
	if err != nil {
		a.out.fault("the folder cannot be watched: %v", err)
		<-ctx.Done()
	}
}

// follower reports how the pods fare that came, changed or went.
type follower struct {
	*agent
	all     sync.WaitGroup
	reports map[types.UID]context.CancelFunc // under way or done
}

// report tells of a change, and goes on to watch what comes of it.
func (f *follower) report(ctx context.Context, c change) {
	switch {
	case c.was == nil && c.now == nil:
		f.out.event("%s %s", c.name, c.how)
		return
	case c.was != nil && c.now != nil && c.was.UID == c.now.UID:
		f.out.event("%s has changed; its volumes stay", c.name)
		return
	}
	if c.was != nil {
		if cancel := f.reports[c.was.UID]; cancel != nil {
			cancel()
			delete(f.reports, c.was.UID)
		}
		f.all.Go(func() { f.gone(ctx, c) })
	}
	if c.now != nil {
		own, cancel := context.WithCancel(ctx)
		f.reports[c.now.UID] = cancel
		f.all.Go(func() {
			defer cancel()
			f.came(own, c)
		})
	}
}

// came waits for a new pod. One that is not ready soon is shown as it is, and
// again when it is ready.
func (f *follower) came(ctx context.Context, c change) {
	soon, cancel := context.WithTimeout(ctx, idle)
	defer cancel()
	err := f.manager.WaitForAttachAndMount(soon, c.now)
	for ctx.Err() == nil {
		status, _ := f.manager.Status(c.now)
		if err == nil {
			f.shown.Store(c.now.UID, true)
			f.out.event("%s is ready%s", c.name, f.folder.sinceEdit())
		} else {
			f.out.event("%s is not ready", c.name)
		}
		f.tree(c.now)
		if err == nil || onlyUnsupported(status) {
			return
		}
		// Retries are the manager's; what failed for good may still be cured by
		// an edit of what it refers to.
		for err != nil && ctx.Err() == nil {
			if err = f.manager.WaitForAttachAndMount(ctx, c.now); err != nil {
				wait(ctx, idle)
			}
		}
	}
}

func (f *follower) gone(ctx context.Context, c change) {
	which := c.name
	if c.now != nil {
		which += " as it was before"
	}
	limit, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	switch err := f.manager.WaitForUnmount(limit, c.was); {
	case err == nil:
		f.out.event("%s is gone, and so are its volumes%s", which, f.folder.sinceEdit())
	case ctx.Err() == nil:
		f.out.event("%s: %v", which, err)
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// onlyUnsupported reports whether nothing but what this user or kernel cannot
// mount keeps the pod from being ready.
func onlyUnsupported(status volumemanager.PodStatus) bool {
	missing := 0
	for _, v := range status.Volumes {
		if v.Ready {
			continue
		}
		if v.Class != plugins.ClassUnsupported {
			return false
		}
		missing++
	}
	return missing > 0
}
