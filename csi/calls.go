package csi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/volumekit/volumekit/plugins"
)

// DefaultTimeout is how long a driver has for one call: as much as the kubelet
// gives it.
const DefaultTimeout = 2 * time.Minute

// calls is what all calls to one driver share, over its connections and
// instances.
type calls struct {
	// timeout says how long a call may take; nil means DefaultTimeout.
	timeout func(driver, method string) time.Duration
	// parallel lets publishes and unpublishes of one volume run side by side.
	parallel bool

	mu   sync.Mutex
	busy map[string]*turn // by volume handle
}

// turn is the right to call about one volume.
type turn struct {
	free  chan struct{} // holds one token while nobody calls
	users int           // that have it or wait for it
}

func newCalls(timeout func(driver, method string) time.Duration, parallel bool) *calls {
	return &calls{timeout: timeout, parallel: parallel, busy: map[string]*turn{}}
}

// limit is how long a call may take.
func (c *calls) limit(driver string, m method) time.Duration {
	if c.timeout != nil {
		if d := c.timeout(driver, string(m)); d > 0 {
			return d
		}
	}
	return DefaultTimeout
}

// enter waits for its turn to call about a volume: the spec wants at most one
// call in flight for each, whoever makes it.
func (c *calls) enter(ctx context.Context, volume string) (leave func(), err error) {
	c.mu.Lock()
	t := c.busy[volume]
	if t == nil {
		t = &turn{free: make(chan struct{}, 1)}
		t.free <- struct{}{}
		c.busy[volume] = t
	}
	t.users++
	c.mu.Unlock()
	forget := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(c.busy, volume)
		}
	}
	select {
	case <-t.free:
		return func() {
			t.free <- struct{}{}
			forget()
		}, nil
	case <-ctx.Done():
		forget()
		return nil, plugins.Transient(fmt.Errorf("wait for another call about the volume: %w", context.Cause(ctx)))
	}
}

// mayOverlap reports whether calls of the method need no turn.
func (c *calls) mayOverlap(m method) bool {
	return c.parallel && (m == nodePublish || m == nodeUnpublish)
}

// call makes one RPC: checked, in its turn, within its time, with the error
// that [meaning] gives it. volume is empty for calls that are about none. The
// request must not change any more.
func call[Req, Res proto.Message](
	ctx context.Context, d *driver, m method, volume string, req Req,
	rpc func(context.Context, Req, ...grpc.CallOption) (Res, error),
) (Res, error) {
	var none Res
	if volume != "" && !d.calls.mayOverlap(m) {
		leave, err := d.calls.enter(ctx, volume)
		if err != nil {
			return none, err
		}
		defer leave()
	}
	if ctx.Err() != nil {
		return none, plugins.Transient(fmt.Errorf("CSI driver %s was not asked for %s: %w", d.name, m, context.Cause(ctx)))
	}
	limited, cancel := context.WithTimeout(ctx, d.calls.limit(d.name, m))
	defer cancel()
	res, err := rpc(limited, req)
	if unsent := (*unsentError)(nil); errors.As(err, &unsent) {
		return none, unsent.cause
	}
	if err != nil {
		err = failed(d.name, m, err, secretsIn(req))
		// Drivers need not announce what many of them lack all the same.
		if answered(err) == codes.Unimplemented && d.outdated != nil && m != controllerValidate {
			d.outdated()
		}
		return none, err
	}
	return res, nil
}
