package volumemanager_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/volumemanager"
)

func TestOneClaimUnderTwoNames(t *testing.T) {
	onRunning(t, func(n *node) {
		n.apply(boundDisk("c")...)
		p := pod("p", claimVolume("reads", "c", true), claimVolume("writes", "c", false))
		n.up(p)
		n.wantSteps("attach  none", "mountDevice  none", "setUp pv-c none")
		got := n.MountedVolumes(p)
		reads, writes := got["reads"], got["writes"]
		if len(got) != 2 || reads.Volume != writes.Volume || reads.Path != writes.Path || reads.ID != "example.com/disk/pv-c" {
			n.Errorf("%+v", got)
		}
		if !reads.ReadOnly || writes.ReadOnly {
			n.Errorf("read-only: %v, %v", reads.ReadOnly, writes.ReadOnly)
		}
		if status, _ := n.Status(p); len(status.Volumes) != 2 || !status.Ready {
			n.Errorf("%+v", status)
		}
		n.pods.Remove(p.UID)
		n.must(n.WaitForUnmount(n.Context(), p))
		n.nothingLeft()
		if got := n.MountedVolumes(nil); len(got) != 0 {
			n.Errorf("%v", got)
		}
	})
}

// TestInUse: an attachable volume is in use from before its first step until
// after its last.
func TestInUse(t *testing.T) {
	onRunning(t, func(n *node) {
		at, next := make(chan reconciler.Kind), make(chan error)
		n.disk.on(func(_ context.Context, step reconciler.Kind, _ string) error {
			at <- step
			return <-next
		})
		const id = plugins.VolumeID("example.com/disk/one")
		inUse := func(when string) {
			n.Helper()
			synctest.Wait()
			if !slices.Contains(n.VolumesInUse(), id) || !slices.Contains(n.Snapshot().InUse, id) {
				n.Errorf("not in use: %s", when)
			}
		}
		p := pod("p", diskVolume("d", "one"), emptyVolume("e"))
		n.must(n.pods.Set(p))
		<-at
		inUse("attach")
		n.pods.Remove(p.UID) // while it is being attached
		inUse("attach, and the pod is gone")
		next <- nil
		if kind := <-at; kind != reconciler.Detach {
			n.Errorf("%s", kind)
		}
		inUse("detach")
		next <- errors.New("perhaps")
		<-at
		inUse("detach, and nobody knows how it ended")
		next <- nil
		synctest.Wait()
		if used := n.VolumesInUse(); len(used) != 0 {
			n.Errorf("in use: %v", used)
		}
		n.disk.on(nil)
		n.up(p)
		inUse("mounted")
	})
}

// TestInUseBeforeAnythingIsEntered: as long as the journal is not written
// nothing is known of an attachment, but the step runs.
func TestInUseBeforeAnythingIsEntered(t *testing.T) {
	onNode(t, func(n *node) {
		hold, begun := make(chan struct{}), make(chan struct{}, 1)
		var armed atomic.Bool
		n.host.Faults = func(point string) error {
			if point == "journal.append" && armed.Swap(false) {
				begun <- struct{}{}
				<-hold
			}
			return nil
		}
		n.start()
		n.pods.MarkSynced()
		<-n.Ready()
		armed.Store(true)
		p := pod("p", diskVolume("d", "one"))
		n.must(n.pods.Set(p))
		<-begun
		n.pods.Remove(p.UID)
		synctest.Wait()
		if used := n.VolumesInUse(); len(used) != 1 {
			n.Errorf("in use: %v", used)
		}
		drained := make(chan error, 1)
		go func() {
			_, err := n.Drain(n.Context())
			drained <- err
		}()
		synctest.Wait()
		if len(drained) != 0 {
			n.Error("drained while a step runs")
		}
		close(hold)
		n.must(<-drained)
		if used := n.VolumesInUse(); len(used) != 0 {
			n.Errorf("in use: %v", used)
		}
	})
}

// TestQueriesAtAnyTime: before Run, while it starts and works, and after it.
// There is nothing to see here but for the race detector.
func TestQueriesAtAnyTime(t *testing.T) {
	onNode(t, func(n *node) {
		n.must(os.MkdirAll(n.root+"-real", 0o750))
		n.must(os.Symlink(n.root+"-real", n.root))
		n.mounter = mounttest.New(mounttest.Options{Dir: n.root + "-real", Private: true})
		n.host.Mounter, n.disk.mounter = n.mounter, n.mounter
		n.config.Root = volumemanager.AnyPropagation
		m, err := volumemanager.New(n.config)
		n.must(err)
		p := pod("p", emptyVolume("e"), configVolume("absent", false), claimVolume("c", "absent", false))
		end := make(chan struct{})
		var askers sync.WaitGroup
		for _, ask := range []func(){
			func() { m.Snapshot() },
			func() { m.Status(p) },
			func() { m.PodConditions(p) },
			func() { m.MountedVolumes(p) },
			func() { m.VolumesInUse() },
			func() { m.PossiblyMounted(p.UID) },
			func() { m.Retry(p) },
			func() { _, _ = m.Plan(n.Context(), p) },
			func() {
				ctx, cancel := context.WithCancel(n.Context())
				cancel()
				_, _ = m.WaitForAttachAndMount(ctx, p), m.WaitForUnmount(ctx, p)
			},
		} {
			askers.Go(func() {
				for !closed(end) {
					ask()
					runtime.Gosched()
				}
			})
		}
		ctx, cancel := context.WithCancel(n.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		n.pods.MarkSynced()
		<-m.Ready()
		for range 20 {
			n.must(n.pods.Set(p))
			n.pods.Remove(p.UID)
			runtime.Gosched()
		}
		n.must(m.WaitForUnmount(n.Context(), p))
		cancel()
		n.must(<-ended)
		close(end)
		askers.Wait()
	})
}

func TestRetry(t *testing.T) {
	onRunning(t, func(n *node) {
		n.disk.fail(reconciler.SetUp, errDisk)
		p := pod("p", diskVolume("d", "one"))
		n.set(p)
		n.pass(10 * time.Minute) // the pauses have grown
		before := n.volume(p, "d").Attempts
		n.Retry(p)
		synctest.Wait()
		if v := n.volume(p, "d"); v.Attempts != 1 || before < 5 {
			n.Errorf("%d attempts, before %d", v.Attempts, before)
		}
		n.disk.on(nil)
		n.Retry(p)
		n.Retry(nil)
		n.Retry(pod("unknown"))
		synctest.Wait()
		if v := n.volume(p, "d"); !v.Ready {
			n.Errorf("%+v", v)
		}
	})
}

func TestAllVolumes(t *testing.T) {
	for _, all := range []bool{false, true} {
		onNode(t, func(n *node) {
			n.config.AllVolumes = all
			n.start()
			n.pods.MarkSynced()
			p := pod("p", emptyVolume("used"), emptyVolume("unused"))
			p.Spec.Containers[0].VolumeMounts = p.Spec.Containers[0].VolumeMounts[:1]
			n.up(p)
			if _, ok := n.MountedVolumes(p)["unused"]; ok != all {
				n.Errorf("all %v: %v", all, n.MountedVolumes(p))
			}
			if plan, err := n.Plan(n.Context(), p); err != nil || (len(plan.Volumes) == 2) != all {
				n.Errorf("all %v: %+v, %v", all, plan, err)
			}
		})
	}
}

func TestDrain(t *testing.T) {
	onRunning(t, func(n *node) {
		p, q := pod("p", emptyVolume("e"), diskVolume("d", "one")), pod("q", diskVolume("d", "two"))
		n.up(p, q)
		report, err := n.Drain(n.Context())
		if err != nil || len(report.Pods)+len(report.Volumes) != 0 {
			n.Errorf("%+v, %v", report, err)
		}
		n.nothingLeft()
		n.set(pod("late", emptyVolume("e")))
		if len(n.Snapshot().Pods) != 0 {
			n.Error("a pod was taken after the drain")
		}
		if _, err := n.Drain(n.Context()); err != nil {
			n.Errorf("drain again: %v", err)
		}
	})
}

func TestDrainThatDoesNotEnd(t *testing.T) {
	onRunning(t, func(n *node) {
		hold := make(chan struct{})
		n.disk.on(func(_ context.Context, step reconciler.Kind, storage string) error {
			if step == reconciler.TearDown && storage == "hangs" {
				<-hold
			}
			return nil
		})
		p, q := pod("p", diskVolume("d", "hangs")), pod("q", diskVolume("d", "two"))
		n.up(p, q)
		ctx, cancel := context.WithTimeout(n.Context(), time.Hour)
		defer cancel()
		report, err := n.Drain(ctx)
		if !errors.Is(err, volumemanager.ErrNotDrained) || !errors.Is(err, context.DeadlineExceeded) {
			n.Errorf("%v", err)
		}
		if len(report.Pods) != 1 || report.Pods[0].Pod.Name != "p" || len(report.Volumes) != 1 || report.Volumes[0].ID != "example.com/disk/hangs" {
			n.Fatalf("%+v", report)
		}
		v := report.Pods[0].Volumes[0]
		if v.Code != volumemanager.CodeFailsToDetach || !v.Stuck || !has(v.Message, "has not returned") || v.Advice == "" {
			n.Errorf("%+v", v)
		}
		close(hold) // the work goes on
		if _, err := n.Drain(n.Context()); err != nil {
			n.Errorf("%v", err)
		}
		n.nothingLeft()
	})
}

// TestDrainBeforeTheSourceHasTold: the drain that could not begin in time is
// still done, once it is allowed.
func TestDrainBeforeTheSourceHasTold(t *testing.T) {
	onNode(t, func(n *node) {
		n.start()
		p := pod("p", emptyVolume("e"))
		n.up(p)
		ctx, cancel := context.WithTimeout(n.Context(), time.Minute)
		defer cancel()
		if report, err := n.Drain(ctx); !errors.Is(err, volumemanager.ErrNotDrained) || len(report.Pods) != 1 || !has(err.Error(), "has not told all") {
			n.Errorf("%+v, %v", report, err)
		}
		if len(n.MountedVolumes(p)) != 1 {
			n.Error("something was taken away")
		}
		n.pods.MarkSynced()
		n.must(n.WaitForUnmount(n.Context(), p))
		n.nothingLeft()
		n.stop()
		if _, err := n.Drain(n.Context()); err != nil {
			n.Errorf("nothing is left: %v", err)
		}
	})
}
