package projection

import "io/fs"

// about is what is known of an open file or folder.
type about struct {
	perm    fs.FileMode // the permission bits
	regular bool        // a plain file, without special bits
	setgid  bool
	size    int64
	owner   owner
}

// withMode is a mode for a folder that keeps the bit by which what is created
// in it gets its group.
func (a about) withMode(perm fs.FileMode) fs.FileMode {
	if a.setgid {
		perm |= fs.ModeSetgid
	}
	return perm
}
