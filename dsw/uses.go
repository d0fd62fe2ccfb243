package dsw

import (
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// Use says how the containers of a pod use one of its volumes.
type Use struct {
	// Name is the volume's name in the pod's spec.
	Name string
	// Mount and Device are true if some container has it as a file system, or
	// as a raw block device.
	Mount, Device bool
}

// UsedVolumes lists the volumes that containers of the pod use, init and
// ephemeral ones included, in the order of the spec; with all, also those that
// none uses. Names that containers use and the pod does not have come last.
func UsedVolumes(pod *v1.Pod, all bool) []Use {
	if pod == nil {
		return nil
	}
	uses := usesOf(pod, all)
	list := make([]Use, len(uses))
	for i, u := range uses {
		list[i] = u.Use
	}
	return list
}

// use is a Use and where its volume stands.
type use struct {
	Use
	index int  // in the pod's volumes, or missing
	twice bool // the pod has several of this name
}

const missing = -1

func usesOf(pod *v1.Pod, all bool) []use {
	list := make([]use, 0, len(pod.Spec.Volumes))
	places := make(map[string]int, len(pod.Spec.Volumes))
	place := func(name string, index int) *use {
		i, known := places[name]
		if !known {
			i = len(list)
			places[name] = i
			list = append(list, use{Use: Use{Name: name}, index: index})
		} else if index != missing {
			list[i].twice = true
		}
		return &list[i]
	}
	for i := range pod.Spec.Volumes {
		place(pod.Spec.Volumes[i].Name, i)
	}
	for c := range containers(pod) {
		for i := range c.VolumeMounts {
			place(c.VolumeMounts[i].Name, missing).Mount = true
		}
		for i := range c.VolumeDevices {
			place(c.VolumeDevices[i].Name, missing).Device = true
		}
	}
	if all {
		return list
	}
	return slices.DeleteFunc(list, func(u use) bool { return !u.Mount && !u.Device })
}

// useNamed is the one element of usesOf(pod, true) with that name.
func useNamed(pod *v1.Pod, name string) use {
	u := use{Use: Use{Name: name}, index: missing}
	for i := range pod.Spec.Volumes {
		switch {
		case pod.Spec.Volumes[i].Name != name:
		case u.index == missing:
			u.index = i
		default:
			u.twice = true
		}
	}
	for c := range containers(pod) {
		u.Mount = u.Mount || slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == name })
		u.Device = u.Device || slices.ContainsFunc(c.VolumeDevices, func(d v1.VolumeDevice) bool { return d.Name == name })
	}
	return u
}

// volume is the volume in the pod, nil if it has none.
func (u use) volume(pod *v1.Pod) *v1.Volume {
	if u.index == missing {
		return nil
	}
	return &pod.Spec.Volumes[u.index]
}

// containers lists init, ordinary and ephemeral containers.
func containers(pod *v1.Pod) iter.Seq[*v1.Container] {
	return func(yield func(*v1.Container) bool) {
		for i := range pod.Spec.InitContainers {
			if !yield(&pod.Spec.InitContainers[i]) {
				return
			}
		}
		for i := range pod.Spec.Containers {
			if !yield(&pod.Spec.Containers[i]) {
				return
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			// The API keeps the two types alike so that this conversion works.
			if !yield((*v1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)) {
				return
			}
		}
	}
}

// sameUse reports whether a volume is the same in two versions of its pod.
func sameUse(a *v1.Pod, ua use, b *v1.Pod, ub use) bool {
	return ua.Use == ub.Use && ua.twice == ub.twice &&
		same(ua.volume(a), ub.volume(b))
}

// same compares by meaning. Nearly always the values are equal to the letter,
// which is several times faster to find out.
func same(a, b any) bool { return reflect.DeepEqual(a, b) || equality.Semantic.DeepEqual(a, b) }

// samePodInputs compares what a resolution depends on beside the volume.
func samePodInputs(a, b *v1.Pod) bool {
	return a.Namespace == b.Namespace && a.Name == b.Name &&
		a.Spec.ServiceAccountName == b.Spec.ServiceAccountName &&
		same(podParams(a), podParams(b))
}

// contentChanged reports whether a pod's new version makes other content for
// a volume that shows parts of the pod (downward API).
func contentChanged(a, b *v1.Pod, vol *v1.Volume) bool {
	if vol == nil {
		return false
	}
	changed := func(item v1.DownwardAPIVolumeFile) bool { return itemChanged(a, b, item) }
	if vol.DownwardAPI != nil && slices.ContainsFunc(vol.DownwardAPI.Items, changed) {
		return true
	}
	if vol.Projected == nil {
		return false
	}
	return slices.ContainsFunc(vol.Projected.Sources, func(s v1.VolumeProjection) bool {
		return s.DownwardAPI != nil && slices.ContainsFunc(s.DownwardAPI.Items, changed)
	})
}

func itemChanged(a, b *v1.Pod, item v1.DownwardAPIVolumeFile) bool {
	if item.FieldRef != nil {
		return fieldChanged(a, b, item.FieldRef.FieldPath)
	}
	if item.ResourceFieldRef == nil {
		return false
	}
	ra, rb := resourcesOf(a, item.ResourceFieldRef.ContainerName), resourcesOf(b, item.ResourceFieldRef.ContainerName)
	return !same(ra, rb) || !same(a.Spec.Resources, b.Spec.Resources)
}

func fieldChanged(a, b *v1.Pod, path string) bool {
	field, _, _ := strings.Cut(path, "[")
	switch field {
	case "metadata.labels":
		return !maps.Equal(a.Labels, b.Labels)
	case "metadata.annotations":
		return !maps.Equal(a.Annotations, b.Annotations)
	case "metadata.name", "metadata.namespace", "metadata.uid":
		return a.Name != b.Name || a.Namespace != b.Namespace
	}
	return a.Spec.NodeName != b.Spec.NodeName || a.Spec.ServiceAccountName != b.Spec.ServiceAccountName ||
		a.Status.HostIP != b.Status.HostIP || a.Status.PodIP != b.Status.PodIP ||
		!slices.Equal(a.Status.HostIPs, b.Status.HostIPs) || !slices.Equal(a.Status.PodIPs, b.Status.PodIPs)
}

func resourcesOf(pod *v1.Pod, container string) *v1.ResourceRequirements {
	for c := range containers(pod) {
		if c.Name == container {
			return &c.Resources
		}
	}
	return nil
}
