package csi

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// A link keeps one address of a driver connected. While the connection is up it
// only waits for its end. While it is down it looks at the socket's file every
// lookEvery (a stat(2), about 2 µs, 25 times a second), and connects when the file is another one,
// and besides by pauses that grow: between bind(2) and listen(2) a new file refuses
// connections for a moment, and a listener's full queue does so too.
const (
	lookEvery = 40 * time.Millisecond
	// firstPause and lastPause lie between attempts to connect.
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
	// firstRetry and lastRetry lie between conversations that ended in a
	// refusal: the same program will most likely say the same.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
	// steady is how long a connection has to last for the next attempt to be
	// the first of a new row: a server that ends each connection at once is not
	// asked without pause.
	steady = time.Second
)

// link is the kept connection to one address of an instance.
type link struct {
	drivers  *Drivers
	entry    *entry
	instance *instance
	// path is the socket, wants what is expected there.
	path  string
	wants services

	// Under Drivers.mu:
	state     DriverState
	since     time.Time
	lastError error
	// lostAt is when it began to be down, by the real clock.
	lostAt time.Time
	// was is true once it has been ready.
	was     bool
	vendor  string
	conn    *conn
	current *driver // nil unless ready
	// asking and asked limit how often capabilities are asked for again.
	asking bool
	asked  time.Time
	began  time.Time // asking, in real time
	// hopes: the driver announces a controller service that did not answer.
	hopes error
}

// services are those of an address.
type services struct {
	// node: the address is that of the node service.
	node bool
	// controller says what is known of a controller service at the address.
	controller presence
}

// presence says whether something is looked for.
type presence int

const (
	absent    presence = iota // not asked for
	announced                 // if the driver says that it has it
	required
)

// refusedError is an answer that rules the driver out.
type refusedError struct{ cause error }

func (e *refusedError) Error() string { return e.cause.Error() }
func (e *refusedError) Unwrap() error { return e.cause }

func refused(err error) error { return &refusedError{err} }

// run keeps the link until ctx ends.
func (l *link) run(ctx context.Context) {
	var p pauses
	for {
		file := look(l.path) // before connecting: what comes later is new
		began := clock.RealClock{}.Now()
		err := l.attempt(ctx)
		if ctx.Err() != nil {
			l.drivers.down(l, DriverWaiting, errRetired)
			return
		}
		state := DriverWaiting
		if no := (*refusedError)(nil); errors.As(err, &no) {
			state = DriverRefused
		}
		l.drivers.down(l, state, err)
		if (clock.RealClock{}).Since(began) >= steady {
			p = pauses{}
		}
		if l.await(ctx, file, p.next(err)) {
			p = pauses{}
		}
	}
}

// attempt connects, has the conversation, and returns when the connection was
// lost or given up.
func (l *link) attempt(ctx context.Context) error {
	c, err := dial(ctx, l.entry.name, l.path, &l.drivers.config)
	if err != nil {
		return err
	}
	defer l.drivers.letGo(c)
	ctx, lost := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer lost(nil)
	wg.Go(func() {
		c.watch(ctx)
		lost(errLost)
	})
	d, h, err := l.introduce(ctx, c)
	if err != nil {
		return err
	}
	l.drivers.up(ctx, l, c, d, h)
	<-ctx.Done()
	return context.Cause(ctx)
}

// await waits for a pause, or until another file is at the path, which it
// reports.
func (l *link) await(ctx context.Context, seen os.FileInfo, pause time.Duration) (fresh bool) {
	for ctx.Err() == nil {
		one := min(pause, l.drivers.lookEvery)
		if !wait(ctx, one) {
			return false
		}
		if now := look(l.path); now != nil && !sameSocket(seen, now) {
			return true
		}
		if pause -= one; pause <= 0 {
			return false
		}
	}
	return false
}

// pauses counts failures in a row.
type pauses struct{ connecting, talking int }

func (p *pauses) next(err error) time.Duration {
	no := (*refusedError)(nil)
	if errors.As(err, &no) {
		p.talking++
		return grown(firstRetry, lastRetry, p.talking)
	}
	p.connecting++
	return grown(firstPause, lastPause, p.connecting)
}

// grown is the pause after n failures.
func grown(first, last time.Duration, n int) time.Duration {
	return min(first<<min(n-1, 20), last)
}

// wait returns false if ctx ended first.
func wait(ctx context.Context, pause time.Duration) bool {
	timer := clock.RealClock{}.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// look returns which file is at path, nil if there is none.
func look(path string) os.FileInfo {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	return info
}

// sameSocket reports whether both are the same file. The inode of a removed
// socket may be given to the next one at once; a socket is never written, so
// that its time of modification is that of its making.
func sameSocket(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}
