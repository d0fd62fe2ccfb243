package csi

import (
	"net"
	"os"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// TestSocketThatListensLater has a socket that is bound long before its server
// listens: the file never changes.
func TestSocketThatListensLater(t *testing.T) {
	t.Parallel()
	path := socketIn(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	r := runDirectory(t, DriversConfig{Endpoints: []Endpoint{{Name: fakeName, Node: path}}})
	untilTrue(t, "it was tried", func() bool { return r.Status()[0].Instances[0].LastError != "" })
	if err := unix.Listen(fd, 16); err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	f, s := newFake(), grpc.NewServer()
	csipb.RegisterIdentityServer(s, f)
	csipb.RegisterNodeServer(s, f)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	r.usable(t)
	r.stop()
	s.Stop()
	<-ended
}
