package csi

import (
	"context"
	"errors"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
)

// controllerList is an RPC that only [Drivers.PublishedNodes] calls.
const controllerList method = "ListVolumes"

const (
	canCreate             = csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME
	canList               = csipb.ControllerServiceCapability_RPC_LIST_VOLUMES
	canListPublishedNodes = csipb.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES
)

// controllers is a directory that knows which drivers have a controller service.
// [Drivers] is one.
type controllers interface {
	directory
	controllerless(name string) bool
}

// controllerThatCan finds a driver whose controller service can do something.
func controllerThatCan(ctx context.Context, drivers controllers, name string, can ...csipb.ControllerServiceCapability_RPC_Type) (*driver, error) {
	if err := CheckDriverName(name); err != nil {
		return nil, err
	}
	d, err := drivers.controllerOf(ctx, name)
	switch {
	case err != nil && drivers.controllerless(name), err == nil && d.controller == nil:
		return nil, plugins.Unsupportedf("CSI driver %s has no controller service", name)
	case err != nil:
		return nil, err
	}
	for _, c := range can {
		if !d.controllerCan.has(c) {
			return nil, plugins.Unsupportedf("CSI driver %s lacks the controller capability %s", name, c)
		}
	}
	return d, nil
}

// controllerless reports whether the driver is there, and has no controller
// service anywhere: none is expected at any of its addresses, and it announces
// none.
func (d *Drivers) controllerless(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[name]
	if e == nil {
		return false
	}
	here := false
	for _, i := range e.instances {
		for _, l := range i.links {
			c := l.current
			if c == nil || l.wants.controller == required || c.controller != nil || c.elsewhere || l.hopes != nil {
				return false
			}
			here = true
		}
	}
	return here
}

// DeleteVolume deletes the storage of a persistent volume through the driver's
// controller. A volume that does not exist is success. It must not be staged,
// published or attached anywhere; the driver may not notice if it is. secrets
// go to the driver and nowhere else; nil means none.
//
// The error is of class unsupported if the driver cannot delete volumes, and
// waits if it is not there. Others are a [CallError]. The object that stands
// for the volume is the caller's to remove.
func (d *Drivers) DeleteVolume(ctx context.Context, pv *v1.PersistentVolume, secrets map[string]string) error {
	if pv == nil || pv.Spec.CSI == nil {
		return plugins.Permanent(errors.New("the persistent volume has no csi source"))
	}
	return deleteVolume(ctx, d, pv.Spec.CSI, secrets)
}

func deleteVolume(ctx context.Context, drivers controllers, source *v1.CSIPersistentVolumeSource, secrets map[string]string) error {
	if err := checkHandle(source.VolumeHandle); err != nil {
		return err
	}
	d, err := controllerThatCan(ctx, drivers, source.Driver, canCreate)
	if err != nil {
		return err
	}
	req := &csipb.DeleteVolumeRequest{VolumeId: source.VolumeHandle, Secrets: secrets}
	_, err = call(ctx, d, controllerDelete, source.VolumeHandle, req, d.controller.DeleteVolume)
	if answered(err) == codes.NotFound {
		return nil
	}
	return err
}

const (
	// listPage is how many volumes are asked for at a time, maxPages bounds what
	// a driver can answer.
	listPage = 500
	maxPages = 10_000
)

// PublishedNodes lists the driver's volumes that its controller has published
// to nodes (ListVolumes), with the nodes' IDs, sorted, by volume handle: what a
// program compares with what it knows to find volumes that were left attached. A
// volume may appear that somebody else uses, and nodes that the driver does not
// know (CSI spec, ListVolumes); nothing is detached on the strength of it alone.
//
// The error is of class unsupported if the driver lacks LIST_VOLUMES or
// LIST_VOLUMES_PUBLISHED_NODES.
func (d *Drivers) PublishedNodes(ctx context.Context, driver string) (map[string][]string, error) {
	return publishedNodes(ctx, d, driver)
}

func publishedNodes(ctx context.Context, drivers controllers, name string) (map[string][]string, error) {
	d, err := controllerThatCan(ctx, drivers, name, canList, canListPublishedNodes)
	if err != nil {
		return nil, err
	}
	nodes := map[string][]string{}
	seen := map[string]struct{}{}
	for token := ""; ; {
		req := &csipb.ListVolumesRequest{MaxEntries: listPage, StartingToken: token}
		page, err := call(ctx, d, controllerList, "", req, d.controller.ListVolumes)
		if err != nil {
			return nil, err
		}
		for _, entry := range page.GetEntries() {
			handle := entry.GetVolume().GetVolumeId()
			if err := checkHandle(handle); err != nil {
				return nil, plugins.Transientf("CSI driver %s listed a volume: %w", name, err)
			}
			if ids := entry.GetStatus().GetPublishedNodeIds(); len(ids) > 0 {
				nodes[handle] = append(nodes[handle], ids...)
			}
		}
		if token = page.GetNextToken(); token == "" {
			break
		}
		if _, again := seen[token]; again || len(seen) >= maxPages {
			return nil, plugins.Transientf("CSI driver %s lists its volumes without end", name)
		}
		seen[token] = struct{}{}
	}
	for handle, ids := range nodes {
		slices.Sort(ids)
		nodes[handle] = slices.Compact(ids)
	}
	return nodes, nil
}
