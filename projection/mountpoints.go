package projection

import (
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
)

// addMountPoints adds the places at which containers mount other volumes
// inside the named one. Of places inside each other the outermost is enough:
// what lies deeper belongs to the volume that is mounted there. A mount of a
// part of the volume (subPath) is left out: the runtime sees that part alone.
func addMountPoints(tree *Tree, name string, pod *v1.Pod) error {
	var err error
	eachContainer(pod, func(container string, mounts []v1.VolumeMount) {
		for _, point := range nestedIn(name, mounts) {
			if err == nil {
				err = tree.AddMountPoint(point, "a mount inside volume "+name+" in container "+container)
			}
		}
		for _, m := range mounts {
			if clean := path.Clean(m.MountPath); err == nil && (clean == ".." || strings.HasPrefix(clean, "../")) {
				err = plugins.Permanentf("container %s: mountPath %s leads upward", container, quote(m.MountPath))
			}
		}
	})
	return err
}

// nestedIn lists relative paths of mounts below the volume's own.
func nestedIn(name string, mounts []v1.VolumeMount) []string {
	var points []string
	for _, own := range mounts {
		if own.Name != name || own.SubPath != "" || own.SubPathExpr != "" {
			continue
		}
		base := absolute(own.MountPath)
		var inside []string
		for _, m := range mounts {
			if p := absolute(m.MountPath); p != base && within(strings.TrimSuffix(base, "/"), p) {
				inside = append(inside, p)
			}
		}
		// Sorted by elements, so that a path comes before what lies in it.
		slices.SortFunc(inside, func(a, b string) int {
			return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
		})
		outer := ""
		for _, p := range inside {
			if outer == "" || !within(outer, p) {
				outer = p
				points = append(points, strings.TrimPrefix(strings.TrimPrefix(p, base), "/"))
			}
		}
	}
	return points
}

func absolute(p string) string {
	if !strings.HasPrefix(p, "/") {
		p = "/" + p
	}
	return path.Clean(p)
}

func eachContainer(pod *v1.Pod, do func(name string, mounts []v1.VolumeMount)) {
	for i := range pod.Spec.InitContainers {
		do(pod.Spec.InitContainers[i].Name, pod.Spec.InitContainers[i].VolumeMounts)
	}
	for i := range pod.Spec.Containers {
		do(pod.Spec.Containers[i].Name, pod.Spec.Containers[i].VolumeMounts)
	}
	for i := range pod.Spec.EphemeralContainers {
		do(pod.Spec.EphemeralContainers[i].Name, pod.Spec.EphemeralContainers[i].VolumeMounts)
	}
}
