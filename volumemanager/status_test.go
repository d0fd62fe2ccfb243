package volumemanager_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/volumemanager"
)

var errDisk = plugins.Transient(errors.New("the disk is on fire"))

// TestFailureModes goes through the classic ways in which a volume fails, and
// what the status says of each.
func TestFailureModes(t *testing.T) {
	for _, c := range []struct {
		kind  reconciler.Kind
		code  volumemanager.Code
		phase volumemanager.Phase
	}{
		{reconciler.Attach, volumemanager.CodeStuckAttaching, volumemanager.Attaching},
		{reconciler.MountDevice, volumemanager.CodeStuckMounting, volumemanager.Mounting},
		{reconciler.SetUp, volumemanager.CodeStuckMounting, volumemanager.Mounting},
		{reconciler.TearDown, volumemanager.CodeFailsToDetach, volumemanager.Unmounting},
	} {
		t.Run(string(c.kind), func(t *testing.T) {
			onRunning(t, func(n *node) {
				began := time.Now()
				n.disk.fail(c.kind, errDisk)
				p := pod("p", diskVolume("d", "one"), emptyVolume("e"))
				n.set(p)
				if c.kind.Undoes() {
					n.pods.Remove(p.UID)
				}
				n.pass(10 * time.Second) // some attempts
				v := n.volume(p, "d")
				if v.Code != c.code || v.Phase != c.phase || v.Step != c.kind || v.Ready || v.Running {
					t.Errorf("%+v", v)
				}
				if !v.Since.Equal(began) || v.Attempts < 4 || !v.NextTry.After(time.Now()) {
					t.Errorf("since %v, %d attempts, next %v", v.Since, v.Attempts, v.NextTry)
				}
				if !errors.Is(v.Err, errDisk) || v.Class != plugins.ClassTransient || v.Failure != "transient" || !has(v.Message, "on fire") || v.Advice == "" {
					t.Errorf("%+v", v)
				}
				if status, _ := n.Status(p); !c.kind.Undoes() && (status.Ready || !n.volume(p, "e").Ready) {
					t.Errorf("%+v", status)
				}
				n.disk.on(nil)
				n.Retry(p)
				if c.kind.Undoes() {
					n.must(n.WaitForUnmount(n.Context(), p))
				} else {
					n.must(n.WaitForAttachAndMount(n.Context(), p))
				}
				if !time.Now().Equal(began.Add(10 * time.Second)) {
					t.Error("Retry did not try at once")
				}
			})
		})
	}
}

// TestFailsToDetach: what fails when no pod is left is told by the snapshot and
// by a drain.
func TestFailsToDetach(t *testing.T) {
	for _, kind := range []reconciler.Kind{reconciler.UnmountDevice, reconciler.Detach} {
		onRunning(t, func(n *node) {
			n.disk.fail(kind, errDisk)
			p := pod("p", diskVolume("d", "one"))
			n.up(p)
			if s := n.Snapshot(); s.Volumes[0].Node != nil {
				n.Errorf("nothing is due: %+v", s.Volumes[0].Node)
			}
			n.down(p)
			n.pass(10 * time.Second)
			s := n.Snapshot()
			if len(s.Volumes) != 1 || s.Volumes[0].Node == nil {
				n.Fatalf("%+v", s)
			}
			node := s.Volumes[0].Node
			if node.Code != volumemanager.CodeFailsToDetach || node.Phase != volumemanager.Unmounting || node.Step != kind ||
				node.Attempts < 4 || node.NextTry.IsZero() || !has(node.Message, "on fire") || node.Advice == "" {
				n.Errorf("%+v", node)
			}
			if used := n.VolumesInUse(); len(used) != 1 || used[0] != "example.com/disk/one" {
				n.Errorf("in use: %v", used)
			}
			ctx, cancel := context.WithTimeout(n.Context(), time.Second)
			defer cancel()
			report, err := n.Drain(ctx)
			if !errors.Is(err, volumemanager.ErrNotDrained) || len(report.Pods) != 0 || len(report.Volumes) != 1 || report.Volumes[0].Node.Code != node.Code {
				n.Errorf("%+v, %v", report, err)
			}
		})
	}
}

// TestStuckSteps: a call that does not return is told with the time since
// when, and holds up nothing else.
func TestStuckSteps(t *testing.T) {
	for _, c := range []struct {
		kind reconciler.Kind
		code volumemanager.Code
	}{
		{reconciler.Attach, volumemanager.CodeStuckAttaching},
		{reconciler.SetUp, volumemanager.CodeStuckMounting},
		{reconciler.TearDown, volumemanager.CodeFailsToDetach},
	} {
		onRunning(t, func(n *node) {
			hold := make(chan struct{})
			n.disk.on(func(_ context.Context, step reconciler.Kind, _ string) error {
				if step == c.kind {
					<-hold // as in a system call: the end of the context does not help
				}
				return nil
			})
			began := time.Now()
			p := pod("p", diskVolume("d", "one"))
			n.set(p)
			if c.kind.Undoes() {
				n.pods.Remove(p.UID)
				synctest.Wait()
			}
			if v := n.volume(p, "d"); !v.Running || v.Stuck || v.Code != "" || !v.Since.Equal(began) || v.Step != c.kind {
				n.Errorf("running: %+v", v)
			}
			n.pass(reconciler.DefaultDeadline + time.Second)
			v := n.volume(p, "d")
			if !v.Running || !v.Stuck || v.Code != c.code || !v.Since.Equal(began) || !has(v.Message, "has not returned since") || v.Advice == "" {
				n.Errorf("stuck: %+v", v)
			}
			// Another pod waits for the same disk, and is told for whom.
			q := pod("q", diskVolume("d", "one"), emptyVolume("e"))
			n.set(q)
			if !n.volume(q, "e").Ready {
				n.Error("a hung disk holds up others")
			}
			if w := n.volume(q, "d"); c.kind != reconciler.Attach && (w.Blocker != "ns/p" || !has(w.Message, string(c.kind))) {
				n.Errorf("blocked: %+v", w)
			}
			close(hold)
			n.must(n.WaitForAttachAndMount(n.Context(), q))
		})
	}
}

func TestStatusOfWhatIsResolved(t *testing.T) {
	onRunning(t, func(n *node) {
		p := pod("p", claimVolume("d", "c", false))
		n.set(p)
		v := n.volume(p, "d")
		if v.Phase != volumemanager.Resolving || v.Code != volumemanager.CodeUnresolved || v.Class != plugins.ClassWaiting ||
			!has(v.Message, "PersistentVolumeClaim ns/c", "not found") || v.Advice == "" || v.Since.IsZero() {
			n.Errorf("%+v", v)
		}
		if c := n.PodConditions(p); len(c.Conditions) != 1 || c.Conditions[0].Status != v1.ConditionFalse ||
			c.Conditions[0].Reason != volumemanager.ReasonVolumesNotReady || !has(c.Conditions[0].Message, "d: ", "ns/c") || c.Waiting == nil {
			n.Errorf("%+v", c)
		}
		n.apply(boundDisk("c")...)
		n.must(n.WaitForAttachAndMount(n.Context(), p))
		v = n.volume(p, "d")
		if v.Phase != volumemanager.Mounted || v.Code != "" || !v.Ready || v.Message != "" || v.Path != n.MountedVolumes(p)["d"].Path || v.Since.IsZero() {
			n.Errorf("%+v", v)
		}
		if c := n.PodConditions(p); len(c.Conditions) != 0 || c.Waiting != nil {
			n.Errorf("%+v", c)
		}
		if c := n.PodConditions(pod("unknown")); len(c.Conditions) != 1 {
			n.Errorf("%+v", c)
		}
		if _, known := n.Status(nil); known {
			n.Error("nil is known")
		}
		if c := n.PodConditions(nil); len(c.Conditions) != 0 {
			n.Errorf("%+v", c)
		}
	})
}

func TestStatusWhileAClaimIsLookedUp(t *testing.T) {
	onRunning(t, func(n *node) {
		hold := make(chan struct{})
		n.store.SetFault(func(_ context.Context, _ string, ref plugins.Ref) error {
			if ref.Kind == plugins.KindClaim {
				<-hold
			}
			return nil
		})
		n.apply(boundDisk("c")...)
		p := pod("p", claimVolume("d", "c", false), emptyVolume("e"))
		n.set(p)
		if v := n.volume(p, "d"); v.Phase != volumemanager.Resolving || v.Code != "" || !v.Running {
			n.Errorf("%+v", v)
		}
		if !n.volume(p, "e").Ready {
			n.Error("a dead API server holds up what needs none")
		}
		n.pass(reconciler.DefaultDeadline + time.Second)
		if v := n.volume(p, "d"); v.Code != volumemanager.CodeUnresolved || !v.Stuck || !has(v.Message, "has not returned") {
			n.Errorf("%+v", v)
		}
		close(hold)
		n.must(n.WaitForAttachAndMount(n.Context(), p))
	})
}

// TestOnePodAtATime: who has a ReadWriteOncePod volume is named to who waits.
func TestOnePodAtATime(t *testing.T) {
	onRunning(t, func(n *node) {
		n.apply(boundDisk("c", v1.ReadWriteOncePod)...)
		p, q := pod("p", claimVolume("d", "c", false)), pod("q", claimVolume("d", "c", false))
		n.up(p)
		n.set(q)
		v := n.volume(q, "d")
		if v.Code != volumemanager.CodeBlocked || v.Blocker != "ns/p" || v.Phase != volumemanager.Pending || !has(v.Advice, "ns/p") {
			n.Errorf("%+v", v)
		}
		n.pods.Remove(p.UID)
		n.must(n.WaitForAttachAndMount(n.Context(), q))
	})
}

func TestStatusOfBusyAndMissing(t *testing.T) {
	onNode(t, func(n *node) {
		n.host.Secrets = nil
		n.start()
		n.pods.MarkSynced()
		p, q := pod("p", secretVolume("s"), emptyVolume("e")), pod("q", diskVolume("d", "one"), emptyVolume("e"))
		n.set(p, q)
		v := n.volume(p, "s")
		var missing *plugins.MissingError
		if !errors.As(v.Err, &missing) || missing.Field != "Secrets" || !has(v.Advice, "VolumeHost.Secrets") || !has(v.Message, "Secrets", "secret ns/s") {
			n.Errorf("%+v", v)
		}
		if err := n.WaitForAttachAndMount(n.Context(), p); plugins.ClassOf(err) != plugins.ClassUnsupported {
			n.Errorf("%v", err)
		}
		n.must(n.WaitForAttachAndMount(n.Context(), q)) // others are not affected
		if !n.volume(p, "e").Ready {
			n.Error("nor are the pod's other volumes")
		}
		at := n.volume(q, "d").Path
		n.mounter.Busy(at)
		n.pods.Remove(q.UID)
		synctest.Wait()
		if v := n.volume(q, "d"); v.Code != volumemanager.CodeFailsToDetach || !has(v.Advice, "End the processes") {
			n.Errorf("%+v", v)
		}
		n.mounter.Free(at)
	})
}

// TestUnknownWishes: while a volume of a pod cannot be resolved nothing of the
// pod is taken away, and the status says why.
func TestUnknownWishes(t *testing.T) {
	onRunning(t, func(n *node) {
		n.apply(boundDisk("c")...)
		p := pod("p", claimVolume("d", "c", false))
		n.up(p)
		mounts := len(n.mounter.Calls(mounttest.OpUnmount))
		next := pod("p", claimVolume("other", "unbound", false))
		n.set(next)
		v := n.volume(p, "d")
		if v.Code != volumemanager.CodeUnknown || v.Phase != volumemanager.Kept || !has(v.Message, "other") {
			n.Errorf("%+v", v)
		}
		if n.volume(p, "other").Code != volumemanager.CodeUnresolved || len(n.mounter.Calls(mounttest.OpUnmount)) != mounts {
			n.Error("something was taken away")
		}
		n.apply(boundDisk("unbound")...)
		n.must(n.WaitForAttachAndMount(n.Context(), next))
		synctest.Wait()
		if s, _ := n.Status(p); len(s.Volumes) != 1 {
			n.Errorf("what is unwanted is still there: %+v", s)
		}
	})
}

// TestVolumeThatWasReplaced: the mount of an earlier persistent volume of the
// same name is never taken for the one of the new.
func TestVolumeThatWasReplaced(t *testing.T) {
	onRunning(t, func(n *node) {
		objects := boundDisk("c")
		n.apply(objects...)
		p, q := pod("p", claimVolume("d", "c", false)), pod("q", claimVolume("d", "c", false))
		n.up(p)
		hold := make(chan struct{})
		n.disk.on(func(_ context.Context, step reconciler.Kind, storage string) error {
			if step == reconciler.SetUp && storage == "pv-c" {
				<-hold
			}
			return nil
		})
		n.set(q) // which keeps the volume busy, so that the mount stays for now
		anew := objects[0].(*v1.PersistentVolume).DeepCopy()
		anew.Spec.Glusterfs.EndpointsName = "another"
		n.apply(anew)
		synctest.Wait()
		if len(n.MountedVolumes(p)) != 0 {
			n.Errorf("%+v", n.MountedVolumes(p))
		}
		status, _ := n.Status(p)
		if status.Ready || len(status.Volumes) != 2 || status.Volumes[0].Ready || status.Volumes[1].Ready {
			n.Errorf("%+v", status)
		}
		close(hold)
		n.must(n.WaitForAttachAndMount(n.Context(), p))
		n.must(n.WaitForAttachAndMount(n.Context(), q))
		if got := n.MountedVolumes(p)["d"].ID; got != "example.com/disk/another" {
			n.Errorf("%s", got)
		}
		n.down(p, q)
		n.nothingLeft()
	})
}

// TestRestart: what an earlier process left is confirmed, which the status
// tells, and is no news.
func TestRestart(t *testing.T) {
	onRunning(t, func(n *node) {
		p := pod("p", diskVolume("d", "one"), emptyVolume("e"))
		n.up(p)
		n.stop()
		mounts := len(n.mounter.Calls(mounttest.OpMount))
		events := len(n.events.List())
		hold := make(chan struct{})
		n.disk.on(func(_ context.Context, step reconciler.Kind, _ string) error {
			if step == reconciler.SetUp {
				<-hold
			}
			return nil
		})
		n.start()
		<-n.Ready()
		synctest.Wait()
		if v := n.volume(p, "d"); v.Phase != volumemanager.Confirming || v.Ready || !v.Running || len(n.MountedVolumes(p)) != 1 {
			n.Errorf("%+v", v)
		}
		if used := n.VolumesInUse(); len(used) != 1 {
			n.Errorf("in use: %v", used)
		}
		close(hold)
		n.must(n.WaitForAttachAndMount(n.Context(), p))
		if v := n.volume(p, "d"); v.Phase != volumemanager.Mounted {
			n.Errorf("%+v", v)
		}
		if got := len(n.mounter.Calls(mounttest.OpMount)); got != mounts {
			n.Errorf("%d mounts were made", got-mounts)
		}
		n.down(p)
		n.nothingLeft()
		for _, e := range n.events.List()[events:] {
			if e.Reason == "SuccessfulMountVolume" {
				n.Errorf("told again: %v", e)
			}
		}
	})
}
