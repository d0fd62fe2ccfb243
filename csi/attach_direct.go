package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
)

// Short names for what the controller's side can.
const (
	canPublish         = csipb.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME
	canPublishReadOnly = csipb.ControllerServiceCapability_RPC_PUBLISH_READONLY
	canAttachWriters   = csipb.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
)

// DirectOptions are options of [DirectAttach].
type DirectOptions struct {
	// SkipValidation leaves out the ValidateVolumeCapabilities that asks the
	// driver, before a volume is attached for the first time, whether it can be
	// used as its persistent volume says.
	SkipValidation bool
}

// directAttach is the attacher of [DirectAttach].
type directAttach struct {
	drivers controllers
	host    *plugins.VolumeHost
	options DirectOptions
}

// DirectAttach attaches without a control plane: it calls ControllerPublishVolume
// and ControllerUnpublishVolume of the driver's controller service itself. A
// driver that has none, or does not publish there, needs no attaching. Nothing
// else may attach volumes of the same driver to this node. Secrets come from
// host.
func DirectAttach(drivers *Drivers, host *plugins.VolumeHost, o DirectOptions) Attacher {
	return &directAttach{drivers: drivers, host: host, options: o}
}

// Keys of [Attached.Undo].
const (
	// undoNode is the node's ID of the publish, undoFormer earlier ones as a JSON
	// list: a node may get another ID while volumes are attached to it.
	undoNode   = "nodeID"
	undoFormer = "formerNodeIDs"
	// undoSecret is "<namespace>/<name>" of the secret.
	undoSecret = "secret"
	// undoNothing is "true" where there was nothing to attach.
	undoNothing = "nothing"
)

// controller finds the driver's controller service. It is nil if the driver has
// none, or one that attaches nothing.
func (a *directAttach) controller(ctx context.Context, driver string) (*driver, error) {
	d, err := a.drivers.controllerOf(ctx, driver)
	switch {
	case err != nil && a.drivers.controllerless(driver):
		return nil, nil
	case err != nil:
		return nil, err
	case d.controller == nil || !d.controllerCan.has(canPublish):
		return nil, nil
	}
	return d, nil
}

// Attach implements [Attacher].
func (a *directAttach) Attach(ctx context.Context, v Attachable) (Attached, error) {
	if err := attachable(&v); err != nil {
		return Attached{}, err
	}
	d, err := a.controller(ctx, v.Driver)
	if err != nil {
		return Attached{}, err
	}
	if d == nil {
		return Attached{Undo: plugins.Undo{undoNothing: "true"}}, nil
	}
	node, err := a.nodeID(ctx, d)
	if err != nil {
		return Attached{}, err
	}
	undo, err := directUndo(&v, node)
	if err != nil {
		return Attached{}, err
	}
	req, err := a.request(ctx, d, &v, node)
	if err != nil {
		return Attached{}, err
	}
	if v.Undo[undoNode] == "" && !a.options.SkipValidation {
		if err := validateUse(ctx, d, req); err != nil {
			return Attached{}, err
		}
	}
	res, err := call(ctx, d, controllerPublish, v.Handle, req, d.controller.ControllerPublishVolume)
	if err != nil {
		return Attached{}, err
	}
	if err := checkContext(res.GetPublishContext()); err != nil {
		return Attached{}, plugins.Paced(slow, plugins.Uncertain(fmt.Errorf("publish context of CSI driver %s: %w", v.Driver, err)))
	}
	return Attached{PublishContext: maps.Clone(res.GetPublishContext()), Undo: undo}, nil
}

// nodeID is the driver's name for this node. It is never empty: for an
// unpublish that would mean all nodes.
func (a *directAttach) nodeID(ctx context.Context, d *driver) (string, error) {
	if d.info.ID != "" {
		return d.info.ID, nil
	}
	node, err := a.drivers.driver(ctx, d.name)
	if err != nil {
		return "", err
	}
	if node.info.ID == "" {
		return "", plugins.Paced(slow, plugins.Transientf("CSI driver %s has no ID for this node", d.name))
	}
	return node.info.ID, nil
}

// request is what the driver is asked for.
func (a *directAttach) request(ctx context.Context, d *driver, v *Attachable, node string) (*csipb.ControllerPublishVolumeRequest, error) {
	mode, err := accessModeOf(v.Spec.AccessModes(), d.controllerCan.has(canAttachWriters))
	if err != nil {
		return nil, err
	}
	attributes, err := volumeAttributes(v.Spec)
	if err != nil {
		return nil, err
	}
	source := v.Spec.PV.Spec.CSI
	secrets, err := readSecret(ctx, a.host, refOf(source.ControllerPublishSecretRef))
	if err != nil {
		return nil, err
	}
	return &csipb.ControllerPublishVolumeRequest{
		VolumeId: v.Handle, NodeId: node, VolumeCapability: capabilityOf(v.Spec, source.FSType, mode, v.Spec.MountOptions(), ""),
		Readonly: source.ReadOnly && d.controllerCan.has(canPublishReadOnly),
		Secrets:  secrets, VolumeContext: attributes,
	}, nil
}

// validateUse asks the driver whether the volume can be used in this way. An
// error leaves that open: many drivers have no answer, and the publish that
// follows has its own.
func validateUse(ctx context.Context, d *driver, use *csipb.ControllerPublishVolumeRequest) error {
	req := &csipb.ValidateVolumeCapabilitiesRequest{
		VolumeId: use.GetVolumeId(), VolumeContext: use.GetVolumeContext(), Secrets: use.GetSecrets(),
		VolumeCapabilities: []*csipb.VolumeCapability{use.GetVolumeCapability()},
	}
	res, err := call(ctx, d, controllerValidate, req.GetVolumeId(), req, d.controller.ValidateVolumeCapabilities)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	confirmed := res.GetConfirmed().GetVolumeCapabilities()
	understood := func(c *csipb.VolumeCapability) bool { return sameUse(c, use.GetVolumeCapability()) }
	if res.GetConfirmed() != nil && (len(confirmed) == 0 || slices.ContainsFunc(confirmed, understood)) {
		return nil
	}
	why := clean(withoutSecrets(res.GetMessage(), d.calls.secrets.shapes()), maxMessage)
	if why == "" {
		why = "it gives no reason"
	}
	return plugins.Permanentf("CSI driver %s does not confirm that volume %s can be used with access type %s and mode %s: %s",
		d.name, shorten(use.GetVolumeId(), 128), accessType(use.GetVolumeCapability()), use.GetVolumeCapability().GetAccessMode().GetMode(), why)
}

// sameUse compares what a driver must understand in a capability: one of an
// older spec may confirm what it does not know. Defaults may have been filled
// in elsewhere.
func sameUse(a, b *csipb.VolumeCapability) bool {
	return accessType(a) == accessType(b) && a.GetAccessMode().GetMode() == b.GetAccessMode().GetMode()
}

func accessType(c *csipb.VolumeCapability) string {
	switch {
	case c.GetBlock() != nil:
		return "block"
	case c.GetMount() != nil:
		return "mount"
	}
	return "unknown"
}

// directUndo is what undoing a publish to node will need.
func directUndo(v *Attachable, node string) (plugins.Undo, error) {
	undo := plugins.Undo{undoNode: node, undoNothing: "false"}
	secret, err := attachSecretOf(v.Spec.PV)
	if err != nil {
		return nil, err
	}
	if secret != "" {
		undo[undoSecret] = secret
	}
	former, err := formerNodes(v)
	if err != nil {
		return nil, err
	}
	if last := v.Undo[undoNode]; last != "" && last != node {
		former = append(former, last)
	}
	former = slices.DeleteFunc(former, func(id string) bool { return id == node })
	if len(former) > 0 || v.Undo[undoFormer] != "" {
		slices.Sort(former)
		text, err := json.Marshal(slices.Compact(former))
		if err != nil {
			return nil, plugins.Permanentf("record the earlier IDs of this node: %w", err)
		}
		undo[undoFormer] = string(text)
	}
	return undo, nil
}

// attachSecretOf names the secret of a persistent volume's publish, as it is
// recorded; empty for none.
func attachSecretOf(pv *v1.PersistentVolume) (string, error) {
	ref := refOf(pv.Spec.CSI.ControllerPublishSecretRef)
	if ref == nil {
		return "", nil
	}
	if err := errors.Join(plugins.CheckName(ref.namespace), plugins.CheckName(ref.name)); err != nil {
		return "", plugins.Permanentf("controllerPublishSecretRef of persistent volume %s: %w", pv.Name, err)
	}
	return ref.String(), nil
}

// formerNodes are the recorded earlier IDs of this node.
func formerNodes(v *Attachable) ([]string, error) {
	text := v.Undo[undoFormer]
	if text == "" {
		return nil, nil
	}
	var ids []string
	if err := json.Unmarshal([]byte(text), &ids); err != nil || slices.Contains(ids, "") {
		return nil, plugins.Permanentf("the record of %s: %s is no list of node IDs", textOf(v), undoFormer)
	}
	return ids, nil
}

// Detach implements [Attacher].
func (a *directAttach) Detach(ctx context.Context, v Attachable) error {
	d, err := a.controller(ctx, v.Driver)
	switch {
	case err != nil && v.Undo[undoNothing] != "true":
		return err
	case d != nil:
		return a.unpublish(ctx, d, &v)
	case v.Undo[undoNode] != "":
		return plugins.Paced(slow, plugins.Uncertain(fmt.Errorf("CSI driver %s has attached volume %s, and says now that it cannot detach any",
			v.Driver, shorten(v.Handle, 128))))
	}
	return nil
}

// unpublish takes the volume from this node, by all the names that the node has
// had.
func (a *directAttach) unpublish(ctx context.Context, d *driver, v *Attachable) error {
	nodes, err := formerNodes(v)
	if err != nil {
		return err
	}
	last := v.Undo[undoNode]
	if last == "" {
		if last, err = a.nodeID(ctx, d); err != nil {
			return err
		}
	}
	ref, err := attachSecret(v)
	if err != nil {
		return err
	}
	secrets, err := readSecret(ctx, a.host, ref)
	if errors.Is(err, plugins.ErrWaiting) {
		// It is gone, and may never come back: many drivers do without.
		a.host.Log.Info("secret for detaching a volume is gone", "driver", v.Driver, "secret", ref.String())
		err = nil
	}
	if err != nil {
		return err
	}
	for _, node := range append(nodes, last) {
		req := &csipb.ControllerUnpublishVolumeRequest{VolumeId: v.Handle, NodeId: node, Secrets: secrets}
		_, err := call(ctx, d, controllerUnpublish, v.Handle, req, d.controller.ControllerUnpublishVolume)
		if err != nil && answered(err) != codes.NotFound {
			return err
		}
	}
	return nil
}

// attachSecret is the secret of the publish: the recorded one, or, where
// nothing was recorded, that of the spec.
func attachSecret(v *Attachable) (*secretRef, error) {
	text, recorded := v.Undo[undoSecret]
	if !recorded {
		if v.Undo[undoNode] != "" || v.Spec == nil || v.Spec.PV == nil || v.Spec.PV.Spec.CSI == nil {
			return nil, nil
		}
		return refOf(v.Spec.PV.Spec.CSI.ControllerPublishSecretRef), nil
	}
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || plugins.CheckName(namespace) != nil || plugins.CheckName(name) != nil {
		return nil, plugins.Permanentf("the record of %s: %s does not name a secret", textOf(v), undoSecret)
	}
	return &secretRef{namespace, name}, nil
}
