package csi

import (
	"context"
	"maps"
	"time"

	"google.golang.org/grpc/codes"

	"k8s.io/utils/clock"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
)

// What links report to their directory.

// asks enters that a link is connected, and returns the connection's generation.
func (d *Drivers) asks(l *link) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	l.entry.generation++
	d.enter(l, DriverAsking)
	return l.entry.generation
}

// enter changes the state of a link. The lock is held.
func (d *Drivers) enter(l *link, s DriverState) {
	if l.state != s {
		l.state, l.since = s, d.config.Clock.Now()
	}
}

// trouble enters why a driver does not get on.
func (d *Drivers) trouble(l *link, err error) {
	d.mu.Lock()
	again := l.lastError != nil && l.lastError.Error() == err.Error()
	l.lastError = err
	l.entry.touch()
	d.mu.Unlock()
	if !again {
		d.config.Log.Info("Driver does not answer as it should, it is asked again", "driver", l.entry.name, "endpoint", l.path, "reason", err.Error())
	}
}

// up puts a driver to use, unless ctx has ended.
func (d *Drivers) up(ctx context.Context, l *link, c *conn, found *driver, h *introduction) {
	d.mu.Lock()
	if ctx.Err() != nil || l.instance.removed {
		d.mu.Unlock()
		return
	}
	d.enter(l, DriverReady)
	l.lastError, l.was = nil, true
	l.conn, l.current, l.vendor, l.hopes = c, found, h.vendor, h.hopes
	l.asked = time.Time{} // the first answer that contradicts makes it asked at once
	l.entry.learn(d.config.Clock.Now())
	d.mu.Unlock()
	d.config.Log.Info("Driver is ready", "driver", found.name, "endpoint", l.path, "generation", found.generation,
		"version", h.vendor, "nodeID", found.info.ID, "controller", found.controller != nil)
	d.notices.tell(socketRef(found.name))
}

// down enters that a link is not connected, and why.
func (d *Drivers) down(l *link, s DriverState, err error) {
	d.mu.Lock()
	lost := l.current != nil
	again := l.lastError != nil && err != nil && l.lastError.Error() == err.Error()
	if lost {
		l.lostAt = clock.RealClock{}.Now()
	}
	d.enter(l, s)
	l.lastError, l.conn, l.current, l.hopes = err, nil, nil, nil
	l.entry.learn(d.config.Clock.Now())
	gone := l.instance.removed || d.spawn == nil
	d.mu.Unlock()
	switch {
	case gone:
	case s == DriverRefused && !again:
		d.config.Log.Error(err, "Driver cannot be used", "driver", l.entry.name, "endpoint", l.path)
	case !again:
		d.config.Log.V(1).Info("Driver is not connected", "driver", l.entry.name, "endpoint", l.path, "reason", err.Error())
	}
	if lost {
		d.notices.tell(socketRef(l.entry.name))
	}
}

// letGo closes a connection when the calls on it have returned.
func (d *Drivers) letGo(c *conn) {
	c.retire()
	d.mu.Lock()
	runs := d.spawn != nil
	if runs {
		d.spawn(c.drain)
	}
	d.mu.Unlock()
	if !runs {
		c.close()
	}
}

// askAgain asks for the capabilities once more on the connection c: an answer
// contradicted them, or they are not known yet. It returns at once.
func (d *Drivers) askAgain(l *link, c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.startAsking(l, c)
}

// startAsking is askAgain with the lock held. It does nothing while that is
// under way already, or was a moment ago.
func (d *Drivers) startAsking(l *link, c *conn) {
	now := d.config.Clock.Now()
	if l.conn != c || l.asking || d.spawn == nil || now.Sub(l.asked) < againEvery {
		return
	}
	l.asking, l.asked, l.began = true, now, clock.RealClock{}.Now()
	cur, hoped := *l.current, l.hopes != nil
	d.spawn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, againEvery)
		defer cancel()
		next, hopes := capabilitiesAgain(ctx, c, cur, hoped)
		if d.announces(l, c, &next, hopes) {
			d.config.Log.Info("Driver announces other capabilities now", "driver", cur.name, "endpoint", l.path)
			d.notices.tell(socketRef(cur.name))
		}
	})
}

// announces enters what a driver announced on the connection c, and reports
// whether that is something new.
func (d *Drivers) announces(l *link, c *conn, next *driver, hopes error) (changed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l.asking = false
	if l.conn != c {
		return false
	}
	with := *l.current
	with.nodeCan, with.controllerCan = next.nodeCan, next.controllerCan
	with.controller, with.elsewhere = next.controller, next.elsewhere
	changed = !maps.Equal(with.nodeCan, l.current.nodeCan) || !maps.Equal(with.controllerCan, l.current.controllerCan) ||
		(with.controller == nil) != (l.current.controller == nil)
	l.current, l.hopes = &with, hopes
	l.entry.touch()
	return changed
}

// capabilitiesAgain returns a copy of a driver with what it announces now. What
// it does not answer stays. hoped: it may have a controller service.
func capabilitiesAgain(ctx context.Context, c *conn, cur driver, hoped bool) (next driver, hopes error) {
	next = cur
	next.outdated = nil // not again for its own calls
	if cur.node != nil {
		if can, err := nodeCapabilities(ctx, &next); err == nil {
			next.nodeCan = can
		}
	}
	if cur.controller == nil && !hoped {
		return next, nil
	}
	client := csipb.NewControllerClient(c.cc)
	can, err := controllerCapabilities(ctx, &next, client)
	switch {
	case err == nil:
		next.controller, next.controllerCan = client, can
	case cur.controller != nil: // that it had one is known
	case answered(err) == codes.Unimplemented:
		next.elsewhere = true
	default:
		return next, err
	}
	return next, nil
}
