package csi

import (
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/plugins"
)

const mebi = 1 << 20

func createOptions(driver string, change func(*CreateOptions)) CreateOptions {
	o := CreateOptions{Driver: driver, Name: "data", Size: resource.MustParse("10Mi")}
	if change != nil {
		change(&o)
	}
	return o
}

func TestCreateVolume(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, nil)
	ref := &v1.SecretReference{Namespace: "storage", Name: "login"}
	o := createOptions(r.driver.Name(), func(o *CreateOptions) {
		o.Limit, o.FSType, o.MountOptions = resource.MustParse("20Mi"), "ext4", []string{"noatime"}
		o.Parameters = map[string]string{csitest.ContextPrefix + "pool": "p1"}
		o.Secrets = map[string]string{"password": "hunter2-hunter2"}
		o.SecretRefs = SecretRefs{ControllerPublish: ref, ControllerExpand: ref, NodeStage: ref, NodePublish: ref, NodeExpand: ref}
		o.Here = true
	})
	pv, err := r.drivers.CreateVolume(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	mode, handle := v1.PersistentVolumeFilesystem, csitest.VolumeID("data")
	want := v1.PersistentVolumeSpec{
		Capacity:     v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(10*mebi, resource.BinarySI)},
		AccessModes:  []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		MountOptions: []string{"noatime"}, VolumeMode: &mode,
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
			Driver: r.driver.Name(), VolumeHandle: handle, FSType: "ext4",
			VolumeAttributes:           map[string]string{"pool": "p1", csitest.ModeKey: "plain"},
			ControllerPublishSecretRef: ref, ControllerExpandSecretRef: ref, NodeStageSecretRef: ref, NodePublishSecretRef: ref, NodeExpandSecretRef: ref,
		}},
		NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: "topology.csitest/node", Operator: v1.NodeSelectorOpIn, Values: []string{"node"}}},
		}}}},
	}
	if !reflect.DeepEqual(pv.Spec.PersistentVolumeSource, want.PersistentVolumeSource) || !reflect.DeepEqual(pv.Spec.NodeAffinity, want.NodeAffinity) ||
		!reflect.DeepEqual(pv.Spec.AccessModes, want.AccessModes) || !reflect.DeepEqual(pv.Spec.MountOptions, want.MountOptions) ||
		*pv.Spec.VolumeMode != mode || pv.Name != "data" || pv.Spec.Capacity.Storage().Value() != 10*mebi {
		t.Errorf("%+v\nwant %+v", pv, want)
	}
	topology := []*csipb.Topology{{Segments: map[string]string{"topology.csitest/node": "node"}}}
	asked := &csipb.CreateVolumeRequest{
		Name: "data", CapacityRange: &csipb.CapacityRange{RequiredBytes: 10 * mebi, LimitBytes: 20 * mebi},
		Parameters: o.Parameters, Secrets: o.Secrets,
		VolumeCapabilities: []*csipb.VolumeCapability{
			capabilityOf(&plugins.Spec{}, "ext4", csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, []string{"noatime"}, ""),
		},
		AccessibilityRequirements: &csipb.TopologyRequirement{Requisite: topology, Preferred: topology},
	}
	if !proto.Equal(r.last("CreateVolume"), asked) {
		t.Errorf("%v\nwant %v", r.last("CreateVolume"), asked)
	}
	if pv.Spec.CSI.NodeStageSecretRef == ref {
		t.Error("the reference is shared")
	}
	again, err := r.drivers.CreateVolume(t.Context(), o)
	if err != nil || again.Spec.CSI.VolumeHandle != handle || len(r.driver.Volumes()) != 1 {
		t.Errorf("again: %+v, %v", again, err)
	}
	// It can be stored, attached, and deleted when it is not attached any more.
	if err := r.store.Apply(pv); err != nil {
		t.Fatal(err)
	}
	pv = pv.DeepCopy()
	pv.Spec.CSI.ControllerPublishSecretRef = nil
	v := Attachable{Driver: r.driver.Name(), Handle: handle, Node: "n", Spec: &plugins.Spec{PV: pv}}
	if _, err := r.Attach(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	if nodes, err := r.drivers.PublishedNodes(t.Context(), r.driver.Name()); err != nil || !reflect.DeepEqual(nodes, map[string][]string{handle: {"node"}}) {
		t.Errorf("%v, %v", nodes, err)
	}
	err = r.drivers.DeleteVolume(t.Context(), pv, nil)
	if answered(err) != codes.FailedPrecondition {
		t.Errorf("deleted while it is attached: %v", err)
	}
	if err := r.Detach(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.drivers.DeleteVolume(t.Context(), pv, map[string]string{"k": "v"}); err != nil {
			t.Error(err)
		}
	}
	if req, ok := r.last("DeleteVolume").(*csipb.DeleteVolumeRequest); !ok || req.GetVolumeId() != handle || req.GetSecrets()["k"] != "v" {
		t.Errorf("%v", r.last("DeleteVolume"))
	}
	if len(r.driver.Volumes()) > 0 {
		t.Errorf("%+v", r.driver.Volumes())
	}
}

func TestCreateVolumeChoices(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, func(c *csitest.Config) {
		c.Mode = csitest.ModeBlock
		c.Node.Topology = map[string]string{}
		c.DefaultBytes = 3 * mebi
	})
	pv, err := r.drivers.CreateVolume(t.Context(), CreateOptions{
		Driver: r.driver.Name(), Name: "raw", Block: true, Here: true, Modes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany},
	})
	if err != nil {
		t.Fatal(err)
	}
	req, ok := r.last("CreateVolume").(*csipb.CreateVolumeRequest)
	if !ok || req.GetCapacityRange() != nil || req.GetAccessibilityRequirements() != nil || len(req.GetVolumeCapabilities()) != 1 {
		t.Fatalf("%v", req)
	}
	if c := req.GetVolumeCapabilities()[0]; c.GetBlock() == nil || c.GetAccessMode().GetMode() != csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER {
		t.Errorf("%v", c)
	}
	if pv.Spec.NodeAffinity != nil || *pv.Spec.VolumeMode != v1.PersistentVolumeBlock || pv.Spec.Capacity.Storage().Value() != 3*mebi {
		t.Errorf("%+v", pv)
	}
	topology := []map[string]string{{"zone": "z1"}, {"zone": "z2"}}
	_, err = r.drivers.CreateVolume(t.Context(), CreateOptions{Driver: r.driver.Name(), Name: "far", Block: true, Topology: topology})
	if answered(err) != codes.ResourceExhausted || plugins.ClassOf(err) != plugins.ClassUncertain {
		t.Errorf("in no such zone: %v", err)
	}
	if req, ok := r.last("CreateVolume").(*csipb.CreateVolumeRequest); !ok || len(req.GetAccessibilityRequirements().GetRequisite()) != 2 {
		t.Errorf("%v", req)
	}
}

func TestCreateVolumeRefusesOptions(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, nil)
	for name, change := range map[string]func(*CreateOptions){
		"no driver":   func(o *CreateOptions) { o.Driver = "" },
		"bad driver":  func(o *CreateOptions) { o.Driver = "../x" },
		"no name":     func(o *CreateOptions) { o.Name = "" },
		"bad name":    func(o *CreateOptions) { o.Name = "a/b" },
		"long name":   func(o *CreateOptions) { o.Name = strings.Repeat("x", 129) },
		"negative":    func(o *CreateOptions) { o.Size = resource.MustParse("-1") },
		"limit below": func(o *CreateOptions) { o.Limit = resource.MustParse("9Mi") },
		"too large": func(o *CreateOptions) {
			o.Size = *resource.NewQuantity(math.MaxInt64, resource.BinarySI)
			o.Size.Add(o.Size)
		},
		"modes":         func(o *CreateOptions) { o.Modes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany, v1.ReadWriteOnce} },
		"block with fs": func(o *CreateOptions) { o.Block, o.FSType = true, "ext4" },
		"block options": func(o *CreateOptions) { o.Block, o.MountOptions = true, []string{"ro"} },
		"bad topology":  func(o *CreateOptions) { o.Topology = []map[string]string{{"a b": "c"}} },
		"no segments":   func(o *CreateOptions) { o.Topology = []map[string]string{{}} },
	} {
		if _, err := r.drivers.CreateVolume(t.Context(), createOptions(r.driver.Name(), change)); plugins.ClassOf(err) != plugins.ClassPermanent {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, pv := range []*v1.PersistentVolume{nil, {}, csiPV("x", r.driver.Name(), ""), csiPV("x", "../x", "h")} {
		if err := r.drivers.DeleteVolume(t.Context(), pv, nil); plugins.ClassOf(err) != plugins.ClassPermanent {
			t.Error(err)
		}
	}
	if n := r.driver.CallCounts(); n["CreateVolume"]+n["DeleteVolume"] > 0 {
		t.Errorf("the driver was asked: %v", n)
	}
}

func TestProvisioningNeedsCapabilities(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]func(*csitest.Config){
		"no controller": func(c *csitest.Config) { c.Capabilities = csitest.NodeCapabilities() },
		"none of it":    func(c *csitest.Config) { withoutController(c, canCreate, canListPublishedNodes) },
		"no list":       func(c *csitest.Config) { withoutController(c, canCreate, canList) },
	} {
		r := newDirectRig(t, config)
		_, create := r.drivers.CreateVolume(t.Context(), createOptions(r.driver.Name(), nil))
		_, list := r.drivers.PublishedNodes(t.Context(), r.driver.Name())
		for _, err := range []error{create, list, r.drivers.DeleteVolume(t.Context(), csiPV("x", r.driver.Name(), "h"), nil)} {
			if plugins.ClassOf(err) != plugins.ClassUnsupported {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := r.driver.CallCounts(); n["CreateVolume"]+n["DeleteVolume"]+n["ListVolumes"] > 0 {
			t.Errorf("%s: the driver was asked: %v", name, n)
		}
		const away = "away.example.com"
		_, err := r.drivers.CreateVolume(t.Context(), createOptions(away, nil))
		ref := socketRef(away)
		wantError(t, err, plugins.ClassWaiting, &ref, "not registered")
	}
}

// What comes back is not what was asked for, or cannot be at all.
func TestCreateVolumeHostileAnswers(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, nil)
	zone := func(segments map[string]string) []*csipb.Topology { return []*csipb.Topology{{Segments: segments}} }
	for name, c := range map[string]struct {
		change func(*csipb.CreateVolumeResponse)
		good   bool
	}{
		"nothing":      {func(res *csipb.CreateVolumeResponse) { res.Volume = nil }, false},
		"no handle":    {func(res *csipb.CreateVolumeResponse) { res.Volume.VolumeId = "" }, false},
		"control":      {func(res *csipb.CreateVolumeResponse) { res.Volume.VolumeId = "a\nb" }, false},
		"long handle":  {func(res *csipb.CreateVolumeResponse) { res.Volume.VolumeId = strings.Repeat("x", maxHandle+1) }, false},
		"too small":    {func(res *csipb.CreateVolumeResponse) { res.Volume.CapacityBytes = 10*mebi - 1 }, false},
		"too large":    {func(res *csipb.CreateVolumeResponse) { res.Volume.CapacityBytes = 20*mebi + 1 }, false},
		"negative":     {func(res *csipb.CreateVolumeResponse) { res.Volume.CapacityBytes = -1 }, false},
		"unknown size": {func(res *csipb.CreateVolumeResponse) { res.Volume.CapacityBytes = 0 }, true},
		"large context": {func(res *csipb.CreateVolumeResponse) {
			res.Volume.VolumeContext = map[string]string{"k": strings.Repeat("x", maxContext)}
		}, false},
		"bad key": {func(res *csipb.CreateVolumeResponse) {
			res.Volume.AccessibleTopology = zone(map[string]string{"a b": "c"})
		}, false},
		"bad value": {func(res *csipb.CreateVolumeResponse) {
			res.Volume.AccessibleTopology = zone(map[string]string{"a": "b/c"})
		}, false},
		"empty topology": {func(res *csipb.CreateVolumeResponse) { res.Volume.AccessibleTopology = zone(nil) }, true},
		"strange, but so": {func(res *csipb.CreateVolumeResponse) {
			res.Volume.VolumeId = "/subscriptions/a^b/ü " + strings.Repeat("x", 200)
		}, true},
	} {
		s := r.driver.Script("CreateVolume", csitest.Fault{Times: 1, Alter: func(m proto.Message) {
			if res, ok := m.(*csipb.CreateVolumeResponse); ok {
				c.change(res)
			}
		}})
		pv, err := r.drivers.CreateVolume(t.Context(), createOptions(r.driver.Name(), func(o *CreateOptions) { o.Limit = resource.MustParse("20Mi") }))
		s.Remove()
		switch {
		case c.good && (err != nil || pv.Spec.Capacity.Storage().Value() != 10*mebi || name == "empty topology" && pv.Spec.NodeAffinity != nil):
			t.Errorf("%s: %+v, %v", name, pv, err)
		case !c.good && (pv != nil || plugins.ClassOf(err) != plugins.ClassUncertain || len(err.Error()) > 2000):
			t.Errorf("%s: %v", name, err)
		}
	}
	// A volume that is not the one asked for may be in use: it is never deleted.
	if n := r.driver.CallCounts()["DeleteVolume"]; n > 0 {
		t.Errorf("%d deletions", n)
	}
}

func TestProvisioningCodes(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, nil)
	pv := csiPV("x", r.driver.Name(), "h")
	const secret = "hunter2-hunter2"
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		fault := csitest.Fault{Code: code, Message: "wrong: " + secret, Times: 1}
		create := r.driver.Script("CreateVolume", fault)
		remove := r.driver.Script("DeleteVolume", fault)
		_, created := r.drivers.CreateVolume(t.Context(), createOptions(r.driver.Name(), func(o *CreateOptions) { o.Secrets = map[string]string{"p": secret} }))
		deleted := r.drivers.DeleteVolume(t.Context(), pv, map[string]string{"p": secret})
		create.Remove()
		remove.Remove()
		if answered(created) != code || plugins.ClassOf(created) != meaning(controllerCreate, code).class {
			t.Errorf("%v: created: %v", code, created)
		}
		if code == codes.NotFound && deleted != nil || code != codes.NotFound && (answered(deleted) != code || plugins.ClassOf(deleted) != meaning(controllerDelete, code).class) {
			t.Errorf("%v: deleted: %v", code, deleted)
		}
		if err := errors.Join(created, deleted); strings.Contains(err.Error(), secret) {
			t.Errorf("%v: %v", code, err)
		}
	}
}

func TestAffinity(t *testing.T) {
	t.Parallel()
	in := []*csipb.Topology{
		{Segments: map[string]string{"zone": "z2", "region": "r1"}}, {}, {Segments: map[string]string{"zone": "z3", "region": "r1"}},
	}
	got, err := affinityOf(in)
	if err != nil {
		t.Fatal(err)
	}
	var terms []map[string]string
	for _, term := range got.Required.NodeSelectorTerms {
		keys, m := []string{}, map[string]string{}
		for _, e := range term.MatchExpressions {
			keys = append(keys, e.Key)
			m[e.Key] = e.Values[0]
		}
		if !slices.IsSorted(keys) {
			t.Errorf("keys %v", keys)
		}
		terms = append(terms, m)
	}
	if len(terms) != 2 || !maps.Equal(terms[0], in[0].GetSegments()) || !maps.Equal(terms[1], in[2].GetSegments()) {
		t.Error(terms)
	}
}
