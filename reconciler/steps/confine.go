package steps

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/plugins"
)

// confiner is what a mounter offers that can tell whether a path is what it
// seems: mount.Confiner.
type confiner interface {
	Confined(ctx context.Context, base, path string) (mountID uint64, whole bool, err error)
}

// confined makes sure that no link and no mount of somebody else lies on the way
// to a pod's volume: plugins make and remove what is there by its path. Mounts
// that the pods' folder itself lies on are the administrator's affair, as long
// as they stay. whole says that all folders on the way are there.
func (e *Executor) confined(ctx context.Context, path string) (whole bool, err error) {
	c, ok := e.Host.Mounter.(confiner)
	if !ok {
		return false, nil
	}
	base := e.Host.Layout.PodsDir()
	id, whole, err := c.Confined(ctx, base, path)
	if err != nil {
		return false, plugins.Transient(fmt.Errorf("nothing is done at %s: %w", path, err))
	}
	if id == 0 || e.podsMount.CompareAndSwap(0, id) || e.podsMount.Load() == id {
		return whole, nil
	}
	return false, plugins.Transient(fmt.Errorf("nothing is done at %s: %s lies on another mount than before", path, base))
}
