package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// fuseVariable makes this binary a file system server on descriptor 3.
const fuseVariable = "VOLUMEKIT_SIM_FUSE"

// IsFuseServer reports whether this process was started as a FUSE server.
func IsFuseServer() bool { return os.Getenv(fuseVariable) != "" }

// Storage is a file system in user space that stands in for remote storage: an
// empty folder that answers, hangs, or dies.
type Storage struct {
	server *exec.Cmd
	ended  chan error
}

// NewStorage mounts a storage at target, which must exist. It is killed when
// the test ends.
func NewStorage(t testing.TB, target string) *Storage {
	t.Helper()
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no FUSE here: ", err)
	}
	defer device.Close()
	s := &Storage{server: exec.Command("/proc/self/exe"), ended: make(chan error, 1)}
	s.server.Env = append(os.Environ(), fuseVariable+"=1")
	s.server.ExtraFiles = []*os.File{device}
	s.server.Stderr = os.Stderr
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device.Fd())
	if err := unix.Mount("storage", target, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		t.Skip("no FUSE mounts here: ", err)
	}
	if err := s.server.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.ended <- s.server.Wait() }()
	t.Cleanup(func() { s.Die(); _ = unix.Unmount(target, unix.MNT_DETACH) })
	if _, err := os.ReadDir(target); err != nil {
		t.Fatalf("the storage does not answer: %v", err)
	}
	return s
}

// Hang makes the storage stop answering.
func (s *Storage) Hang() { _ = s.server.Process.Signal(unix.SIGSTOP) }

// Continue makes it answer again.
func (s *Storage) Continue() { _ = s.server.Process.Signal(unix.SIGCONT) }

// Die kills the server: the mount answers with ENOTCONN from then on.
func (s *Storage) Die() {
	if s.ended == nil {
		return
	}
	_ = s.server.Process.Signal(unix.SIGKILL)
	<-s.ended //nolint:errcheck // it was killed
	s.ended = nil
}

// The numbers of the FUSE protocol, fuse(4) and linux/fuse.h.
const (
	opForget      = 2
	opGetattr     = 3
	opStatfs      = 17
	opInit        = 26
	opOpendir     = 27
	opReaddir     = 28
	opReleasedir  = 29
	opLookup      = 1
	opBatchForget = 42
)

// ServeFuse answers on descriptor 3 until the file system is unmounted, and
// ends the process.
func ServeFuse() {
	device := os.NewFile(3, "fuse")
	request := make([]byte, 1<<17)
	for {
		n, err := syscall.Read(int(device.Fd()), request)
		switch {
		case errors.Is(err, syscall.EINTR), errors.Is(err, syscall.ENOENT):
			continue
		case err != nil:
			os.Exit(0) // ENODEV: unmounted
		}
		if reply := answer(request[:n]); reply != nil {
			_, _ = syscall.Write(int(device.Fd()), reply)
		}
	}
}

// answer makes the reply to one request, nil for one that wants none.
func answer(request []byte) []byte {
	le := binary.LittleEndian
	var body []byte
	errno := int32(0)
	switch le.Uint32(request[4:]) {
	case opForget, opBatchForget:
		return nil
	case opInit: // protocol 7.31, no optional features
		body = make([]byte, 64)
		le.PutUint32(body[0:], 7)
		le.PutUint32(body[4:], 31)
		le.PutUint32(body[8:], 4096)
		le.PutUint32(body[20:], 4096)
	case opGetattr: // the root folder; nothing is cached
		body = make([]byte, 16+88)
		le.PutUint64(body[16:], 1)
		le.PutUint32(body[16+60:], 0o40755)
		le.PutUint32(body[16+64:], 2)
	case opOpendir:
		body = make([]byte, 16)
	case opReaddir, opReleasedir:
	case opStatfs:
		body = make([]byte, 80)
	case opLookup:
		errno = -int32(syscall.ENOENT)
	default:
		errno = -int32(syscall.ENOSYS)
	}
	reply := make([]byte, 16, 16+len(body))
	le.PutUint32(reply[0:], uint32(16+len(body)))
	le.PutUint32(reply[4:], uint32(errno))
	copy(reply[8:16], request[8:16])
	return append(reply, body...)
}
