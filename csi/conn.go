package csi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/go-logr/logr"

	"github.com/volumekit/volumekit/csi/registration"
	"github.com/volumekit/volumekit/plugins"
)

// connectTimeout is how long a server that accepted a connection has to begin
// to speak.
const connectTimeout = 10 * time.Second

var (
	errLost    = errors.New("the connection to the driver was lost")
	errRetired = errors.New("the connection to the driver was given up")
)

// unsentError is a call that was not begun, so that it had no effect.
type unsentError struct{ cause error }

func (e *unsentError) Error() string { return e.cause.Error() }
func (e *unsentError) Unwrap() error { return e.cause }

// conn is one connection to a driver. It is never made again: who is connected
// anew may be another program with other capabilities. gRPC's own reconnecting
// therefore never gets a second connection to work with, and a call is either
// made on the connection it was meant for or not at all.
type conn struct {
	driver string
	cc     *grpc.ClientConn
	raw    net.Conn

	// broken is set when the socket ended, before gRPC fails the calls on it.
	broken atomic.Bool

	mu      sync.Mutex
	retired bool
	calls   int
	idle    chan struct{} // closed when retired and without calls
}

// stream is the socket of a connection. It notices its end.
type stream struct {
	net.Conn
	broken *atomic.Bool
}

func (s *stream) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if err != nil {
		s.broken.Store(true)
	}
	return n, err
}

func (s *stream) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	if err != nil {
		s.broken.Store(true)
	}
	return n, err
}

// dial connects to the socket at path. The caller retires the connection.
func dial(ctx context.Context, driver, path string, config *DriversConfig) (*conn, error) {
	raw, err := registration.DialSocket(ctx, path)
	if err != nil {
		return nil, err
	}
	c := &conn{driver: driver, raw: raw, idle: make(chan struct{})}
	once := make(chan net.Conn, 1)
	once <- &stream{raw, &c.broken}
	interceptors := make([]grpc.UnaryClientInterceptor, 0, len(config.Interceptors)+2)
	interceptors = append(interceptors, c.gate)
	interceptors = append(interceptors, config.Interceptors...)
	interceptors = append(interceptors, logCalls(config.Log.WithValues("driver", driver)))
	c.cc, err = grpc.NewClient("passthrough:///csi",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), // some servers refuse a path there
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: connectTimeout, Multiplier: 1, MaxDelay: connectTimeout},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithChainUnaryInterceptor(interceptors...),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case raw := <-once:
				return raw, nil
			default:
				return nil, errLost
			}
		}))
	if err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	if err := c.connect(ctx); err != nil {
		c.close()
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return c, nil
}

// connect waits until the server speaks.
func (c *conn) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	c.cc.Connect()
	for {
		switch s := c.cc.GetState(); s {
		case connectivity.Ready:
			return nil
		case connectivity.Connecting:
			if !c.cc.WaitForStateChange(ctx, s) {
				return fmt.Errorf("the server does not speak: %w", context.Cause(ctx))
			}
		default:
			return errors.New("the server accepts connections, but speaks no gRPC or ends them")
		}
	}
}

// watch returns when the connection is lost or ctx ends. It costs nothing
// meanwhile.
func (c *conn) watch(ctx context.Context) {
	for c.cc.GetState() == connectivity.Ready && c.cc.WaitForStateChange(ctx, connectivity.Ready) {
	}
}

// ready reports whether a call would be sent.
func (c *conn) ready() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.retired && c.alive()
}

func (c *conn) alive() bool {
	return !c.broken.Load() && c.cc.GetState() == connectivity.Ready
}

// gate is the outermost interceptor: it counts the calls under way, and refuses
// those that could not be sent, which spares them the doubt whether they were.
func (c *conn) gate(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if err := c.enter(); err != nil {
		return &unsentError{plugins.WaitFor(socketRef(c.driver), fmt.Errorf("CSI driver %s was not called: %w", c.driver, err))}
	}
	defer c.leave()
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (c *conn) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.retired:
		return errRetired
	case !c.alive():
		return errLost
	}
	c.calls++
	return nil
}

func (c *conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls--; c.calls == 0 && c.retired {
		close(c.idle)
	}
}

// underway is how many calls have not returned.
func (c *conn) underway() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// retire lets no call in any more.
func (c *conn) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired {
		return
	}
	c.retired = true
	if c.calls == 0 {
		close(c.idle)
	}
}

// drain closes a retired connection when its calls have returned, each of which
// has its deadline, or when ctx ends.
func (c *conn) drain(ctx context.Context) {
	select {
	case <-c.idle:
	case <-ctx.Done():
	}
	c.close()
}

func (c *conn) close() {
	_ = c.cc.Close()
	_ = c.raw.Close()
}

// logCalls is the innermost interceptor. Texts of errors are left to who made
// the call: they may repeat what is secret in the request.
func logCalls(log logr.Logger) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		v := log.V(5)
		if !v.Enabled() {
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		v.Info("CSI request", "method", method, "request", redactAny(req))
		err := invoke(ctx, method, req, reply, cc, opts...)
		if err != nil {
			v.Info("CSI error", "method", method, "code", status.Code(err).String())
		} else {
			v.Info("CSI reply", "method", method, "reply", redactAny(reply))
		}
		return err
	}
}

func redactAny(message any) string {
	if m, ok := message.(proto.Message); ok {
		return Redact(m)
	}
	return "{}"
}
