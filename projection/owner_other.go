//go:build !unix

package projection

import (
	"io/fs"

	"github.com/volumekit/volumekit/plugins"
)

const openFlags = 0

// owner is who owns a file, where the platform has numbers for that.
type owner struct{ uid, gid int64 }

func ownerOf(fs.FileInfo) owner { return owner{-1, -1} }

func (o owner) with(f File) owner {
	if f.UID != nil {
		o.uid = *f.UID
	}
	if f.GID != nil {
		o.gid = *f.GID
	}
	return o
}

func chown(_ file, _ owner, source string) error {
	return plugins.Unsupportedf("file of %s: owners cannot be set on this platform", source)
}

func usedBytes(info fs.FileInfo) int64 { return info.Size() }
