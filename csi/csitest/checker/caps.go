package checker

import (
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

type (
	nodeCap       = csi.NodeServiceCapability_RPC_Type
	controllerCap = csi.ControllerServiceCapability_RPC_Type
	groupCap      = csi.GroupControllerServiceCapability_RPC_Type
	pluginCap     = csi.PluginCapability_Service_Type
	expansionCap  = csi.PluginCapability_VolumeExpansion_Type
)

// capabilities are what the driver reported; a nil map is a question that was
// not answered yet.
type capabilities struct {
	node       map[nodeCap]bool
	controller map[controllerCap]bool
	group      map[groupCap]bool
	plugin     map[pluginCap]bool
	expansion  map[expansionCap]bool
}

// learn takes an answer, if it is one about capabilities.
func (s *capabilities) learn(resp any) bool {
	switch r := resp.(type) {
	case *csi.NodeGetCapabilitiesResponse:
		s.node = map[nodeCap]bool{}
		for _, o := range r.GetCapabilities() {
			s.node[o.GetRpc().GetType()] = true
		}
	case *csi.ControllerGetCapabilitiesResponse:
		s.controller = map[controllerCap]bool{}
		for _, o := range r.GetCapabilities() {
			s.controller[o.GetRpc().GetType()] = true
		}
	case *csi.GroupControllerGetCapabilitiesResponse:
		s.group = map[groupCap]bool{}
		for _, o := range r.GetCapabilities() {
			s.group[o.GetRpc().GetType()] = true
		}
	case *csi.GetPluginCapabilitiesResponse:
		s.plugin, s.expansion = map[pluginCap]bool{}, map[expansionCap]bool{}
		for _, o := range r.GetCapabilities() {
			s.plugin[o.GetService().GetType()] = true
			s.expansion[o.GetVolumeExpansion().GetType()] = true
		}
	default:
		return false
	}
	return true
}

// stages tells whether the driver has STAGE_UNSTAGE_VOLUME, if that is known.
func (s *capabilities) stages() (has, known bool) {
	return s.node[csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME], s.node != nil
}

// attaches tells whether it has PUBLISH_UNPUBLISH_VOLUME, if that is known.
func (s *capabilities) attaches() (has, known bool) {
	return s.controller[csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME], s.controller != nil
}

// manyWriters tells whether the service that k belongs to has
// SINGLE_NODE_MULTI_WRITER, if that is known.
func (s *capabilities) manyWriters(k *Call) (has, known bool) {
	if strings.HasPrefix(k.method, "Node") {
		return s.node[csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER], s.node != nil
	}
	return s.controller[csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER], s.controller != nil
}

func nodeNeed(method string) (nodeCap, bool) {
	switch method {
	case "NodeStageVolume", "NodeUnstageVolume":
		return csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, true
	case "NodeGetVolumeStats":
		return csi.NodeServiceCapability_RPC_GET_VOLUME_STATS, true
	case "NodeExpandVolume":
		return csi.NodeServiceCapability_RPC_EXPAND_VOLUME, true
	case "NodeGetVolumeHealth":
		return csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH, true
	case "NodeGetStorageHealth":
		return csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH, true
	}
	return 0, false
}

// controllerNeed returns the capabilities of which the method needs one.
func controllerNeed(method string) []controllerCap {
	switch method {
	case "CreateVolume", "DeleteVolume":
		return []controllerCap{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}
	case "ControllerPublishVolume", "ControllerUnpublishVolume":
		return []controllerCap{csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME}
	case "ListVolumes":
		return []controllerCap{csi.ControllerServiceCapability_RPC_LIST_VOLUMES}
	case "GetCapacity":
		return []controllerCap{csi.ControllerServiceCapability_RPC_GET_CAPACITY}
	case "CreateSnapshot", "DeleteSnapshot":
		return []controllerCap{csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT}
	case "ListSnapshots":
		return []controllerCap{csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS}
	case "GetSnapshot":
		return []controllerCap{csi.ControllerServiceCapability_RPC_GET_SNAPSHOT}
	case "ControllerExpandVolume":
		return []controllerCap{csi.ControllerServiceCapability_RPC_EXPAND_VOLUME}
	case "ControllerGetVolume":
		return []controllerCap{csi.ControllerServiceCapability_RPC_GET_VOLUME}
	case "ControllerModifyVolume":
		return []controllerCap{csi.ControllerServiceCapability_RPC_MODIFY_VOLUME}
	case "ControllerGetVolumeHealth":
		return []controllerCap{csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH, csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH}
	case "ControllerListVolumeHealth":
		return []controllerCap{csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH}
	}
	return nil
}

// checkService judges whether the call may be made at all.
func (c *Checker) checkService(k *Call, service string) {
	if strings.HasSuffix(k.method, "GetCapabilities") || k.method == "GetPluginCapabilities" {
		c.asked[k.method]++
		if n := c.opts.MaxCapabilityCalls; n > 0 && c.asked[k.method] > n {
			c.report(k, CapabilitiesOnce, "asked %d times since the driver started; keep the answer", c.asked[k.method])
		}
	} else if service != "Identity" {
		c.checkIntroduced(k)
	}
	c.checkPlugin(k, service)
	c.checkRPC(k)
	c.checkCapabilityFields(k)
}

// checkIntroduced wants Probe and GetPluginInfo before the first use.
func (c *Checker) checkIntroduced(k *Call) {
	if c.blamedUse {
		return
	}
	if !c.probed {
		c.report(k, ProbeFirst, "called although Probe has not said ready since the driver started; probe first")
	}
	if !c.named {
		c.report(k, PluginInfoFirst, "called although GetPluginInfo has not returned the name %q since the driver started; ask it first", c.opts.DriverName)
	}
	c.blamedUse = !c.probed || !c.named
}

// checkPlugin wants the capabilities of the plugin as a whole, where they are
// known.
func (c *Checker) checkPlugin(k *Call, service string) {
	var need pluginCap
	switch service {
	case "Controller":
		need = csi.PluginCapability_Service_CONTROLLER_SERVICE
	case "GroupController":
		need = csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE
	default:
		return
	}
	if c.caps.plugin != nil && !c.caps.plugin[need] {
		c.report(k, CapabilityRPC, "the plugin has no %v; do not call its service %s", need, service)
	}
}

func (c *Checker) checkRPC(k *Call) {
	if c.undoesKnown(k) {
		return // what was made must be undone, whatever the driver reports now
	}
	const unknown = "the driver was not asked whether it has %v; call %s first"
	const lacking = "the driver has no %v; do not call this RPC"
	if need, ok := nodeNeed(k.method); ok {
		if c.caps.node == nil {
			c.report(k, CapabilitiesUnknown, unknown, need, "NodeGetCapabilities")
		} else if !c.caps.node[need] {
			c.report(k, CapabilityRPC, lacking, need)
		}
	}
	if need := controllerNeed(k.method); len(need) > 0 {
		if c.caps.controller == nil {
			c.report(k, CapabilitiesUnknown, unknown, need[0], "ControllerGetCapabilities")
		} else if !slices.ContainsFunc(need, func(o controllerCap) bool { return c.caps.controller[o] }) {
			c.report(k, CapabilityRPC, lacking, need[0])
		}
	}
	if strings.HasSuffix(k.method, "VolumeGroupSnapshot") {
		need := csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
		if c.caps.group == nil {
			c.report(k, CapabilitiesUnknown, unknown, need, "GroupControllerGetCapabilities")
		} else if !c.caps.group[need] {
			c.report(k, CapabilityRPC, lacking, need)
		}
	}
}

// undoesKnown tells whether k undoes something that the model knows.
func (c *Checker) undoesKnown(k *Call) bool {
	v := c.volume(k.volume)
	switch k.req.(type) {
	case *csi.NodeUnstageVolumeRequest:
		return len(v.staged) > 0
	case *csi.ControllerUnpublishVolumeRequest:
		return len(v.attached) > 0
	}
	return false
}

// checkCapabilityFields judges fields that depend on a capability.
func (c *Checker) checkCapabilityFields(k *Call) {
	lacks := func(has bool, field, need string) {
		if !has {
			c.report(k, CapabilityField, "%s is set, but the driver has no %s; leave it out", field, need)
		}
	}
	topology := c.caps.plugin == nil || c.caps.plugin[csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS]
	has := func(o controllerCap) bool { return c.caps.controller == nil || c.caps.controller[o] }
	switch r := k.req.(type) {
	case *csi.CreateVolumeRequest:
		lacks(r.GetAccessibilityRequirements() == nil || topology, "accessibility_requirements", "VOLUME_ACCESSIBILITY_CONSTRAINTS")
		lacks(len(r.GetMutableParameters()) == 0 || has(csi.ControllerServiceCapability_RPC_MODIFY_VOLUME), "mutable_parameters", "MODIFY_VOLUME")
		source := r.GetVolumeContentSource()
		lacks(source.GetVolume() == nil || has(csi.ControllerServiceCapability_RPC_CLONE_VOLUME), "volume_content_source.volume", "CLONE_VOLUME")
		lacks(source.GetSnapshot() == nil || has(csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT), "volume_content_source.snapshot", "CREATE_DELETE_SNAPSHOT")
	case *csi.GetCapacityRequest:
		lacks(r.GetAccessibleTopology() == nil || topology, "accessible_topology", "VOLUME_ACCESSIBILITY_CONSTRAINTS")
	case *csi.CreateSnapshotRequest:
		lacks(r.GetAccessibilityRequirements() == nil || c.caps.plugin == nil || c.caps.plugin[csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS],
			"accessibility_requirements", "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS")
	case *csi.ControllerPublishVolumeRequest:
		if r.GetReadonly() && !has(csi.ControllerServiceCapability_RPC_PUBLISH_READONLY) {
			c.report(k, CapabilityReadonly, "readonly is set, but the driver has no PUBLISH_READONLY; leave it false")
		}
	}
	for _, vc := range volumeCapabilities(k.req) {
		c.checkVolumeCapability(k, vc)
	}
}

// volumeCapabilities returns those that the request carries.
func volumeCapabilities(req any) []*csi.VolumeCapability {
	switch r := req.(type) {
	case interface {
		GetVolumeCapability() *csi.VolumeCapability
	}:
		if vc := r.GetVolumeCapability(); vc != nil {
			return []*csi.VolumeCapability{vc}
		}
	case interface {
		GetVolumeCapabilities() []*csi.VolumeCapability
	}:
		return r.GetVolumeCapabilities()
	}
	return nil
}

func (c *Checker) checkVolumeCapability(k *Call, vc *csi.VolumeCapability) {
	if vc.GetMount().GetVolumeMountGroup() != "" && c.caps.node != nil && !c.caps.node[csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] {
		c.report(k, CapabilityMountGroup, "volume_mount_group is set, but the driver has no VOLUME_MOUNT_GROUP; leave it out and change the group yourself")
	}
	many, known := c.caps.manyWriters(k)
	if !known {
		return
	}
	switch mode := vc.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		if !many {
			c.report(k, CapabilityAccessMode, "access mode %v, but the driver has no SINGLE_NODE_MULTI_WRITER; use SINGLE_NODE_WRITER", mode)
		}
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:
		if many {
			c.report(k, SingleNodeWriter, "access mode SINGLE_NODE_WRITER, but the driver has SINGLE_NODE_MULTI_WRITER; use SINGLE_NODE_SINGLE_WRITER or SINGLE_NODE_MULTI_WRITER")
		}
	}
}

// checkRetry judges repetitions that the specification forbids.
func (c *Checker) checkRetry(k *Call) {
	if _, ok := c.unimplemented.get(k.method + " " + k.volume); ok && k.volume != "" {
		c.report(k, RetryForbidden, "repeated although the driver answered UNIMPLEMENTED; ask its capabilities again first")
	}
	if k.method == "NodeExpandVolume" && c.volume(k.volume).expandRefused {
		c.report(k, RetryForbidden, "repeated although the driver answered FAILED_PRECONDITION; wait until the volume was staged or published anew")
	}
}
