//go:build !linux

package registration

import (
	"context"
	"fmt"
	"net"
)

func dialLong(_ context.Context, path string) (net.Conn, error) {
	return nil, fmt.Errorf("the path has %d bytes, a socket's may have %d on this system", len(path), maxSocketPath)
}
