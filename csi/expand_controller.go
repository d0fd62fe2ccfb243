package csi

import (
	"context"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volumekit/volumekit/plugins"
)

const canExpandStorage = csipb.ControllerServiceCapability_RPC_EXPAND_VOLUME

// Short names for what a driver says of expansion.
const (
	expandsOnline  = csipb.PluginCapability_VolumeExpansion_ONLINE
	expandsOffline = csipb.PluginCapability_VolumeExpansion_OFFLINE
)

// expandByController calls ControllerExpandVolume, and says whether the node
// has to do its part. A driver may have nothing but the node's part.
func (p *Plugin) expandByController(ctx context.Context, e *enlargement) (size int64, nodeToo bool, err error) {
	d := e.driver
	if !d.noController {
		if d, err = p.drivers.controllerOf(ctx, e.source.driver); err != nil {
			return 0, false, err
		}
	}
	switch byNode := e.driver.nodeCan.has(canExpand); {
	case d.controller == nil || !d.controllerCan.has(canExpandStorage):
		if !byNode {
			return 0, false, plugins.Unsupportedf("CSI driver %s cannot expand volumes: it has the capability EXPAND_VOLUME neither as controller nor as node",
				e.source.driver)
		}
		return 0, true, nil
	case d.expansion.has(expandsOffline) && !d.expansion.has(expandsOnline):
		return 0, false, plugins.Permanent(fmt.Errorf("%w: CSI driver %s expands storage only while no node has it (VolumeExpansion OFFLINE); stop its pods, expand it, start them again",
			ErrInUse, e.source.driver))
	}
	req, err := p.controllerExpandRequest(ctx, d, e)
	if err != nil {
		return 0, false, err
	}
	if err := p.recordControllerBegins(ctx, e); err != nil {
		return 0, false, err
	}
	res, err := call(ctx, d, controllerExpand, e.handle, req, d.controller.ControllerExpandVolume)
	if err != nil {
		return 0, false, err
	}
	got := res.GetCapacityBytes()
	if got != 0 && got < e.plan.to {
		return 0, false, plugins.Paced(slow, plugins.Transientf("CSI driver %s answered ControllerExpandVolume to %d bytes with success and %d bytes",
			e.source.driver, e.plan.to, got))
	}
	return max(got, e.plan.to), res.GetNodeExpansionRequired() && e.driver.nodeCan.has(canExpand), nil
}

func (p *Plugin) controllerExpandRequest(ctx context.Context, d *driver, e *enlargement) (*csipb.ControllerExpandVolumeRequest, error) {
	spec := e.req.Spec
	mode, err := accessModeOf(spec.AccessModes(), d.controllerCan.has(canAttachWriters))
	if err != nil {
		return nil, err
	}
	secrets, err := readSecret(ctx, p.host, refOf(spec.PV.Spec.CSI.ControllerExpandSecretRef))
	if err != nil {
		return nil, err
	}
	return &csipb.ControllerExpandVolumeRequest{
		VolumeId: e.handle, Secrets: secrets,
		CapacityRange:    &csipb.CapacityRange{RequiredBytes: e.plan.to},
		VolumeCapability: capabilityOf(spec, e.fsType, mode, mountFlags(spec, ""), ""),
	}, nil
}
