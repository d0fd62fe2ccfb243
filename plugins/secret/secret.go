// Package secret provides secret volumes: the keys of a secret as files, on a
// tmpfs that is kept out of swap where the kernel allows it.
package secret

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/projection"
)

// Name is the plugin's name.
const Name = "kubernetes.io/secret"

// New returns the plugin. It needs a Secrets source in host.
func New(host *plugins.VolumeHost) *projection.Volume {
	return projection.NewVolume(projection.Config{Name: Name, Host: host, Memory: true, Storage: storage})
}

func storage(volume *v1.Volume) (string, bool) {
	if volume.Secret == nil {
		return "", false
	}
	return volume.Secret.SecretName, true
}
