package csi

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/utils/clock"

	"github.com/volumekit/volumekit/csi/registration"
	"github.com/volumekit/volumekit/plugins"
)

var _ registration.Handler = (*Drivers)(nil)

// instance is one registration of a driver, or one endpoint.
type instance struct {
	key instanceKey
	// registered is false for an endpoint.
	registered bool
	links      []*link

	// Under Drivers.mu:
	seq     uint64
	removed bool
	cancels []context.CancelFunc
}

// instanceKey tells instances apart.
type instanceKey struct {
	name, node, controller string
	// socket and generation are those of the registration.
	socket     string
	generation uint64
}

// from says how the instance came, for people.
func (i *instance) from() string {
	if i.registered {
		if i.key.socket == "" {
			return "by registration, at " + i.key.node
		}
		return "by registration at " + i.key.socket + ", at " + i.key.node
	}
	var at []string
	for _, path := range []string{i.key.node, i.key.controller} {
		if path != "" && !slices.Contains(at, path) {
			at = append(at, path)
		}
	}
	return "by endpoint, at " + strings.Join(at, " and ")
}

// newEndpoint checks an endpoint.
func newEndpoint(e Endpoint) (*instance, error) {
	if err := CheckDriverName(e.Name); err != nil {
		return nil, err
	}
	node, err := socketPath(e.Node)
	if err != nil {
		return nil, fmt.Errorf("CSI driver %s: %w", e.Name, err)
	}
	controller, err := socketPath(e.Controller)
	if err != nil {
		return nil, fmt.Errorf("CSI driver %s: %w", e.Name, err)
	}
	i := &instance{key: instanceKey{name: e.Name, node: node, controller: controller}}
	switch {
	case node == "" && controller == "":
		return nil, plugins.Permanentf("CSI driver %s: the endpoint has no address", e.Name)
	case node == controller:
		i.expect(node, services{node: true, controller: required})
	case controller == "":
		i.expect(node, services{node: true, controller: announced})
	case node == "":
		i.expect(controller, services{controller: required})
	default:
		i.expect(node, services{node: true})
		i.expect(controller, services{controller: required})
	}
	return i, nil
}

// newRegistered checks what a plugin says at its registration.
func newRegistered(r registration.Instance) (*instance, error) {
	if r.Type != registration.CSIPlugin {
		return nil, plugins.Permanentf("a plugin of type %q is no CSI driver", shorten(r.Type, 64))
	}
	if err := CheckDriverName(r.Name); err != nil {
		return nil, err
	}
	if _, err := registration.PickVersion(r.Versions); err != nil {
		return nil, plugins.Permanentf("CSI driver %s: %w", r.Name, err)
	}
	node, err := socketPath(r.Endpoint)
	if err == nil && node == "" {
		err = plugins.Permanentf("it has no endpoint")
	}
	if err != nil {
		return nil, fmt.Errorf("CSI driver %s: %w", r.Name, err)
	}
	i := &instance{
		key:        instanceKey{name: r.Name, node: node, socket: r.Socket, generation: r.Generation},
		registered: true,
	}
	i.expect(node, services{node: true, controller: announced})
	return i, nil
}

func (i *instance) expect(path string, s services) {
	i.links = append(i.links, &link{instance: i, path: path, wants: s, state: DriverWaiting})
}

// socketPath takes the path of a unix socket, bare or as a URL. Empty stays
// empty.
func socketPath(address string) (string, error) {
	path := address
	if rest, ok := strings.CutPrefix(path, "unix:"); ok {
		path = rest
		if rest, ok := strings.CutPrefix(rest, "//"); ok {
			path = rest
		}
	}
	switch {
	case address == "":
		return "", nil
	case !filepath.IsAbs(path):
		return "", plugins.Permanentf("%q is not the absolute path of a unix socket: drivers are reached in no other way", shorten(address, 256))
	case len(path) > registration.MaxEndpointLength || !printable(path):
		return "", plugins.Permanentf("the path of a unix socket is too long or cannot be shown: %q", shorten(path, 256))
	}
	return filepath.Clean(path), nil
}

// Add makes a driver known that has not registered. While the directory runs it
// waits until the driver was asked what it is, and returns an error if that is
// not what the endpoint says or ctx ends before; the endpoint is not known then.
// Otherwise it returns at once, and Run will wait for the driver. An endpoint
// that is known already is the same endpoint.
func (d *Drivers) Add(ctx context.Context, e Endpoint) error {
	i, err := newEndpoint(e)
	if err != nil {
		return err
	}
	d.mu.Lock()
	i, added := d.insert(i)
	runs := d.spawn != nil
	d.mu.Unlock()
	if !runs {
		return nil
	}
	return d.await(ctx, i, added)
}

// Remove forgets an endpoint. Calls that are under way come to their end.
func (d *Drivers) Remove(e Endpoint) {
	if i, err := newEndpoint(e); err == nil {
		d.remove(i.key)
	}
}

// Validate implements [registration.Handler]: the name has to be one, the
// endpoint a socket, and one of the versions 1.x.
func (d *Drivers) Validate(info registration.Info) error {
	_, err := newRegistered(registration.Instance{Info: info})
	return err
}

// Register implements [registration.Handler]. It returns nil when the driver was
// asked what it is and what it says of the node. What the driver does not answer
// is asked again until ctx ends; an answer that rules the driver out is an error
// at once. The name may be registered by others already: the newest that is
// ready is used.
func (d *Drivers) Register(ctx context.Context, r registration.Instance) error {
	i, err := newRegistered(r)
	if err != nil {
		return err
	}
	d.mu.Lock()
	i, added := d.insert(i)
	d.mu.Unlock()
	return d.await(ctx, i, added)
}

// Deregister implements [registration.Handler].
func (d *Drivers) Deregister(r registration.Instance) {
	if i, err := newRegistered(r); err == nil {
		d.remove(i.key)
	}
}

// insert enters an instance, or finds the same. The lock is held.
func (d *Drivers) insert(i *instance) (_ *instance, added bool) {
	e := d.entry(i.key.name)
	for _, o := range e.instances {
		if o.key == i.key {
			return o, false
		}
	}
	d.lastSeq++
	i.seq = d.lastSeq
	for _, l := range i.links {
		l.drivers, l.entry = d, e
		l.since, l.lostAt = d.config.Clock.Now(), clock.RealClock{}.Now()
	}
	e.instances = append(e.instances, i)
	e.touch()
	d.startInstance(i)
	return i, true
}

// await returns nil when all links of an instance have been ready. If they are
// refused or ctx ends before, an instance that was added by the caller is
// removed.
func (d *Drivers) await(ctx context.Context, i *instance, added bool) error {
	for {
		d.mu.Lock()
		done, err := d.outcome(i)
		changed := d.entries[i.key.name].changed
		d.mu.Unlock()
		if done && err == nil {
			return nil
		}
		if !done {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				err = errors.Join(context.Cause(ctx), err)
			}
		}
		if added {
			d.remove(i.key)
		}
		return fmt.Errorf("CSI driver %s (%s): %w", i.key.name, i.from(), err)
	}
}

// outcome reports whether it is known how an instance began, and what is amiss.
// The lock is held.
func (d *Drivers) outcome(i *instance) (done bool, err error) {
	switch {
	case i.removed:
		return true, errors.New("it was removed meanwhile")
	case d.ended:
		return true, fmt.Errorf("%w any more", errNotRun)
	case d.spawn == nil:
		return false, fmt.Errorf("%w yet", errNotRun)
	}
	done = true
	for _, l := range i.links {
		switch {
		case l.was:
		case l.state == DriverRefused:
			return true, l.lastError
		default:
			done = false
			if l.lastError != nil {
				err = l.lastError
			}
		}
	}
	return done, err
}

func (d *Drivers) remove(key instanceKey) {
	d.mu.Lock()
	e := d.entries[key.name]
	var gone *instance
	if e != nil {
		for _, i := range e.instances {
			if i.key == key {
				gone = i
			}
		}
	}
	if gone == nil {
		d.mu.Unlock()
		return
	}
	e.instances = slices.DeleteFunc(slices.Clone(e.instances), func(i *instance) bool { return i == gone })
	gone.removed = true
	for _, cancel := range gone.cancels {
		cancel()
	}
	for _, l := range gone.links {
		if l.conn != nil {
			l.conn.retire()
		}
	}
	e.learn(d.config.Clock.Now())
	d.mu.Unlock()
	d.config.Log.V(1).Info("Driver removed", "driver", key.name, "from", gone.from())
	d.notices.tell(socketRef(key.name))
}
