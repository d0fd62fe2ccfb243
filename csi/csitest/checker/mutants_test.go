package checker_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/volumekit/volumekit/csi/csitest/checker"
)

// mutant is an orchestrator that breaks one rule. Its run ends with the breach.
type mutant struct {
	name string
	rule checker.Rule
	// with changes the driver and the options before the start.
	with func(*env)
	run  func(*env)
}

const (
	multiWriter  = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	singleWriter = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	olderWriter  = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
)

func lackNode(list ...csi.NodeServiceCapability_RPC_Type) func(*env) {
	return func(e *env) { e.d.nodeCaps = without(e.d.nodeCaps, list...) }
}

func lackController(list ...csi.ControllerServiceCapability_RPC_Type) func(*env) {
	return func(e *env) { e.d.controllerCaps = without(e.d.controllerCaps, list...) }
}

func lackPlugin(list ...csi.PluginCapability_Service_Type) func(*env) {
	return func(e *env) { e.d.pluginCaps = without(e.d.pluginCaps, list...) }
}

func mode(m csi.VolumeCapability_AccessMode_Mode) func(*env) {
	return func(e *env) { e.mode = m }
}

// toStage asks and attaches.
func toStage(e *env) {
	e.intro()
	e.must(e.attach())
}

// toPublish asks, attaches and stages.
func toPublish(e *env) {
	toStage(e)
	e.must(e.stage())
}

func mutants() []mutant {
	var all []mutant
	for _, list := range [][]mutant{capabilityMutants(), attachMutants(), stageMutants(), publishMutants(), undoMutants(), argumentMutants(), expandMutants(), fieldMutants(), secretMutants(), lifeMutants()} {
		all = append(all, list...)
	}
	return all
}

func capabilityMutants() []mutant {
	return []mutant{
		{"stage without asking", checker.CapabilitiesUnknown, nil, func(e *env) {
			e.askController()
			e.info()
			e.must(e.attach())
			e.must(e.stage())
		}},
		{"attach without asking", checker.CapabilitiesUnknown, nil, func(e *env) { e.info(); e.must(e.attach()) }},
		{"group snapshot without asking", checker.CapabilitiesUnknown, nil, func(e *env) {
			_, _ = e.group.DeleteVolumeGroupSnapshot(e.ctx(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "g", SnapshotIds: []string{"s"}})
		}},
		{"group snapshot", checker.CapabilityRPC, func(e *env) { e.d.groupCaps = nil }, func(e *env) {
			e.intro()
			_, _ = e.group.CreateVolumeGroupSnapshot(e.ctx(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{volID}})
		}},
		{"stage", checker.CapabilityRPC, lackNode(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME), func(e *env) { toStage(e); e.must(e.stage()) }},
		{"unstage", checker.CapabilityRPC, lackNode(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME), func(e *env) { toStage(e); e.must(e.unstage()) }},
		{"stats", checker.CapabilityRPC, lackNode(csi.NodeServiceCapability_RPC_GET_VOLUME_STATS), func(e *env) { e.mounted(); e.must(e.stats()) }},
		{"health", checker.CapabilityRPC, lackNode(csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH), func(e *env) { e.mounted(); e.must(e.health()) }},
		{"storage health", checker.CapabilityRPC, lackNode(csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH), func(e *env) {
			e.intro()
			_, _ = e.node.NodeGetStorageHealth(e.ctx(), &csi.NodeGetStorageHealthRequest{})
		}},
		{"node expand", checker.CapabilityRPC, lackNode(csi.NodeServiceCapability_RPC_EXPAND_VOLUME), func(e *env) { e.mounted(); e.must(e.expand()) }},
		{"controller expand", checker.CapabilityRPC, lackController(csi.ControllerServiceCapability_RPC_EXPAND_VOLUME), func(e *env) { e.intro(); e.must(e.expandController()) }},
		{"attach", checker.CapabilityRPC, lackController(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME), func(e *env) { e.intro(); e.must(e.attach()) }},
		{"detach", checker.CapabilityRPC, lackController(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME), func(e *env) { e.intro(); e.must(e.detach()) }},
		{"create", checker.CapabilityRPC, lackController(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME), func(e *env) { e.intro(); e.must(e.create()) }},
		{"list", checker.CapabilityRPC, lackController(csi.ControllerServiceCapability_RPC_LIST_VOLUMES), func(e *env) {
			e.intro()
			_, _ = e.ctl.ListVolumes(e.ctx(), &csi.ListVolumesRequest{})
		}},
		{"no controller at all", checker.CapabilityRPC, lackPlugin(csi.PluginCapability_Service_CONTROLLER_SERVICE), func(e *env) { e.askPlugin(); e.askController() }},
		{"topology", checker.CapabilityField, lackPlugin(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS), func(e *env) {
			e.intro()
			e.must(e.create(func(r *csi.CreateVolumeRequest) {
				r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"zone": "a"}}}}
			}))
		}},
		{"mutable parameters", checker.CapabilityField, lackController(csi.ControllerServiceCapability_RPC_MODIFY_VOLUME), func(e *env) {
			e.intro()
			e.must(e.create(func(r *csi.CreateVolumeRequest) { r.MutableParameters = map[string]string{"iops": "9"} }))
		}},
		{"clone", checker.CapabilityField, lackController(csi.ControllerServiceCapability_RPC_CLONE_VOLUME), func(e *env) {
			e.intro()
			e.must(e.create(func(r *csi.CreateVolumeRequest) {
				r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "other"}}}
			}))
		}},
		{"restore", checker.CapabilityField, lackController(csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT), func(e *env) {
			e.intro()
			e.must(e.create(func(r *csi.CreateVolumeRequest) {
				r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "s"}}}
			}))
		}},
		{"capacity of a topology", checker.CapabilityField, lackPlugin(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS), func(e *env) {
			e.intro()
			_, _ = e.ctl.GetCapacity(e.ctx(), &csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{Segments: map[string]string{"zone": "a"}}})
		}},
		{"topology of a snapshot", checker.CapabilityField, lackPlugin(csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS), func(e *env) {
			e.intro()
			_, _ = e.ctl.CreateSnapshot(e.ctx(), &csi.CreateSnapshotRequest{
				Name: "s", SourceVolumeId: volID,
				AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"zone": "a"}}}},
			})
		}},
		{"readonly attach", checker.CapabilityReadonly, lackController(csi.ControllerServiceCapability_RPC_PUBLISH_READONLY), func(e *env) {
			e.intro()
			e.must(e.attach(func(r *csi.ControllerPublishVolumeRequest) { r.Readonly = true }))
		}},
		{"mount group", checker.CapabilityMountGroup, lackNode(csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP), func(e *env) {
			toStage(e)
			e.must(e.stage(func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.GetMount().VolumeMountGroup = "1000" }))
		}},
		{"precise mode", checker.CapabilityAccessMode, func(e *env) {
			lackNode(csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)(e)
			e.mode = multiWriter
		}, func(e *env) { toStage(e); e.must(e.stage()) }},
		{"precise mode of the controller", checker.CapabilityAccessMode, func(e *env) {
			lackController(csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)(e)
			e.mode = singleWriter
		}, func(e *env) { e.intro(); e.must(e.attach()) }},
		{"older mode", checker.SingleNodeWriter, mode(olderWriter), func(e *env) { e.intro(); e.must(e.attach()) }},
	}
}

func attachMutants() []mutant {
	return []mutant{
		{"node not asked", checker.NodeID, nil, func(e *env) { e.askController(); e.must(e.attach()) }},
		{"other node id", checker.NodeID, nil, func(e *env) {
			e.intro()
			e.must(e.attach(func(r *csi.ControllerPublishVolumeRequest) { r.NodeId = "host-name" }))
		}},
		{"stage before attach", checker.AttachBeforeUse, nil, func(e *env) { e.intro(); e.must(e.stage()) }},
		{"stage after a failed attach", checker.AttachBeforeUse, nil, func(e *env) {
			e.intro()
			e.fail("ControllerPublishVolume", codes.DeadlineExceeded)
			_ = e.attach()
			e.must(e.stage())
		}},
		{"publish before attach", checker.AttachBeforeUse, lackNode(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME), func(e *env) {
			e.intro()
			e.must(e.publish(targetA, func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = "" }))
		}},
		{"attached to another node only", checker.AttachBeforeUse, func(e *env) { e.opts.OtherNodes = true }, func(e *env) {
			e.intro()
			e.must(e.attach(func(r *csi.ControllerPublishVolumeRequest) { r.NodeId = "node-2" }))
			e.must(e.stage())
		}},
		{"two nodes", checker.AttachSingleNode, func(e *env) { e.opts.NodeIDs = []string{"node-2"}; e.mode = multiWriter }, func(e *env) {
			toStage(e)
			e.must(e.attach(func(r *csi.ControllerPublishVolumeRequest) { r.NodeId = "node-2" }))
		}},
		{"detach while published", checker.DetachInUse, nil, func(e *env) { e.mounted(); e.must(e.detach()) }},
		{"detach while staged", checker.DetachInUse, nil, func(e *env) { toPublish(e); e.must(e.detach()) }},
		{"detach from all nodes", checker.DetachInUse, nil, func(e *env) {
			toPublish(e)
			e.must(e.detach(func(r *csi.ControllerUnpublishVolumeRequest) { r.NodeId = "" }))
		}},
		{"detach after a refused unstage", checker.DetachInUse, nil, func(e *env) {
			toPublish(e)
			e.fail("NodeUnstageVolume", codes.FailedPrecondition)
			_ = e.unstage()
			e.must(e.detach())
		}},
		{"delete while attached", checker.DeleteInUse, nil, func(e *env) { toStage(e); e.must(e.remove()) }},
	}
}

func stageMutants() []mutant {
	otherPath := func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "/plugins/driver/other" }
	return []mutant{
		{"publish before stage", checker.StageBeforePublish, nil, func(e *env) { toStage(e); e.must(e.publish(targetA)) }},
		{"publish after a stage without answer", checker.StageBeforePublish, nil, func(e *env) {
			toStage(e)
			e.fail("NodeStageVolume", codes.Internal)
			_ = e.stage()
			e.must(e.publish(targetA))
		}},
		{"publish after an unstage without answer", checker.StageBeforePublish, nil, func(e *env) {
			toPublish(e)
			e.fail("NodeUnstageVolume", codes.Unavailable)
			_ = e.unstage()
			e.must(e.publish(targetA))
		}},
		{"publish without the path", checker.StagingPathMissing, nil, func(e *env) {
			toPublish(e)
			e.must(e.publish(targetA, func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = "" }))
		}},
		{"stats without the path", checker.StagingPathMissing, nil, func(e *env) {
			e.mounted()
			e.must(e.stats(func(r *csi.NodeGetVolumeStatsRequest) { r.StagingTargetPath = "" }))
		}},
		{"health without the path", checker.StagingPathMissing, nil, func(e *env) {
			e.mounted()
			e.must(e.health(func(r *csi.NodeGetVolumeHealthRequest) { r.StagingTargetPath = "" }))
		}},
		{"expand without the path", checker.StagingPathMissing, nil, func(e *env) {
			e.mounted()
			e.must(e.expand(func(r *csi.NodeExpandVolumeRequest) { r.StagingTargetPath = "" }))
		}},
		{"publish with a path but no staging", checker.StagingPathExtra, lackNode(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME), func(e *env) {
			toStage(e)
			e.must(e.publish(targetA))
		}},
		{"publish from elsewhere", checker.StagingPathDiffers, nil, func(e *env) {
			toPublish(e)
			e.must(e.publish(targetA, func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = "/plugins/driver/other" }))
		}},
		{"stats from elsewhere", checker.StagingPathDiffers, nil, func(e *env) {
			e.mounted()
			e.must(e.stats(func(r *csi.NodeGetVolumeStatsRequest) { r.StagingTargetPath = "/plugins/driver/other" }))
		}},
		{"unstage elsewhere", checker.StagingPathDiffers, nil, func(e *env) {
			toPublish(e)
			e.must(e.unstage(func(r *csi.NodeUnstageVolumeRequest) { r.StagingTargetPath = "/plugins/driver/other" }))
		}},
		{"second staging path", checker.TwoStagingPaths, nil, func(e *env) { toPublish(e); e.must(e.stage(otherPath)) }},
		{"second staging path after no answer", checker.TwoStagingPaths, nil, func(e *env) {
			toStage(e)
			e.fail("NodeStageVolume", codes.DeadlineExceeded)
			_ = e.stage()
			e.must(e.stage(otherPath))
		}},
		{"path of another volume", checker.PathShared, nil, func(e *env) {
			toPublish(e)
			e.must(e.attach(func(r *csi.ControllerPublishVolumeRequest) { r.VolumeId = "vol-2" }))
			e.must(e.stage(func(r *csi.NodeStageVolumeRequest) { r.VolumeId = "vol-2" }))
		}},
		{"directory not created", checker.StagingMissing, func(e *env) { e.opts.Filesystem = true }, func(e *env) { toStage(e); e.must(e.stage()) }},
	}
}

func publishMutants() []mutant {
	return []mutant{
		{"target of another volume", checker.PathShared, nil, func(e *env) {
			e.mounted()
			e.must(e.attach(func(r *csi.ControllerPublishVolumeRequest) { r.VolumeId = "vol-2" }))
			e.must(e.stage(func(r *csi.NodeStageVolumeRequest) {
				r.VolumeId, r.StagingTargetPath = "vol-2", "/plugins/driver/other"
			}))
			e.must(e.publish(targetA, func(r *csi.NodePublishVolumeRequest) {
				r.VolumeId, r.StagingTargetPath = "vol-2", "/plugins/driver/other"
			}))
		}},
		{"target is the staging path", checker.PathShared, nil, func(e *env) { toPublish(e); e.must(e.publish(stagedA)) }},
		{"second writer", checker.PublishSingleWriter, mode(singleWriter), func(e *env) { e.mounted(); e.must(e.publish(targetB)) }},
		{"second target of the older mode", checker.PublishSingleNode, func(e *env) {
			lackNode(csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)(e)
			lackController(csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)(e)
			e.mode = olderWriter
		}, func(e *env) { e.mounted(); e.must(e.publish(targetB)) }},
		{"second target with another capability", checker.PublishCapability, nil, func(e *env) {
			e.mounted()
			e.must(e.publish(targetB, func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().VolumeMountGroup = "1000" }))
		}},
		{"no parent", checker.ParentMissing, func(e *env) { e.opts.Filesystem = true }, func(e *env) {
			publishWithFiles(e, func(dir string) string { return filepath.Join(dir, "pod", "mount") })
		}},
		{"target created", checker.TargetExists, func(e *env) { e.opts.Filesystem = true }, func(e *env) {
			publishWithFiles(e, func(dir string) string {
				target := filepath.Join(dir, "mount")
				e.must(os.Mkdir(target, 0o700))
				return target
			})
		}},
	}
}

// publishWithFiles stages in a real directory and publishes where it is told.
func publishWithFiles(e *env, prepare func(dir string) string) {
	staging := e.t.TempDir()
	toStage(e)
	e.must(e.stage(func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = staging }))
	e.must(e.publish(prepare(e.t.TempDir()), func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = staging }))
}

func undoMutants() []mutant {
	return []mutant{
		{"unstage while published", checker.UnstageInUse, nil, func(e *env) { e.mounted(); e.must(e.unstage()) }},
		{"unstage after a publish without answer", checker.UndoUncertain, nil, func(e *env) {
			toPublish(e)
			e.fail("NodePublishVolume", codes.DeadlineExceeded)
			_ = e.publish(targetA)
			e.must(e.unstage())
		}},
		{"unstage after an unpublish without answer", checker.UndoUncertain, nil, func(e *env) {
			e.mounted()
			e.fail("NodeUnpublishVolume", codes.Internal)
			_ = e.unpublish(targetA)
			e.must(e.unstage())
		}},
		{"unstage after a final error that follows no answer", checker.UndoUncertain, nil, func(e *env) {
			toPublish(e)
			e.fail("NodePublishVolume", codes.DeadlineExceeded, codes.InvalidArgument)
			_ = e.publish(targetA)
			_ = e.publish(targetA)
			e.must(e.unstage())
		}},
		{"detach after a stage without answer", checker.UndoUncertain, nil, func(e *env) {
			toStage(e)
			e.fail("NodeStageVolume", codes.Aborted)
			_ = e.stage()
			e.must(e.detach())
		}},
		{"detach after an unstage without answer", checker.UndoUncertain, nil, func(e *env) {
			toPublish(e)
			e.fail("NodeUnstageVolume", codes.Unknown)
			_ = e.unstage()
			e.must(e.detach())
		}},
		{"unpublish elsewhere", checker.UnpublishPath, nil, func(e *env) { e.mounted(); e.must(e.unpublish("/pods/wrong/mount")) }},
		{"two calls at once", checker.OneCallPerVolume, nil, func(e *env) {
			e.mounted()
			overlap(e, "NodeGetVolumeStats", func(ctx context.Context) {
				_, _ = e.node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: volID, VolumePath: targetA, StagingTargetPath: stagedA})
			}, func() { e.must(e.health()) })
		}},
		{"two creations of one name at once", checker.OneCallPerVolume, nil, func(e *env) {
			e.intro()
			overlap(e, "CreateVolume", func(ctx context.Context) {
				_, _ = e.ctl.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: volID, VolumeCapabilities: []*csi.VolumeCapability{e.mountCap()}})
			}, func() { e.must(e.create()) })
		}},
		{"repeated after UNIMPLEMENTED", checker.RetryForbidden, nil, func(e *env) {
			toStage(e)
			e.fail("NodeStageVolume", codes.Unimplemented)
			_ = e.stage()
			e.must(e.stage())
		}},
		{"expanded again while in use", checker.RetryForbidden, nil, func(e *env) {
			e.mounted()
			e.must(e.expandController())
			e.fail("NodeExpandVolume", codes.FailedPrecondition)
			_ = e.expand()
			e.must(e.expand())
		}},
	}
}

// Each mutant trips its rule and no other.
func TestMutants(t *testing.T) {
	caught := map[checker.Rule]bool{}
	for _, m := range mutants() {
		caught[m.rule] = true
		t.Run(string(m.rule)+"/"+m.name, func(t *testing.T) { runMutant(t, m) })
	}
	for _, r := range checker.Rules() {
		if !caught[r.Rule] {
			t.Errorf("rule %s has no mutant", r.Rule)
		}
	}
}

func runMutant(t *testing.T, m mutant) {
	opts := strict()
	// These two rules would speak in each mutant that leaves the introduction out.
	if m.rule != checker.ProbeFirst && m.rule != checker.PluginInfoFirst {
		opts.Disable = []checker.Rule{checker.ProbeFirst, checker.PluginInfoFirst}
	}
	// And this one in each that only wants to expand on the node.
	if m.rule != checker.ExpandOrder {
		opts.Disable = append(opts.Disable, checker.ExpandOrder)
	}
	e := newEnv(t, opts)
	if m.with != nil {
		m.with(e)
	}
	e.start()
	m.run(e)
	switch m.rule {
	case checker.LeftInFlight:
		e.c.Verify(t)
		overlap(e, "NodeGetVolumeStats", func(ctx context.Context) {
			_, _ = e.node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: volID})
		}, func() { wantRules(t, e.c.Leftovers(), m.rule) })
	case checker.LeftBehind:
		e.c.Verify(t)
		wantRules(t, e.c.Leftovers(), m.rule)
	case checker.LeftUncertain:
		e.c.Verify(t)
		var uncertain []checker.Violation
		for _, v := range e.c.Leftovers() {
			if v.Rule != checker.LeftBehind { // what lies below is certain
				uncertain = append(uncertain, v)
			}
		}
		wantRules(t, uncertain, m.rule)
	default:
		wantRules(t, e.c.Violations(), m.rule)
	}
	silenced(t, m, opts)
}

// silenced runs the mutant again with its rule switched off: nothing is said.
func silenced(t *testing.T, m mutant, opts checker.Options) {
	if m.rule == checker.LeftInFlight || m.rule == checker.LeftBehind || m.rule == checker.LeftUncertain {
		return
	}
	opts.Disable = append(opts.Disable, m.rule)
	e := newEnv(t, opts)
	if m.with != nil {
		m.with(e)
	}
	e.start()
	m.run(e)
	e.c.Verify(t)
}

// The ids are unique and described.
func TestRules(t *testing.T) {
	seen := map[checker.Rule]bool{}
	for _, r := range checker.Rules() {
		if seen[r.Rule] || r.Section == "" || r.Text == "" || r.When == "" {
			t.Errorf("bad rule %+v", r)
		}
		seen[r.Rule] = true
	}
}
