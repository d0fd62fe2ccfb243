package csitest

import (
	"context"
	"maps"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// node is the Node service.
type node struct {
	csi.UnimplementedNodeServer
	driver *Driver
}

// NodeGetCapabilities implements the Node service.
func (s *node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	reply := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range s.driver.offered().Node {
		reply.Capabilities = append(reply.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return reply, nil
}

// NodeGetInfo implements the Node service.
func (s *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	constrained := s.driver.offersService(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	s.driver.mu.Lock()
	defer s.driver.mu.Unlock()
	n := s.driver.node
	reply := &csi.NodeGetInfoResponse{NodeId: n.NodeID, MaxVolumesPerNode: n.MaxVolumes}
	if constrained {
		reply.AccessibleTopology = &csi.Topology{Segments: maps.Clone(n.Topology)}
	}
	return reply, nil
}

// NodeStageVolume implements the Node service.
func (s *node) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	d := s.driver
	if err := d.needNode(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME); err != nil {
		return nil, err
	}
	if err := required("volume_id", r.GetVolumeId(), "staging_target_path", r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	if err := d.nodeCapability(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	use := Use{
		Path: r.GetStagingTargetPath(), Capability: capabilityOf(r.GetVolumeCapability()),
		Context: lasting(r.GetVolumeContext()), PublishContext: maps.Clone(r.GetPublishContext()),
	}
	v, err := d.find(r.GetVolumeId(), r.GetVolumeContext())
	if err != nil {
		return nil, err
	}
	if err := d.usable(v, use); err != nil {
		return nil, err
	}
	if st, err := os.Lstat(use.Path); err != nil || !st.IsDir() {
		return nil, invalid("staging_target_path is no folder")
	}
	if old := v.Staged; old != nil && !d.config.Lenient {
		switch {
		case old.Path != use.Path:
			return nil, precondition("the volume is staged at another path")
		case old.Complete && !old.same(use):
			return nil, status.Error(codes.AlreadyExists, "the volume is staged there with other arguments")
		}
	}
	if err := d.stage(v, use); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// NodeUnstageVolume implements the Node service.
func (s *node) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	d := s.driver
	if err := d.needNode(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME); err != nil {
		return nil, err
	}
	if err := required("volume_id", r.GetVolumeId(), "staging_target_path", r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	v := d.volume(r.GetVolumeId())
	if v == nil {
		return &csi.NodeUnstageVolumeResponse{}, d.undoUnknown(r.GetVolumeId())
	}
	if v.Staged == nil || v.Staged.Path != r.GetStagingTargetPath() {
		return &csi.NodeUnstageVolumeResponse{}, nil // nothing of ours is there
	}
	if len(v.Published) > 0 && !d.config.Lenient {
		return nil, precondition("the volume is still published at %d paths", len(v.Published))
	}
	if err := d.unstage(v); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume implements the Node service.
func (s *node) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	d := s.driver
	if err := required("volume_id", r.GetVolumeId(), "target_path", r.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := d.nodeCapability(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	use := Use{
		Path: r.GetTargetPath(), StagingPath: r.GetStagingTargetPath(),
		Capability: capabilityOf(r.GetVolumeCapability()), Readonly: r.GetReadonly(),
		Context: lasting(r.GetVolumeContext()), PublishContext: maps.Clone(r.GetPublishContext()),
	}
	v, err := d.find(r.GetVolumeId(), r.GetVolumeContext())
	if err != nil {
		return nil, err
	}
	if err := d.usable(v, use); err != nil {
		return nil, err
	}
	if err := d.mayPublish(v, use); err != nil {
		return nil, err
	}
	if err := d.publish(v, use); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// mayPublish holds a publish against what is staged and published already.
func (d *Driver) mayPublish(v *VolumeState, use Use) error {
	if err := d.stagedFor(v, use); err != nil {
		return err
	}
	if st, err := os.Stat(filepath.Dir(use.Path)); err != nil || !st.IsDir() {
		return invalid("the parent of target_path is no folder")
	}
	if old := v.published(use.Path); old != nil {
		if old.Complete && !old.same(use) && !d.config.Lenient {
			return status.Error(codes.AlreadyExists, "the volume is published there with other arguments")
		}
		return nil
	}
	if err := vacant(use.Path); err != nil || d.config.Lenient {
		return err
	}
	writers := d.offersNode(csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	for _, old := range v.Published {
		switch {
		case !old.Capability.same(use.Capability):
			return precondition("the volume is published with another volume_capability")
		case !several(use.Capability.AccessMode, writers):
			return precondition("the volume is published at another path and its access mode is %s", use.Capability.AccessMode)
		}
	}
	return nil
}

// stagedFor refuses a publish before the stage.
func (d *Driver) stagedFor(v *VolumeState, use Use) error {
	if v.Ephemeral || !d.offersNode(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		return nil
	}
	switch {
	case use.StagingPath == "":
		return precondition("staging_target_path is missing")
	case v.Staged == nil || !v.Staged.Complete:
		return precondition("the volume is not staged")
	case v.Staged.Path != use.StagingPath:
		return precondition("the volume is staged at another path")
	case !d.config.Lenient && !v.Staged.Capability.same(use.Capability):
		return precondition("the volume is staged with another volume_capability")
	}
	there, err := d.there(v, v.Staged)
	if err == nil && !there {
		err = precondition("what was staged is gone")
	}
	return withCode("look at the staging path", err)
}

// NodeUnpublishVolume implements the Node service.
func (s *node) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	d := s.driver
	if err := required("volume_id", r.GetVolumeId(), "target_path", r.GetTargetPath()); err != nil {
		return nil, err
	}
	v := d.volume(r.GetVolumeId())
	if v == nil {
		return &csi.NodeUnpublishVolumeResponse{}, d.undoUnknown(r.GetVolumeId())
	}
	if v.published(r.GetTargetPath()) == nil {
		return &csi.NodeUnpublishVolumeResponse{}, nil // nothing of ours is there
	}
	if err := d.unpublish(v, r.GetTargetPath()); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// nodeCapability holds a volume capability against what the node offers.
func (d *Driver) nodeCapability(c *csi.VolumeCapability) error {
	writers := d.config.Lenient || d.offersNode(csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	if err := checkCapability(c, writers); err != nil {
		return err
	}
	if c.GetMount().GetVolumeMountGroup() != "" && !d.config.Lenient && !d.offersNode(csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP) {
		return invalid("volume_mount_group without the capability VOLUME_MOUNT_GROUP")
	}
	return nil
}

// find returns a volume for a node's call, one that does not exist yet if such
// may come into being with the call.
func (d *Driver) find(id string, context map[string]string) (*VolumeState, error) {
	if v := d.volume(id); v != nil {
		own := ownContext(context)
		if len(v.Context) == 0 && v.Name == "" {
			v.Context = own // of a volume that came into being with a call that named none
			if m := Mode(own[ModeKey]); m.known() && v.Staged == nil && len(v.Published) == 0 {
				v.Mode = m
			}
		}
		if len(own) > 0 && !maps.Equal(own, v.Context) && !d.config.Lenient {
			return nil, invalid("volume_context is not that of the volume")
		}
		return v, nil
	}
	ephemeral := context[ephemeralKey] == "true"
	if !ephemeral && !d.config.AutoCreate {
		return nil, status.Errorf(codes.NotFound, "there is no volume %s", id)
	}
	mode := or(Mode(context[ModeKey]), d.config.Mode)
	if !mode.known() {
		return nil, invalid("mode %q is unknown", mode)
	}
	return &VolumeState{ID: id, Mode: mode, Bytes: d.config.DefaultBytes, Context: ownContext(context), Ephemeral: ephemeral}, nil
}

// usable refuses what the volume cannot do, or what its attachment forbids.
func (d *Driver) usable(v *VolumeState, use Use) error {
	if err := absolute("path", use.Path); err != nil {
		return err
	}
	if err := v.Mode.fits(use.Capability); err != nil {
		return err
	}
	if v.Ephemeral || d.config.Lenient {
		return nil
	}
	if !d.offersController(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME) {
		if len(use.PublishContext) > 0 {
			return invalid("publish_context without the capability PUBLISH_UNPUBLISH_VOLUME")
		}
		return nil
	}
	a := v.attachment(d.nodeID())
	if a == nil {
		return precondition("the volume is not attached to this node")
	}
	if !maps.Equal(a.Context, use.PublishContext) {
		return invalid("publish_context is not that of the attachment")
	}
	return nil
}

func (d *Driver) nodeID() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.node.NodeID
}

// undoUnknown is the answer to undoing something of a volume that is unknown.
func (d *Driver) undoUnknown(id string) error {
	if d.config.UndoUnknown == codes.OK {
		return nil
	}
	return status.Errorf(d.config.UndoUnknown, "there is no volume %s", id)
}
