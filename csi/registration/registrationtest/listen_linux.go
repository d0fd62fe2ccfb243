package registrationtest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// listen binds through a descriptor of the folder where the path is longer than
// a socket address.
func listen(path string) (*net.UnixListener, error) {
	const most = 107 // sockaddr_un, see unix(7)
	if len(path) <= most {
		return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	name := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	return net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
}
