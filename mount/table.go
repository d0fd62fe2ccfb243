package mount

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"
)

// Entry is one line of the mount table.
type Entry struct {
	// ID and Parent are the kernel's ids of the mount and of the one it is
	// mounted on.
	ID, Parent uint64
	// Device is "major:minor" of the file system.
	Device string
	// Root is the path inside the file system that is mounted here.
	Root string
	// Target is where it is mounted, as seen from this process's root.
	Target string
	// FSType and Source are as in [Mount].
	FSType, Source string
	// ReadOnly is true for a read-only mount.
	ReadOnly bool
	// Propagation of the mount.
	Propagation Propagation
}

// Table is the list of mounts of one mount namespace, in mount order: of two
// entries with one target the later one is on top.
type Table []Entry

// At returns the topmost mount whose target is exactly p.
func (t Table) At(p string) (Entry, bool) {
	for i := len(t) - 1; i >= 0; i-- {
		if t[i].Target == p {
			return t[i], true
		}
	}
	return Entry{}, false
}

// Below returns the mounts strictly below p, deepest and latest first: the
// order in which they can be unmounted.
func (t Table) Below(p string) []Entry {
	var below []Entry
	for i := len(t) - 1; i >= 0; i-- {
		if Inside(p, t[i].Target) && t[i].Target != p {
			below = append(below, t[i])
		}
	}
	return below
}

// maxStacked bounds how many mounts [UnmountAll] takes off one target.
const maxStacked = 64

// UnmountAll takes all mounts that are stacked on target off it. A target that
// is no mount point, or does not exist, is no error. It asks the file system
// nothing, so that with Lazy it works where the storage is dead.
func UnmountAll(ctx context.Context, m Mounter, target string, how UnmountOptions) error {
	for range maxStacked {
		if err := m.Unmount(ctx, target, how); err != nil {
			if errors.Is(err, ErrNotMounted) {
				return nil
			}
			return err
		}
	}
	return fmt.Errorf("%s is still a mount point after %d unmounts: %w", target, maxStacked, ErrBusy)
}

// Inside reports whether the clean absolute path p is root or lies below it.
// It compares text: both must be free of symbolic links.
func Inside(root, p string) bool {
	root, p = path.Clean(filepath.ToSlash(root)), path.Clean(filepath.ToSlash(p))
	return p == root || root == "/" || strings.HasPrefix(p, root+"/")
}
