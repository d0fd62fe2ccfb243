//go:build unix

package asw

import "syscall"

// onlyFolder makes open(2) refuse everything but a folder, links included.
const onlyFolder = syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
