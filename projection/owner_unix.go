//go:build unix

package projection

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"syscall"

	"github.com/volumekit/volumekit/plugins"
)

// openFlags spare package os the attempt to poll a plain file, four system
// calls for each, and keep a FIFO in a file's place from blocking.
const openFlags = syscall.O_NONBLOCK

// owner is who owns a file.
type owner struct{ uid, gid int64 }

func ownerOf(info fs.FileInfo) owner {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return owner{int64(st.Uid), int64(st.Gid)}
	}
	return owner{-1, -1}
}

// with is who has to own f where a new file would be owned by o.
func (o owner) with(f File) owner {
	if f.UID != nil {
		o.uid = *f.UID
	}
	if f.GID != nil {
		o.gid = *f.GID
	}
	return o
}

// chown hands a file over. An id that is not mapped into this process's user
// namespace gives EINVAL, a process without the right EPERM; neither will pass
// when tried again.
func chown(file file, to owner, source string) error {
	for _, id := range []int64{to.uid, to.gid} {
		// -1 keeps what is there, in 32 bits too, and no file has it.
		if id < -1 || id >= math.MaxUint32 {
			return plugins.Permanent(fmt.Errorf("give file of %s away: %w: %d", source, plugins.ErrBadID, id))
		}
	}
	err := file.chown(int(to.uid), int(to.gid))
	switch {
	case errors.Is(err, syscall.EINVAL):
		return plugins.Unsupported(fmt.Errorf("give file of %s to user %d, group %d, an id that has no mapping in this user namespace: %w",
			source, to.uid, to.gid, err))
	case errors.Is(err, syscall.EPERM):
		return plugins.Unsupported(fmt.Errorf("give file of %s to user %d, group %d without the right to: %w", source, to.uid, to.gid, err))
	}
	return err
}

// usedBytes is what a file takes up.
func usedBytes(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512 // unit of st_blocks, stat(2)
	}
	return info.Size()
}
