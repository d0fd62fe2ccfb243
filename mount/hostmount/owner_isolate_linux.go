package hostmount

import (
	"golang.org/x/sys/unix"
)

// isolate takes the descriptor of the folder that is to be walked and returns
// one for it on a mount of its own, which is a copy of the one that it lies on,
// has no mounts on it, is attached nowhere, and gets nothing by propagation
// (open_tree(2)): a name leads to no mount there, whoever mounts and moves what
// meanwhile. Where that is not possible, or the folder is so small that it does
// not pay, it returns dir.
func (w *owning) isolate(dir int) (int, error) {
	if !w.m.options.Classic && !smallFolder(dir) {
		if own, err := copyMount(dir); err == nil {
			closeOpen(dir)
			dir, w.alone = own, true
		}
	}
	id, err := identify(dir)
	if err != nil {
		closeOpen(dir)
		return -1, err
	}
	w.mount = id.mount
	return dir, nil
}

// copyMount opens a folder for reading on a mount of its own, which goes with
// the last descriptor for it.
func copyMount(dir int) (int, error) {
	const empty = unix.AT_EMPTY_PATH
	tree, err := unix.OpenTree(dir, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|empty)
	if err != nil {
		return -1, err
	}
	defer closeOpen(tree)
	if err := unix.MountSetattr(tree, "", empty, &unix.MountAttr{Propagation: unix.MS_PRIVATE}); err != nil {
		return -1, err
	}
	return reopen(tree)
}

// smallFolder reports whether a folder that is at its start has few entries and
// no folders, as far as one short reading tells.
func smallFolder(dir int) bool {
	const short = 4 << 10
	var buf [short]byte
	n, err := unix.ReadDirent(dir, buf[:])
	if _, errSeek := unix.Seek(dir, 0, unix.SEEK_SET); err != nil || errSeek != nil || n > short/2 {
		return false
	}
	for _, e := range parseDirents(buf[:n]) {
		if e.kind == unix.DT_DIR || e.kind == unix.DT_UNKNOWN {
			return false
		}
	}
	return true
}
