// Package downwardapi provides downwardAPI volumes: fields of the pod and the
// resources of its containers as files, on a tmpfs.
package downwardapi

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/projection"
)

// Name is the plugin's name.
const Name = "kubernetes.io/downward-api"

// New returns the plugin. It needs a
// Node source in host for limits that a container does not set.
func New(host *plugins.VolumeHost) *projection.Volume {
	return projection.NewVolume(projection.Config{Name: Name, Host: host, Memory: true, Storage: storage})
}

func storage(volume *v1.Volume) (string, bool) {
	if volume.DownwardAPI == nil {
		return "", false
	}
	return volume.Name, true
}
