//go:build unix

package csi

import "syscall"

// noFollow keeps an open from following a symbolic link.
const noFollow = syscall.O_NOFOLLOW
