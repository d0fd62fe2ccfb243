package registration

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// dialLong connects through a descriptor of the socket itself: the link in
// /proc leads to the file however long its path or its name is (proc(5)).
func dialLong(ctx context.Context, path string) (net.Conn, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	conn, err := dialShort(ctx, fmt.Sprintf("/proc/self/fd/%d", fd))
	runtime.KeepAlive(file)
	return conn, err
}
