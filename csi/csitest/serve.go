package csitest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// graceful is how long a clean end waits for clients to take note of it.
const graceful = 2 * time.Second

// instance is a running set of servers.
type instance struct {
	driver  *Driver
	sockets Sockets
	// ctx carries the values of the start, and is never done.
	ctx  context.Context //nolint:containedctx // restarts of the driver need one that outlives a call
	done chan struct{}   // closed when it ends
	wg   sync.WaitGroup

	listeners []*listener
	servers   []*grpc.Server
}

// serve starts an instance.
func (d *Driver) serve(ctx context.Context, at Sockets) (*instance, error) {
	i := &instance{driver: d, sockets: at, ctx: context.WithoutCancel(ctx), done: make(chan struct{})}
	main := i.server()
	i.register(main)
	if at.Registration == at.Endpoint {
		registration.RegisterRegistrationServer(main, &registrar{driver: d, sockets: at})
	}
	if err := i.listen(ctx, at.Endpoint, main); err != nil {
		return nil, err
	}
	if at.Registration != "" && at.Registration != at.Endpoint {
		s := i.server()
		registration.RegisterRegistrationServer(s, &registrar{driver: d, sockets: at})
		if err := i.listen(ctx, at.Registration, s); err != nil {
			return nil, errors.Join(err, i.end(true))
		}
	}
	return i, nil
}

func (i *instance) server() *grpc.Server {
	c := i.driver.config
	options := append(slices.Clone(c.ServerOptions),
		grpc.ChainUnaryInterceptor(append(slices.Clone(c.Interceptors), i.intercept)...),
		grpc.WaitForHandlers(true))
	return grpc.NewServer(options...)
}

// register registers the CSI services that the driver has.
func (i *instance) register(s *grpc.Server) {
	d := i.driver
	csi.RegisterIdentityServer(s, &identity{driver: d})
	csi.RegisterNodeServer(s, &node{driver: d})
	if d.offersService(csi.PluginCapability_Service_CONTROLLER_SERVICE) {
		csi.RegisterControllerServer(s, &controller{driver: d})
	}
}

// listen serves a server at a path.
func (i *instance) listen(ctx context.Context, path string, s *grpc.Server) error {
	l, err := listenAt(ctx, path)
	if err != nil {
		return fmt.Errorf("csitest: listen at %s: %w", path, err)
	}
	i.listeners, i.servers = append(i.listeners, l), append(i.servers, s)
	i.wg.Go(func() { _ = s.Serve(l) }) // its error is that it was ended
	return nil
}

// end ends an instance and waits for all of it.
func (i *instance) end(clean bool) error {
	close(i.done)
	errs := make([]error, 0, len(i.listeners))
	if clean { // the registration first: nobody new is to come
		for _, l := range slices.Backward(i.listeners) {
			errs = append(errs, l.unlink())
		}
		i.drain()
	}
	for _, s := range i.servers {
		s.Stop()
	}
	i.wg.Wait()
	return errors.Join(errs...)
}

// drain lets the calls end and the clients take note.
func (i *instance) drain() {
	timer := i.driver.config.Clock.NewTimer(graceful)
	defer timer.Stop()
	var wg sync.WaitGroup
	drained := make(chan struct{})
	for _, s := range i.servers {
		wg.Go(s.GracefulStop)
	}
	i.wg.Go(func() {
		wg.Wait()
		close(drained)
	})
	select {
	case <-drained:
	case <-timer.C():
	}
}

// listener is a listener whose connections can be told apart, and whose socket
// stays until it is unlinked.
type listener struct {
	*net.UnixListener
	path string
	file os.FileInfo // what was bound at path
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.UnixListener.Accept()
	if err != nil {
		return nil, err
	}
	return &connection{Conn: c}, nil
}

// unlink removes the socket, unless another one has come in its place.
func (l *listener) unlink() error {
	now, err := os.Lstat(l.path)
	if err != nil || !os.SameFile(now, l.file) {
		return nil //nolint:nilerr // it is not there
	}
	return os.Remove(l.path)
}

// listenAt binds a socket. One that is there already is taken for left behind.
func listenAt(ctx context.Context, path string) (*listener, error) {
	if st, err := os.Lstat(path); err == nil {
		if st.Mode().Type() != os.ModeSocket {
			return nil, errors.New("something is there that is no socket")
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	short, done, err := shorten(path)
	if err != nil {
		return nil, err
	}
	defer done()
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", short)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a unix socket is a %T", l), l.Close())
	}
	u.SetUnlinkOnClose(false)
	st, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return &listener{UnixListener: u, path: path, file: st}, nil
}

// Dial connects to a unix socket whose path may be longer than the 107 bytes of
// a socket address.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	short, done, err := shorten(path)
	if err != nil {
		return nil, err
	}
	defer done()
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", short)
}

// connection is a connection that calls can close.
type connection struct{ net.Conn }

// RemoteAddr implements net.Conn. gRPC hands it to the calls.
func (c *connection) RemoteAddr() net.Addr { return address{c.Conn.RemoteAddr(), c.Conn} }

type address struct {
	net.Addr
	conn net.Conn
}

// closeConnection closes the connection that a call came on.
func closeConnection(ctx context.Context) {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(address); ok {
			_ = a.conn.Close()
		}
	}
}
