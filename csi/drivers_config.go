package csi

import (
	"time"

	"k8s.io/utils/clock"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"

	"context"
)

// NodeInfoPublisher is told what drivers say of this node: an implementation
// writes it where schedulers and attachers look (CSINode, labels of the Node).
// Its methods may block until ctx ends; one that fails is called again with
// growing pauses. They are called for one driver one at a time.
type NodeInfoPublisher interface {
	// PublishNodeInfo is called when a driver has registered, and when what it
	// says has changed.
	PublishNodeInfo(ctx context.Context, info NodeInfo) error
	// WithdrawNodeInfo is called when a driver has been away for longer than
	// the grace period.
	WithdrawNodeInfo(ctx context.Context, driver string) error
}

// Endpoint is a driver that is known by its addresses.
type Endpoint struct {
	// Name is the driver's name; it is checked against what the driver says.
	Name string
	// Node and Controller are the addresses of its services: the path of a unix
	// socket, or that path behind "unix://" or "unix:". Either may be empty.
	Node, Controller string
}

// DriversConfig configures a directory of drivers. The zero value works.
type DriversConfig struct {
	// Log takes what happens to drivers.
	Log logr.Logger
	// Clock tells the time; nil means the real one.
	Clock clock.WithTicker
	// Timeout says how long a driver may take for a call; nil, and a result of
	// zero or less, mean [DefaultTimeout].
	Timeout func(driver, method string) time.Duration
	// Parallel names the drivers that bear several publishes of one volume at
	// the same time. Nil means none.
	Parallel func(driver string) bool
	// Interceptors see every call. They log requests through [Redact] only.
	Interceptors []grpc.UnaryClientInterceptor
	// Endpoints are drivers that need no registration.
	Endpoints []Endpoint
	// NodeInfo is told what drivers say of the node; nil means nobody.
	NodeInfo NodeInfoPublisher
	// Grace is how long a driver may be away before its node info is withdrawn.
	// Zero means one minute.
	Grace time.Duration
}
