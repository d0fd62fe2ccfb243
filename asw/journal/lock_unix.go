//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// carefully keeps a symbolic link from being opened in place of a file, and
// from waiting for the other end of a pipe.
const carefully = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// takeLock takes an exclusive flock(2), which ends with the process whatever
// happens, and leaves the holder's process id in the file.
func takeLock(path string) (*os.File, error) {
	f, err := openPlain(path, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	conn, err := f.SyscallConn()
	if err == nil {
		cerr := conn.Control(func(fd uintptr) { err = syscall.Flock(int(fd), syscall.LOCK_EX|syscall.LOCK_NB) })
		err = errors.Join(cerr, err)
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = lockedBy(f)
	}
	if err == nil {
		err = leavePID(f)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// lockedBy is the error that names the holder.
func lockedBy(f *os.File) error {
	text, _ := io.ReadAll(io.LimitReader(f, 32))
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("%w by another process", ErrLocked)
	}
	return fmt.Errorf("%w by process %d", ErrLocked, pid)
}

// leavePID is for people: the lock is good without it, on a full disk too.
func leavePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return nil
}
