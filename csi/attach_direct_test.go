package csi

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/plugins"
)

func TestDirectAttach(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, nil)
	v := r.volume(func(pv *v1.PersistentVolume) {
		pv.Spec.CSI.FSType, pv.Spec.CSI.ReadOnly, pv.Spec.MountOptions = "xfs", true, []string{"noatime"}
		pv.Spec.CSI.VolumeAttributes = map[string]string{"mode": "plain", "pool": "p1"}
		pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	})
	before := v.Spec.PV.DeepCopy()
	got, err := r.Attach(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	capability := &csipb.VolumeCapability{
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{FsType: "xfs", MountFlags: []string{"noatime"}}},
	}
	attributes := map[string]string{"mode": "plain", "pool": "p1"}
	if want := (&csipb.ControllerPublishVolumeRequest{
		VolumeId: "vol", NodeId: "node", VolumeCapability: capability, Readonly: true, VolumeContext: attributes,
	}); !proto.Equal(r.last(publishCall), want) {
		t.Errorf("%v\nwant %v", r.last(publishCall), want)
	}
	if want := (&csipb.ValidateVolumeCapabilitiesRequest{
		VolumeId: "vol", VolumeCapabilities: []*csipb.VolumeCapability{capability}, VolumeContext: attributes,
	}); !proto.Equal(r.last(validateCall), want) {
		t.Errorf("%v\nwant %v", r.last(validateCall), want)
	}
	state, _ := r.driver.Volume("vol")
	if len(state.Attached) != 1 || !maps.Equal(got.PublishContext, state.Attached[0].Context) || len(got.PublishContext) == 0 {
		t.Errorf("publish context %v of %+v", got.PublishContext, state.Attached)
	}
	if want := (plugins.Undo{undoNode: "node", undoNothing: "false"}); !maps.Equal(got.Undo, want) {
		t.Errorf("undo %v", got.Undo)
	}
	if !reflect.DeepEqual(before, v.Spec.PV) {
		t.Error("the spec was changed")
	}
	// Another process: asked once more, but not whether it may.
	v.Undo = got.Undo
	again, err := r.Attach(t.Context(), v)
	if err != nil || !maps.Equal(again.PublishContext, got.PublishContext) || r.driver.CallCounts()[validateCall] != 1 {
		t.Errorf("%+v, %v, %v", again, err, r.driver.CallCounts())
	}
	v.Spec = nil
	for range 2 {
		if err := r.Detach(t.Context(), v); err != nil {
			t.Error(err)
		}
	}
	if want := (&csipb.ControllerUnpublishVolumeRequest{VolumeId: "vol", NodeId: "node"}); !proto.Equal(r.last(unpublishCall), want) {
		t.Errorf("%v", r.last(unpublishCall))
	}
	if len(r.attachedTo()) > 0 {
		t.Errorf("attached to %v", r.attachedTo())
	}
}

// withoutController takes controller capabilities away.
func withoutController(c *csitest.Config, gone ...csipb.ControllerServiceCapability_RPC_Type) {
	c.Capabilities.Controller = slices.DeleteFunc(c.Capabilities.Controller, func(t csipb.ControllerServiceCapability_RPC_Type) bool {
		return slices.Contains(gone, t)
	})
}

func TestDirectAttachByCapabilities(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, func(c *csitest.Config) { withoutController(c, canPublishReadOnly, canAttachWriters) })
	block := v1.PersistentVolumeBlock
	for name, c := range map[string]struct {
		modes []v1.PersistentVolumeAccessMode
		want  csipb.VolumeCapability_AccessMode_Mode
		block bool
	}{
		"once":       {nil, csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, false},
		"one pod":    {[]v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}, csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, false},
		"as a set":   {[]v1.PersistentVolumeAccessMode{v1.ReadOnlyMany, v1.ReadWriteMany}, csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, false},
		"readers":    {[]v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}, csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, false},
		"raw device": {nil, csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, true},
	} {
		v := r.volume(func(pv *v1.PersistentVolume) {
			pv.Spec.AccessModes, pv.Spec.CSI.ReadOnly = c.modes, true
			pv.Spec.CSI.VolumeHandle = name
			if c.block {
				pv.Spec.VolumeMode, pv.Spec.CSI.FSType = &block, "ext4"
				pv.Spec.CSI.VolumeAttributes = map[string]string{csitest.ModeKey: string(csitest.ModeBlock)}
			}
		})
		v.Handle = name
		if _, err := r.Attach(t.Context(), v); err != nil && !c.block {
			t.Errorf("%s: %v", name, err)
		}
		method := publishCall
		if c.block {
			method = validateCall // AutoCreate makes it of the rig's mode: refused after the first look
		}
		switch req := r.last(method).(type) {
		case *csipb.ControllerPublishVolumeRequest:
			if req.GetReadonly() || req.GetVolumeCapability().GetAccessMode().GetMode() != c.want {
				t.Errorf("%s: %v", name, req)
			}
		case *csipb.ValidateVolumeCapabilitiesRequest:
			got := req.GetVolumeCapabilities()[0]
			if got.GetBlock() == nil || got.GetAccessMode().GetMode() != c.want {
				t.Errorf("%s: %v", name, req)
			}
		}
	}
	v := r.volume(func(pv *v1.PersistentVolume) {
		pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany, v1.ReadWriteOnce}
	})
	if _, err := r.Attach(t.Context(), v); plugins.ClassOf(err) != plugins.ClassPermanent {
		t.Error(err)
	}
	v = r.volume(func(pv *v1.PersistentVolume) { pv.Annotations = map[string]string{attributeAnnotations[0]: "{"} })
	if _, err := r.Attach(t.Context(), v); plugins.ClassOf(err) != plugins.ClassPermanent {
		t.Error(err)
	}
}

func TestDirectAttachWhereThereIsNothingToAttach(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]func(*csitest.Config){
		"no publish":    func(c *csitest.Config) { withoutController(c, canPublish) },
		"no controller": func(c *csitest.Config) { c.Capabilities = csitest.NodeCapabilities(canStage) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newDirectRig(t, config)
			v := r.volume(nil)
			got, err := r.Attach(t.Context(), v)
			if err != nil || got.PublishContext != nil {
				t.Errorf("%+v, %v", got, err)
			}
			v.Undo = got.Undo
			if err := r.Detach(t.Context(), v); err != nil {
				t.Error(err)
			}
			// Nor does it matter whether the driver is still there.
			waits := plugins.WaitFor(socketRef(v.Driver), nil)
			r.dir.noController = waits
			if err := r.Detach(t.Context(), v); err != nil {
				t.Error(err)
			}
			for method := range r.driver.CallCounts() {
				if method == publishCall || method == unpublishCall || method == validateCall {
					t.Errorf("%s was called", method)
				}
			}
			// What was attached once is not forgotten.
			r.dir.noController = nil
			v.Undo = plugins.Undo{undoNode: "node"}
			if err := r.Detach(t.Context(), v); plugins.ClassOf(err) != plugins.ClassUncertain || !strings.Contains(err.Error(), "cannot detach") {
				t.Error(err)
			}
		})
	}
}

// A driver that says that it has a controller service, which is elsewhere, is
// waited for: it is not one that has none.
func TestDirectAttachWithTheControllerElsewhere(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, nil)
	r.driver.Script("ControllerGetCapabilities", csitest.Fault{Code: codes.Unimplemented})
	if err := r.driver.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.ready()
	_, err := r.Attach(t.Context(), r.volume(nil))
	ref := socketRef(r.driver.Name())
	wantError(t, err, plugins.ClassWaiting, &ref, "")
}

func TestDirectAttachNeedsTheDriver(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, nil)
	v := r.volume(nil)
	ref := socketRef(v.Driver)
	waits := plugins.WaitFor(ref, errors.New("it is not registered"))
	r.dir.noController = waits
	_, err := r.Attach(t.Context(), v)
	wantError(t, err, plugins.ClassWaiting, &ref, "not registered")
	wantError(t, r.Detach(t.Context(), v), plugins.ClassWaiting, &ref, "not registered")
	// A controller with an address of its own, and a node service that is away.
	r.dir.noController, r.dir.noNode = nil, waits
	r.dir.change = func(d *driver) { d.info = NodeInfo{} }
	_, err = r.Attach(t.Context(), v)
	wantError(t, err, plugins.ClassWaiting, &ref, "not registered")
	wantError(t, r.Detach(t.Context(), v), plugins.ClassWaiting, &ref, "not registered")
	v.Undo = plugins.Undo{undoNode: "node"}
	if err := r.Detach(t.Context(), v); err != nil {
		t.Errorf("what is recorded does not suffice: %v", err)
	}
	// Never without a node: that would mean all of them.
	r.dir.noNode, v.Undo = nil, nil
	_, err = r.Attach(t.Context(), v)
	wantError(t, err, plugins.ClassTransient, nil, "no ID")
	wantError(t, r.Detach(t.Context(), v), plugins.ClassTransient, nil, "no ID")
	if n := r.driver.CallCounts()[unpublishCall]; n != 1 {
		t.Errorf("%d calls", n)
	}
}

// Every code, before and after the work. Whatever comes of it, a detach leaves
// nothing.
func TestDirectAttachCodes(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, nil)
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		for _, after := range []bool{false, true} {
			r.driver.ResetCalls()
			s := r.driver.Script(publishCall, csitest.Fault{Code: code, AfterWork: after, Times: 1})
			v := r.volume(nil)
			_, err := r.Attach(t.Context(), v)
			s.Remove()
			want := meaning(controllerPublish, code)
			var call *CallError
			if plugins.ClassOf(err) != want.class || plugins.PaceOf(err) != want.pace || !errors.As(err, &call) || call.Code != code {
				t.Errorf("%v: %v", code, err)
			}
			if errors.Is(err, ErrNodeFull) != (code == codes.ResourceExhausted) {
				t.Errorf("%v: node full: %v", code, err)
			}
			v.Spec = nil
			if err := r.Detach(t.Context(), v); err != nil {
				t.Errorf("%v: %v", code, err)
			}
			if nodes := r.attachedTo(); len(nodes) > 0 {
				t.Errorf("%v: attached to %v", code, nodes)
			}
		}
	}
}

func TestDirectDetachCodes(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, nil)
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		s := r.driver.Script(unpublishCall, csitest.Fault{Code: code, Times: 1})
		v := r.volume(nil)
		v.Undo = plugins.Undo{undoNode: "node"}
		err := r.Detach(t.Context(), v)
		s.Remove()
		want := meaning(controllerUnpublish, code)
		if code == codes.NotFound {
			want = outcome{}
		}
		if plugins.ClassOf(err) != want.class || plugins.PaceOf(err) != want.pace {
			t.Errorf("%v: class %v, pace %v: %v", code, plugins.ClassOf(err), plugins.PaceOf(err), err)
		}
	}
}

func TestDirectAttachLostAnswers(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, nil)
	v := r.volume(nil)
	r.driver.Script(publishCall, csitest.Fault{AfterWork: true, Drop: true, Times: 1})
	if _, err := r.Attach(t.Context(), v); plugins.ClassOf(err) != plugins.ClassUncertain {
		t.Error(err)
	}
	r.ready()
	got, err := r.Attach(t.Context(), v)
	if err != nil || !slices.Equal(r.attachedTo(), []string{"node"}) {
		t.Fatalf("%v, attached to %v", err, r.attachedTo())
	}
	v.Undo = got.Undo
	r.driver.Script(unpublishCall, csitest.Fault{AfterWork: true, Drop: true, Times: 1})
	if err := r.Detach(t.Context(), v); plugins.ClassOf(err) != plugins.ClassUncertain {
		t.Error(err)
	}
	r.ready()
	if err := r.Detach(t.Context(), v); err != nil || len(r.attachedTo()) > 0 {
		t.Errorf("%v, attached to %v", err, r.attachedTo())
	}
	ctx, cancel := context.WithCancel(t.Context())
	block := r.driver.Script(publishCall, csitest.Fault{Block: true})
	var all sync.WaitGroup
	all.Go(func() {
		if _, err := r.Attach(ctx, r.volume(nil)); plugins.ClassOf(err) != plugins.ClassUncertain {
			t.Errorf("given up: %v", err)
		}
	})
	if err := block.Wait(t.Context(), 1); err != nil {
		t.Error(err)
	}
	cancel()
	all.Wait()
	block.Remove()
	if _, err := r.Attach(ctx, r.volume(nil)); plugins.ClassOf(err) != plugins.ClassTransient {
		t.Errorf("not begun: %v", err)
	}
}

func TestDirectAttachValidates(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault csitest.Fault
		skip  bool
		text  string // of the refusal
	}{
		"confirmed":              {},
		"denied":                 {fault: csitest.Fault{Alter: deny("only\nblock")}, text: "only block"},
		"denied without reason":  {fault: csitest.Fault{Alter: deny("")}, text: "no reason"},
		"denied, but not asked":  {fault: csitest.Fault{Alter: deny("x")}, skip: true},
		"confirmed nothing":      {fault: csitest.Fault{Alter: confirm()}},
		"not understood":         {fault: csitest.Fault{Alter: confirm(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)}, text: "SINGLE_NODE_MULTI_WRITER"},
		"more than was asked":    {fault: csitest.Fault{Alter: confirm(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER)}},
		"not implemented":        {fault: csitest.Fault{Code: codes.Unimplemented}},
		"broken":                 {fault: csitest.Fault{Code: codes.Internal}},
		"not found, and created": {fault: csitest.Fault{Code: codes.NotFound}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newDirectRig(t, nil)
			outdated := false
			r.dir.change = func(d *driver) { d.outdated = func() { outdated = true } }
			r.options.SkipValidation = c.skip
			r.driver.Script(validateCall, c.fault)
			_, err := r.Attach(t.Context(), r.volume(nil))
			if asked := r.driver.CallCounts()[validateCall]; asked == 0 != c.skip || outdated {
				t.Errorf("asked %d times, outdated: %v", asked, outdated)
			}
			if c.text == "" {
				if err != nil || len(r.attachedTo()) != 1 {
					t.Errorf("%v, attached to %v", err, r.attachedTo())
				}
				return
			}
			wantError(t, err, plugins.ClassPermanent, nil, c.text)
			if len(r.attachedTo()) > 0 {
				t.Error("attached all the same")
			}
		})
	}
}

func deny(message string) func(proto.Message) {
	return func(m proto.Message) {
		if res, ok := m.(*csipb.ValidateVolumeCapabilitiesResponse); ok {
			res.Confirmed, res.Message = nil, message
		}
	}
}

func confirm(modes ...csipb.VolumeCapability_AccessMode_Mode) func(proto.Message) {
	return func(m proto.Message) {
		res, ok := m.(*csipb.ValidateVolumeCapabilitiesResponse)
		if !ok {
			return
		}
		res.Confirmed = &csipb.ValidateVolumeCapabilitiesResponse_Confirmed{}
		for _, mode := range modes {
			res.Confirmed.VolumeCapabilities = append(res.Confirmed.VolumeCapabilities, capabilityOf(&plugins.Spec{}, "", mode, nil, ""))
		}
	}
}
