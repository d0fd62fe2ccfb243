package checker_test

import (
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/volumekit/volumekit/csi/csitest/checker"
)

func argumentMutants() []mutant {
	block := func(vc *csi.VolumeCapability) {
		vc.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	return []mutant{
		{"attach again with readonly", checker.ArgumentsChanged, nil, func(e *env) {
			toStage(e)
			e.must(e.attach(func(r *csi.ControllerPublishVolumeRequest) { r.Readonly = true }))
		}},
		{"stage again with other flags", checker.ArgumentsChanged, nil, func(e *env) {
			toPublish(e)
			e.must(e.stage(func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.GetMount().MountFlags = []string{"ro"} }))
		}},
		{"publish again with readonly", checker.ArgumentsChanged, nil, func(e *env) {
			e.mounted()
			e.must(e.publish(targetA, func(r *csi.NodePublishVolumeRequest) { r.Readonly = true }))
		}},
		{"publish again for another pod", checker.ArgumentsChanged, nil, func(e *env) {
			e.mounted()
			e.must(e.publish(targetA, func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["csi.storage.k8s.io/pod.name"] = "other" }))
		}},
		{"publish again with other arguments after no answer", checker.ArgumentsChanged, nil, func(e *env) {
			toPublish(e)
			e.fail("NodePublishVolume", codes.DeadlineExceeded)
			_ = e.publish(targetA)
			e.must(e.publish(targetA, func(r *csi.NodePublishVolumeRequest) { r.Readonly = true }))
		}},
		{"stage with another publish context", checker.PublishContext, nil, func(e *env) {
			toStage(e)
			e.must(e.stage(func(r *csi.NodeStageVolumeRequest) { r.PublishContext["device"] = "/dev/y" }))
		}},
		{"publish without publish context", checker.PublishContext, nil, func(e *env) {
			toPublish(e)
			e.must(e.publish(targetA, func(r *csi.NodePublishVolumeRequest) { r.PublishContext = nil }))
		}},
		{"publish context of nobody", checker.PublishContext, lackController(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME), func(e *env) {
			e.intro()
			e.must(e.stage())
		}},
		{"publish context that changes, attach unseen", checker.PublishContext, func(e *env) { e.opts.AttachUnseen = true }, func(e *env) {
			e.intro()
			e.must(e.stage())
			e.must(e.publish(targetA, func(r *csi.NodePublishVolumeRequest) { r.PublishContext = nil }))
		}},
		{"attach with another volume context", checker.VolumeContext, nil, func(e *env) {
			e.intro()
			e.must(e.create())
			e.must(e.attach(func(r *csi.ControllerPublishVolumeRequest) { r.VolumeContext = nil }))
		}},
		{"stage with another volume context", checker.VolumeContext, nil, func(e *env) {
			toStage(e)
			e.must(e.stage(func(r *csi.NodeStageVolumeRequest) { r.VolumeContext["pool"] = "slow" }))
		}},
		{"validate with another volume context", checker.VolumeContext, nil, func(e *env) {
			e.intro()
			e.must(e.create())
			_, err := e.ctl.ValidateVolumeCapabilities(e.ctx(), &csi.ValidateVolumeCapabilitiesRequest{
				VolumeId: volID, VolumeCapabilities: []*csi.VolumeCapability{e.mountCap()}, VolumeContext: map[string]string{"pool": "slow"},
			})
			e.must(err)
		}},
		{"publish with another volume context", checker.VolumeContext, nil, func(e *env) {
			toPublish(e)
			e.must(e.publish(targetA, func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["pool"] = "slow" }))
		}},
		{"stage as block, publish as mount", checker.AccessTypeChanged, nil, func(e *env) {
			e.intro()
			e.must(e.attach(func(r *csi.ControllerPublishVolumeRequest) { block(r.VolumeCapability) }))
			e.must(e.stage(func(r *csi.NodeStageVolumeRequest) { block(r.VolumeCapability) }))
			e.must(e.publish(targetA))
		}},
		{"attach elsewhere as block", checker.AccessTypeChanged, func(e *env) { e.opts.NodeIDs = []string{"node-2"} }, func(e *env) {
			toStage(e)
			e.must(e.attach(func(r *csi.ControllerPublishVolumeRequest) {
				r.NodeId = "node-2"
				block(r.VolumeCapability)
			}))
		}},
		{"expand at the controller with another mode", checker.AccessModeChanged, nil, func(e *env) {
			e.mounted()
			e.mode = csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
			e.must(e.expandController())
		}},
		{"expand as block", checker.AccessTypeChanged, nil, func(e *env) {
			e.mounted()
			e.must(e.expandController())
			e.must(e.expand(func(r *csi.NodeExpandVolumeRequest) { block(r.VolumeCapability) }))
		}},
		{"stage with the first of two modes", checker.AccessModeChanged, nil, func(e *env) {
			toStage(e)
			e.mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
			e.must(e.stage())
		}},
		{"publish for one writer what was staged for many", checker.AccessModeChanged, mode(multiWriter), func(e *env) {
			toPublish(e)
			e.mode = singleWriter
			e.must(e.publish(targetA))
		}},
	}
}

func expandMutants() []mutant {
	offline := func(e *env) {
		e.d.expansion = []csi.PluginCapability_VolumeExpansion_Type{csi.PluginCapability_VolumeExpansion_OFFLINE}
	}
	return []mutant{
		{"expand before stage", checker.ExpandTooEarly, nil, func(e *env) { toStage(e); e.must(e.expandController()); e.must(e.expand()) }},
		{"expand before publish", checker.ExpandTooEarly, lackNode(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME), func(e *env) {
			toStage(e)
			e.must(e.expand(func(r *csi.NodeExpandVolumeRequest) { r.StagingTargetPath = "" }))
		}},
		{"expand elsewhere", checker.VolumePath, nil, func(e *env) {
			e.mounted()
			e.must(e.expandController())
			e.must(e.expand(func(r *csi.NodeExpandVolumeRequest) { r.VolumePath = "/pods/wrong/mount" }))
		}},
		{"stats elsewhere", checker.VolumePath, nil, func(e *env) {
			e.mounted()
			e.must(e.stats(func(r *csi.NodeGetVolumeStatsRequest) { r.VolumePath = targetB }))
		}},
		{"stats of nothing", checker.VolumePath, nil, func(e *env) { e.intro(); e.must(e.stats()) }},
		{"stats with a staging path of nothing", checker.StagingPathExtra, nil, func(e *env) {
			e.intro()
			e.must(e.publish(targetA, func(r *csi.NodePublishVolumeRequest) {
				r.StagingTargetPath, r.PublishContext = "", nil
				r.VolumeContext["csi.storage.k8s.io/ephemeral"] = "true"
			}))
			e.must(e.stats())
		}},
		{"health elsewhere", checker.VolumePath, nil, func(e *env) {
			e.mounted()
			e.must(e.health(func(r *csi.NodeGetVolumeHealthRequest) { r.VolumePublishPath = "/pods/wrong/mount" }))
		}},
		{"node first", checker.ExpandOrder, nil, func(e *env) { e.mounted(); e.must(e.expand()) }},
		{"offline only, attached", checker.ExpandOffline, offline, func(e *env) { toStage(e); e.must(e.expandController()) }},
		{"offline only, staged", checker.ExpandOffline, func(e *env) { offline(e); e.opts.AttachUnseen = true }, func(e *env) {
			e.intro()
			e.must(e.stage())
			e.must(e.expandController())
		}},
	}
}

func fieldMutants() []mutant {
	attachWith := func(edit func(*csi.ControllerPublishVolumeRequest)) func(*env) {
		return func(e *env) { e.intro(); e.must(e.attach(edit)) }
	}
	createWith := func(edit func(*csi.CreateVolumeRequest)) func(*env) {
		return func(e *env) { e.intro(); e.must(e.create(edit)) }
	}
	long := strings.Repeat("x", 129)
	return []mutant{
		{"no volume id", checker.RequiredField, nil, attachWith(func(r *csi.ControllerPublishVolumeRequest) { r.VolumeId = "" })},
		{"no node id", checker.RequiredField, nil, attachWith(func(r *csi.ControllerPublishVolumeRequest) { r.NodeId = "" })},
		{"no capability", checker.RequiredField, nil, attachWith(func(r *csi.ControllerPublishVolumeRequest) { r.VolumeCapability = nil })},
		{"no access type", checker.RequiredField, nil, attachWith(func(r *csi.ControllerPublishVolumeRequest) { r.VolumeCapability.AccessType = nil })},
		{"no access mode", checker.RequiredField, nil, attachWith(func(r *csi.ControllerPublishVolumeRequest) { r.VolumeCapability.AccessMode = nil })},
		{"no target path", checker.RequiredField, nil, func(e *env) { e.intro(); e.must(e.unpublish("")) }},
		{"no capacity", checker.RequiredField, nil, createWith(func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{} })},
		{"no source", checker.RequiredField, nil, createWith(func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = &csi.VolumeContentSource{} })},
		{"no access mode in a list", checker.RequiredField, nil, createWith(func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0].AccessMode = nil })},
		{"long id in a list", checker.SizeLimit, nil, func(e *env) {
			e.intro()
			_, _ = e.group.CreateVolumeGroupSnapshot(e.ctx(), &csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{long}})
		}},
		{"no topology", checker.RequiredField, nil, createWith(func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = &csi.TopologyRequirement{} })},
		{"foreign topology", checker.InvalidField, nil, createWith(func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = &csi.TopologyRequirement{
				Requisite: []*csi.Topology{{Segments: map[string]string{"zone": "a"}}}, Preferred: []*csi.Topology{{Segments: map[string]string{"zone": "b"}}},
			}
		})},
		{"negative capacity", checker.InvalidField, nil, createWith(func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = -1 })},
		{"limit below required", checker.InvalidField, nil, createWith(func(r *csi.CreateVolumeRequest) { r.CapacityRange.LimitBytes = 1 })},
		{"control character in name", checker.InvalidField, nil, createWith(func(r *csi.CreateVolumeRequest) { r.Name = "a\x00b" })},
		{"undefined mode", checker.InvalidField, nil, attachWith(func(r *csi.ControllerPublishVolumeRequest) { r.VolumeCapability.AccessMode.Mode = 99 })},
		{"relative path", checker.InvalidField, nil, func(e *env) { toPublish(e); e.must(e.publish("pods/a")) }},
		{"negative page", checker.InvalidField, nil, func(e *env) {
			e.intro()
			_, _ = e.ctl.ListVolumes(e.ctx(), &csi.ListVolumesRequest{MaxEntries: -1})
		}},
		{"long volume id", checker.SizeLimit, nil, attachWith(func(r *csi.ControllerPublishVolumeRequest) { r.VolumeId = long })},
		{"long node id", checker.SizeLimit, func(e *env) { e.opts.OtherNodes = true }, attachWith(func(r *csi.ControllerPublishVolumeRequest) { r.NodeId = long + long })},
		{"long file system type", checker.SizeLimit, nil, attachWith(func(r *csi.ControllerPublishVolumeRequest) { r.VolumeCapability.GetMount().FsType = long })},
		{"big volume context", checker.SizeLimit, nil, attachWith(func(r *csi.ControllerPublishVolumeRequest) { r.VolumeContext["k"] = strings.Repeat("x", 4096) })},
		{"many mount flags", checker.SizeLimit, nil, attachWith(func(r *csi.ControllerPublishVolumeRequest) {
			for range 32 {
				r.VolumeCapability.GetMount().MountFlags = append(r.VolumeCapability.GetMount().MountFlags, long)
			}
		})},
	}
}

func secretMutants() []mutant {
	return []mutant{
		{"key", checker.SecretKey, nil, func(e *env) {
			e.intro()
			e.must(e.attach(func(r *csi.ControllerPublishVolumeRequest) { r.Secrets = map[string]string{"pass word": "x"} }))
		}},
		{"in volume context", checker.SecretLeak, nil, func(e *env) {
			e.intro()
			e.must(e.attach(func(r *csi.ControllerPublishVolumeRequest) { r.VolumeContext["options"] = "pass=attach-secret" }))
		}},
		{"in mount flags of a later call", checker.SecretLeak, nil, func(e *env) {
			toStage(e)
			e.must(e.stage(func(r *csi.NodeStageVolumeRequest) {
				r.VolumeCapability.GetMount().MountFlags = []string{"password=attach-secret"}
			}))
		}},
		{"token in a path", checker.SecretLeak, nil, func(e *env) {
			e.mounted()
			e.must(e.unpublish(targetA))
			e.must(e.publish("/pods/first-token/mount"))
		}},
		{"token of secrets in a path", checker.SecretLeak, nil, func(e *env) {
			toPublish(e)
			e.must(e.publish("/pods/other-token/mount", func(r *csi.NodePublishVolumeRequest) {
				r.Secrets = map[string]string{tokens: `{"":{"token":"other-token"}}`}
			}))
		}},
		{"short value as a whole", checker.SecretLeak, nil, func(e *env) {
			e.intro()
			e.must(e.attach(func(r *csi.ControllerPublishVolumeRequest) {
				r.Secrets = map[string]string{"pin": "4711"}
				r.VolumeContext["pin"] = "4711"
			}))
		}},
		{"canary", checker.SecretLeak, func(e *env) { e.opts.Canaries = []string{"canary-bird"} }, func(e *env) {
			e.intro()
			e.must(e.create(func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"canary-bird": ""} }))
		}},
	}
}

func lifeMutants() []mutant {
	return []mutant{
		{"not probed", checker.ProbeFirst, nil, func(e *env) {
			_, err := e.id.GetPluginInfo(e.ctx(), &csi.GetPluginInfoRequest{})
			e.must(err)
			e.info()
			e.info()
		}},
		{"name not asked", checker.PluginInfoFirst, nil, func(e *env) {
			_, err := e.id.Probe(e.ctx(), &csi.ProbeRequest{})
			e.must(err)
			e.info()
		}},
		{"other name", checker.PluginInfoFirst, func(e *env) { e.opts.DriverName = "other.example.com" }, (*env).intro},
		{"asked twice", checker.CapabilitiesOnce, nil, func(e *env) { e.askNode(); e.askNode() }},
		{"still published", checker.LeftBehind, nil, (*env).mounted},
		{"publish without answer", checker.LeftUncertain, nil, func(e *env) {
			toPublish(e)
			e.fail("NodePublishVolume", codes.Unavailable)
			_ = e.publish(targetA)
		}},
		{"attach without answer", checker.LeftUncertain, nil, func(e *env) {
			e.intro()
			e.fail("ControllerPublishVolume", codes.Internal)
			_ = e.attach()
		}},
		{"call in flight", checker.LeftInFlight, nil, func(e *env) { e.intro() }},
	}
}
