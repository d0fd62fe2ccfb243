package registration

import (
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// identify returns which file is at path, following symbolic links, and whether
// it is a socket.
func identify(path string) (id Identity, socket bool, err error) {
	var st unix.Statx_t
	for {
		err = unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return Identity{}, false, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	id = Identity{
		Device:  unix.Mkdev(st.Dev_major, st.Dev_minor),
		Inode:   st.Ino,
		Changed: time.Unix(st.Ctime.Sec, int64(st.Ctime.Nsec)),
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.Birth = time.Unix(st.Btime.Sec, int64(st.Btime.Nsec))
	}
	return id, st.Mode&unix.S_IFMT == unix.S_IFSOCK, nil
}
