package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/volumekit/volumekit/plugins"
)

const (
	// defaultGrace is how long a driver may be away before its node info is
	// withdrawn.
	defaultGrace = time.Minute
	// patience is how long a call waits for a driver that has just gone: most
	// are back after a restart by then, and the notice wakes the others.
	patience = time.Second
	// againEvery is how often at most a driver is asked again for its
	// capabilities on one connection.
	againEvery = 5 * time.Second
)

// Drivers is the directory of the CSI drivers of a node. Drivers come to it by
// registration, as the [registration.Handler] for [registration.CSIPlugin], or
// by an [Endpoint]. It keeps a connection to each of them while it runs, asks
// each new connection once who is there, what it can do and what it says of the
// node, and says by notice when a driver comes, comes back, is replaced or goes.
//
// Of several instances with one name the newest that is ready is used, so a
// driver can be replaced without a gap; calls that are under way on a
// connection that is given up come to their end there.
//
// Clock tells the time for the grace period, periodic refreshes and the status;
// waiting for sockets and deadlines of calls follow the real clock. Methods are
// safe for concurrent use.
type Drivers struct {
	owned     atomic.Bool // by a plugin
	config    DriversConfig
	notices   notices
	lookEvery time.Duration // see link

	mu sync.Mutex
	// ended is true between the end of Run and the next.
	ended bool
	// spawn runs a function in a goroutine that Run waits for, until the
	// returned function is called or Run ends. Nil unless Run runs.
	spawn   func(func(context.Context)) context.CancelFunc
	entries map[string]*entry
	lastSeq uint64
}

// entry is all that is known under a driver's name. It stays: what the calls
// share must outlive the instances.
type entry struct {
	name  string
	calls *calls
	// generation is that of the latest connection.
	generation uint64
	// instances are in the order of their registration.
	instances []*instance
	// changed is closed, and replaced, at each change.
	changed chan struct{}

	// info is the latest node info, of an instance that may be gone.
	info NodeInfo
	// away is since when no node service is ready, zero if one is.
	away    time.Time
	period  time.Duration
	refresh *refreshing
	keeper  *keeper
}

// NewDrivers returns a directory that does nothing before it is run. It makes no
// I/O.
func NewDrivers(c DriversConfig) *Drivers {
	if c.Log.GetSink() == nil {
		c.Log = logr.Discard()
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Grace <= 0 {
		c.Grace = defaultGrace
	}
	d := &Drivers{config: c, lookEvery: lookEvery, entries: map[string]*entry{}}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range c.Endpoints {
		if i, err := newEndpoint(e); err == nil { // what is wrong is said by Run
			d.insert(i)
		}
	}
	return d
}

var (
	errNotRun    = errors.New("the directory of drivers does not run")
	errRunsTwice = errors.New("the directory of drivers runs already")
)

// Run connects to drivers and keeps the connections until ctx ends, when it
// closes them and returns, without an error, after everything it started has
// ended. It may be run again then. An endpoint in the config that cannot be used
// is an error.
func (d *Drivers) Run(ctx context.Context) error {
	for _, e := range d.config.Endpoints {
		if _, err := newEndpoint(e); err != nil {
			return fmt.Errorf("endpoint of the config: %w", err)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	if err := d.begin(ctx, &all); err != nil {
		return err
	}
	<-ctx.Done()
	d.mu.Lock()
	d.ended, d.spawn = true, nil
	for _, e := range d.entries {
		e.touch()
	}
	d.mu.Unlock()
	all.Wait()
	return nil
}

func (d *Drivers) begin(ctx context.Context, all *sync.WaitGroup) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.spawn != nil {
		return errRunsTwice
	}
	d.ended = false
	d.spawn = func(f func(context.Context)) context.CancelFunc {
		ctx, cancel := context.WithCancel(ctx)
		all.Go(func() {
			defer cancel()
			f(ctx)
		})
		return cancel
	}
	for _, e := range d.entries {
		d.startEntry(e)
		for _, i := range e.instances {
			d.startInstance(i)
		}
	}
	return nil
}

func (d *Drivers) startEntry(e *entry) {
	if d.spawn != nil {
		d.spawn(e.keeper.run)
	}
}

func (d *Drivers) startInstance(i *instance) {
	if d.spawn == nil {
		return
	}
	i.cancels = nil
	for _, l := range i.links {
		l.lostAt = clock.RealClock{}.Now()
		i.cancels = append(i.cancels, d.spawn(l.run))
	}
}

// entry returns the entry of a name, made if need be. The lock is held.
func (d *Drivers) entry(name string) *entry {
	e := d.entries[name]
	if e == nil {
		parallel := d.config.Parallel != nil && d.config.Parallel(name)
		e = &entry{
			name: name, calls: newCalls(d.config.Timeout, parallel), changed: make(chan struct{}),
			away: d.config.Clock.Now(), keeper: &keeper{drivers: d, name: name},
		}
		d.entries[name] = e
		d.startEntry(e)
	}
	return e
}

// touch says that something has changed. The lock is held.
func (e *entry) touch() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// learn enters whether the node service is there and what it says. The lock is
// held.
func (e *entry) learn(now time.Time) {
	defer e.touch()
	// A connection that is being lost still counts; its end comes here too.
	for _, i := range slices.Backward(e.instances) {
		for _, l := range i.links {
			if l.current != nil && l.current.node != nil {
				e.info, e.away = l.current.info, time.Time{}
				return
			}
		}
	}
	if e.away.IsZero() {
		e.away = now
	}
}

// view is what a keeper sees.
func (d *Drivers) view(name string) view {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[name]
	return view{info: e.info, away: e.away, period: e.period, changed: e.changed}
}

// Subscribe implements [plugins.Notifier]. The notices are of the kind
// [plugins.KindDriverSocket] with the driver's name, and come when the driver
// comes, comes back, is replaced, changes what it says, or goes. cancel must not
// be called from within notify.
func (d *Drivers) Subscribe(notify func(plugins.Ref)) (cancel func()) {
	return d.notices.subscribe(notify)
}

// Installed reports whether the driver is registered, and has been ready, for
// the node. A driver that is merely down for a moment stays installed. It does
// no I/O.
func (d *Drivers) Installed(driver string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.entries[driver]
	return e != nil && slices.ContainsFunc(e.instances, func(i *instance) bool {
		return slices.ContainsFunc(i.links, func(l *link) bool { return l.was && l.wants.node })
	})
}

func servesNode(d *driver) bool       { return d.node != nil }
func servesController(d *driver) bool { return d.controller != nil }

// driver implements directory.
func (d *Drivers) driver(ctx context.Context, name string) (*driver, error) {
	found, _, err := d.find(ctx, name, servesNode)
	return found, err
}

// controllerOf implements directory. The node info is that of the driver's node
// service, wherever that is.
func (d *Drivers) controllerOf(ctx context.Context, name string) (*driver, error) {
	found, _, err := d.find(ctx, name, servesController)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	info := d.entries[name].info
	d.mu.Unlock()
	if found.info.ID == "" && info.ID != "" {
		with := *found
		with.info = info
		return &with, nil
	}
	return found, nil
}

// find returns the newest driver that is ready and serves what is wanted. For
// one that has just gone it waits a little.
func (d *Drivers) find(ctx context.Context, name string, serves func(*driver) bool) (*driver, *link, error) {
	if err := CheckDriverName(name); err != nil {
		return nil, nil, err
	}
	for {
		d.mu.Lock()
		found, l := d.pick(name, serves, false)
		var left time.Duration
		var changed <-chan struct{}
		if found == nil {
			if left, changed = d.hope(name, serves); left <= 0 { // one that is being asked is better than none
				found, l = d.pick(name, serves, true)
			}
		}
		if found != nil {
			d.mu.Unlock()
			return found, l, nil
		}
		why := d.explain(name, serves)
		d.mu.Unlock()
		if left <= 0 || !waitFor(ctx, changed, left) {
			return nil, nil, plugins.WaitFor(socketRef(name), why)
		}
	}
}

// waitFor returns false if ctx ended before something changed. That the time has
// passed counts as a change.
func waitFor(ctx context.Context, changed <-chan struct{}, limit time.Duration) bool {
	timer := clock.RealClock{}.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C():
	case <-ctx.Done():
		return false
	}
	return true
}

// pick returns the newest driver that is ready: with asking, also one of which it
// is not known at the moment what it can. The lock is held.
func (d *Drivers) pick(name string, serves func(*driver) bool, asking bool) (*driver, *link) {
	e := d.entries[name]
	if e == nil || d.spawn == nil {
		return nil, nil
	}
	for _, i := range slices.Backward(e.instances) {
		for _, l := range i.links {
			if l.current != nil && (asking || !l.asking) && serves(l.current) && l.conn.ready() {
				return l.current, l
			}
		}
	}
	return nil, nil
}

// hope is how long it is worth to wait for a driver, and what ends the wait. The
// lock is held.
func (d *Drivers) hope(name string, serves func(*driver) bool) (time.Duration, <-chan struct{}) {
	e := d.entries[name]
	if e == nil || d.ended {
		return 0, nil
	}
	now := clock.RealClock{}.Now()
	var most time.Duration
	for _, i := range e.instances {
		for _, l := range i.links {
			switch {
			case l.state == DriverRefused:
			case l.current == nil:
				most = max(most, l.lostAt.Add(patience).Sub(now))
			case !serves(l.current) && l.hopes != nil:
				d.startAsking(l, l.conn)
			case serves(l.current) && l.asking: // what it can do will soon be known
				most = max(most, l.began.Add(patience).Sub(now))
			case serves(l.current): // its loss is about to be noticed
				most = max(most, patience/10)
			}
		}
	}
	return most, e.changed
}

// explain says why there is no driver. The lock is held.
func (d *Drivers) explain(name string, serves func(*driver) bool) error {
	e := d.entries[name]
	switch {
	case d.ended:
		return fmt.Errorf("CSI driver %s: %w any more", name, errNotRun)
	case e == nil || len(e.instances) == 0:
		return fmt.Errorf("CSI driver %s is not registered on this node; %s", name, d.registered())
	}
	texts := make([]string, 0, len(e.instances))
	for _, i := range slices.Backward(e.instances) {
		for _, l := range i.links {
			text := fmt.Sprintf("%s at %s", l.state, l.path)
			switch err := l.trouble(serves); {
			case err != nil:
				text += ": " + err.Error()
			case l.current != nil:
				text += ", without the service that is needed"
			case d.spawn == nil:
				text += ": " + errNotRun.Error() + " yet"
			}
			texts = append(texts, text)
		}
	}
	return fmt.Errorf("CSI driver %s is registered, but cannot be used now: %s", name, strings.Join(texts, "; "))
}

// trouble is why a link is of no use.
func (l *link) trouble(serves func(*driver) bool) error {
	if l.current == nil {
		return l.lastError
	}
	if serves(l.current) {
		return errLost
	}
	return l.hopes
}

// registered lists what is registered, and where. The lock is held.
func (d *Drivers) registered() string {
	const most = 8
	var names []string
	for name, e := range d.entries {
		if len(e.instances) > 0 {
			names = append(names, name+" ("+e.instances[len(e.instances)-1].from()+")")
		}
	}
	if len(names) == 0 {
		return "none is: no plugin has come by registration, and no endpoint is configured"
	}
	slices.Sort(names)
	if more := len(names) - most; more > 0 {
		names = append(names[:most], fmt.Sprintf("%d more", more))
	}
	return "registered are " + strings.Join(names, ", ")
}
