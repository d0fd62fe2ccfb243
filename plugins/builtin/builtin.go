// Package builtin puts the volume kinds of this module together. Who wants
// only some of them, or others beside them, imports those packages and calls
// [plugins.NewRegistry] instead: what is not imported is not linked.
package builtin

import (
	"errors"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/configmap"
	"github.com/volumekit/volumekit/plugins/downwardapi"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/plugins/projected"
	"github.com/volumekit/volumekit/plugins/secret"
)

// Options of the plugins that have some. The zero value works.
type Options struct {
	// HostPath are the options of hostPath volumes: who may use which path.
	HostPath hostpath.Options
}

// New returns one plugin of each kind, over one host. What a kind needs and
// host lacks is an error of each volume that needs it, not of New.
func New(host *plugins.VolumeHost, o Options) []plugins.VolumePlugin {
	return []plugins.VolumePlugin{
		configmap.New(host),
		downwardapi.New(host),
		emptydir.New(host),
		hostpath.New(host, o.HostPath),
		projected.New(host),
		secret.New(host),
	}
}

// Registry registers what New returns. Without a host there is none.
func Registry(host *plugins.VolumeHost, o Options) (*plugins.Registry, error) {
	if host == nil {
		return nil, plugins.Permanent(errors.New("the built-in plugins need a VolumeHost"))
	}
	return plugins.NewRegistry(New(host, o)...)
}
