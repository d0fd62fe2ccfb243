package checker

import (
	"encoding/hex"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// beginState judges the call against the state of its volume and notes what it
// will change.
func (c *Checker) beginState(k *Call, fs seen) {
	if k.volume == "" {
		return
	}
	v := c.volume(k.volume)
	switch r := k.req.(type) {
	case *csi.ControllerPublishVolumeRequest:
		c.beginAttach(k, v, r)
	case *csi.ControllerUnpublishVolumeRequest:
		c.beginDetach(k, v, r.GetNodeId())
	case *csi.NodeStageVolumeRequest:
		c.beginStage(k, v, r, fs)
	case *csi.NodeUnstageVolumeRequest:
		c.beginUnstage(k, v, r.GetStagingTargetPath())
	case *csi.NodePublishVolumeRequest:
		c.beginPublish(k, v, r, fs)
	case *csi.NodeUnpublishVolumeRequest:
		c.beginUnpublish(k, v, r.GetTargetPath())
	case *csi.NodeGetVolumeStatsRequest:
		if c.checkVolumePath(k, v, r.GetVolumePath()) {
			c.checkStaging(k, v, r.GetStagingTargetPath())
		}
	case *csi.NodeGetVolumeHealthRequest:
		path := r.GetVolumePublishPath()
		if _, tried := c.targets.get(k.volume + " " + path); path == "" || tried || c.checkVolumePath(k, v, path) {
			c.checkStaging(k, v, r.GetStagingTargetPath())
		}
	case *csi.NodeExpandVolumeRequest:
		c.beginNodeExpand(k, v, r)
	case *csi.ControllerExpandVolumeRequest:
		c.beginControllerExpand(k, v, r)
	case *csi.DeleteVolumeRequest:
		if all := v.all(); len(all) > 0 {
			c.report(k, DeleteInUse, "the volume is still %v; undo that first", all[0])
		}
	case *csi.ValidateVolumeCapabilitiesRequest:
		if len(r.GetVolumeContext()) > 0 {
			c.checkVolumeContext(k, v, r.GetVolumeContext())
		}
	}
}

// thisNode tells whether the id is that of the node whose calls are seen here.
func (c *Checker) thisNode(v *volume, id string) bool {
	if len(c.nodeIDs.values) == 0 {
		return !c.opts.OtherNodes || len(v.attached) <= 1
	}
	_, ok := c.nodeIDs.get(id)
	return ok
}

func (c *Checker) beginAttach(k *Call, v *volume, r *csi.ControllerPublishVolumeRequest) {
	node := r.GetNodeId()
	if node == "" {
		return
	}
	if _, ok := c.nodeIDs.get(node); !ok && !c.opts.OtherNodes {
		c.report(k, NodeID, "node_id %q is none that NodeGetInfo returned; call NodeGetInfo on the node and use its answer", node)
	}
	if old := v.attached[node]; old == nil || !c.checkRepeat(k, old) {
		c.checkAccess(k, v, r.GetVolumeCapability())
		c.checkVolumeContext(k, v, r.GetVolumeContext())
	}
	if mode := r.GetVolumeCapability().GetAccessMode().GetMode(); singleNode(mode) {
		for _, other := range sorted(v.attached) {
			if other.key != node {
				c.report(k, AttachSingleNode, "access mode %v, but the volume is %v; call ControllerUnpublishVolume for that node first", mode, other)
			}
		}
	}
	c.make(k, v, attached, node)
}

func (c *Checker) beginDetach(k *Call, v *volume, node string) {
	if node == "" || c.thisNode(v, node) {
		for _, r := range v.onNode() {
			if r.certain {
				c.report(k, DetachInUse, "the volume is still %v; call %s first", r, r.way())
			}
		}
		c.checkNoneUncertain(k, v.onNode())
	}
	for _, r := range sorted(v.attached) {
		if node == "" || r.key == node {
			k.undo(r)
		}
	}
}

func (c *Checker) beginStage(k *Call, v *volume, r *csi.NodeStageVolumeRequest, fs seen) {
	path := r.GetStagingTargetPath()
	if path == "" {
		return
	}
	if fs.stagingMissing {
		c.report(k, StagingMissing, "%q is no directory; create it before the call", path)
	}
	c.checkAttached(k, v)
	for _, other := range sorted(v.staged) {
		if other.key != path {
			c.report(k, TwoStagingPaths, "staging at %q, but the volume is %v; use that path, or call NodeUnstageVolume first", path, other)
		}
	}
	c.checkShared(k, v, staged, path)
	if old := v.staged[path]; old == nil || !c.checkRepeat(k, old) {
		c.checkAccess(k, v, r.GetVolumeCapability())
		c.checkVolumeContext(k, v, r.GetVolumeContext())
	}
	c.checkPublishContext(k, v, r.GetPublishContext())
	c.make(k, v, staged, path)
}

func (c *Checker) beginUnstage(k *Call, v *volume, path string) {
	for _, r := range sorted(v.published) {
		if r.certain {
			c.report(k, UnstageInUse, "the volume is still %v; call NodeUnpublishVolume first", r)
		}
	}
	c.checkNoneUncertain(k, sorted(v.published))
	if r := v.staged[path]; r != nil {
		k.undo(r)
	} else if path != "" && isCertain(v.staged) && !v.recovered {
		c.report(k, StagingPathDiffers, "unstaging %q, but the volume is %v; use that path", path, sorted(v.staged)[0])
	}
}

func (c *Checker) beginPublish(k *Call, v *volume, r *csi.NodePublishVolumeRequest, fs seen) {
	target := r.GetTargetPath()
	if target == "" {
		return
	}
	if fs.parentMissing {
		c.report(k, ParentMissing, "the parent of %q is no directory; create it before the call", target)
	}
	if _, tried := c.targets.get(k.volume + " " + target); fs.targetExists && !tried && !v.recovered && v.published[target] == nil {
		c.report(k, TargetExists, "%q exists already; create its parent only, the driver creates the target", target)
	}
	if !ephemeral(r) {
		c.checkAttached(k, v)
		c.checkStagedForPublish(k, v, r.GetStagingTargetPath())
		c.checkPublishContext(k, v, r.GetPublishContext())
	}
	if old := v.published[target]; old == nil || !c.checkRepeat(k, old) {
		c.checkAccess(k, v, r.GetVolumeCapability())
		c.checkVolumeContext(k, v, r.GetVolumeContext())
	}
	c.checkOtherTargets(k, v, r)
	c.checkShared(k, v, published, target)
	c.make(k, v, published, target)
	c.targets.put(k.volume+" "+target, true)
}

func (c *Checker) checkStagedForPublish(k *Call, v *volume, path string) {
	if stages, _ := c.caps.stages(); stages && path != "" && !isCertain(v.staged) {
		c.report(k, StageBeforePublish, "no NodeStageVolume of the volume has succeeded since it was last unstaged; call it first")
	}
	c.checkStaging(k, v, path)
}

func (c *Checker) beginUnpublish(k *Call, v *volume, target string) {
	if r := v.published[target]; r != nil {
		k.undo(r)
		return
	}
	_, tried := c.targets.get(k.volume + " " + target)
	if target != "" && !tried && !v.recovered && isCertain(v.published) {
		c.report(k, UnpublishPath, "%q was never given to NodePublishVolume, the volume is %v; use that path", target, sorted(v.published)[0])
	}
}

func (c *Checker) beginNodeExpand(k *Call, v *volume, r *csi.NodeExpandVolumeRequest) {
	stages, known := c.caps.stages()
	switch {
	case known && stages && !isCertain(v.staged):
		c.report(k, ExpandTooEarly, "the volume is not staged for certain; call NodeStageVolume first")
		return
	case !stages && !isCertain(v.published) && (known || !isCertain(v.staged)):
		c.report(k, ExpandTooEarly, "the volume is not published for certain; call NodePublishVolume first")
		return
	}
	if c.checkVolumePath(k, v, r.GetVolumePath()) {
		c.checkStaging(k, v, r.GetStagingTargetPath())
	}
	c.checkAccess(k, v, r.GetVolumeCapability())
	both := c.caps.node[csi.NodeServiceCapability_RPC_EXPAND_VOLUME] && c.caps.controller[csi.ControllerServiceCapability_RPC_EXPAND_VOLUME]
	if _, expanded := c.expanded.get(k.volume); both && !expanded {
		c.report(k, ExpandOrder, "no ControllerExpandVolume of the volume has succeeded; call it first")
	}
}

func (c *Checker) beginControllerExpand(k *Call, v *volume, r *csi.ControllerExpandVolumeRequest) {
	c.checkAccess(k, v, r.GetVolumeCapability())
	if !c.caps.expansion[csi.PluginCapability_VolumeExpansion_OFFLINE] || c.caps.expansion[csi.PluginCapability_VolumeExpansion_ONLINE] {
		return
	}
	in := v.published
	if stages, _ := c.caps.stages(); stages {
		in = v.staged
	}
	if attaches, _ := c.caps.attaches(); attaches && !c.opts.AttachUnseen {
		in = v.attached
	}
	if len(in) > 0 {
		first := sorted(in)[0]
		c.report(k, ExpandOffline, "the driver expands offline volumes only, but the volume is %v; call %s first", first, first.way())
	}
}

// make notes that the call makes a record, uncertain until its answer.
func (c *Checker) make(k *Call, v *volume, s step, key string) {
	if r, fresh := c.put(v, s, key, k.req); fresh {
		k.created = r
	}
}

// undo notes that the call undoes the record, which is uncertain from now on.
func (k *Call) undo(r *record) {
	k.undone = append(k.undone, undoing{r, r.certain})
	r.certain = false
}

// checkNoneUncertain wants what lies above to be undone for certain.
func (c *Checker) checkNoneUncertain(k *Call, above []*record) {
	for _, r := range above {
		if !r.certain {
			c.report(k, UndoUncertain, "the volume may still be %v, the last answer did not tell; repeat %s until it succeeds first", r, r.way())
		}
	}
}

// checkAttached wants the volume attached to this node, where the driver has
// that step.
func (c *Checker) checkAttached(k *Call, v *volume) {
	if attaches, _ := c.caps.attaches(); !attaches || c.opts.AttachUnseen {
		return
	}
	for id, r := range v.attached {
		if r.certain && c.thisNode(v, id) {
			return
		}
	}
	c.report(k, AttachBeforeUse, "no ControllerPublishVolume of the volume for this node has succeeded; call it first")
}

// checkShared wants a path to be used by one volume for one purpose.
func (c *Checker) checkShared(k *Call, v *volume, s step, path string) {
	if owner := c.owners[path]; owner != nil && (owner.volume.id != v.id || owner.step != s) {
		c.report(k, PathShared, "%q is in use: volume %q is %v; use another path", path, owner.volume.id, owner)
	}
}

// checkOtherTargets judges a publish to a second target.
func (c *Checker) checkOtherTargets(k *Call, v *volume, r *csi.NodePublishVolumeRequest) {
	vc := r.GetVolumeCapability()
	for _, other := range sorted(v.published) {
		if other.key == r.GetTargetPath() {
			continue
		}
		const text = "access mode %v, but the volume is %v; call NodeUnpublishVolume for that target first"
		switch mode := vc.GetAccessMode().GetMode(); mode {
		case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
			c.report(k, PublishSingleWriter, text, mode, other)
		case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
			c.report(k, PublishSingleNode, text, mode, other)
		}
		if !sameMessage(vc, volumeCapability(other.req)) {
			c.report(k, PublishCapability, "volume_capability differs from that of the publish at %q; use the same", other.key)
		}
	}
}

// checkStaging judges staging_target_path of publish, expand, stats and health.
func (c *Checker) checkStaging(k *Call, v *volume, path string) {
	stages, known := c.caps.stages()
	publish, health := k.method == "NodePublishVolume", k.method == "NodeGetVolumeHealth"
	switch {
	case !known:
	case !stages:
		if path != "" {
			c.report(k, StagingPathExtra, "staging_target_path is set, but the driver has no STAGE_UNSTAGE_VOLUME; leave it empty")
		}
	case path == "":
		if publish || isCertain(v.staged) {
			c.report(k, StagingPathMissing, "staging_target_path is empty, but the driver has STAGE_UNSTAGE_VOLUME; set the path given to NodeStageVolume")
		}
	case v.staged[path] != nil:
	case len(v.staged) > 0:
		c.report(k, StagingPathDiffers, "staging_target_path is %q, but the volume is %v; use that path", path, sorted(v.staged)[0])
	case !publish && !health: // a publish is judged by StageBeforePublish, health is asked after a mere attempt
		c.report(k, StagingPathExtra, "staging_target_path is set, but the volume is not staged; leave it empty")
	}
}

// checkVolumePath wants a path at which the volume is staged or published.
func (c *Checker) checkVolumePath(k *Call, v *volume, path string) bool {
	if path == "" || v.staged[path] != nil || v.published[path] != nil {
		return true
	}
	where := "it is neither staged nor published"
	if on := v.onNode(); len(on) > 0 {
		where = "it is " + on[0].String()
	}
	c.report(k, VolumePath, "the volume is not at %q, %s; use the path given to NodePublishVolume or NodeStageVolume", path, where)
	return false
}

// ephemeral tells whether the volume is an inline one of Kubernetes, which is
// published without being attached or staged: it says so in volume_context, or
// by its id.
func ephemeral(r *csi.NodePublishVolumeRequest) bool {
	if r.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] == "true" {
		return true
	}
	hash, ok := strings.CutPrefix(r.GetVolumeId(), "csi-")
	b, err := hex.DecodeString(hash)
	return ok && err == nil && len(b) == 32 && r.GetStagingTargetPath() == ""
}

func singleNode(m csi.VolumeCapability_AccessMode_Mode) bool {
	return m == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY || singleWriter(m)
}

func singleWriter(m csi.VolumeCapability_AccessMode_Mode) bool {
	return m == csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER ||
		m == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER ||
		m == csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
}
