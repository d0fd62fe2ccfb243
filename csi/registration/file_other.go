//go:build !linux

package registration

import (
	"io/fs"
	"os"
)

// identify returns which file is at path, following symbolic links, and whether
// it is a socket. A socket is never written, so that its time of modification
// is that of its making.
func identify(path string) (id Identity, socket bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return Identity{}, false, err
	}
	return Identity{Changed: info.ModTime()}, info.Mode().Type() == fs.ModeSocket, nil
}
