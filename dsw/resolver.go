package dsw

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/volumekit/volumekit/plugins"
)

// Resolver finds out what the volumes of pods are. It keeps nothing, and is
// safe for concurrent use. Its errors have a class other than uncertain:
// resolving leaves nothing behind.
//
// The pods and objects it reads are shared and not changed; a [Resolution]
// refers to the objects of the host's sources and to copies of what it needs
// of a pod, so that it does not keep old versions of pods alive.
type Resolver struct {
	// Host reads claims, persistent volumes and the node. Required.
	Host *plugins.VolumeHost
	// Registry holds the plugins. Required.
	Registry *plugins.Registry
	// Translator turns in-tree sources into those of CSI drivers; nil leaves
	// them as they are. It is asked about every persistent volume, and about
	// inline volumes of the kinds that CSI drivers have replaced.
	Translator plugins.Translator
}

// Immediate reports whether Resolve asks nobody about this volume of the pod,
// so that it may be called where nothing may wait.
func (r *Resolver) Immediate(pod *v1.Pod, name string) bool {
	if pod == nil {
		return true
	}
	vol := useNamed(pod, name).volume(pod)
	if vol == nil {
		return true
	}
	if vol.PersistentVolumeClaim != nil || vol.Ephemeral != nil {
		return false
	}
	return r.Translator == nil || !replacedByCSI(vol)
}

// Resolve finds out what the pod's volume called name is. It may wait for the
// host's sources and the translator until ctx ends. With an error it returns
// the SpecRefs on which the failure depends.
func (r *Resolver) Resolve(ctx context.Context, pod *v1.Pod, name string) (Resolution, error) {
	if pod == nil {
		return Resolution{}, plugins.Permanent(errors.New("there is no pod"))
	}
	var res Resolution
	u := useNamed(pod, name)
	vol, err := usable(pod, u)
	if err == nil {
		res.Spec, err = r.spec(ctx, pod, vol, &res)
	}
	if err == nil {
		err = r.finish(ctx, pod, u, &res)
	}
	if err != nil {
		return Resolution{SpecRefs: res.SpecRefs}, err
	}
	return res, nil
}

// usable returns the pod's volume if the pod alone allows to use it.
func usable(pod *v1.Pod, u use) (*v1.Volume, error) {
	switch {
	case u.index == missing:
		return nil, plugins.Permanentf("the pod has no volume %q", u.Name)
	case u.twice:
		return nil, plugins.Permanentf("the pod has several volumes %q", u.Name)
	case u.Mount && u.Device:
		return nil, plugins.Permanent(errors.New("containers use it both as a mount and as a device"))
	}
	vol := u.volume(pod)
	if u.Device && vol.PersistentVolumeClaim == nil && vol.Ephemeral == nil {
		return nil, plugins.Permanent(errors.New("a container uses it as a device, which only a claim can be"))
	}
	return vol, nil
}

// spec reads what the volume is.
func (r *Resolver) spec(ctx context.Context, pod *v1.Pod, vol *v1.Volume, res *Resolution) (*plugins.Spec, error) {
	var spec *plugins.Spec
	switch {
	case vol.PersistentVolumeClaim != nil || vol.Ephemeral != nil:
		var err error
		if spec, err = r.claimed(ctx, pod, vol, res); err != nil {
			return nil, err
		}
	default:
		spec = &plugins.Spec{Volume: vol.DeepCopy()}
		if !replacedByCSI(vol) {
			return spec, nil
		}
	}
	if r.Translator == nil {
		return spec, nil
	}
	translated, err := r.Translator.Translate(ctx, spec, pod)
	if err != nil {
		return nil, classified(plugins.Transient, fmt.Errorf("translate %s to its CSI driver: %w", spec.Kind(), err))
	}
	if translated == nil {
		return nil, plugins.Permanentf("translate %s to its CSI driver: nothing came out", spec.Kind())
	}
	return translated, nil
}

// replacedByCSI reports whether the volume is of an in-tree kind that a CSI
// driver has replaced.
func replacedByCSI(vol *v1.Volume) bool {
	return vol.AWSElasticBlockStore != nil || vol.GCEPersistentDisk != nil || vol.AzureDisk != nil ||
		vol.AzureFile != nil || vol.Cinder != nil || vol.VsphereVolume != nil || vol.PortworxVolume != nil
}

// finish fills in all but the spec, and checks the spec on the way.
func (r *Resolver) finish(ctx context.Context, pod *v1.Pod, u use, res *Resolution) error {
	spec := res.Spec
	res.Block = spec.Mode() == v1.PersistentVolumeBlock
	switch {
	case u.Mount && res.Block:
		return plugins.Permanentf("a container mounts it, but persistent volume %s is a block device (volumeMode Block)", spec.Name())
	case u.Device && !res.Block:
		return plugins.Permanentf("a container uses it as a device, but %s has volumeMode Filesystem", spec.Name())
	}
	plugin, err := r.Registry.ForSpec(spec)
	if err != nil {
		return err
	}
	if res.Identity, err = plugin.Identify(spec); err != nil {
		return classified(plugins.Permanent, err)
	}
	res.Volume = plugins.PodVolume{Pod: pod.UID, Plugin: plugin.Name(), Name: spec.Name()}
	if err := res.Volume.Check(); err != nil {
		return plugins.Permanent(err)
	}
	can := plugins.CapabilitiesOf(plugin)
	if err := fits(plugin.Name(), can, res); err != nil {
		return err
	}
	res.ID = plugins.VolumeIDOf(plugin.Name(), res.Identity, spec, pod.UID)
	res.Params = podParams(pod)
	res.Params.ReadOnly = spec.ReadOnly
	if spec.PV != nil {
		if capacity, ok := spec.PV.Spec.Capacity[v1.ResourceStorage]; ok {
			size := capacity.DeepCopy()
			res.Params.Size = &size
		}
	}
	if more := res.Identity.Size; more != nil && (res.Params.Size == nil || more.Cmp(*res.Params.Size) > 0) {
		size := more.DeepCopy()
		res.Params.Size = &size
	}
	if can.Referrer != nil {
		res.ContentRefs = can.Referrer.References(spec, pod)
	}
	return r.checkNode(ctx, spec, res)
}

// fits checks that the plugin can do what the spec asks for.
func fits(plugin string, can plugins.Capabilities, res *Resolution) error {
	if (res.Identity.Attach || res.Identity.Device) && res.Identity.Storage == "" {
		return plugins.Permanentf("plugin %s names no storage for %s", plugin, res.Spec.Name())
	}
	if res.Block {
		if can.BlockMapper == nil {
			return plugins.Unsupportedf("plugin %s has no block devices, and %s is one", plugin, res.Spec.Name())
		}
		return nil
	}
	if !res.Identity.MountOptions && len(res.Spec.MountOptions()) > 0 {
		return plugins.Permanentf("persistent volume %s has mount options, which plugin %s does not honour", res.Spec.Name(), plugin)
	}
	return nil
}

// checkNode checks the node affinity of a persistent volume. The node is
// entered into the SpecRefs only if it does not fit: once a volume is resolved
// a node's frequent updates do not matter to it.
func (r *Resolver) checkNode(ctx context.Context, spec *plugins.Spec, res *Resolution) error {
	if spec.PV == nil || spec.PV.Spec.NodeAffinity == nil || spec.PV.Spec.NodeAffinity.Required == nil {
		return nil
	}
	ref := plugins.Ref{Kind: plugins.KindNode, Name: string(r.Host.NodeName)}
	node, err := r.Host.NodeObject(ctx)
	if err != nil {
		res.SpecRefs = append(res.SpecRefs, ref)
		return readError(ref, err)
	}
	if required := spec.PV.Spec.NodeAffinity.Required; !nodeMatches(required, node) {
		res.SpecRefs = append(res.SpecRefs, ref)
		return plugins.WaitFor(ref, fmt.Errorf("persistent volume %s is not for node %s, whose labels or name match none of: %s",
			spec.Name(), node.Name, selectorText(required)))
	}
	return nil
}

// podParams are the parameters that come from the pod alone.
func podParams(pod *v1.Pod) plugins.Params {
	var p plugins.Params
	p.FSUser = commonUser(pod)
	if sc := pod.Spec.SecurityContext; sc != nil {
		if sc.FSGroup != nil {
			group := *sc.FSGroup
			p.FSGroup = &group
		}
		p.FSGroupOnRootMismatch = sc.FSGroupChangePolicy != nil && *sc.FSGroupChangePolicy == v1.FSGroupChangeOnRootMismatch
	}
	return p
}

// commonUser is the user that all containers run with, nil if they do not
// agree or one does not say.
func commonUser(pod *v1.Pod) *int64 {
	var common *int64
	for c := range containers(pod) {
		var user *int64
		if pod.Spec.SecurityContext != nil {
			user = pod.Spec.SecurityContext.RunAsUser
		}
		if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
			user = c.SecurityContext.RunAsUser
		}
		if user == nil || common != nil && *common != *user {
			return nil
		}
		common = user
	}
	if common == nil {
		return nil
	}
	user := *common
	return &user
}

// readError classifies the failure to read an object. What is not found is
// waited for.
func readError(ref plugins.Ref, err error) error {
	err = fmt.Errorf("read %s: %w", ref, err)
	if apierrors.IsNotFound(err) {
		return plugins.WaitFor(ref, err)
	}
	return classified(plugins.Transient, err)
}

// classified gives err a class if it has none. Here nothing is uncertain.
func classified(as func(error) error, err error) error {
	if plugins.ClassOf(err) == plugins.ClassUncertain {
		return as(err)
	}
	return err
}
