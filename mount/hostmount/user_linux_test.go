package hostmount_test

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// obeyingModes runs f on a thread that has to obey permission bits, like any
// user but root.
func obeyingModes(t *testing.T, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&header, &data[0]); err != nil {
			done <- err
			return
		}
		data[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
		if err := unix.Capset(&header, &data[0]); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	must(t, <-done)
}
