package registration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// maxSocketPath is how long a path may be in sockaddr_un on every system: 108
// bytes on Linux, 104 on the BSDs, one of them a NUL.
const maxSocketPath = 103

// DialSocket connects to the unix socket at path. It neither waits for a
// listener nor repeats: where nobody listens, where the listener's queue is
// full, and where there is no such file, it fails at once; in the first two
// cases the error wraps [ErrUnavailable]. On Linux path may be as long as a
// path can be, longer than a socket address, if /proc is mounted; elsewhere
// such a path is an error that says so.
func DialSocket(ctx context.Context, path string) (net.Conn, error) {
	var conn net.Conn
	var err error
	if len(path) > maxSocketPath {
		conn, err = dialLong(ctx, path)
	} else {
		conn, err = dialShort(ctx, path)
	}
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EAGAIN):
		return nil, fmt.Errorf("connect to %s: %w: %w", path, ErrUnavailable, cause(err))
	}
	return nil, fmt.Errorf("connect to %s: %w", path, cause(err))
}

func dialShort(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", path)
}

// cause leaves out the address, which is not always the path asked for.
func cause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
