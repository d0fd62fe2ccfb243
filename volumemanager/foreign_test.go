package volumemanager_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

// deserter is a pod source whose first listing ends its goroutine.
type deserter struct {
	first, second *v1.Pod
	listings      atomic.Int32
}

func (s *deserter) WatchPods(ctx context.Context, sink plugins.PodSink) error {
	sink.SetPod(s.first)
	if s.listings.Add(1) == 1 {
		runtime.Goexit()
	}
	sink.SetPod(s.second)
	sink.Synced()
	<-ctx.Done()
	return ctx.Err()
}

func TestPodSourceThatEndsItsGoroutine(t *testing.T) {
	onNode(t, func(n *node) {
		source := &deserter{first: pod("a", emptyVolume("e")), second: pod("b", emptyVolume("e"))}
		n.config.Pods = source
		n.start()
		n.must(n.WaitForAttachAndMount(n.Context(), source.second))
		if got := source.listings.Load(); got != 2 {
			t.Errorf("%d listings", got)
		}
	})
}

// spoilsport panics whenever it is told something.
type spoilsport struct{}

func (spoilsport) StepStarted(reconciler.Step) { panic("started") }

func (spoilsport) StepFinished(reconciler.Step, time.Duration, error) { panic("finished") }

func TestObserverThatPanics(t *testing.T) {
	onNode(t, func(n *node) {
		n.config.Observer = spoilsport{}
		n.start()
		n.pods.MarkSynced()
		p := pod("p", emptyVolume("e"))
		n.up(p)
		n.down(p)
	})
}

// A wait is for the pod that it is given, not for an older version of it.
func TestWaitHeedsTheGivenPod(t *testing.T) {
	onRunning(t, func(n *node) {
		old := pod("p", emptyVolume("one"))
		n.up(old)
		next := pod("p", emptyVolume("one"), emptyVolume("two"))
		ctx, cancel := context.WithTimeout(n.Context(), time.Second)
		defer cancel()
		if err := n.WaitForAttachAndMount(ctx, next); err == nil || !has(err.Error(), "has not told its volume two") {
			t.Errorf("before the source told it: %v", err)
		}
		n.set(next)
		n.must(n.WaitForAttachAndMount(n.Context(), next))
		if got := len(n.MountedVolumes(next)); got != 2 {
			t.Errorf("%d volumes are ready", got)
		}
	})
}
