package csitest

import (
	"context"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Call is a call that the driver was asked.
type Call struct {
	// Seq counts the driver's calls in the order in which they came, from 1.
	Seq int
	// Method is the short name, as "NodeStageVolume".
	Method string
	// VolumeID is empty for calls that name no volume.
	VolumeID string
	// Request as it came, secrets included: it is for tests only. Reply is nil
	// until the call has ended, and if it failed.
	Request, Reply proto.Message
	// Endpoint is the socket that it came on.
	Endpoint string
	// Start and End by the driver's clock.
	Start, End time.Time
	// Done is false as long as the call is in flight.
	Done bool
	// Code and Message are the answer. With a dropped connection they are what
	// nobody heard.
	Code    codes.Code
	Message string
}

// callLog keeps the calls.
type callLog struct {
	mu      sync.Mutex
	keep    int
	seq     int
	first   int // Seq of list[0]
	list    []Call
	counts  map[string]int
	changed chan struct{}
}

func newCallLog(keep int) *callLog {
	return &callLog{keep: keep, first: 1, counts: map[string]int{}, changed: make(chan struct{})}
}

// Calls returns the calls since the last ResetCalls in the order in which they
// came, those in flight included. The messages in it are shared: do not change
// them.
func (d *Driver) Calls() []Call {
	d.calls.mu.Lock()
	defer d.calls.mu.Unlock()
	list := d.calls.list
	return slices.Clone(list[max(0, len(list)-d.calls.keep):])
}

// CallCounts returns how often each method was called since the last ResetCalls.
func (d *Driver) CallCounts() map[string]int {
	d.calls.mu.Lock()
	defer d.calls.mu.Unlock()
	return maps.Clone(d.calls.counts)
}

// ResetCalls forgets the calls, also those in flight.
func (d *Driver) ResetCalls() {
	d.calls.mu.Lock()
	defer d.calls.mu.Unlock()
	d.calls.list, d.calls.first, d.calls.counts = nil, d.calls.seq+1, map[string]int{}
}

// WaitCall returns the first call that matches, waiting for one that does. A
// call is looked at when it begins and when it ends, so match says with
// [Call.Done] which of the two it means. Calls since the last ResetCalls count.
func (d *Driver) WaitCall(ctx context.Context, match func(Call) bool) (Call, error) {
	for from := 0; ; {
		d.calls.mu.Lock()
		list, changed := d.calls.since(from), d.calls.changed
		d.calls.mu.Unlock()
		if i := slices.IndexFunc(list, match); i >= 0 {
			return list[i], nil
		}
		for _, c := range list { // those at the front that cannot change any more
			if !c.Done {
				break
			}
			from = c.Seq + 1
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Call{}, ctx.Err()
		}
	}
}

// Began matches calls of a method for a volume; empty is any.
func Began(method, volume string) func(Call) bool {
	return func(c Call) bool {
		return (method == "" || c.Method == method) && (volume == "" || c.VolumeID == volume)
	}
}

// Ended matches calls that have ended, as Began does.
func Ended(method, volume string) func(Call) bool {
	began := Began(method, volume)
	return func(c Call) bool { return c.Done && began(c) }
}

// since returns the calls from a Seq on.
func (l *callLog) since(seq int) []Call {
	return slices.Clone(l.list[min(max(0, seq-l.first), len(l.list)):])
}

func (l *callLog) begin(c Call) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	c.Seq = l.seq
	l.list = append(l.list, c)
	l.counts[c.Method]++
	if len(l.list) >= 2*l.keep { // rarely, as it moves all of them
		over := len(l.list) - l.keep
		l.list = slices.Delete(l.list, 0, over)
		l.first += over
	}
	l.wake()
	return c.Seq
}

func (l *callLog) end(seq int, now time.Time, reply any, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq < l.first {
		return // forgotten meanwhile
	}
	c := &l.list[seq-l.first]
	c.Done, c.End, c.Code = true, now, status.Code(err)
	if err != nil {
		c.Message = status.Convert(err).Message()
	} else if m, ok := reply.(proto.Message); ok {
		c.Reply = proto.Clone(m)
	}
	l.wake()
}

func (l *callLog) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// intercept is around every call of a server.
func (i *instance) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (reply any, err error) {
	d := i.driver
	method, volume := path.Base(info.FullMethod), volumeOf(req)
	call := Call{Method: method, VolumeID: volume, Endpoint: i.sockets.Endpoint, Start: d.config.Clock.Now()}
	if m, ok := req.(proto.Message); ok {
		call.Request = proto.Clone(m)
	}
	seq := d.calls.begin(call)
	defer func() { d.calls.end(seq, d.config.Clock.Now(), reply, err) }()
	if alters(method) && volume != "" {
		release, err := d.lockVolume(ctx, volume)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	return i.play(ctx, d.scripts.find(method, volume), func() (any, error) {
		if !d.config.Lenient {
			if err := checkSizes(req); err != nil {
				return nil, err
			}
		}
		// What is begun is brought to its end, whoever still waits for it.
		return handler(context.WithoutCancel(ctx), req)
	})
}

// volumeOf is the volume that a request is about.
func volumeOf(req any) string {
	switch r := req.(type) {
	case interface{ GetVolumeId() string }:
		return r.GetVolumeId()
	case *csi.CreateVolumeRequest:
		if r.GetName() != "" {
			return VolumeID(r.GetName())
		}
	}
	return ""
}

// alters reports whether calls of a method go one after another for a volume.
func alters(method string) bool {
	return slices.Contains([]string{
		"CreateVolume", "DeleteVolume", "ControllerPublishVolume", "ControllerUnpublishVolume",
		"ControllerExpandVolume", "ControllerModifyVolume",
		"NodeStageVolume", "NodeUnstageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeExpandVolume",
	}, method)
}

// volumeLock is a volume's lock and how many want it.
type volumeLock struct {
	held chan struct{}
	refs int
}

// lockVolume waits for a volume's lock, or refuses.
func (d *Driver) lockVolume(ctx context.Context, id string) (release func(), err error) {
	d.mu.Lock()
	l := d.locks[id]
	if l == nil {
		l = &volumeLock{held: make(chan struct{}, 1)}
		d.locks[id] = l
	}
	l.refs++
	d.mu.Unlock()
	put := func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if l.refs--; l.refs == 0 {
			delete(d.locks, id)
		}
	}
	if d.config.AbortBusy {
		select {
		case l.held <- struct{}{}:
		default:
			put()
			return nil, status.Errorf(codes.Aborted, "another call for volume %s is in progress", id)
		}
		return func() { <-l.held; put() }, nil
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; put() }, nil
	case <-ctx.Done():
		put()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}
