package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
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

// settings are the options of an agent.
type settings struct {
	options
	restarted bool   // the agent before this one was killed
	unread    func() // called when nobody reads the output any more
}

// agent is a node agent in miniature: files are its API server, and no
// container ever runs.
type agent struct {
	settings
	out     *console
	mounter *hostmount.Mounter
	layout  plugins.Layout
	folder  *folder
	pods    *memory.Pods
	manager *volumemanager.Manager
	shown   sync.Map // the UIDs of pods whose volumes have been shown
}

// run shows the volumes until asked ends, or once, and takes them away. ok is
// false if something was left or, with -once, a pod's volumes did not become
// ready or a manifest was bad.
func run(asked, insisted context.Context, s settings) (ok bool, err error) {
	a := &agent{
		settings: s,
		out:      newConsole(s.json, s.unread),
		mounter:  hostmount.New(hostmount.Options{}),
		layout:   plugins.Layout{Root: s.root},
	}

	// What the API server is to a kubelet, the store is here: it holds
	// everything that volumes refer to, and tells when it changes.
	store := memory.New(memory.Config{NodeName: "quickstart"})
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "quickstart"}}
	if err := store.Apply(node); err != nil {
		return false, err
	}
	a.pods = store.Pods()
	a.folder = newFolder(s.manifests, store, a.out)

	// The host is all that volumes need from the program that embeds them; the
	// registry says which kinds of volumes there are.
	host := store.Host(a.layout, a.mounter)
	host.NodeName = "quickstart"
	registry, err := builtin.Registry(host, builtin.Options{})
	if err != nil {
		return false, err
	}
	a.manager, err = volumemanager.New(volumemanager.Config{
		Host: host, Plugins: registry, Pods: a.pods,
		Root:           volumemanager.MakeShared,
		ContentChanged: a.contentChanged,
	})
	if err != nil {
		return false, err
	}

	// Run owns every goroutine of the manager. It outlives asked: volumes still
	// have to be taken away then.
	before := a.mounts(insisted)
	life, end := context.WithCancel(context.WithoutCancel(insisted))
	defer end()
	ended := make(chan error, 1)
	go func() { ended <- a.manager.Run(life) }()

	if asked.Err() == nil { // else only what an earlier agent left is taken away
		a.folder.read()
	}
	// From here on, what no pod wants goes away. So this has to wait if the agent
	// before this one knew pods that cannot be read now.
	if a.folder.good() || !a.restarted {
		a.pods.MarkSynced()
		select {
		case <-a.manager.Ready():
		case err := <-ended:
			return false, err
		}
	} else {
		a.out.event("nothing is taken away until all manifests are good")
	}
	ok = a.live(asked, before)
	began := time.Now()
	a.pods.MarkSynced()
	drained := a.drain(insisted)
	end()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
		return false, err
	}
	return a.prove(time.Since(began)) && drained && ok, nil
}

// live is what happens between the start and the end.
func (a *agent) live(ctx context.Context, before []mountID) (ok bool) {
	interrupted := func() bool {
		if ctx.Err() != nil && a.once {
			a.out.fault("interrupted")
		}
		return ctx.Err() != nil
	}
	if interrupted() {
		return !a.once
	}
	if !a.restarted || a.once {
		a.out.line("manifests: %s\nvolumes:   %s", a.folder.dir, a.root)
	}
	ready := a.settle(ctx)
	if interrupted() {
		return !a.once
	}
	if a.restarted {
		a.compare(before, a.mounts(ctx))
	}
	switch {
	case a.json:
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(a.manager.Snapshot()); err != nil {
			a.out.broken()
		}
	case !a.restarted || a.once:
		a.trees(a.folder.pods())
	}
	if a.once {
		return ready && a.folder.good() && ctx.Err() == nil
	}
	a.follow(ctx)
	return true
}

// drain takes everything away.
func (a *agent) drain(insisted context.Context) (ok bool) {
	ctx, cancel := context.WithTimeout(insisted, a.timeout)
	defer cancel()
	a.out.progress("taking everything away; Ctrl-C again gives up")
	report, err := a.manager.Drain(ctx)
	a.out.clear()
	for _, pod := range report.Pods {
		for _, v := range pod.Volumes {
			a.out.fault("left: pod %s, volume %s: %s: %s", pod.Pod, v.Name, v.Phase, v.Message)
		}
	}
	if err != nil {
		a.out.fault("%v", err)
	}
	return err == nil
}

// prove looks at the kernel's mount table and at the disk, now that the
// manager has ended, and says what is left.
func (a *agent) prove(took time.Duration) (ok bool) {
	left, err := leftovers(context.Background(), a.layout)
	if err != nil {
		a.out.fault("what is left cannot be told: %v", err)
		return false
	}
	how := "drained in"
	if !left.none() {
		how = "not drained after"
	}
	a.out.line("\n%s %v: %d mounts and %d files or folders are left under\n%s", how, round(took), len(left.mounts), len(left.paths), a.root)
	for _, path := range append(left.mounts, left.paths...) {
		a.out.fault("left: %s", path)
	}
	if left.none() {
		// The manager's own books and empty folders would serve the next start.
		err = removeBooks(a.layout)
	}
	if err != nil {
		a.out.fault("%v", err)
	}
	return err == nil && left.none()
}

// contentChanged is called by the manager after files of a volume changed.
func (a *agent) contentChanged(c volumemanager.ContentChange) {
	if _, shown := a.shown.Load(c.Pod.UID); !shown {
		return // its first content
	}
	files := strings.Join(c.Files[:min(5, len(c.Files))], ", ")
	if more := len(c.Files) - 5; more > 0 {
		files += fmt.Sprintf(" and %d more", more)
	}
	a.out.event("pod %s: files of volume %s changed%s: %s", c.Pod, strings.Join(c.Names, ", "), a.folder.sinceEdit(), files)
}
