package csitest

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Fault is what happens to a call besides its work. The order is: DelayBefore,
// the fault unless AfterWork, the work, Alter, DelayAfter, the fault if
// AfterWork. The fault itself is: wait (Block, Hang), then Restart, Drop or
// Code, whichever is set first; with none of the three the call goes on.
//
// The volume's lock is held all the time: with [Config.AbortBusy] another call
// for the volume is answered ABORTED.
type Fault struct {
	// VolumeID of the calls to which it happens; empty is any.
	VolumeID string
	// Skip is how many such calls pass unharmed first.
	Skip int
	// Times is to how many calls it happens; zero is all, until it is removed.
	Times int
	// DelayBefore and DelayAfter are times before and after the work. They end
	// early, with the context's error, when the caller gives up.
	DelayBefore, DelayAfter time.Duration
	// AfterWork puts the fault after the work: the volume is mounted, but the
	// answer is an error or none.
	AfterWork bool
	// Block makes the call wait until [Script.Release], or until the caller gives
	// up, which ends it.
	Block bool
	// Hang makes the call wait until [Script.Release] whatever the caller does:
	// the work is done although nobody waits for it any more.
	Hang bool
	// Restart ends the driver as a kill does, in the middle of the call, and
	// starts it again on the same sockets. The answer is lost.
	Restart bool
	// Drop closes the connection in place of an answer.
	Drop bool
	// Code is answered in place of a reply, with Message.
	Code    codes.Code
	Message string
	// Alter changes the reply of the work, if that succeeded, in place.
	Alter func(reply proto.Message)
}

// Script is a fault in force.
type Script struct {
	book   *scripts
	method string
	fault  Fault

	released chan struct{}
	once     sync.Once

	// Under book.mu.
	seen, hits int
	changed    chan struct{}
}

// scripts are the faults in force.
type scripts struct {
	mu   sync.Mutex
	list []*Script
}

// Script puts a fault in force for a method, "NodeStageVolume" for instance or
// "*" for any. Of several that fit a call, the one that came first happens.
func (d *Driver) Script(method string, fault Fault) *Script {
	s := &Script{book: &d.scripts, method: method, fault: fault, released: make(chan struct{}), changed: make(chan struct{})}
	d.scripts.mu.Lock()
	defer d.scripts.mu.Unlock()
	d.scripts.list = append(d.scripts.list, s)
	return s
}

// ClearScripts removes all faults and lets all that wait for a Release go on.
func (d *Driver) ClearScripts() {
	d.scripts.mu.Lock()
	list := d.scripts.list
	d.scripts.list = nil
	d.scripts.mu.Unlock()
	for _, s := range list {
		s.Release()
	}
}

// Release lets the calls that wait here go on, and those that come later not
// wait. It may be called more than once.
func (s *Script) Release() { s.once.Do(func() { close(s.released) }) }

// Remove takes the fault out of force and lets the calls that wait go on.
func (s *Script) Remove() {
	s.book.mu.Lock()
	s.book.list = slices.DeleteFunc(s.book.list, func(o *Script) bool { return o == s })
	s.book.mu.Unlock()
	s.Release()
}

// Hits is how many calls it has happened to, or is happening to.
func (s *Script) Hits() int {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	return s.hits
}

// Wait returns when the fault itself has been reached n times: with Block or
// Hang, when n calls have come to wait.
func (s *Script) Wait(ctx context.Context, n int) error {
	for {
		s.book.mu.Lock()
		hits, changed := s.hits, s.changed
		s.book.mu.Unlock()
		if hits >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reached counts a call that has come to the fault.
func (s *Script) reached() {
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	s.hits++
	close(s.changed)
	s.changed = make(chan struct{})
}

// find returns what happens to a call, nil if nothing does.
func (b *scripts) find(method, volume string) *Script {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.list {
		if s.method != "*" && s.method != method || s.fault.VolumeID != "" && s.fault.VolumeID != volume {
			continue
		}
		s.seen++
		if s.seen <= s.fault.Skip || s.fault.Times > 0 && s.seen > s.fault.Skip+s.fault.Times {
			continue
		}
		return s
	}
	return nil
}

// play does a call's work with what the script says around it.
func (i *instance) play(ctx context.Context, s *Script, work func() (any, error)) (any, error) {
	if s == nil {
		return work()
	}
	if err := i.delay(ctx, s.fault.DelayBefore); err != nil {
		return nil, err
	}
	if !s.fault.AfterWork {
		if err := i.strike(ctx, s); err != nil {
			return nil, err
		}
	}
	reply, err := work()
	if message, ok := reply.(proto.Message); ok && err == nil && s.fault.Alter != nil {
		s.fault.Alter(message)
	}
	if err := i.delay(ctx, s.fault.DelayAfter); err != nil {
		return nil, err
	}
	if s.fault.AfterWork {
		if err := i.strike(ctx, s); err != nil {
			return nil, err
		}
	}
	return reply, err
}

// delay waits, until the caller gives up or the driver ends.
func (i *instance) delay(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := i.driver.config.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-i.done:
		return errEnding()
	}
}

// strike is the fault itself. Nil lets the call go on.
func (i *instance) strike(ctx context.Context, s *Script) error {
	s.reached()
	if err := i.hold(ctx, s); err != nil {
		return err
	}
	switch f := s.fault; {
	case f.Restart:
		i.driver.restartLater(i)
		select {
		case <-ctx.Done():
		case <-i.done:
			closeConnection(ctx) // before the answer gets through
		}
		return errEnding()
	case f.Drop:
		closeConnection(ctx)
		return status.Error(codes.Unavailable, "the connection was closed on purpose")
	case f.Code != codes.OK:
		return status.Error(f.Code, or(f.Message, "on purpose"))
	}
	return nil
}

// hold waits for the release.
func (i *instance) hold(ctx context.Context, s *Script) error {
	if !s.fault.Block && !s.fault.Hang {
		return nil
	}
	gone := ctx.Done()
	if s.fault.Hang {
		gone = nil
	}
	select {
	case <-s.released:
		return nil
	case <-gone:
		return status.FromContextError(ctx.Err()).Err()
	case <-i.done:
		return errEnding()
	}
}

func errEnding() error { return status.Error(codes.Unavailable, "the driver is ending") }
