package csi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"k8s.io/utils/clock"

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

	secrets secretMemory

	mu   sync.Mutex
	busy map[string]*turn // by volume handle
}

// turn is the right to call about one volume.
type turn struct {
	free  *semaphore.Weighted
	users int                // that have it or wait for it
	reads map[*read]struct{} // under way
}

// read is a call that changes nothing, and gives way to one that does.
type read struct{ cancel context.CancelCauseFunc }

// all is the weight of a call that stands alone; one that may overlap with its
// like weighs 1.
const all = 1 << 30

// readGrace is how long a call that changes something waits for one that only
// reads before that is given up.
const readGrace = time.Second

var errGaveWay = errors.New("it gave way to a call that changes the volume")

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
// call in flight for each, whoever makes it. The context that it returns ends
// when a call that only reads has to give way.
func (c *calls) enter(ctx context.Context, volume string, m method) (context.Context, func(), error) {
	weight := int64(all)
	if c.parallel && (m == nodePublish || m == nodeUnpublish) {
		weight = 1
	}
	ctx, cancel := context.WithCancelCause(ctx)
	own := &read{cancel}
	c.mu.Lock()
	t := c.busy[volume]
	if t == nil {
		t = &turn{free: semaphore.NewWeighted(all), reads: map[*read]struct{}{}}
		c.busy[volume] = t
	}
	t.users++
	c.mu.Unlock()
	leave := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(t.reads, own)
		if t.users--; t.users == 0 {
			delete(c.busy, volume)
		}
		cancel(nil)
	}
	if m.effect() != reads {
		hurry := clock.RealClock{}.AfterFunc(readGrace, func() { c.hurry(t) })
		defer hurry.Stop()
	}
	if err := t.free.Acquire(ctx, weight); err != nil {
		leave()
		return nil, nil, plugins.Transient(fmt.Errorf("wait for another call about the volume: %w", context.Cause(ctx)))
	}
	if m.effect() == reads {
		c.mu.Lock()
		t.reads[own] = struct{}{}
		c.mu.Unlock()
	}
	return ctx, func() {
		t.free.Release(weight)
		leave()
	}, nil
}

// hurry ends the calls that only read.
func (c *calls) hurry(t *turn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range t.reads {
		r.cancel(errGaveWay)
	}
}

// call makes one RPC: checked, in its turn, within its time, with the error
// that [meaning] gives it. volume is empty for calls that are about none. The
// request must not change any more.
func call[Req, Res proto.Message](
	ctx context.Context, d *driver, m method, volume string, req Req,
	rpc func(context.Context, Req, ...grpc.CallOption) (Res, error),
) (Res, error) {
	var none Res
	if volume != "" {
		own, leave, err := d.calls.enter(ctx, volume, m)
		if err != nil {
			return none, err
		}
		defer leave()
		ctx = own
	}
	if ctx.Err() != nil {
		return none, plugins.Transient(fmt.Errorf("CSI driver %s was not asked for %s: %w", d.name, m, context.Cause(ctx)))
	}
	limited, cancel := context.WithTimeout(ctx, d.calls.limit(d.name, m))
	defer cancel()
	d.calls.secrets.remember(req)
	res, err := rpc(limited, req)
	if unsent := (*unsentError)(nil); errors.As(err, &unsent) {
		return none, unsent.cause
	}
	if err != nil {
		err = failed(d.name, m, err, d.calls.secrets.shapes())
		// Drivers need not announce what many of them lack all the same.
		if answered(err) == codes.Unimplemented && d.outdated != nil && m != controllerValidate {
			d.outdated()
		}
		return none, err
	}
	return res, nil
}
