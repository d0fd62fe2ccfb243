package mount

import (
	"context"
	"errors"
)

// ErrNotConfined says that a path leads elsewhere than it seems: through a
// symbolic link, or through a mount point.
var ErrNotConfined = errors.New("the path leads through a link or a mount")

// Confiner is implemented by mounters that can tell whether a path is what it
// seems. Before something is made or removed at a path by its name, this tells
// that nobody has put a link or a mount in its way.
type Confiner interface {
	// Confined returns an error that wraps [ErrNotConfined] and names the place
	// if, on the way from the folder base to path, a component is a symbolic
	// link or a mount point. base and the last component of path may be either.
	// Where the way ends because a folder does not exist, it is confined.
	// mountID is the id of the mount that base lies on, as in Point.MountID:
	// another one than before says that somebody mounted over base, or
	// unmounted it. whole is true if all folders above path were there. It
	// costs a few system calls, whatever the depth.
	Confined(ctx context.Context, base, path string) (mountID uint64, whole bool, err error)
}
