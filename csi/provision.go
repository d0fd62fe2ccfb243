package csi

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/volumekit/volumekit/plugins"
)

// CreateOptions describe a volume that a driver is to make. Driver and Name are
// required.
type CreateOptions struct {
	// Driver is the driver's name.
	Driver string
	// Name is the name of the persistent volume, at most 128 bytes. The driver
	// gets it too, and makes one volume for all calls with the same name.
	Name string
	// Size is how large the volume has to be at least, Limit at most, in bytes.
	// Zero leaves it to the driver.
	Size, Limit resource.Quantity
	// Modes are the access modes; none means ReadWriteOnce.
	Modes []v1.PersistentVolumeAccessMode
	// Block makes a raw block volume, which has no FSType and no MountOptions.
	Block bool
	// FSType is the type of the file system; empty leaves it to the driver.
	FSType string
	// MountOptions are those of the persistent volume.
	MountOptions []string
	// Parameters are the driver's own, those of a StorageClass.
	Parameters map[string]string
	// Secrets are for the making of the volume alone.
	Secrets map[string]string
	// SecretRefs name the secrets of later calls.
	SecretRefs SecretRefs
	// Here asks for a volume that this node can reach, Topology for one that can
	// be reached from one of these segments (zones and the like). Both are for
	// drivers with the capability VOLUME_ACCESSIBILITY_CONSTRAINTS; Here asks for
	// nothing where the driver says of this node nowhere that it lies.
	Here     bool
	Topology []map[string]string
}

// SecretRefs name the secrets that go with calls about a volume. They are read
// for each call anew.
type SecretRefs struct {
	ControllerPublish, ControllerExpand, NodeStage, NodePublish, NodeExpand *v1.SecretReference
}

// maxVolumeName is how long the spec lets a suggested name be.
const maxVolumeName = 128

// CreateVolume makes a volume through the driver's controller, and returns the
// persistent volume that stands for it: ready for a claim to be bound to, or for
// package plugins/memory. Its capacity is what the driver made; what the driver
// says of where it can be reached is its node affinity, which fits nodes that
// carry the labels of [NodeInfo.Topology].
//
// It may be repeated with the same options: the outcome is the same volume. That
// is also what to do after an error of class uncertain, or else to delete what
// there may be. The error is of class unsupported if the driver cannot make
// volumes, and waits if it is not there.
func (d *Drivers) CreateVolume(ctx context.Context, o CreateOptions) (*v1.PersistentVolume, error) {
	return createVolume(ctx, d, &o)
}

func createVolume(ctx context.Context, drivers controllers, o *CreateOptions) (*v1.PersistentVolume, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	d, err := controllerThatCan(ctx, drivers, o.Driver, canCreate)
	if err != nil {
		return nil, err
	}
	pv := o.volume()
	req, err := o.request(d, pv)
	if err != nil {
		return nil, err
	}
	if req.AccessibilityRequirements, err = o.topology(ctx, drivers); err != nil {
		return nil, err
	}
	res, err := call(ctx, d, controllerCreate, o.Name, req, d.controller.CreateVolume)
	if err != nil {
		return nil, err
	}
	if err := o.complete(pv, res.GetVolume()); err != nil {
		// It is not deleted: it may be an older one that somebody uses.
		return nil, plugins.Uncertain(fmt.Errorf("CSI driver %s answered with a volume (%q) that is not what was asked for: %w",
			o.Driver, shorten(res.GetVolume().GetVolumeId(), 128), err))
	}
	return pv, nil
}

// check refuses options that contradict themselves.
func (o *CreateOptions) check() error {
	if err := plugins.CheckName(o.Name); err != nil {
		return plugins.Permanentf("the name of the volume: %w", err)
	}
	most := resource.NewQuantity(math.MaxInt64, resource.BinarySI)
	switch {
	case len(o.Name) > maxVolumeName:
		return plugins.Permanentf("the name of the volume has %d bytes, more than %d", len(o.Name), maxVolumeName)
	case o.Size.Sign() < 0 || o.Limit.Sign() < 0 || o.Size.Cmp(*most) > 0 || o.Limit.Cmp(*most) > 0:
		return plugins.Permanentf("volume %s: size %s or limit %s is out of range", o.Name, o.Size.String(), o.Limit.String())
	case o.Limit.Sign() > 0 && o.Limit.Cmp(o.Size) < 0:
		return plugins.Permanentf("volume %s: limit %s is below size %s", o.Name, o.Limit.String(), o.Size.String())
	case o.Block && (o.FSType != "" || len(o.MountOptions) > 0):
		return plugins.Permanentf("volume %s: a block volume has neither a file system nor mount options", o.Name)
	}
	for _, t := range o.Topology {
		if err := checkSegments(t); err != nil {
			return plugins.Permanentf("volume %s: topology: %w", o.Name, err)
		}
		if len(t) == 0 {
			return plugins.Permanentf("volume %s: a topology has no segments", o.Name)
		}
	}
	return nil
}

// volume is the persistent volume as far as it is known before it is made.
func (o *CreateOptions) volume() *v1.PersistentVolume {
	mode, modes := v1.PersistentVolumeFilesystem, slices.Clone(o.Modes)
	if o.Block {
		mode = v1.PersistentVolumeBlock
	}
	if len(modes) == 0 {
		modes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	}
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        o.Name,
			Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": o.Driver},
		},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: modes, VolumeMode: &mode, MountOptions: slices.Clone(o.MountOptions),
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: o.Driver, FSType: o.FSType,
				ControllerPublishSecretRef: o.SecretRefs.ControllerPublish.DeepCopy(),
				ControllerExpandSecretRef:  o.SecretRefs.ControllerExpand.DeepCopy(),
				NodeStageSecretRef:         o.SecretRefs.NodeStage.DeepCopy(),
				NodePublishSecretRef:       o.SecretRefs.NodePublish.DeepCopy(),
				NodeExpandSecretRef:        o.SecretRefs.NodeExpand.DeepCopy(),
			}},
		},
	}
}

func (o *CreateOptions) request(d *driver, pv *v1.PersistentVolume) (*csipb.CreateVolumeRequest, error) {
	mode, err := accessModeOf(pv.Spec.AccessModes, d.controllerCan.has(canAttachWriters))
	if err != nil {
		return nil, err
	}
	spec := &plugins.Spec{PV: pv}
	req := &csipb.CreateVolumeRequest{
		Name: o.Name, Parameters: maps.Clone(o.Parameters), Secrets: o.Secrets,
		VolumeCapabilities: []*csipb.VolumeCapability{capabilityOf(spec, o.FSType, mode, spec.MountOptions(), "")},
	}
	if o.Size.Sign() > 0 || o.Limit.Sign() > 0 {
		req.CapacityRange = &csipb.CapacityRange{RequiredBytes: o.Size.Value(), LimitBytes: o.Limit.Value()}
	}
	return req, nil
}

// topology is from where the volume has to be reachable.
func (o *CreateOptions) topology(ctx context.Context, drivers controllers) (*csipb.TopologyRequirement, error) {
	segments := slices.Clone(o.Topology)
	if o.Here {
		d, err := drivers.driver(ctx, o.Driver)
		if err != nil {
			return nil, err
		}
		if len(d.info.Topology) > 0 {
			segments = append(segments, d.info.Topology)
		}
	}
	if len(segments) == 0 {
		return nil, nil
	}
	req := &csipb.TopologyRequirement{}
	for _, s := range segments {
		req.Requisite = append(req.Requisite, &csipb.Topology{Segments: maps.Clone(s)})
	}
	req.Preferred = req.GetRequisite()
	return req, nil
}

// complete enters into the persistent volume what the driver made.
func (o *CreateOptions) complete(pv *v1.PersistentVolume, made *csipb.Volume) error {
	if err := checkHandle(made.GetVolumeId()); err != nil {
		return err
	}
	source := pv.Spec.CSI
	source.VolumeHandle = made.GetVolumeId()
	size := made.GetCapacityBytes()
	switch {
	case size < 0:
		return fmt.Errorf("it has %d bytes", size)
	case size > 0 && size < o.Size.Value():
		return fmt.Errorf("it has %d bytes, less than %s", size, o.Size.String())
	case o.Limit.Sign() > 0 && size > o.Limit.Value():
		return fmt.Errorf("it has %d bytes, more than %s", size, o.Limit.String())
	}
	if err := checkContext(made.GetVolumeContext()); err != nil {
		return fmt.Errorf("its volume context: %w", err)
	}
	affinity, err := affinityOf(made.GetAccessibleTopology())
	if err != nil {
		return err
	}
	capacity := o.Size.DeepCopy()
	if size > 0 {
		capacity = *resource.NewQuantity(size, resource.BinarySI)
	}
	if capacity.Sign() > 0 {
		pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: capacity}
	}
	source.VolumeAttributes = maps.Clone(made.GetVolumeContext())
	pv.Spec.NodeAffinity = affinity
	return nil
}

// affinityOf makes a node affinity of topologies, of which one has to fit; none
// means everywhere.
func affinityOf(topologies []*csipb.Topology) (*v1.VolumeNodeAffinity, error) {
	var terms []v1.NodeSelectorTerm
	for _, t := range topologies {
		if err := checkSegments(t.GetSegments()); err != nil {
			return nil, fmt.Errorf("its topology: %w", err)
		}
		var term v1.NodeSelectorTerm
		for _, key := range slices.Sorted(maps.Keys(t.GetSegments())) {
			term.MatchExpressions = append(term.MatchExpressions, v1.NodeSelectorRequirement{
				Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{t.GetSegments()[key]},
			})
		}
		if len(term.MatchExpressions) > 0 { // an empty term would fit no node
			terms = append(terms, term)
		}
	}
	if len(terms) == 0 {
		return nil, nil
	}
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: terms}}, nil
}

// checkSegments refuses segments that cannot be the labels of a node.
func checkSegments(segments map[string]string) error {
	for key, value := range segments {
		wrong := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...)
		if len(wrong) > 0 {
			return fmt.Errorf("segment %q=%q: %s", shorten(key, 64), shorten(value, 64), strings.Join(wrong, "; "))
		}
	}
	return nil
}
