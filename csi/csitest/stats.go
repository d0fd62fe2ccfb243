package csitest

import (
	"context"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// NodeGetVolumeStats implements the Node service.
func (s *node) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	d := s.driver
	if err := d.needNode(csi.NodeServiceCapability_RPC_GET_VOLUME_STATS); err != nil {
		return nil, err
	}
	if err := required("volume_id", r.GetVolumeId(), "volume_path", r.GetVolumePath()); err != nil {
		return nil, err
	}
	v, use, err := d.at(r.GetVolumeId(), r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	usage := d.setUsage(v.ID)
	if len(usage) == 0 {
		if usage, err = d.measure(v, use); err != nil {
			return nil, status.Errorf(codes.Internal, "measure: %v", err)
		}
	}
	reply := &csi.NodeGetVolumeStatsResponse{Usage: usage}
	if d.offersNode(NodeVolumeCondition) {
		reply.ProtoReflect().SetUnknown(d.oldCondition(v.ID))
	}
	return reply, nil
}

// at finds the use of a volume at a path.
func (d *Driver) at(id, path string) (*VolumeState, *Use, error) {
	v := d.volume(id)
	if v == nil {
		return nil, nil, status.Errorf(codes.NotFound, "there is no volume %s", id)
	}
	if use := v.published(path); use != nil && use.Complete {
		return v, use, nil
	}
	if v.Staged != nil && v.Staged.Complete && v.Staged.Path == path {
		return v, v.Staged, nil
	}
	return nil, nil, status.Errorf(codes.NotFound, "volume %s is not at this volume_path", id)
}

func (d *Driver) setUsage(id string) []*csi.VolumeUsage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usage[id]
}

// measure is the real usage.
func (d *Driver) measure(v *VolumeState, use *Use) ([]*csi.VolumeUsage, error) {
	if use.Capability.Block {
		return []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: v.nodeBytes()}}, nil
	}
	return usageAt(use.Path)
}

// oldCondition is the VolumeCondition that field 2 of the reply held before it
// was removed: abnormal as field 1, message as field 2.
func (d *Driver) oldCondition(id string) []byte {
	entries := d.setHealth(id)
	texts := make([]string, 0, len(entries))
	for _, e := range entries {
		texts = append(texts, or(e.GetMessage(), e.GetReason()))
	}
	var condition []byte
	if len(entries) > 0 {
		condition = protowire.AppendVarint(protowire.AppendTag(condition, 1, protowire.VarintType), 1)
	}
	condition = protowire.AppendString(protowire.AppendTag(condition, 2, protowire.BytesType), or(strings.Join(texts, "; "), "the volume is well"))
	return protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), condition)
}

func (d *Driver) setHealth(id string) []*csi.VolumeHealth_VolumeHealthEntry {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.health[id]
}

// NodeGetVolumeHealth implements the Node service.
func (s *node) NodeGetVolumeHealth(_ context.Context, r *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	d := s.driver
	if err := d.needNode(csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH); err != nil {
		return nil, err
	}
	if err := required("volume_id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	health, err := d.volumeHealth(r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: health}, nil
}

func (d *Driver) volumeHealth(id string) (*csi.VolumeHealth, error) {
	if d.volume(id) == nil {
		return nil, status.Errorf(codes.NotFound, "there is no volume %s", id)
	}
	return &csi.VolumeHealth{VolumeId: id, HealthStatuses: d.setHealth(id)}, nil
}

// NodeGetStorageHealth implements the Node service.
func (s *node) NodeGetStorageHealth(context.Context, *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	d := s.driver
	if err := d.needNode(csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csi.NodeGetStorageHealthResponse{BackendHealth: slices.Clone(d.storage)}, nil
}

// NodeExpandVolume implements the Node service.
func (s *node) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	d := s.driver
	if err := d.needNode(csi.NodeServiceCapability_RPC_EXPAND_VOLUME); err != nil {
		return nil, err
	}
	if err := required("volume_id", r.GetVolumeId(), "volume_path", r.GetVolumePath()); err != nil {
		return nil, err
	}
	v, use, err := d.at(r.GetVolumeId(), r.GetVolumePath())
	if err != nil {
		return nil, err
	}
	bytes, err := d.newSize(v, r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	v.Bytes = bytes
	if err := d.expand(v, use); err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.NodeBytes}, nil
}

// newSize is the size of a volume after it was grown into a range.
func (d *Driver) newSize(v *VolumeState, r *csi.CapacityRange) (int64, error) {
	if err := checkRange(r); err != nil {
		return 0, err
	}
	bytes := max(v.Bytes, r.GetRequiredBytes())
	if r.GetLimitBytes() > 0 && bytes > r.GetLimitBytes() {
		return 0, status.Errorf(codes.OutOfRange, "the volume has %d bytes already and does not shrink", v.Bytes)
	}
	if bytes-v.Bytes > d.free() {
		return 0, status.Errorf(codes.OutOfRange, "the storage has only %d bytes left", d.free())
	}
	return bytes, nil
}

func checkRange(r *csi.CapacityRange) error {
	need, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	if need < 0 || limit < 0 || limit > 0 && need > limit {
		return invalid("capacity_range from %d to %d is none", need, limit)
	}
	return nil
}

// free is what the storage has left.
func (d *Driver) free() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	free := d.config.TotalBytes
	for _, v := range d.volumes {
		free -= v.Bytes
	}
	return max(free, 0)
}
