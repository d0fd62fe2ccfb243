package csinode_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/csi"
	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/plugins"
)

// newGrowing is a rig whose plugin writes into its store.
func newGrowing(t *testing.T, alone bool, change ...func(*settings)) *rig {
	t.Helper()
	updater := &storeOf{}
	s := settings{csi: func(c *csi.Config) {
		c.Expansion = csi.Expansion{Claims: updater, Controller: alone}
	}}
	for _, f := range change {
		f(&s)
	}
	r := newRig(t, s)
	updater.set(r)
	return r
}

// storeOf is the store of a rig that comes after it.
type storeOf struct {
	mu sync.Mutex
	r  *rig
}

func (s *storeOf) set(r *rig) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.r = r
}

func (s *storeOf) UpdateClaimStatus(ctx context.Context, namespace, name string, change func(*v1.PersistentVolumeClaim) error) error {
	s.mu.Lock()
	r := s.r
	s.mu.Unlock()
	return r.store.UpdateClaimStatus(ctx, namespace, name, change)
}

func (r *rig) claim(name string) *v1.PersistentVolumeClaim {
	r.Helper()
	c, err := r.store.Claim(r.ctx, "default", name)
	r.must(err)
	return c
}

func sizes(text string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: resource.MustParse(text)}
}

// controllerGrew plays the control plane, which has enlarged the storage.
func (r *rig) controllerGrew(name, size string) {
	r.Helper()
	claim := r.claim(name).DeepCopy()
	claim.Spec.Resources.Requests = sizes(size)
	claim.Status.AllocatedResources = sizes(size)
	claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{
		v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending,
	}
	r.apply(claim)
	pv, err := r.store.PersistentVolume(r.ctx, name)
	r.must(err)
	pv = pv.DeepCopy()
	pv.Spec.Capacity = sizes(size)
	r.apply(pv)
}

// grown waits until a claim has a size and no state.
func (r *rig) grown(name, size string) {
	r.Helper()
	want := resource.MustParse(size)
	r.until(name+" has "+size, func() bool {
		c := r.claim(name)
		return c.Status.Capacity.Storage().Cmp(want) == 0 && len(c.Status.AllocatedResourceStatuses) == 0
	})
}

func (r *rig) count(method string) int {
	n := 0
	for _, c := range r.calls() {
		if strings.HasPrefix(c, method+" ") {
			n++
		}
	}
	return n
}

func (r *rig) capacity(pod *v1.Pod) int64 {
	r.Helper()
	list, err := r.manager.Stats(r.ctx, pod.UID)
	r.must(err)
	if len(list) != 1 || list[0].Err != nil || list[0].CapacityBytes == nil {
		r.Fatalf("stats: %+v", list)
	}
	return *list[0].CapacityBytes
}

func TestVolumeGrowsWhileItIsUsed(t *testing.T) {
	t.Parallel()
	r := newGrowing(t, false)
	r.volume("data")
	one, two := podOf("one", "data"), podOf("two", "data")
	r.up(one, two)
	if got := r.capacity(one); got != 64<<20 {
		t.Errorf("%d bytes before", got)
	}
	r.controllerGrew("data", "128Mi")
	r.grown("data", "128Mi")
	r.until("the file system has grown", func() bool { return r.capacity(two) == 128<<20 })
	if n := r.count("NodeExpandVolume"); n != 1 {
		t.Errorf("%d expansions for two pods", n)
	}
	q := request[*csipb.NodeExpandVolumeRequest](r, "NodeExpandVolume", "handle-data")
	if q.GetStagingTargetPath() == "" || q.GetVolumePath() != r.path(one, "data") && q.GetVolumePath() != r.path(two, "data") {
		t.Errorf("request: %v", q)
	}
}

func TestPodStartsThoughItsVolumeDoesNotGrow(t *testing.T) {
	t.Parallel()
	r := newGrowing(t, false)
	r.volume("data")
	r.controllerGrew("data", "128Mi")
	script := r.driver.Script("NodeExpandVolume", csitest.Fault{Code: codes.Internal, Message: "not now"})
	pod := podOf("pod", "data")
	r.up(pod)
	r.until("it was tried", func() bool { return script.Hits() >= 2 })
	status, _ := r.manager.Status(pod)
	if !status.Ready || !status.Volumes[0].Ready {
		t.Errorf("status: %+v", status)
	}
	conditions := r.claim("data").Status.Conditions
	if len(conditions) != 1 || conditions[0].Type != v1.PersistentVolumeClaimNodeResizeError || !strings.Contains(conditions[0].Message, "not now") {
		t.Errorf("conditions: %+v", conditions)
	}
	script.Remove()
	r.grown("data", "128Mi")
}

func TestLostAnswerToAnExpansionIsNoFailure(t *testing.T) {
	t.Parallel()
	r := newGrowing(t, false)
	r.volume("data")
	pod := podOf("pod", "data")
	r.up(pod)
	script := r.driver.Script("NodeExpandVolume", csitest.Fault{Times: 1, AfterWork: true, Code: codes.DeadlineExceeded})
	r.controllerGrew("data", "128Mi")
	r.grown("data", "128Mi")
	if script.Hits() != 1 || r.count("NodeExpandVolume") != 2 {
		t.Errorf("calls: %v", r.calls())
	}
	for _, e := range r.events.List() {
		if e.Object.Kind == "PersistentVolumeClaim" && e.Type == v1.EventTypeWarning {
			t.Errorf("event: %v", e)
		}
	}
}

func TestVolumeInUseThatDoesNotGrow(t *testing.T) {
	t.Parallel()
	r := newGrowing(t, false)
	r.volume("data")
	pod := podOf("pod", "data")
	r.up(pod)
	script := r.driver.Script("NodeExpandVolume", csitest.Fault{Code: codes.FailedPrecondition})
	r.controllerGrew("data", "128Mi")
	r.until("it was refused", func() bool {
		s, _ := r.manager.Status(pod)
		return s.Volumes[0].Class == plugins.ClassPermanent
	})
	r.manager.Retry(pod)
	r.until("nothing runs", func() bool {
		s, _ := r.manager.Status(pod)
		return !s.Volumes[0].Running && s.Volumes[0].Err != nil
	})
	if n := r.count("NodeExpandVolume"); n != 1 {
		t.Errorf("%d calls", n)
	}
	script.Remove()
	r.down(pod)
	r.up(pod)
	r.grown("data", "128Mi")
}

func TestVolumeGrowsWithoutAControlPlane(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode     csitest.Mode
		from, to string
	}{
		{csitest.ModeTmpfs, "64Mi", "128Mi"}, {csitest.ModeBlock, "64Mi", "128Mi"},
		{csitest.ModeLoop, "320Mi", "640Mi"}, // xfs, which is no smaller; a mounted ext4 is grown by CAP_SYS_RESOURCE only
	} {
		t.Run(string(c.mode), func(t *testing.T) {
			t.Parallel()
			if c.mode != csitest.ModeTmpfs && !nstest.RealRoot() {
				t.Skip("loop devices need the root user")
			}
			growAlone(t, c.mode, c.from, c.to)
		})
	}
}

func growAlone(t *testing.T, mode csitest.Mode, from, to string) {
	first := resource.MustParse(from)
	r := newGrowing(t, true, func(s *settings) {
		s.driver = func(c *csitest.Config) { c.Mode, c.DefaultBytes = mode, first.Value() }
	})
	name := "data"
	if mode == csitest.ModeBlock {
		name = "block"
	}
	pv, claim := persistent(name, func(pv *v1.PersistentVolume) {
		pv.Spec.Capacity, pv.Spec.CSI.FSType = sizes(from), "xfs"
		if mode == csitest.ModeBlock {
			block(pv)
		}
	})
	claim.Status.Capacity, claim.Spec.Resources.Requests = sizes(from), sizes(from)
	r.apply(pv, claim)
	pod := podOf("pod", name)
	r.up(pod)
	before := r.capacity(pod)
	claim = r.claim(name).DeepCopy()
	claim.Spec.Resources.Requests = sizes(to)
	r.apply(claim)
	r.grown(name, to)
	r.until("it has grown", func() bool { return r.capacity(pod) > before+before/2 })
	calls := slices.DeleteFunc(r.calls(), func(c string) bool { return !strings.Contains(c, "Expand") })
	if want := []string{"ControllerExpandVolume handle-" + name, "NodeExpandVolume handle-" + name}; !slices.Equal(calls, want) {
		t.Errorf("calls: %v, want %v", calls, want)
	}
	r.driver.ResetCalls()
	r.restart()
	r.ready(pod)
	if n := r.count("ControllerExpandVolume") + r.count("NodeExpandVolume"); n != 0 {
		t.Errorf("%d expansions after a restart", n)
	}
}

func TestOfflineExpansionIsRefused(t *testing.T) {
	t.Parallel()
	r := newGrowing(t, true, func(s *settings) {
		s.driver = func(c *csitest.Config) { c.Capabilities.Expansion = csipb.PluginCapability_VolumeExpansion_OFFLINE }
	})
	r.volume("data")
	pod := podOf("pod", "data")
	r.up(pod)
	claim := r.claim("data").DeepCopy()
	claim.Spec.Resources.Requests = sizes("128Mi")
	r.apply(claim)
	r.until("it says why", func() bool {
		s, _ := r.manager.Status(pod)
		return s.Ready && strings.Contains(s.Volumes[0].Message, "OFFLINE")
	})
	if n := r.count("ControllerExpandVolume"); n != 0 {
		t.Errorf("%d calls", n)
	}
}

func TestFaultsOfAVolume(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*csitest.Config){
		"health": func(*csitest.Config) {},
		"condition": func(c *csitest.Config) {
			c.Capabilities.Node = slices.DeleteFunc(c.Capabilities.Node, func(one csipb.NodeServiceCapability_RPC_Type) bool {
				return one == csipb.NodeServiceCapability_RPC_GET_VOLUME_HEALTH
			})
			c.Capabilities.Node = append(c.Capabilities.Node, csitest.NodeVolumeCondition)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, settings{driver: change, csi: func(c *csi.Config) {
				c.Health = csi.Health{Period: 10 * time.Millisecond, Jitter: -1}
			}})
			r.volume("data")
			pod := podOf("pod", "data")
			r.up(pod)
			faults := func() []plugins.Fault {
				s, _ := r.manager.Status(pod)
				return s.Volumes[0].Faults
			}
			r.driver.SetVolumeHealth("handle-data", &csipb.VolumeHealth_VolumeHealthEntry{
				Status: csipb.VolumeHealthErrorType_DEGRADED, Reason: "Slow", Message: "a disk is missing",
			})
			r.until("the fault is known", func() bool { return len(faults()) == 1 && faults()[0].Message == "a disk is missing" })
			r.driver.SetVolumeHealth("handle-data")
			r.until("it has cleared", func() bool { return len(faults()) == 0 })
			r.until("the pod was told", func() bool {
				var reasons []string
				for _, e := range r.events.List() {
					if e.UID == pod.UID && strings.HasPrefix(e.Reason, "VolumeCondition") {
						reasons = append(reasons, e.Type+" "+e.Reason)
					}
				}
				return slices.Equal(reasons, []string{"Warning VolumeConditionAbnormal", "Normal VolumeConditionNormal"})
			})
		})
	}
}
