package csitest_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/volumekit/volumekit/csi/csitest"
)

// TestPublishTwice walks through the two tables of the specification, section
// NodePublishVolume.
func TestPublishTwice(t *testing.T) {
	const (
		single = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		multi  = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		reader = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	)
	tests := []struct {
		name     string
		offered  bool // SINGLE_NODE_MULTI_WRITER
		mode     csi.VolumeCapability_AccessMode_Mode
		otherArg codes.Code // same path, other arguments
		other    codes.Code // another path
	}{
		{"multi node", false, writers, codes.AlreadyExists, codes.OK},
		{"readers", false, reader, codes.AlreadyExists, codes.OK},
		{"single node", false, writer, codes.AlreadyExists, codes.FailedPrecondition},
		{"multi node, offered", true, writers, codes.AlreadyExists, codes.OK},
		{"single node, offered", true, writer, codes.AlreadyExists, codes.FailedPrecondition},
		{"single writer", true, single, codes.AlreadyExists, codes.FailedPrecondition},
		{"several writers", true, multi, codes.AlreadyExists, codes.OK},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			config := staging(csitest.ModeBind)
			if test.offered {
				config = staging(csitest.ModeBind, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
			}
			b := start(t, config)
			c := mountCapability(test.mode, "")
			s, target, other := b.staging("stage"), b.path("pods/1/target"), b.path("pods/2/target")
			b.must(b.stage("v", s, c), b.publish("v", s, target, c), b.publish("v", s, target, c))
			_, err := b.NodePublishVolume(b.ctx, &csi.NodePublishVolumeRequest{VolumeId: "v", StagingTargetPath: s, TargetPath: target, VolumeCapability: c, Readonly: true})
			b.want(err, test.otherArg)
			b.want(b.publish("v", s, other, c), test.other)
		})
	}
}

func TestOrderIsEnforced(t *testing.T) {
	b := start(t, staging(csitest.ModeBind))
	c := mountCapability(writers, "")
	s, s2, target := b.staging("stage"), b.staging("stage2"), b.path("pods/1/target")
	b.want(b.publish("v", s, target, c), codes.FailedPrecondition)
	b.must(b.stage("v", s, c))
	b.want(b.stage("v", s2, c), codes.FailedPrecondition)
	b.want(b.stage("v", s, mountCapability(writer, "")), codes.AlreadyExists)
	b.want(b.publish("v", "", target, c), codes.FailedPrecondition)
	b.want(b.publish("v", s2, target, c), codes.FailedPrecondition)
	b.want(b.publish("v", s, target, mountCapability(writer, "")), codes.FailedPrecondition)
	b.must(b.publish("v", s, target, c))
	b.want(b.unstage("v", s), codes.FailedPrecondition)
	b.must(b.unpublish("v", target), b.unstage("v", s))
	b.must(b.unpublish("unknown", target), b.unstage("unknown", s))
}

func TestLenientDriver(t *testing.T) {
	config := staging(csitest.ModeBind)
	config.Lenient = true
	b := start(t, config)
	c, other := mountCapability(writer, ""), mountCapability(writers, "")
	s, one, two := b.staging("stage"), b.path("pods/1/target"), b.path("pods/2/target")
	b.must(b.stage("v", s, c), b.stage("v", s, other), b.publish("v", s, one, c), b.publish("v", s, one, other), b.publish("v", s, two, c))
	b.must(b.unstage("v", s))
	b.must(b.unpublish("v", one), b.unpublish("v", two))
}

func TestUndoUnknown(t *testing.T) {
	config := staging(csitest.ModeBind)
	config.UndoUnknown = codes.NotFound
	b := start(t, config)
	b.want(b.unpublish("v", "/somewhere"), codes.NotFound)
	b.want(b.unstage("v", "/somewhere"), codes.NotFound)
}

func TestRequestsAreChecked(t *testing.T) {
	b := start(t, staging(csitest.ModeBind))
	c := mountCapability(writer, "")
	s, target := b.staging("stage"), b.path("pods/1/target")
	b.must(b.stage("v", s, c))
	request := func(change func(*csi.NodePublishVolumeRequest)) error {
		r := &csi.NodePublishVolumeRequest{VolumeId: "v", StagingTargetPath: s, TargetPath: target, VolumeCapability: mountCapability(writer, "")}
		change(r)
		_, err := b.NodePublishVolume(b.ctx, r)
		return err
	}
	for name, change := range map[string]func(*csi.NodePublishVolumeRequest){
		"no volume":           func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "" },
		"long volume":         func(r *csi.NodePublishVolumeRequest) { r.VolumeId = strings.Repeat("v", 129) },
		"no target":           func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "" },
		"relative target":     func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "pods/target" },
		"unclean target":      func(r *csi.NodePublishVolumeRequest) { r.TargetPath = target + "/../target" },
		"no parent":           func(r *csi.NodePublishVolumeRequest) { r.TargetPath = b.dir + "/none/target" },
		"no capability":       func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = nil },
		"no access type":      func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.AccessType = nil },
		"no access mode":      func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.AccessMode = nil },
		"unknown access mode": func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.AccessMode.Mode = 99 },
		"mode without its capability": func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		},
		"group without its capability": func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().VolumeMountGroup = "7" },
		"block":                        func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = blockCapability(writer) },
		"publish context without attach": func(r *csi.NodePublishVolumeRequest) {
			r.PublishContext = map[string]string{"a": "b"}
		},
		"large context": func(r *csi.NodePublishVolumeRequest) {
			r.VolumeContext = map[string]string{"csi.storage.k8s.io/pod.name": strings.Repeat("x", 4096)}
		},
		"large flags": func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability.GetMount().MountFlags = []string{strings.Repeat("x", 4097)}
		},
	} {
		if err := request(change); err == nil || !strings.Contains(err.Error(), codes.InvalidArgument.String()) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
	// Tokens of Kubernetes may be longer, and are not part of the arguments.
	for _, token := range []string{strings.Repeat("x", 9000), "other"} {
		b.must(request(func(r *csi.NodePublishVolumeRequest) {
			r.VolumeContext = map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": token}
		}))
	}
	text, err := os.ReadFile(tableFile(b, "v"))
	b.must(err)
	if strings.Contains(string(text), "other") {
		t.Error("a token is in the table")
	}
	b.must(b.unpublish("v", target))
}

// tableFile is the only entry of the driver's table.
func tableFile(b *bench, id string) string {
	b.Helper()
	files, err := filepath.Glob(filepath.Join(b.dir, "driver", "volumes", "*.json"))
	if err != nil || len(files) != 1 {
		b.Fatalf("entries of %s: %q, %v", id, files, err)
	}
	return files[0]
}

func TestVolumesOfCreate(t *testing.T) {
	b := start(t, csitest.Config{Capabilities: csitest.AllCapabilities(), OtherNodes: []string{"far"}, Node: csitest.NodeInfo{NodeID: "near", MaxVolumes: 2}})
	c := mountCapability(writer, "")
	create := func(name string, parameters map[string]string, r *csi.CapacityRange) (*csi.Volume, error) {
		reply, err := b.CreateVolume(b.ctx, &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{c}, Parameters: parameters, CapacityRange: r})
		return reply.GetVolume(), err
	}
	v, err := create("one", map[string]string{"mode": "bind", "context/color": "red"}, &csi.CapacityRange{RequiredBytes: 1 << 20})
	b.must(err)
	if !maps.Equal(v.GetVolumeContext(), map[string]string{"mode": "bind", "color": "red"}) || v.GetCapacityBytes() != 1<<20 {
		t.Errorf("volume is %v", v)
	}
	_, err = create("one", map[string]string{"mode": "tmpfs"}, nil)
	b.want(err, codes.AlreadyExists)
	_, err = create("two", map[string]string{"colour": "red"}, nil)
	b.want(err, codes.InvalidArgument)
	_, err = create("two", nil, &csi.CapacityRange{RequiredBytes: 1 << 50})
	b.want(err, codes.OutOfRange)

	attach := func(id, node string, c *csi.VolumeCapability) (map[string]string, error) {
		reply, err := b.ControllerPublishVolume(b.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node, VolumeCapability: c})
		return reply.GetPublishContext(), err
	}
	s, target := b.staging("stage"), b.path("pods/1/target")
	stage := func(publish map[string]string) error {
		_, err := b.NodeStageVolume(b.ctx, &csi.NodeStageVolumeRequest{
			VolumeId: v.GetVolumeId(), StagingTargetPath: s, VolumeCapability: c, PublishContext: publish, VolumeContext: v.GetVolumeContext(),
		})
		return err
	}
	b.want(stage(nil), codes.FailedPrecondition) // not attached
	_, err = attach(v.GetVolumeId(), "nowhere", c)
	b.want(err, codes.NotFound)
	publish, err := attach(v.GetVolumeId(), "near", c)
	b.must(err)
	_, err = attach(v.GetVolumeId(), "far", c)
	b.want(err, codes.FailedPrecondition)
	b.want(stage(nil), codes.InvalidArgument) // without the publish context
	b.must(stage(publish))
	_, err = b.ControllerUnpublishVolume(b.ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: "near"})
	b.want(err, codes.FailedPrecondition)
	_, err = b.DeleteVolume(b.ctx, &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
	b.want(err, codes.FailedPrecondition)
	_ = target

	for _, name := range []string{"two", "three"} {
		_, err = create(name, nil, nil)
		b.must(err)
	}
	_, err = attach(csitest.VolumeID("two"), "near", c)
	b.must(err)
	_, err = attach(csitest.VolumeID("three"), "near", c)
	b.want(err, codes.ResourceExhausted)

	page, err := b.ListVolumes(b.ctx, &csi.ListVolumesRequest{MaxEntries: 2})
	b.must(err)
	rest, err := b.ListVolumes(b.ctx, &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: page.GetNextToken()})
	b.must(err)
	if len(page.GetEntries()) != 2 || len(rest.GetEntries()) != 1 || rest.GetNextToken() != "" {
		t.Errorf("pages are %v and %v", page, rest)
	}
	one, err := b.ControllerGetVolume(b.ctx, &csi.ControllerGetVolumeRequest{VolumeId: v.GetVolumeId()})
	b.must(err)
	if !slices.Equal(one.GetStatus().GetPublishedNodeIds(), []string{"near"}) {
		t.Errorf("volume one is %v", one)
	}
}

func TestUnknownVolumes(t *testing.T) {
	config := staging(csitest.ModeBind)
	config.AutoCreate = false
	b := start(t, config)
	c := mountCapability(writer, "")
	b.want(b.stage("v", b.staging("stage"), c), codes.NotFound)
	b.want(b.publish("v", b.staging("stage"), b.path("pods/1/target"), c), codes.NotFound)
	if n := len(b.d.Volumes()); n != 0 {
		t.Errorf("%d volumes came into being", n)
	}
}

func TestEphemeralVolume(t *testing.T) {
	config := staging(csitest.ModeTmpfs)
	config.AutoCreate = false
	b := start(t, config)
	target := b.path("pods/1/target")
	_, err := b.NodePublishVolume(b.ctx, &csi.NodePublishVolumeRequest{
		VolumeId: "csi-1", TargetPath: target, VolumeCapability: mountCapability(writer, ""),
		VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true", "mode": "bind"},
	})
	b.must(err)
	if v := b.volume("csi-1"); !v.Ephemeral || v.Mode != csitest.ModeBind {
		t.Errorf("volume is %+v", v)
	}
	b.must(b.unpublish("csi-1", target))
	if _, ok := b.d.Volume("csi-1"); ok {
		t.Error("the volume outlives its publish")
	}
}

func TestStatsAndHealth(t *testing.T) {
	b := start(t, staging(csitest.ModeTmpfs, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS, csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH, csitest.NodeVolumeCondition, 200))
	c := mountCapability(writer, "")
	s := b.staging("stage")
	b.must(b.stage("v", s, c))

	caps, err := b.NodeGetCapabilities(b.ctx, &csi.NodeGetCapabilitiesRequest{})
	b.must(err)
	var numbers []int32
	for _, c := range caps.GetCapabilities() {
		numbers = append(numbers, int32(c.GetRpc().GetType()))
	}
	if !slices.Equal(numbers, []int32{2, 7, 8, 4, 200, 1}) {
		t.Errorf("capabilities are %d", numbers)
	}

	if total := b.total("v", s); total != 64<<20 {
		t.Errorf("total is %d", total)
	}
	b.d.SetUsage("v", &csi.VolumeUsage{Unit: csi.VolumeUsage_BYTES, Total: 7})
	b.d.SetVolumeHealth("v", &csi.VolumeHealth_VolumeHealthEntry{Status: csi.VolumeHealthErrorType_DATA_LOSS, Reason: "Burnt"})
	stats, err := b.NodeGetVolumeStats(b.ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: s})
	b.must(err)
	if stats.GetUsage()[0].GetTotal() != 7 {
		t.Errorf("stats are %v", stats)
	}
	if raw := stats.ProtoReflect().GetUnknown(); string(raw) != "\x12\x09\x08\x01\x12\x05Burnt" {
		t.Errorf("the old condition is %q", raw)
	}
	health, err := b.NodeGetVolumeHealth(b.ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: "v"})
	b.must(err)
	if health.GetVolumeHealth().GetHealthStatuses()[0].GetReason() != "Burnt" {
		t.Errorf("health is %v", health)
	}
	b.d.SetStorageHealth(&csi.NodeGetStorageHealthResponse_StorageBackendHealth{Status: csi.StorageHealthErrorType_STORAGE_DEGRADED, Reason: "OnePath"})
	backend, err := b.NodeGetStorageHealth(b.ctx, &csi.NodeGetStorageHealthRequest{})
	b.must(err)
	if backend.GetBackendHealth()[0].GetReason() != "OnePath" {
		t.Errorf("storage health is %v", backend)
	}
	_, err = b.NodeGetVolumeStats(b.ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "/elsewhere"})
	b.want(err, codes.NotFound)
}

func TestIdentity(t *testing.T) {
	b := start(t, csitest.Config{Name: "some.driver.example", Version: "7", Capabilities: csitest.AllCapabilities()})
	info, err := b.GetPluginInfo(b.ctx, &csi.GetPluginInfoRequest{})
	b.must(err)
	if info.GetName() != "some.driver.example" || info.GetVendorVersion() != "7" {
		t.Errorf("info is %v", info)
	}
	caps, err := b.GetPluginCapabilities(b.ctx, &csi.GetPluginCapabilitiesRequest{})
	b.must(err)
	if len(caps.GetCapabilities()) != 3 || caps.GetCapabilities()[2].GetVolumeExpansion().GetType() != csi.PluginCapability_VolumeExpansion_ONLINE {
		t.Errorf("capabilities are %v", caps)
	}
	b.d.SetReady(false)
	probe, err := b.Probe(b.ctx, &csi.ProbeRequest{})
	b.must(err)
	if probe.GetReady() == nil || probe.GetReady().GetValue() {
		t.Errorf("probe is %v", probe)
	}
	b.d.SetNodeInfo(csitest.NodeInfo{NodeID: "n2", MaxVolumes: 5, Topology: map[string]string{"zone": "z"}})
	node, err := b.NodeGetInfo(b.ctx, &csi.NodeGetInfoRequest{})
	b.must(err)
	if node.GetNodeId() != "n2" || node.GetMaxVolumesPerNode() != 5 || node.GetAccessibleTopology().GetSegments()["zone"] != "z" {
		t.Errorf("node is %v", node)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for name, c := range map[string]csitest.Config{
		"no folder":       {},
		"relative folder": {Dir: "driver"},
		"bad name":        {Dir: "/d", Name: "a/b"},
		"long name":       {Dir: "/d", Name: strings.Repeat("n", 64)},
		"bad mode":        {Dir: "/d", Mode: "nfs"},
		"negative size":   {Dir: "/d", TotalBytes: -1},
	} {
		if _, err := csitest.New(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	d, err := csitest.New(csitest.Config{Dir: t.TempDir(), Sockets: csitest.Sockets{Endpoint: filepath.Join(t.TempDir(), "none", "csi.sock")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(context.Background()); err == nil {
		t.Error("started without a folder for its socket")
	}
	if err := d.Stop(); err != nil {
		t.Error(err)
	}
}

func FuzzParseCapabilities(f *testing.F) {
	f.Add("CONTROLLER_SERVICE", "ONLINE", "STAGE_UNSTAGE_VOLUME,VOLUME_CONDITION 200", "17,-1")
	f.Add("", "2", ",", "CREATE_DELETE_VOLUME, LIST_VOLUMES")
	f.Add("99999999999", "", "", "")
	f.Fuzz(func(t *testing.T, plugin, expansion, node, controller string) {
		c, err := csitest.ParseCapabilities(plugin, expansion, node, controller)
		if err == nil && len(c.Node) > len(node) {
			t.Errorf("%d capabilities from %q", len(c.Node), node)
		}
	})
}

func TestParseCapabilities(t *testing.T) {
	c, err := csitest.ParseCapabilities("CONTROLLER_SERVICE", "OFFLINE", "STAGE_UNSTAGE_VOLUME,VOLUME_CONDITION,200", "VOLUME_CONDITION,CREATE_DELETE_VOLUME")
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Plugin) != 1 || c.Expansion != csi.PluginCapability_VolumeExpansion_OFFLINE ||
		!slices.Equal(c.Node, []csi.NodeServiceCapability_RPC_Type{1, 4, 200}) || !slices.Equal(c.Controller, []csi.ControllerServiceCapability_RPC_Type{11, 1}) {
		t.Errorf("capabilities are %+v", c)
	}
	for _, bad := range []string{"NONE_SUCH", "1x", "4294967296"} {
		if _, err := csitest.ParseCapabilities(bad, "", "", ""); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestExpansionByController(t *testing.T) {
	tests := []struct {
		name      string
		expansion csi.PluginCapability_VolumeExpansion_Type
		node      bool
		code      codes.Code
	}{
		{"online, node too", csi.PluginCapability_VolumeExpansion_ONLINE, true, codes.OK},
		{"online, controller only", csi.PluginCapability_VolumeExpansion_ONLINE, false, codes.OK},
		{"offline", csi.PluginCapability_VolumeExpansion_OFFLINE, true, codes.FailedPrecondition},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			config := staging(csitest.ModeTmpfs)
			config.Capabilities.Plugin = []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE}
			config.Capabilities.Controller = []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_EXPAND_VOLUME}
			config.Capabilities.Expansion = test.expansion
			if test.node {
				config.Capabilities.Node = append(config.Capabilities.Node, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
			}
			b := start(t, config)
			c, s, target := mountCapability(writer, ""), b.staging("stage"), b.path("pods/1/target")
			b.must(b.stage("v", s, c), b.publish("v", s, target, c))
			reply, err := b.ControllerExpandVolume(b.ctx, &csi.ControllerExpandVolumeRequest{VolumeId: "v", CapacityRange: &csi.CapacityRange{RequiredBytes: 128 << 20}})
			b.want(err, test.code)
			if err != nil {
				return
			}
			if reply.GetNodeExpansionRequired() != test.node || reply.GetCapacityBytes() != 128<<20 {
				t.Errorf("reply is %v", reply)
			}
			v := b.volume("v")
			if want := map[bool]int64{true: 64 << 20, false: 128 << 20}[test.node]; v.NodeBytes != want || v.Bytes != 128<<20 {
				t.Errorf("volume is %+v", v)
			}
		})
	}
}

func TestRestOfTheController(t *testing.T) {
	b := start(t, csitest.Config{Capabilities: csitest.AllCapabilities(), MutableParameters: []string{"tier"}, AutoCreate: true, TotalBytes: 1 << 30})
	c := mountCapability(writer, "")
	create := &csi.CreateVolumeRequest{Name: "one", VolumeCapabilities: []*csi.VolumeCapability{c}, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 29}}
	created, err := b.CreateVolume(b.ctx, create)
	b.must(err)
	id := created.GetVolume().GetVolumeId()
	capacity, err := b.GetCapacity(b.ctx, &csi.GetCapacityRequest{})
	if err != nil || capacity.GetAvailableCapacity() != 1<<29 {
		t.Errorf("capacity is %v, %v", capacity, err)
	}
	create.Name, create.AccessibilityRequirements = "two", &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"zone": "far"}}}}
	_, err = b.CreateVolume(b.ctx, create)
	b.want(err, codes.ResourceExhausted)

	_, err = b.ControllerModifyVolume(b.ctx, &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: map[string]string{"tier": "gold"}})
	b.must(err)
	_, err = b.ControllerModifyVolume(b.ctx, &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: map[string]string{"taste": "sweet"}})
	b.want(err, codes.InvalidArgument)
	if b.volume(id).Mutable["tier"] != "gold" {
		t.Errorf("volume is %+v", b.volume(id))
	}

	valid, err := b.ValidateVolumeCapabilities(b.ctx, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: id, VolumeCapabilities: []*csi.VolumeCapability{c}})
	if err != nil || valid.GetConfirmed() == nil {
		t.Errorf("validation is %v, %v", valid, err)
	}
	valid, err = b.ValidateVolumeCapabilities(b.ctx, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: id, VolumeCapabilities: []*csi.VolumeCapability{blockCapability(writer)}})
	if err != nil || valid.GetConfirmed() != nil || valid.GetMessage() == "" {
		t.Errorf("validation is %v, %v", valid, err)
	}

	b.d.SetVolumeHealth(id, &csi.VolumeHealth_VolumeHealthEntry{Status: csi.VolumeHealthErrorType_DEGRADED, Reason: "Slow"})
	one, err := b.ControllerGetVolumeHealth(b.ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: id})
	if err != nil || len(one.GetVolumeHealth().GetHealthStatuses()) != 1 {
		t.Errorf("health is %v, %v", one, err)
	}
	list, err := b.ControllerListVolumeHealth(b.ctx, &csi.ControllerListVolumeHealthRequest{})
	if err != nil || len(list.GetEntries()) != 1 {
		t.Errorf("healths are %v, %v", list, err)
	}
	_, err = b.DeleteVolume(b.ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	b.must(err)
	_, err = b.DeleteVolume(b.ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	b.must(err)
}

func TestCapabilitiesChange(t *testing.T) {
	b := start(t, staging(csitest.ModeTmpfs))
	c, s := mountCapability(writer, ""), b.staging("stage")
	b.d.SetCapabilities(csitest.Capabilities{})
	b.want(b.stage("v", s, c), codes.Unimplemented)
	b.d.SetCapabilities(csitest.NodeCapabilities(stageCapability))
	b.must(b.stage("v", s, c))
	_, err := b.ControllerGetCapabilities(b.ctx, &csi.ControllerGetCapabilitiesRequest{})
	b.want(err, codes.Unimplemented) // there is no controller at all
}
