package csi

import (
	"context"
	"errors"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/volumekit/volumekit/plugins"
)

const (
	// firstRepeat and lastRepeat lie between attempts at one step of the
	// conversation.
	firstRepeat = 50 * time.Millisecond
	lastRepeat  = 2 * time.Second
	// guestTime is how long a controller service that is merely announced may
	// hold up the node service.
	guestTime = 5 * time.Second
	// maxCapabilities is how many capabilities of a service are taken.
	maxCapabilities = 256
	// maxVersion bounds the vendor's version, in bytes.
	maxVersion = 128
)

// introduction is the conversation at the beginning of a connection: who is
// there, is it ready, what can it do, and what does it say of this node. Each
// question is asked once, and again only if it was not answered.
type introduction struct {
	link     *link
	identity csipb.IdentityClient
	// d is what becomes of it.
	d       *driver
	vendor  string
	serves  map[csipb.PluginCapability_Service_Type]struct{}
	nodes   csipb.NodeClient
	control csipb.ControllerClient
	// hopes is why the controller service that is announced is not known.
	hopes error
}

// introduce has the conversation. It repeats what is not answered until ctx
// ends, as it does when the connection is lost; a [refusedError] is final.
func (l *link) introduce(ctx context.Context, c *conn) (*driver, *introduction, error) {
	h := &introduction{
		link: l, identity: csipb.NewIdentityClient(c.cc),
		nodes: csipb.NewNodeClient(c.cc), control: csipb.NewControllerClient(c.cc),
		d: &driver{
			name: l.entry.name, endpoint: l.path, calls: l.entry.calls,
			generation: l.drivers.asks(l),
			outdated:   func() { l.drivers.askAgain(l, c) },
		},
	}
	steps := []func(context.Context) error{h.name, h.probe, h.services, h.controller}
	if l.wants.node {
		h.d.node = h.nodes
		steps = append(steps, h.nodeCan, h.nodeInfo)
	}
	for _, step := range steps {
		if err := h.insist(ctx, step); err != nil {
			return nil, nil, err
		}
	}
	return h.d, h, nil
}

// insist repeats a step until it is done.
func (h *introduction) insist(ctx context.Context, step func(context.Context) error) error {
	for n := 1; ; n++ {
		err := step(ctx)
		no := (*refusedError)(nil)
		if err == nil || errors.As(err, &no) {
			return err
		}
		if ctx.Err() == nil {
			h.link.drivers.trouble(h.link, err)
		}
		if !wait(ctx, grown(firstRepeat, lastRepeat, n)) {
			return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		}
	}
}

// name asks for the name, which has to be the one that is expected.
func (h *introduction) name(ctx context.Context) error {
	res, err := call(ctx, h.d, getPluginInfo, "", &csipb.GetPluginInfoRequest{}, h.identity.GetPluginInfo)
	if err != nil {
		return unserved(err)
	}
	if res.GetName() != h.d.name {
		return refused(plugins.Permanentf("the driver at %s says that its name is %q, not %q: it is not used",
			h.d.endpoint, shorten(res.GetName(), maxDriverName+20), h.d.name))
	}
	h.vendor = clean(res.GetVendorVersion(), maxVersion)
	return nil
}

var errNotReady = errors.New("the driver answers Probe, but is not ready yet")

// probe asks whether the driver is ready. An answer that does not say is a yes
// (CSI spec, ProbeResponse), and so is that of a driver without the call.
func (h *introduction) probe(ctx context.Context) error {
	res, err := call(ctx, h.d, probe, "", &csipb.ProbeRequest{}, h.identity.Probe)
	switch {
	case answered(err) == codes.Unimplemented:
		return nil
	case err != nil:
		return err
	case res.GetReady() != nil && !res.GetReady().GetValue():
		return plugins.Transient(errNotReady)
	}
	return nil
}

// services asks which services the plugin has.
func (h *introduction) services(ctx context.Context) error {
	if h.link.wants.controller == absent {
		return nil
	}
	res, err := call(ctx, h.d, getPluginCan, "", &csipb.GetPluginCapabilitiesRequest{}, h.identity.GetPluginCapabilities)
	if err != nil && answered(err) != codes.Unimplemented {
		return err
	}
	h.serves = map[csipb.PluginCapability_Service_Type]struct{}{}
	h.d.expansion = capabilities[csipb.PluginCapability_VolumeExpansion_Type]{}
	for _, one := range res.GetCapabilities() {
		h.d.expansion.add(one.GetVolumeExpansion().GetType())
		if len(h.serves) < maxCapabilities {
			h.serves[one.GetService().GetType()] = struct{}{}
		}
	}
	_, has := h.serves[csipb.PluginCapability_Service_CONTROLLER_SERVICE]
	h.d.noController = err == nil && !has
	return nil
}

// controller asks what the controller service can do, if there is one. One that
// is merely announced does not hold up the node service: a node's plugin often
// announces the service that another process has.
func (h *introduction) controller(ctx context.Context) error {
	_, has := h.serves[csipb.PluginCapability_Service_CONTROLLER_SERVICE]
	must := h.link.wants.controller == required
	switch {
	case must && !has:
		return refused(plugins.Permanentf("the driver %s at %s does not announce a controller service", h.d.name, h.d.endpoint))
	case !has:
		return nil
	case must:
		return unserved(h.controllerCan(ctx))
	}
	ctx, cancel := context.WithTimeout(ctx, guestTime)
	defer cancel()
	switch err := h.controllerCan(ctx); {
	case answered(err) == codes.Unimplemented:
		h.d.elsewhere = true
	case err != nil:
		h.hopes = err
	}
	return nil
}

func (h *introduction) controllerCan(ctx context.Context) error {
	can, err := controllerCapabilities(ctx, h.d, h.control)
	if err == nil {
		h.d.controller, h.d.controllerCan = h.control, can
	}
	return err
}

func (h *introduction) nodeCan(ctx context.Context) error {
	can, err := nodeCapabilities(ctx, h.d)
	if err != nil {
		return unserved(err)
	}
	h.d.nodeCan = can
	return nil
}

// nodeInfo asks what the driver says of this node. Drivers that register have
// to answer, as with the kubelet.
func (h *introduction) nodeInfo(ctx context.Context) error {
	info, err := askNodeInfo(ctx, h.d, h.link.drivers.config.Log)
	if answered(err) == codes.Unimplemented && !h.link.instance.registered {
		h.d.info = NodeInfo{Driver: h.d.name}
		return nil
	}
	if err != nil {
		return unserved(err)
	}
	h.d.info = info
	return nil
}

// unserved makes it final that the driver does not have a call that it must have.
func unserved(err error) error {
	if answered(err) == codes.Unimplemented {
		return refused(err)
	}
	return err
}

func nodeCapabilities(ctx context.Context, d *driver) (capabilities[csipb.NodeServiceCapability_RPC_Type], error) {
	res, err := call(ctx, d, nodeGetCan, "", &csipb.NodeGetCapabilitiesRequest{}, d.node.NodeGetCapabilities)
	if err != nil {
		return nil, err
	}
	can := capabilities[csipb.NodeServiceCapability_RPC_Type]{}
	for _, one := range res.GetCapabilities() {
		can.add(one.GetRpc().GetType())
	}
	return can, nil
}

func controllerCapabilities(ctx context.Context, d *driver, client csipb.ControllerClient) (capabilities[csipb.ControllerServiceCapability_RPC_Type], error) {
	res, err := call(ctx, d, controllerGetCan, "", &csipb.ControllerGetCapabilitiesRequest{}, client.ControllerGetCapabilities)
	if err != nil {
		return nil, err
	}
	can := capabilities[csipb.ControllerServiceCapability_RPC_Type]{}
	for _, one := range res.GetCapabilities() {
		can.add(one.GetRpc().GetType())
	}
	return can, nil
}

// add takes a capability, known or not, as long as there are not too many.
func (c capabilities[T]) add(one T) {
	if one != 0 && len(c) < maxCapabilities {
		c[one] = struct{}{}
	}
}
