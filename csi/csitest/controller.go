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

// controller is the Controller service. Snapshots and clones it has not.
type controller struct {
	csi.UnimplementedControllerServer
	driver *Driver
}

// VolumeID is the ID that CreateVolume gives to a volume of this name.
func VolumeID(name string) string { return "vol-" + fileName(name)[:24] }

// ControllerGetCapabilities implements the Controller service.
func (s *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	reply := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range s.driver.offered().Controller {
		reply.Capabilities = append(reply.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return reply, nil
}

// CreateVolume implements the Controller service.
func (s *controller) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	d := s.driver
	if err := d.needController(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME); err != nil {
		return nil, err
	}
	v, err := d.asked(r)
	if err != nil {
		return nil, err
	}
	if old := d.volume(v.ID); old != nil {
		if !compatible(old, v, r.GetCapacityRange()) {
			return nil, status.Errorf(codes.AlreadyExists, "volume %s exists and is another one", r.GetName())
		}
		return &csi.CreateVolumeResponse{Volume: d.describe(old)}, nil
	}
	if v.Bytes > d.free() {
		return nil, status.Errorf(codes.OutOfRange, "the storage has only %d bytes left", d.free())
	}
	if err := d.save(v); err != nil {
		return nil, internal("write the table", err)
	}
	return &csi.CreateVolumeResponse{Volume: d.describe(v)}, nil
}

// asked is the volume that a CreateVolume asks for.
func (d *Driver) asked(r *csi.CreateVolumeRequest) (*VolumeState, error) {
	if err := required("name", r.GetName()); err != nil {
		return nil, err
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, invalid("volume_capabilities are missing")
	}
	if r.GetVolumeContentSource() != nil {
		return nil, invalid("volume_content_source is not supported")
	}
	if err := checkRange(r.GetCapacityRange()); err != nil {
		return nil, err
	}
	v := &VolumeState{ID: VolumeID(r.GetName()), Name: r.GetName(), Mode: d.config.Mode, Mutable: maps.Clone(r.GetMutableParameters())}
	if err := d.readParameters(v, r.GetParameters()); err != nil {
		return nil, err
	}
	if err := d.checkMutable(v.Mutable); err != nil {
		return nil, err
	}
	for _, c := range r.GetVolumeCapabilities() {
		if err := d.controllerCapability(v.Mode, c); err != nil {
			return nil, err
		}
		v.Capabilities = append(v.Capabilities, capabilityOf(c))
	}
	if !d.reachable(r.GetAccessibilityRequirements()) {
		return nil, status.Error(codes.ResourceExhausted, "no such volume can be had in the topologies that are required")
	}
	v.Bytes = or(r.GetCapacityRange().GetRequiredBytes(), d.config.DefaultBytes)
	if limit := r.GetCapacityRange().GetLimitBytes(); limit > 0 {
		v.Bytes = min(v.Bytes, limit)
	}
	return v, nil
}

// readParameters reads a volume's parameters: its mode and its context.
func (d *Driver) readParameters(v *VolumeState, parameters map[string]string) error {
	v.Parameters = ownContext(parameters)
	v.Context = map[string]string{}
	for k, value := range v.Parameters {
		switch {
		case k == ModeKey:
			v.Mode = Mode(value)
			if !v.Mode.known() {
				return invalid("mode %q is unknown", value)
			}
		case strings.HasPrefix(k, ContextPrefix):
			v.Context[strings.TrimPrefix(k, ContextPrefix)] = value
		case !d.config.Lenient:
			return invalid("parameter %q is unknown", k)
		}
	}
	v.Context[ModeKey] = string(v.Mode)
	return nil
}

func (d *Driver) checkMutable(parameters map[string]string) error {
	for k := range parameters {
		if !slices.Contains(d.config.MutableParameters, k) {
			return invalid("mutable parameter %q is unknown", k)
		}
	}
	return nil
}

func (d *Driver) controllerCapability(m Mode, c *csi.VolumeCapability) error {
	writers := d.config.Lenient || d.offersController(csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	if err := checkCapability(c, writers); err != nil {
		return err
	}
	return m.fits(capabilityOf(c))
}

// reachable reports whether this node is within the requirements.
func (d *Driver) reachable(r *csi.TopologyRequirement) bool {
	if len(r.GetRequisite()) == 0 {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(r.GetRequisite(), func(t *csi.Topology) bool {
		for k, value := range t.GetSegments() {
			if d.node.Topology[k] != value {
				return false
			}
		}
		return true
	})
}

// compatible reports whether a volume is what a repeated CreateVolume asks for.
func compatible(old, asked *VolumeState, r *csi.CapacityRange) bool {
	if old.Bytes < r.GetRequiredBytes() || r.GetLimitBytes() > 0 && old.Bytes > r.GetLimitBytes() {
		return false
	}
	return maps.Equal(old.Parameters, asked.Parameters) &&
		slices.EqualFunc(old.Capabilities, asked.Capabilities, Capability.same)
}

// describe is a volume as the specification writes it.
func (d *Driver) describe(v *VolumeState) *csi.Volume {
	constrained := d.offersService(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	d.mu.Lock()
	defer d.mu.Unlock()
	volume := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Bytes, VolumeContext: maps.Clone(v.Context)}
	if constrained {
		volume.AccessibleTopology = []*csi.Topology{{Segments: maps.Clone(d.node.Topology)}}
	}
	return volume
}

// DeleteVolume implements the Controller service.
func (s *controller) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	d := s.driver
	if err := d.needController(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME); err != nil {
		return nil, err
	}
	if err := required("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	if v := d.volume(r.GetVolumeId()); v != nil {
		if v.inUse() {
			return nil, precondition("the volume is in use")
		}
		if err := d.remove(v.ID); err != nil {
			return nil, internal("remove the volume", err)
		}
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ControllerExpandVolume implements the Controller service.
func (s *controller) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	d := s.driver
	if err := d.needController(csi.ControllerServiceCapability_RPC_EXPAND_VOLUME); err != nil {
		return nil, err
	}
	if err := required("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	if r.GetCapacityRange() == nil {
		return nil, invalid("capacity_range is missing")
	}
	v, err := s.must(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	bytes, err := d.newSize(v, r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	used := len(v.Published) > 0 || len(v.Attached) > 0
	if used && bytes > v.Bytes && d.offered().Expansion != csi.PluginCapability_VolumeExpansion_ONLINE {
		return nil, precondition("the volume is in use and the plugin expands offline only")
	}
	byNode := d.offersNode(csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	v.NodeBytes, v.Bytes = v.nodeBytes(), bytes
	if use := v.anyUse(); use != nil && !byNode {
		err = d.expand(v, use)
	} else {
		err = d.done(v)
	}
	if err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Bytes, NodeExpansionRequired: byNode}, nil
}

// ControllerModifyVolume implements the Controller service.
func (s *controller) ControllerModifyVolume(_ context.Context, r *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	d := s.driver
	if err := d.needController(csi.ControllerServiceCapability_RPC_MODIFY_VOLUME); err != nil {
		return nil, err
	}
	if err := required("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	v, err := s.must(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if err := d.checkMutable(r.GetMutableParameters()); err != nil {
		return nil, err
	}
	if v.Mutable == nil {
		v.Mutable = map[string]string{}
	}
	maps.Copy(v.Mutable, r.GetMutableParameters())
	if err := d.save(v); err != nil {
		return nil, internal("write the table", err)
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}

// must finds a volume that has to be there.
func (s *controller) must(id string) (*VolumeState, error) {
	if v := s.driver.volume(id); v != nil {
		return v, nil
	}
	return nil, status.Errorf(codes.NotFound, "there is no volume %s", id)
}

func internal(what string, err error) error {
	return status.Errorf(codes.Internal, "%s: %v", what, err)
}
