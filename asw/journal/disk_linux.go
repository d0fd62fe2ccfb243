package journal

import (
	"errors"
	"os"
	"syscall"
)

// dataSync is fdatasync(2): the data and the length, not the times. A file
// that is closed meanwhile is no harm: it gives an error.
func dataSync(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := conn.Control(func(fd uintptr) {
		for {
			if err = syscall.Fdatasync(int(fd)); !errors.Is(err, syscall.EINTR) {
				return
			}
		}
	})
	if err != nil {
		err = os.NewSyscallError("fdatasync", err)
	}
	return errors.Join(cerr, err)
}
