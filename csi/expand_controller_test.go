package csi

import (
	"errors"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
)

// alone makes the rig one without a control plane: storage and claim have 1 GiB,
// and the claim asks for 2.
func alone(r *growthRig) {
	r.config.Expansion.Controller = true
	r.pv.Spec.Capacity = storageList(gib)
	r.claim.Status = v1.PersistentVolumeClaimStatus{Capacity: storageList(gib)}
	r.fake.ctrlReply = csipb.ControllerExpandVolumeResponse{CapacityBytes: 2 * gib, NodeExpansionRequired: true}
}

func TestExpansionWithoutAControlPlane(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*growthRig)
		calls  string
		size   int64
		class  plugins.Class
		is     error
		state  string
	}{
		"both":             {nil, "controller node", 2 * gib, plugins.ClassNone, nil, "2"},
		"larger":           {func(r *growthRig) { r.fake.ctrlReply = csipb.ControllerExpandVolumeResponse{CapacityBytes: 3 * gib} }, "controller", 3 * gib, plugins.ClassNone, nil, "2"},
		"node not needed":  {func(r *growthRig) { r.fake.ctrlReply.NodeExpansionRequired = false }, "controller", 2 * gib, plugins.ClassNone, nil, "2"},
		"controller alone": {func(r *growthRig) { delete(r.fake.d.nodeCan, canExpand) }, "controller", 2 * gib, plugins.ClassNone, nil, "2"},
		"node alone":       {func(r *growthRig) { delete(r.fake.d.controllerCan, canExpandStorage) }, "node", 2 * gib, plugins.ClassNone, nil, "2"},
		"no controller": {func(r *growthRig) {
			r.fake.d.controller, r.fake.d.noController = nil, true
		}, "node", 2 * gib, plugins.ClassNone, nil, "2"},
		"neither": {func(r *growthRig) {
			delete(r.fake.d.controllerCan, canExpandStorage)
			delete(r.fake.d.nodeCan, canExpand)
		}, "", 0, plugins.ClassUnsupported, nil, "1"},
		"offline": {func(r *growthRig) {
			r.fake.d.expansion = capabilities[csipb.PluginCapability_VolumeExpansion_Type]{expandsOffline: {}}
		}, "", 0, plugins.ClassPermanent, ErrInUse, "1"},
		"not told":   {func(r *growthRig) { r.fake.ctrlReply.CapacityBytes = 0 }, "controller node", 2 * gib, plugins.ClassNone, nil, "2"},
		"too little": {func(r *growthRig) { r.fake.ctrlReply.CapacityBytes = gib }, "controller", 0, plugins.ClassTransient, nil, "1 ControllerResizeInProgress"},
		"infeasible": {func(r *growthRig) { r.fake.ctrlErr = status.Error(codes.OutOfRange, "controller-password") }, "controller", 0,
			plugins.ClassPermanent, ErrInfeasible, "1 ControllerResizeInfeasible +ControllerResizeError"},
		"in use":  {func(r *growthRig) { r.fake.ctrlErr = status.Error(codes.FailedPrecondition, "") }, "controller", 0, plugins.ClassPermanent, ErrInUse, "1 ControllerResizeInProgress"},
		"timeout": {func(r *growthRig) { r.fake.ctrlErr = status.Error(codes.DeadlineExceeded, "") }, "controller", 0, plugins.ClassUncertain, nil, "1 ControllerResizeInProgress"},
		"broken": {func(r *growthRig) { r.fake.ctrlErr = status.Error(codes.Internal, "controller-password") }, "controller", 0,
			plugins.ClassTransient, nil, "1 ControllerResizeInProgress +ControllerResizeError"},
		"node infeasible": {func(r *growthRig) { r.fake.nodeErr = status.Error(codes.OutOfRange, "node-password") }, "controller node", 0,
			plugins.ClassPermanent, ErrInfeasible, "1 NodeResizeInfeasible +NodeResizeError"},
		"nobody is told": {func(r *growthRig) { r.config.Expansion.Claims = nil }, "controller node", 2 * gib, plugins.ClassNone, nil, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newGrowthRig(t, alone)
			if c.change != nil {
				c.change(r)
			}
			got, err := r.expand()
			if got.Value() != c.size || plugins.ClassOf(err) != c.class || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v, %s: %v", got, plugins.ClassOf(err), err)
			}
			r.want("calls", r.fake.took(), c.calls)
			r.want("status", r.state(), c.state)
			r.leaksNothing(err)
		})
	}
}

func TestControllerExpandRequest(t *testing.T) {
	t.Parallel()
	r := newGrowthRig(t, alone)
	if _, err := r.expand(); err != nil {
		t.Fatal(err)
	}
	q := r.fake.control
	if q.VolumeId != "h" || q.CapacityRange.GetRequiredBytes() != 2*gib || q.Secrets["key"] != "controller-password" ||
		q.VolumeCapability.GetMount().GetFsType() != "xfs" {
		t.Errorf("request: %v", q)
	}
	if r.fake.node.Secrets["key"] != "node-password" {
		t.Errorf("request of the node: %v", r.fake.node)
	}
	// It is done: the claim says so, whatever the persistent volume says.
	if now := sizeNow(r.request("pod-uid")); now != nil {
		t.Errorf("size after that: %v", now)
	}
}

func TestAnotherRequestAfterAnInfeasibleOne(t *testing.T) {
	t.Parallel()
	r := newGrowthRig(t, alone)
	r.fake.ctrlErr = status.Error(codes.OutOfRange, "too large")
	for range 2 {
		if _, err := r.expand(); !errors.Is(err, ErrInfeasible) {
			t.Fatal(err)
		}
	}
	r.want("calls", r.fake.took(), "controller")
	claim := r.now().DeepCopy()
	claim.Spec.Resources.Requests = storageList(gib + gib/2)
	r.apply(claim)
	r.fake.ctrlErr = nil
	if got, err := r.expand(); err != nil || got.Value() < gib+gib/2 {
		t.Errorf("%v, %v", got, err)
	}
	r.want("calls", r.fake.took(), "controller node")
}

func TestExpansionGoesOnAfterARestart(t *testing.T) {
	t.Parallel()
	r := newGrowthRig(t, alone)
	r.fake.nodeErr = status.Error(codes.Unavailable, "")
	_, _ = r.expand()
	r.want("status", r.state(), "1 NodeResizeInProgress")
	r.fake.took()
	r.fake.nodeErr = nil
	r.publish("pod-uid") // which is all that is left of what this process knew
	if got, err := r.expand(); err != nil || got.Value() != 2*gib {
		t.Errorf("%v, %v", got, err)
	}
	r.want("calls", r.fake.took(), "node")
	r.want("status", r.state(), "2")
}
