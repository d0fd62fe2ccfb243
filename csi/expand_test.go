package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/plugins"
)

func TestExpandTellsTheClaimAndAsksTheDriver(t *testing.T) {
	t.Parallel()
	r := newGrowthRig(t)
	var during string
	got, err := func() (resource.Quantity, error) {
		p := r.fake.d.node
		r.fake.d.node = &spy{growthDriver: r.fake, at: func() { during = r.state() }}
		defer func() { r.fake.d.node = p }()
		return r.expand()
	}()
	if err != nil || got.Value() != 2*gib {
		t.Fatalf("%v, %v", got, err)
	}
	r.want("status while the driver is asked", during, "1 NodeResizeInProgress +FileSystemResizePending")
	r.want("status", r.state(), "2")
	r.want("events", r.reasons(), "PersistentVolumeClaim/FileSystemResizeSuccessful")
	if c := r.now(); len(c.Status.Conditions) != 1 {
		t.Errorf("conditions: %+v", c.Status.Conditions)
	}
	q := r.fake.node
	if q.VolumeId != "h" || q.VolumePath != r.host.Layout.PodVolume(r.volume("pod-uid"))+"/mount" || q.StagingTargetPath != "/staging" ||
		q.CapacityRange.GetRequiredBytes() != 2*gib || q.CapacityRange.GetLimitBytes() != 0 || q.Secrets["key"] != "node-password" ||
		q.VolumeCapability.GetMount().GetFsType() != "xfs" || !slices.Equal(q.VolumeCapability.GetMount().GetMountFlags(), []string{"noatime"}) ||
		q.VolumeCapability.GetAccessMode().GetMode() != csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
		t.Errorf("request: %v", q)
	}
}

// spy looks at what is while the driver is asked.
type spy struct {
	*growthDriver
	at func()
}

func (s *spy) NodeExpandVolume(ctx context.Context, r *csipb.NodeExpandVolumeRequest, o ...grpc.CallOption) (*csipb.NodeExpandVolumeResponse, error) {
	s.at()
	return s.growthDriver.NodeExpandVolume(ctx, r, o...)
}

func TestExpandRequestFollowsWhatIsThere(t *testing.T) {
	t.Parallel()
	r := newGrowthRig(t, func(r *growthRig) {
		delete(r.fake.d.nodeCan, canStage)
		block := v1.PersistentVolumeBlock
		r.pv.Spec.VolumeMode, r.pv.Spec.CSI.NodeExpandSecretRef = &block, nil
	})
	r.fake.nodeReply.CapacityBytes = 3 * gib
	got, err := r.expand()
	if err != nil || got.Value() != 3*gib {
		t.Fatalf("%v, %v", got, err)
	}
	q := r.fake.node
	if q.VolumePath != r.places().blockPublish("pv", "pod-uid") || q.StagingTargetPath != "" || q.VolumeCapability.GetBlock() == nil || len(q.Secrets) != 0 {
		t.Errorf("request: %v", q)
	}
	r.want("status", r.state(), "2") // what was allocated
}

func TestAnswerWithTooLittleCountsAsDone(t *testing.T) {
	t.Parallel()
	for _, answer := range []int64{0, -5, gib, 2*gib - 1} {
		r := newGrowthRig(t)
		r.fake.nodeReply.CapacityBytes = answer
		if got, err := r.expand(); err != nil || got.Value() != 2*gib {
			t.Errorf("%d: %v, %v", answer, got, err)
		}
	}
}

func TestEachCodeOfExpansion(t *testing.T) {
	t.Parallel()
	const begun = "1 NodeResizeInProgress +FileSystemResizePending"
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		class, state, events := plugins.ClassTransient, begun+" +NodeResizeError", "PersistentVolumeClaim/VolumeResizeFailed"
		var is error
		switch code {
		case codes.OK:
			class, state, events = plugins.ClassNone, "2", "PersistentVolumeClaim/FileSystemResizeSuccessful"
		case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted:
			class, state, events = plugins.ClassUncertain, begun, ""
		case codes.ResourceExhausted:
			state, events = begun, ""
		case codes.Unimplemented:
			class, state, events = plugins.ClassNone, begun, ""
		case codes.FailedPrecondition:
			class, state, events, is = plugins.ClassPermanent, begun, "", ErrInUse
		case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
			class, is = plugins.ClassPermanent, ErrInfeasible
			state = "1 NodeResizeInfeasible +FileSystemResizePending +NodeResizeError"
		}
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			r := newGrowthRig(t)
			if code != codes.OK {
				r.fake.nodeErr = status.Error(code, "refused with node-password\nin a\x00line")
			}
			got, err := r.expand()
			if c := plugins.ClassOf(err); c != class || is != nil && !errors.Is(err, is) {
				t.Errorf("class %s, want %s: %v", c, class, err)
			}
			if code == codes.Unimplemented && !got.IsZero() {
				t.Errorf("size %v", got)
			}
			r.want("status", r.state(), state)
			r.want("events", r.reasons(), events)
			r.leaksNothing(err)
			// Once more: the claim is written once, and what is final is not asked again.
			before := r.now().ResourceVersion
			calls := "node"
			r.fake.took()
			if _, again := r.expand(); code == codes.OK && again != nil {
				t.Errorf("again: %v", again)
			} else if is != nil && !errors.Is(again, is) {
				t.Errorf("again: %v", again)
			}
			if code == codes.OK || is != nil {
				calls = ""
			}
			r.want("calls", r.fake.took(), calls)
			r.want("claim", r.now().ResourceVersion, before)
		})
	}
}

func (r *growthRig) leaksNothing(err error) {
	r.Helper()
	text := fmt.Sprintf("%v %+v %v", err, r.now().Status, r.events.List())
	if strings.Contains(text, "password") || strings.ContainsAny(fmt.Sprint(err), "\n\x00") {
		r.Errorf("a secret or a control character is passed on: %s", text)
	}
}

func TestVolumeInUseIsAskedForAgainWhenThatMayHelp(t *testing.T) {
	t.Parallel()
	r := newGrowthRig(t)
	r.fake.nodeErr = status.Error(codes.FailedPrecondition, "in use")
	for range 3 {
		if _, err := r.expand(); !errors.Is(err, ErrInUse) || plugins.ClassOf(err) != plugins.ClassPermanent {
			t.Fatal(err)
		}
	}
	r.want("calls", r.fake.took(), "node")
	if _, err := r.Expand(context.Background(), r.request("second")); !errors.Is(err, ErrInUse) {
		t.Error(err)
	}
	r.want("calls for another pod", r.fake.took(), "")
	r.fake.nodeErr = nil
	r.publish("second")
	if got, err := r.expand(); err != nil || got.Value() != 2*gib {
		t.Errorf("published anew: %v, %v", got, err)
	}
	r.want("calls after it was published anew", r.fake.took(), "node")
}

func TestRefusalsAreForgotten(t *testing.T) {
	t.Parallel()
	r := newGrowthRig(t)
	r.fake.nodeErr = status.Error(codes.FailedPrecondition, "in use")
	r.publish("second")
	_, _ = r.expand()
	r.drop(r.volume("second"))
	if len(r.refused) != 1 {
		t.Errorf("with a pod: %v", r.refused)
	}
	r.drop(r.volume("pod-uid"))
	if len(r.refused) != 0 {
		t.Errorf("without a pod: %v", r.refused)
	}
}

func TestFailureAfterAnotherRequestGivesUp(t *testing.T) {
	t.Parallel()
	r := newGrowthRig(t)
	r.fake.nodeErr = status.Error(codes.Internal, "broken")
	_, err := r.expand()
	if plugins.ClassOf(err) != plugins.ClassTransient {
		t.Fatal(err)
	}
	claim := r.now().DeepCopy()
	claim.Spec.Resources.Requests = storageList(gib)
	r.apply(claim)
	if _, err = r.expand(); !errors.Is(err, ErrInfeasible) || plugins.ClassOf(err) != plugins.ClassPermanent {
		t.Errorf("error: %v", err)
	}
	r.want("status", r.state(), "1 NodeResizeInfeasible +FileSystemResizePending +NodeResizeError")
}

func TestClaimThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	r := newGrowthRig(t)
	broken := errors.New("no API server")
	claims := &failingClaims{ClaimUpdater: r.store}
	r.config.Expansion.Claims = claims
	claims.fail(1, broken)
	if _, err := r.expand(); !errors.Is(err, broken) || plugins.ClassOf(err) != plugins.ClassTransient {
		t.Errorf("before: %v", err)
	}
	r.want("calls", r.fake.took(), "")
	claims.fail(2, broken)
	for range 2 { // the claim is in progress then, so that its next write is the last
		if _, err := r.expand(); !errors.Is(err, broken) || plugins.ClassOf(err) != plugins.ClassTransient {
			t.Errorf("after: %v", err)
		}
		claims.fail(1, broken)
	}
	r.want("calls", r.fake.took(), "node")
	claims.fail(0, nil)
	if got, err := r.expand(); err != nil || got.Value() != 2*gib {
		t.Errorf("%v, %v", got, err)
	}
	r.want("calls", r.fake.took(), "")
	r.want("status", r.state(), "2")
}

// failingClaims fails at the n-th update from now on, once.
type failingClaims struct {
	ClaimUpdater
	mu  sync.Mutex
	n   int
	err error
}

func (f *failingClaims) fail(n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n, f.err = n, err
}

func (f *failingClaims) UpdateClaimStatus(ctx context.Context, namespace, name string, change func(*v1.PersistentVolumeClaim) error) error {
	f.mu.Lock()
	f.n--
	now := f.n == 0
	f.mu.Unlock()
	if now {
		return f.err
	}
	return f.ClaimUpdater.UpdateClaimStatus(ctx, namespace, name, change)
}

func TestClaimThatChangesMeanwhile(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*v1.PersistentVolumeClaim){
		"another claim": func(c *v1.PersistentVolumeClaim) { c.UID = "other" },
		"another size":  func(c *v1.PersistentVolumeClaim) { c.Status.AllocatedResources = storageList(5 * gib) },
		"the controller's turn": func(c *v1.PersistentVolumeClaim) {
			setResizeStatus(c, v1.PersistentVolumeClaimControllerResizeInProgress)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newGrowthRig(t)
			req := r.request("pod-uid")
			claim := r.now().DeepCopy()
			change(claim)
			r.apply(claim)
			if _, err := r.Expand(context.Background(), req); !errors.Is(err, errClaimMoved) || plugins.ClassOf(err) != plugins.ClassTransient {
				t.Errorf("error: %v", err)
			}
			r.want("calls", r.fake.took(), "")
		})
	}
	// A claim that has changed after the driver was asked is told the size alone.
	c := &v1.PersistentVolumeClaim{Status: v1.PersistentVolumeClaimStatus{AllocatedResources: storageList(5 * gib)}}
	setResizeStatus(c, v1.PersistentVolumeClaimControllerResizeInProgress)
	enlarged(c, 2*gib)
	if claimSize(c.Status.Capacity) != 2*gib || c.Status.AllocatedResourceStatuses[storage] == "" {
		t.Errorf("%+v", c.Status)
	}
}

func TestExpansionThatIsNotForThisNode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change        func(*growthRig)
		class         plugins.Class
		state, events string
	}{
		"read-only": {func(r *growthRig) { r.pv.Spec.CSI.ReadOnly = true }, plugins.ClassNone,
			"1 NodeResizePending +FileSystemResizePending", "PersistentVolumeClaim/FileSystemResizeFailed Pod/FileSystemResizeFailed"},
		"no capability": {func(r *growthRig) { delete(r.fake.d.nodeCan, canExpand) }, plugins.ClassNone,
			"1 NodeResizePending +FileSystemResizePending", ""},
		"the controller's turn": {func(r *growthRig) { setResizeStatus(r.claim, v1.PersistentVolumeClaimControllerResizeInProgress) }, plugins.ClassWaiting,
			"1 ControllerResizeInProgress +FileSystemResizePending", ""},
		"infeasible": {func(r *growthRig) { setResizeStatus(r.claim, v1.PersistentVolumeClaimNodeResizeInfeasible) }, plugins.ClassPermanent,
			"1 NodeResizeInfeasible +FileSystemResizePending", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newGrowthRig(t, c.change)
			got, err := r.expand()
			if plugins.ClassOf(err) != c.class || !got.IsZero() {
				t.Errorf("%v, %v", got, err)
			}
			r.want("calls", r.fake.took(), "")
			r.want("status", r.state(), c.state)
			r.want("events", r.reasons(), c.events)
		})
	}
	r := newGrowthRig(t)
	r.fake.missing = plugins.WaitFor(socketRef("d"), nil)
	if _, err := r.expand(); plugins.ClassOf(err) != plugins.ClassWaiting {
		t.Errorf("no driver: %v", err)
	}
	r = newGrowthRig(t)
	if err := r.store.Delete(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "node-secret"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.expand(); plugins.ClassOf(err) != plugins.ClassWaiting {
		t.Errorf("no secret: %v", err)
	}
	r.want("status", r.state(), "1 NodeResizePending +FileSystemResizePending")
}

func TestVolumeOfTwoPodsIsExpandedOnce(t *testing.T) {
	t.Parallel()
	for _, mode := range []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteMany} {
		r := newGrowthRig(t, func(r *growthRig) { r.pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{mode} })
		r.publish("second")
		if _, err := r.expand(); err != nil {
			t.Fatal(err)
		}
		if got, err := r.Expand(context.Background(), r.request("second")); err != nil || !got.IsZero() {
			t.Errorf("%s: %v, %v", mode, got, err)
		}
		r.want("calls", r.fake.took(), "node")
	}
}

func TestVolumeForManyNodesIsExpandedOnEach(t *testing.T) {
	t.Parallel()
	done := func(r *growthRig) {
		r.pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
		r.claim.Status = v1.PersistentVolumeClaimStatus{Capacity: storageList(2 * gib)}
	}
	r := newGrowthRig(t, done)
	before := r.now().ResourceVersion
	if got, err := r.expand(); err != nil || got.Value() != 2*gib {
		t.Errorf("%v, %v", got, err)
	}
	r.want("calls", r.fake.took(), "node")
	r.want("claim", r.now().ResourceVersion, before)
	r = newGrowthRig(t, done)
	r.fake.nodeErr = status.Error(codes.Internal, "broken")
	before = r.now().ResourceVersion
	if _, err := r.expand(); plugins.ClassOf(err) != plugins.ClassTransient {
		t.Error(err)
	}
	r.want("claim after a failure", r.now().ResourceVersion, before)
}

func TestInlineVolumesAndOddSizesAreRefused(t *testing.T) {
	t.Parallel()
	r := newGrowthRig(t)
	req := r.request("pod-uid")
	for _, text := range []string{"0", "-1", "1e30"} {
		q := resource.MustParse(text)
		req.Params.Size = &q
		if _, err := r.Expand(context.Background(), req); plugins.ClassOf(err) != plugins.ClassPermanent {
			t.Errorf("%s: %v", text, err)
		}
	}
	req.Spec = &plugins.Spec{Volume: &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "d"}}}}
	if _, err := r.Expand(context.Background(), req); plugins.ClassOf(err) != plugins.ClassPermanent {
		t.Errorf("inline: %v", err)
	}
}

// A driver whose every failure reads differently must not have the claim written
// each time: each write would wake the volume at once.
func TestRepeatedFailureIsToldOnce(t *testing.T) {
	t.Parallel()
	r := newGrowthRig(t)
	versions := map[string]bool{}
	for i := range 4 {
		r.fake.nodeErr = status.Errorf(codes.Internal, "request %d is broken", i)
		if _, err := r.expand(); plugins.ClassOf(err) != plugins.ClassTransient {
			t.Fatal(err)
		}
		versions[r.now().ResourceVersion] = true
	}
	r.want("events", r.reasons(), "PersistentVolumeClaim/VolumeResizeFailed")
	if len(versions) != 1 {
		t.Errorf("the claim was written each time: %v", versions)
	}
}
