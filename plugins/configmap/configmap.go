// Package configmap provides configMap volumes: the keys of a config map as
// files, in a plain folder on the node. Confidential content belongs into a
// secret volume, which lives in memory.
package configmap

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/projection"
)

// Name is the plugin's name.
const Name = "kubernetes.io/configmap"

// New returns the plugin. It needs a ConfigMaps source in host.
func New(host *plugins.VolumeHost) *projection.Volume {
	return projection.NewVolume(projection.Config{Name: Name, Host: host, Memory: false, Storage: storage})
}

func storage(volume *v1.Volume) (string, bool) {
	if volume.ConfigMap == nil {
		return "", false
	}
	return volume.Name + "/" + volume.ConfigMap.Name, true
}
