package main

import (
	"fmt"
	"syscall"
)

// size tells how large the file system at path is.
func size(path string) string {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d KiB", int64(s.Blocks)*s.Bsize/1024)
}
