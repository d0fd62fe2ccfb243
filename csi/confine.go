package csi

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// onTheWay makes sure that neither a link nor a mount of somebody else lies on
// the way to the plugin's own places: drivers are sent there, and what is left
// there is removed. The places in pods' folders are the engine's to check.
func (p *Plugin) onTheWay(ctx context.Context, paths ...string) error {
	c, ok := p.host.Mounter.(mount.Confiner)
	if !ok {
		return nil
	}
	base := filepath.Join(p.host.Layout.Root, "plugins")
	for _, path := range paths {
		if _, _, err := c.Confined(ctx, base, path); err != nil {
			return plugins.Paced(slow, plugins.Transient(fmt.Errorf("nothing is done at %s: %w", path, err)))
		}
	}
	return nil
}
