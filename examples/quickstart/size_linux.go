package main

import "syscall"

// size is how many bytes the file system at a path holds, 0 if that is not
// known.
func size(path string) int64 {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return 0
	}
	return int64(s.Blocks) * s.Bsize
}
