package csitest

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// identity is the Identity service.
type identity struct {
	csi.UnimplementedIdentityServer
	driver *Driver
}

// GetPluginInfo implements the Identity service.
func (s *identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: s.driver.config.Name, VendorVersion: s.driver.config.Version}, nil
}

// GetPluginCapabilities implements the Identity service.
func (s *identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	c := s.driver.offered()
	reply := &csi.GetPluginCapabilitiesResponse{}
	for _, t := range c.Plugin {
		reply.Capabilities = append(reply.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}},
		})
	}
	if c.Expansion != csi.PluginCapability_VolumeExpansion_UNKNOWN {
		reply.Capabilities = append(reply.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: c.Expansion}},
		})
	}
	return reply, nil
}

// Probe implements the Identity service.
func (s *identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	s.driver.mu.Lock()
	defer s.driver.mu.Unlock()
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(!s.driver.notReady)}, nil
}

// offered are the capabilities now.
func (d *Driver) offered() Capabilities {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.capabilities // the lists in it are never changed
}

func (d *Driver) offersService(t csi.PluginCapability_Service_Type) bool {
	return slices.Contains(d.offered().Plugin, t)
}

func (d *Driver) offersNode(t csi.NodeServiceCapability_RPC_Type) bool {
	return slices.Contains(d.offered().Node, t)
}

func (d *Driver) offersController(t csi.ControllerServiceCapability_RPC_Type) bool {
	return d.offersService(csi.PluginCapability_Service_CONTROLLER_SERVICE) && slices.Contains(d.offered().Controller, t)
}

// needNode refuses a call whose capability is not offered.
func (d *Driver) needNode(t csi.NodeServiceCapability_RPC_Type) error {
	if !d.offersNode(t) {
		return status.Errorf(codes.Unimplemented, "the node service has no capability %s", t)
	}
	return nil
}

func (d *Driver) needController(t csi.ControllerServiceCapability_RPC_Type) error {
	if !d.offersController(t) {
		return status.Errorf(codes.Unimplemented, "the controller service has no capability %s", t)
	}
	return nil
}
