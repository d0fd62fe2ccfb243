package csitest

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// tokenPrefix begins the tokens of the list calls; an ID follows, after which
// the next page begins.
const tokenPrefix = "after:"

// ControllerPublishVolume implements the Controller service.
func (s *controller) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	d := s.driver
	if err := d.needController(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME); err != nil {
		return nil, err
	}
	if err := required("volume_id", r.GetVolumeId(), "node_id", r.GetNodeId()); err != nil {
		return nil, err
	}
	if r.GetVolumeCapability() == nil {
		return nil, invalid("volume_capability is missing")
	}
	if r.GetReadonly() && !d.config.Lenient && !d.offersController(csi.ControllerServiceCapability_RPC_PUBLISH_READONLY) {
		return nil, invalid("readonly without the capability PUBLISH_READONLY")
	}
	v, err := d.find(r.GetVolumeId(), r.GetVolumeContext())
	if err != nil {
		return nil, err
	}
	if err := d.controllerCapability(v.Mode, r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	asked := Attachment{NodeID: r.GetNodeId(), Capability: capabilityOf(r.GetVolumeCapability()), Readonly: r.GetReadonly()}
	if a := v.attachment(asked.NodeID); a != nil {
		if !d.config.Lenient && (a.Readonly != asked.Readonly || !a.Capability.same(asked.Capability)) {
			return nil, status.Error(codes.AlreadyExists, "the volume is attached to the node with other arguments")
		}
		return &csi.ControllerPublishVolumeResponse{PublishContext: a.Context}, nil
	}
	if err := d.mayAttach(v, asked); err != nil {
		return nil, err
	}
	asked.Context = map[string]string{attachmentKey: fileName(v.ID + "\x00" + asked.NodeID)[:16]}
	v.Attached = append(v.Attached, asked)
	if err := d.save(v); err != nil {
		return nil, internal("write the table", err)
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: maps.Clone(asked.Context)}, nil
}

// mayAttach refuses nodes that are unknown or full, and second nodes of a
// volume for one.
func (d *Driver) mayAttach(v *VolumeState, asked Attachment) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if asked.NodeID != d.node.NodeID && !slices.Contains(d.config.OtherNodes, asked.NodeID) {
		return status.Errorf(codes.NotFound, "there is no node %s", asked.NodeID)
	}
	if len(v.Attached) > 0 && !strings.HasPrefix(asked.Capability.AccessMode, "MULTI_NODE_") {
		return precondition("the volume is attached to node %s", v.Attached[0].NodeID)
	}
	var count int64
	for _, other := range d.volumes {
		if other.attachment(asked.NodeID) != nil {
			count++
		}
	}
	if d.node.MaxVolumes > 0 && count >= d.node.MaxVolumes {
		return status.Errorf(codes.ResourceExhausted, "node %s has %d volumes, no more can be attached", asked.NodeID, count)
	}
	return nil
}

// ControllerUnpublishVolume implements the Controller service.
func (s *controller) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	d := s.driver
	if err := d.needController(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME); err != nil {
		return nil, err
	}
	if err := required("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	v := d.volume(r.GetVolumeId())
	if v == nil {
		return &csi.ControllerUnpublishVolumeResponse{}, d.undoUnknown(r.GetVolumeId())
	}
	here := r.GetNodeId() == "" || r.GetNodeId() == d.nodeID()
	if here && (v.Staged != nil || len(v.Published) > 0) && !d.config.Lenient {
		return nil, precondition("the volume is still staged or published on node %s", d.nodeID())
	}
	// Without a node it is meant for all of them.
	v.Attached = slices.DeleteFunc(v.Attached, func(a Attachment) bool { return r.GetNodeId() == "" || a.NodeID == r.GetNodeId() })
	if err := d.save(v); err != nil {
		return nil, internal("write the table", err)
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// ValidateVolumeCapabilities implements the Controller service.
func (s *controller) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if err := required("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, invalid("volume_capabilities are missing")
	}
	v, err := s.driver.find(r.GetVolumeId(), nil)
	if err != nil {
		return nil, err
	}
	for _, c := range r.GetVolumeCapabilities() {
		if err := s.driver.controllerCapability(v.Mode, c); err != nil {
			return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
		}
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeCapabilities: r.GetVolumeCapabilities(), VolumeContext: r.GetVolumeContext(), Parameters: r.GetParameters(),
	}}, nil
}

// GetCapacity implements the Controller service.
func (s *controller) GetCapacity(_ context.Context, r *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	d := s.driver
	if err := d.needController(csi.ControllerServiceCapability_RPC_GET_CAPACITY); err != nil {
		return nil, err
	}
	if t := r.GetAccessibleTopology(); t != nil && !d.reachable(&csi.TopologyRequirement{Requisite: []*csi.Topology{t}}) {
		return &csi.GetCapacityResponse{}, nil
	}
	return &csi.GetCapacityResponse{AvailableCapacity: d.free()}, nil
}

// ListVolumes implements the Controller service.
func (s *controller) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	d := s.driver
	if err := d.needController(csi.ControllerServiceCapability_RPC_LIST_VOLUMES); err != nil {
		return nil, err
	}
	page, next, err := pageOf(d.Volumes(), r.GetMaxEntries(), r.GetStartingToken())
	if err != nil {
		return nil, err
	}
	reply := &csi.ListVolumesResponse{NextToken: next}
	for i := range page {
		reply.Entries = append(reply.Entries, &csi.ListVolumesResponse_Entry{
			Volume: d.describe(&page[i]),
			Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: d.nodesOf(&page[i])},
		})
	}
	return reply, nil
}

// pageOf cuts a page out of the volumes.
func pageOf(list []VolumeState, limit int32, token string) (page []VolumeState, next string, err error) {
	if limit < 0 {
		return nil, "", invalid("max_entries is negative")
	}
	if token != "" {
		after, ok := strings.CutPrefix(token, tokenPrefix)
		if !ok {
			return nil, "", status.Error(codes.Aborted, "starting_token is none of ours")
		}
		list = slices.DeleteFunc(list, func(v VolumeState) bool { return v.ID <= after })
	}
	if n := int(limit); n > 0 && len(list) > n {
		return list[:n], tokenPrefix + list[n-1].ID, nil
	}
	return list, "", nil
}

// nodesOf are the nodes to which a volume is attached, if the driver says them.
func (d *Driver) nodesOf(v *VolumeState) (nodes []string) {
	if !d.offersController(csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES) {
		return nil
	}
	for _, a := range v.Attached {
		nodes = append(nodes, a.NodeID)
	}
	return nodes
}

// ControllerGetVolume implements the Controller service.
func (s *controller) ControllerGetVolume(_ context.Context, r *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	d := s.driver
	if err := d.needController(csi.ControllerServiceCapability_RPC_GET_VOLUME); err != nil {
		return nil, err
	}
	if err := required("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	v, err := s.must(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: d.describe(v),
		Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: d.nodesOf(v)},
	}, nil
}

// ControllerGetVolumeHealth implements the Controller service.
func (s *controller) ControllerGetVolumeHealth(_ context.Context, r *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	if err := s.driver.needController(csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH); err != nil {
		return nil, err
	}
	if err := required("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	health, err := s.driver.volumeHealth(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: health}, nil
}

// ControllerListVolumeHealth implements the Controller service.
func (s *controller) ControllerListVolumeHealth(_ context.Context, r *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	d := s.driver
	if err := d.needController(csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH); err != nil {
		return nil, err
	}
	ill := slices.DeleteFunc(d.Volumes(), func(v VolumeState) bool { return len(d.setHealth(v.ID)) == 0 })
	page, next, err := pageOf(ill, r.GetMaxEntries(), r.GetStartingToken())
	if err != nil {
		return nil, err
	}
	reply := &csi.ControllerListVolumeHealthResponse{NextToken: next}
	for _, v := range page {
		reply.Entries = append(reply.Entries, &csi.VolumeHealth{VolumeId: v.ID, HealthStatuses: d.setHealth(v.ID)})
	}
	return reply, nil
}
