// Package projected provides projected volumes: config maps, secrets, fields of the
// pod, service account tokens and trust bundles side by side, on a tmpfs. Pod
// certificates are refused.
package projected

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/projection"
)

// Name is the plugin's name.
const Name = "kubernetes.io/projected"

// New returns the plugin. Each kind of source in a volume needs its
// own source in host, and no other.
func New(host *plugins.VolumeHost) *projection.Volume {
	return projection.NewVolume(projection.Config{Name: Name, Host: host, Memory: true, Storage: storage})
}

func storage(volume *v1.Volume) (string, bool) {
	if volume.Projected == nil {
		return "", false
	}
	return volume.Name, true
}
