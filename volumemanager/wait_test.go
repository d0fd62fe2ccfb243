package volumemanager_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/volumemanager"
)

func TestManyWaitForOnePod(t *testing.T) {
	onRunning(t, func(n *node) {
		p := pod("p", emptyVolume("e"), configVolume("late", false))
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if err := n.WaitForAttachAndMount(n.Context(), p); err != nil {
					n.Errorf("%v", err)
				}
			})
		}
		synctest.Wait()
		n.set(p)
		n.apply(configMap("late", "k", "v"))
		wg.Wait()
		if got := n.file(p, "late", "k"); got != "v" {
			n.Errorf("%q", got)
		}
		n.must(n.WaitForAttachAndMount(n.Context(), nil))
		n.must(n.WaitForUnmount(n.Context(), nil))
	})
}

func TestWaitSaysWhatIsMissing(t *testing.T) {
	onRunning(t, func(n *node) {
		ctx, cancel := context.WithTimeout(n.Context(), time.Second)
		defer cancel()
		untold := pod("untold", emptyVolume("e"))
		if err := n.WaitForAttachAndMount(ctx, untold); !errors.Is(err, volumemanager.ErrNotReady) ||
			!errors.Is(err, context.DeadlineExceeded) || !has(err.Error(), "ns/untold", "has not told") {
			n.Errorf("%v", err)
		}
		p := pod("p", emptyVolume("fine"), configVolume("absent", false))
		n.set(p)
		why := errors.New("the caller lost patience")
		caused, lose := context.WithCancelCause(n.Context())
		lose(why)
		err := n.WaitForAttachAndMount(caused, p)
		if !errors.Is(err, volumemanager.ErrNotReady) || !errors.Is(err, why) || !errors.Is(err, plugins.ErrWaiting) ||
			!has(err.Error(), "ns/p", "absent", "ConfigMap ns/absent") || has(err.Error(), "fine") {
			n.Errorf("%v", err)
		}
	})
}

// TestWaitEndsEarly: what trying again will not cure ends the wait at once, in
// whichever step it happens, and whether or not others wait too.
func TestWaitEndsEarly(t *testing.T) {
	bad := plugins.Permanent(errors.New("the disk is of another make"))
	for _, kind := range []reconciler.Kind{reconciler.Attach, reconciler.MountDevice, reconciler.SetUp} {
		t.Run(string(kind), func(t *testing.T) {
			onRunning(t, func(n *node) {
				n.disk.fail(kind, bad)
				p := pod("p", diskVolume("d", "one"))
				waits := make(chan error, 2)
				for range 2 {
					go func() { waits <- n.WaitForAttachAndMount(n.Context(), p) }()
				}
				synctest.Wait()
				began := time.Now()
				n.set(p)
				for range 2 {
					if err := <-waits; !errors.Is(err, bad) || plugins.ClassOf(err) != plugins.ClassPermanent {
						n.Errorf("%v", err)
					}
				}
				if took := time.Since(began); took != 0 {
					n.Errorf("it took %v", took)
				}
				// After Retry the old failure is not the answer.
				n.disk.on(nil)
				n.Retry(p)
				n.must(n.WaitForAttachAndMount(n.Context(), p))
				n.down(p)
				n.nothingLeft()
			})
		})
	}
	t.Run("resolve", func(t *testing.T) {
		onRunning(t, func(n *node) {
			p := pod("p", diskVolume("d", "refused"))
			n.set(p)
			if err := n.WaitForAttachAndMount(n.Context(), p); plugins.ClassOf(err) != plugins.ClassPermanent || !has(err.Error(), "no such kind") {
				n.Errorf("%v", err)
			}
			if got := n.reasons(p); len(got) != 1 || got[0] != "FailedMount" {
				n.Errorf("events %v", got)
			}
		})
	})
}

// TestWaitAfterTheCure: an object that was repaired ends a wait for a claim
// although the failure of before is still known.
func TestWaitAfterTheCure(t *testing.T) {
	onRunning(t, func(n *node) {
		objects := boundDisk("c")
		pv := objects[0].(*v1.PersistentVolume)
		broken := pv.DeepCopy()
		broken.Spec.ClaimRef.Name = "another"
		n.apply(objects[1], broken)
		p := pod("p", claimVolume("d", "c", false))
		n.set(p)
		if err := n.WaitForAttachAndMount(n.Context(), p); plugins.ClassOf(err) != plugins.ClassPermanent {
			n.Fatalf("%v", err)
		}
		n.apply(pv)
		n.must(n.WaitForAttachAndMount(n.Context(), p))
	})
}

func TestWaitEndsWhenThePodIsRemoved(t *testing.T) {
	onRunning(t, func(n *node) {
		hold := make(chan struct{})
		n.disk.on(func(_ context.Context, step reconciler.Kind, _ string) error {
			if step == reconciler.TearDown {
				<-hold
			}
			return nil
		})
		p := pod("p", configVolume("absent", false), diskVolume("d", "one"))
		n.set(p)
		waits := make(chan error)
		go func() { waits <- n.WaitForAttachAndMount(n.Context(), p) }()
		synctest.Wait()
		n.pods.Remove(p.UID)
		if err := <-waits; !errors.Is(err, volumemanager.ErrPodRemoved) { // though the disk is still there
			n.Errorf("%v", err)
		}
		if !n.PossiblyMounted(p.UID) {
			n.Error("the disk is still there")
		}
		close(hold)
		n.must(n.WaitForUnmount(n.Context(), p))
		n.nothingLeft()
	})
}

// TestUnmountOfAPodThatIsBeingSetUp: a step that has begun, and entered nothing
// yet, is waited for.
func TestUnmountOfAPodThatIsBeingSetUp(t *testing.T) {
	for _, at := range []string{reconciler.FaultStart, "journal.append"} {
		onNode(t, func(n *node) {
			hold, begun := make(chan struct{}), make(chan struct{}, 1)
			var armed atomic.Bool
			n.host.Faults = func(point string) error {
				if armed.Load() && point == at {
					begun <- struct{}{}
					<-hold
				}
				return nil
			}
			n.start()
			n.pods.MarkSynced()
			<-n.Ready()
			armed.Store(true)
			p := pod("p", emptyVolume("e"))
			n.must(n.pods.Set(p))
			<-begun
			armed.Store(false)
			n.pods.Remove(p.UID)
			synctest.Wait()
			running := at != reconciler.FaultStart // before that nothing is ever made
			if n.PossiblyMounted(p.UID) != running {
				n.Errorf("%s: possibly mounted: %v", at, !running)
			}
			if running {
				ctx, cancel := context.WithTimeout(n.Context(), time.Second)
				defer cancel()
				if err := n.WaitForUnmount(ctx, p); !errors.Is(err, volumemanager.ErrStillMounted) || !has(err.Error(), "still runs") {
					n.Errorf("%v", err)
				}
			}
			waits := make(chan error, 1)
			go func() { waits <- n.WaitForUnmount(n.Context(), p) }()
			synctest.Wait()
			close(hold)
			n.must(<-waits)
			n.nothingLeft()
		})
	}
}

// TestUnmountBeforeTheSourceHasTold: the wait may begin before the removal has
// come through.
func TestUnmountBeforeTheSourceHasTold(t *testing.T) {
	onRunning(t, func(n *node) {
		for i := range 50 {
			p := pod("p", emptyVolume("e"), diskVolume("d", "one"))
			n.must(n.pods.Set(p))
			if i%2 == 0 {
				n.must(n.WaitForAttachAndMount(n.Context(), p))
			}
			synctest.Wait()
			n.pods.Remove(p.UID)
			n.must(n.WaitForUnmount(n.Context(), p))
			if _, known := n.Status(p); known {
				n.Fatal("something of it is left")
			}
		}
		n.nothingLeft()
	})
}

func TestUnmountThatDoesNotHappen(t *testing.T) {
	onRunning(t, func(n *node) {
		p := pod("p", diskVolume("d", "one"))
		n.up(p)
		ctx, cancel := context.WithTimeout(n.Context(), time.Second)
		defer cancel()
		if err := n.WaitForUnmount(ctx, p); !errors.Is(err, volumemanager.ErrStillMounted) || !has(err.Error(), "still has the pod", "d (present)") {
			n.Errorf("%v", err)
		}
		n.mounter.Busy(n.MountedVolumes(p)["d"].Path)
		q := pod("q", emptyVolume("e"))
		n.up(q)
		n.pods.Remove(p.UID)
		n.pods.Remove(q.UID)
		ctx, cancel = context.WithTimeout(n.Context(), time.Minute)
		defer cancel()
		err := n.WaitForAllPodsUnmount(ctx, []*v1.Pod{p, nil, q})
		if !errors.Is(err, volumemanager.ErrStillMounted) || !has(err.Error(), "ns/p", "d (uncertain)", "busy") || has(err.Error(), "ns/q") {
			n.Errorf("%v", err)
		}
		n.mounter.Free(n.root + "/pods/uid-p/volumes/example.com~disk/d")
		n.must(n.WaitForAllPodsUnmount(n.Context(), []*v1.Pod{p, q}))
	})
}

// TestWaitsLeaveNothingBehind: waiting costs memory only while it lasts.
func TestWaitsLeaveNothingBehind(t *testing.T) {
	onRunning(t, func(n *node) {
		p := pod("p", emptyVolume("e"))
		n.up(p)
		n.down(p)
		ctx, cancel := context.WithTimeout(n.Context(), time.Second)
		defer cancel()
		_ = n.WaitForAttachAndMount(ctx, pod("never"))

		n.disk.fail(reconciler.SetUp, errors.New("nobody knows"))
		n.set(pod("q", diskVolume("d", "one"), claimVolume("c", "absent", false)))
		if volumemanager.Remembered(n.Manager) == 0 {
			n.Error("what fails is not remembered")
		}
		n.down(pod("q"))
		synctest.Wait()
		if left := volumemanager.Remembered(n.Manager); left != 0 {
			n.Errorf("%d things are kept", left)
		}
	})
}

// TestLostUnmount: a mount that the plugin cannot take off keeps the pod
// uncertain, and counts as mounted.
func TestLostUnmount(t *testing.T) {
	onRunning(t, func(n *node) {
		p := pod("p", diskVolume("d", "one"))
		n.up(p)
		lift := n.mounter.Inject(mounttest.Fault{Op: mounttest.OpUnmount, Target: "example.com~disk/d", Err: errors.New("lost"), After: true})
		n.pods.Remove(p.UID)
		synctest.Wait()
		if !n.PossiblyMounted(p.UID) {
			n.Error("nobody knows that it is gone")
		}
		lift()
		n.must(n.WaitForUnmount(n.Context(), p))
		n.nothingLeft()
	})
}

// TestReconcilerThatCannotReport: waits and status need no report of the
// reconciler.
func TestReconcilerThatCannotReport(t *testing.T) {
	onNode(t, func(n *node) {
		steps := reconciler.NewSequential()
		n.config.Reconciler = steps
		n.start()
		n.pods.MarkSynced()
		p := pod("p", emptyVolume("e"), diskVolume("d", "one"))
		n.set(p) // it is known, and nothing is done
		ctx, cancel := context.WithTimeout(n.Context(), time.Second)
		defer cancel()
		if err := n.WaitForUnmount(ctx, p); !errors.Is(err, volumemanager.ErrStillMounted) || !has(err.Error(), "still has the pod") {
			n.Errorf("%v", err)
		}
		n.disk.fail(reconciler.Attach, plugins.Permanent(errors.New("no such disk")))
		waits := make(chan error, 1)
		go func() { waits <- n.WaitForAttachAndMount(n.Context(), p) }()
		synctest.Wait()
		for did := true; did; {
			did, _ = steps.Step(n.Context())
		}
		if err := <-waits; plugins.ClassOf(err) != plugins.ClassPermanent {
			n.Errorf("%v", err)
		}
		v := n.volume(p, "d")
		if v.Code != volumemanager.CodeStuckAttaching || v.Attempts != 1 || v.Since.IsZero() || !has(v.Message, "no such disk") || !n.volume(p, "e").Ready {
			n.Errorf("%+v", v)
		}
	})
}
