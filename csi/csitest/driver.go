package csitest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Driver is a CSI driver. Make it with [New].
type Driver struct {
	config  Config
	calls   *callLog
	scripts scripts

	// life is held while servers are started and ended. It comes before mu.
	life    sync.Mutex
	sockets Sockets // of the main instance
	main    *instance
	others  []*instance
	// restarts are the restarts that calls have asked for.
	restarts sync.WaitGroup

	mu            sync.Mutex // nothing is waited for under it
	volumes       map[string]*VolumeState
	locks         map[string]*volumeLock
	capabilities  Capabilities
	node          NodeInfo
	notReady      bool
	usage         map[string][]*csi.VolumeUsage
	health        map[string][]*csi.VolumeHealth_VolumeHealthEntry
	storage       []*csi.NodeGetStorageHealthResponse_StorageBackendHealth
	registrations []Registration
	registered    chan struct{} // closed and made anew with each of them
}

// Registration is a NotifyRegistrationStatus that the driver was told.
type Registration struct {
	Registered bool
	Error      string
	// Socket is the registration socket that it came on.
	Socket string
}

// New makes a driver. It does nothing until it is started.
func New(config Config) (*Driver, error) {
	if err := config.defaults(); err != nil {
		return nil, err
	}
	return &Driver{
		config: config, sockets: config.Sockets, calls: newCallLog(config.KeepCalls),
		volumes: map[string]*VolumeState{}, locks: map[string]*volumeLock{},
		capabilities: config.Capabilities, node: config.Node,
		usage:      map[string][]*csi.VolumeUsage{},
		health:     map[string][]*csi.VolumeHealth_VolumeHealthEntry{},
		registered: make(chan struct{}),
	}, nil
}

// Name of the driver.
func (d *Driver) Name() string { return d.config.Name }

// Sockets at which the driver serves, or will when it is started.
func (d *Driver) Sockets() Sockets {
	d.life.Lock()
	defer d.life.Unlock()
	return d.sockets
}

// Endpoint is the socket of the CSI services.
func (d *Driver) Endpoint() string { return d.Sockets().Endpoint }

// Start reads the table and serves until Stop or Kill. The context is for the
// start only.
func (d *Driver) Start(ctx context.Context) error {
	d.life.Lock()
	defer d.life.Unlock()
	return d.start(ctx)
}

func (d *Driver) start(ctx context.Context) error {
	if d.main != nil {
		return errors.New("csitest: the driver runs already")
	}
	if err := d.load(); err != nil {
		return fmt.Errorf("csitest: read the table: %w", err)
	}
	i, err := d.serve(ctx, d.sockets)
	if err != nil {
		return err
	}
	d.main = i
	return nil
}

// Stop ends the driver as SIGTERM does: calls that wait on a script or a delay
// are answered UNAVAILABLE, others end, the sockets are removed. Mounts stay.
// Nothing of the driver runs any more when it returns. It may be called more
// than once.
func (d *Driver) Stop() error { return d.end(true) }

// Kill ends the driver as SIGKILL does: connections break in the middle of
// calls and the sockets stay behind, with nobody listening. Work that has begun
// is the exception: it cannot be left half done in a process that lives on, and
// Kill waits for it.
func (d *Driver) Kill() error { return d.end(false) }

func (d *Driver) end(clean bool) error {
	d.life.Lock()
	err := d.stop(clean)
	d.life.Unlock()
	d.restarts.Wait()
	return err
}

// stop ends all instances. The caller holds life.
func (d *Driver) stop(clean bool) error {
	list := d.others
	if d.main != nil {
		list = append(list, d.main)
	}
	d.main, d.others = nil, nil
	errs := make([]error, 0, len(list))
	for _, i := range list {
		errs = append(errs, i.end(clean))
	}
	return errors.Join(errs...)
}

// Restart kills the driver, makes it forget what is not in its folder, and
// starts it on the same sockets. Scripts, the call log and what tests have set
// stay.
func (d *Driver) Restart(ctx context.Context) error { return d.Move(ctx, d.Sockets()) }

// Move is Restart on other sockets. The old ones are removed, as they are by a
// driver whose folder has moved.
func (d *Driver) Move(ctx context.Context, to Sockets) error {
	d.life.Lock()
	defer d.life.Unlock()
	to.Endpoint = or(to.Endpoint, d.sockets.Endpoint)
	if err := d.stop(to != d.sockets); err != nil {
		return err
	}
	d.sockets = to
	return d.start(ctx)
}

// ServeAlso serves on further sockets, as the next instance of a driver does
// during an upgrade. Both instances have one table. The function ends the
// second one as Stop does; Stop, Kill, Restart and Move end it too.
func (d *Driver) ServeAlso(ctx context.Context, at Sockets) (stop func() error, err error) {
	d.life.Lock()
	defer d.life.Unlock()
	if d.main == nil {
		return nil, errors.New("csitest: the driver does not run")
	}
	i, err := d.serve(ctx, at)
	if err != nil {
		return nil, err
	}
	d.others = append(d.others, i)
	return func() error {
		d.life.Lock()
		defer d.life.Unlock()
		n := slices.Index(d.others, i)
		if n < 0 {
			return nil
		}
		d.others = slices.Delete(d.others, n, n+1)
		return i.end(true)
	}, nil
}

// restartLater restarts the driver for a call of the instance, which must not
// wait for it.
func (d *Driver) restartLater(i *instance) {
	d.restarts.Go(func() {
		d.life.Lock()
		defer d.life.Unlock()
		if d.main != i && !slices.Contains(d.others, i) {
			return // ended already
		}
		_ = d.stop(false)
		// Not the call's context: that ends with its connection. If the sockets
		// cannot be had again, the driver is down, which is what its callers see.
		_ = d.start(context.WithoutCancel(i.ctx))
	})
}

// SetCapabilities changes what the driver says it can and does, as an upgrade
// does. The Controller service is there or not from the next start on.
func (d *Driver) SetCapabilities(c Capabilities) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.capabilities = c.Clone()
}

// SetNodeInfo changes the answer of NodeGetInfo.
func (d *Driver) SetNodeInfo(n NodeInfo) {
	n.Topology = maps.Clone(n.Topology)
	n.defaults()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.node = n
}

// SetReady changes the answer of Probe.
func (d *Driver) SetReady(ready bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notReady = !ready
}

// SetUsage makes NodeGetVolumeStats answer this usage for a volume. Without
// any, the real one is answered again.
func (d *Driver) SetUsage(volumeID string, usage ...*csi.VolumeUsage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.usage[volumeID] = usage
}

// SetVolumeHealth makes the health calls answer these conditions for a volume;
// without any it is healthy.
func (d *Driver) SetVolumeHealth(volumeID string, entries ...*csi.VolumeHealth_VolumeHealthEntry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.health[volumeID] = entries
}

// SetStorageHealth sets what is wrong with the storage; without any it is well.
func (d *Driver) SetStorageHealth(entries ...*csi.NodeGetStorageHealthResponse_StorageBackendHealth) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.storage = entries
}

// Registrations returns what the driver was told about its registration.
func (d *Driver) Registrations() []Registration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.registrations)
}

// WaitRegistration waits until the driver was told about its registration more
// than n times, and returns the last one.
func (d *Driver) WaitRegistration(ctx context.Context, n int) (Registration, error) {
	for {
		d.mu.Lock()
		list, changed := d.registrations, d.registered
		d.mu.Unlock()
		if len(list) > n {
			return list[len(list)-1], nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Registration{}, ctx.Err()
		}
	}
}

func (d *Driver) note(r Registration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.registrations = append(d.registrations, r)
	close(d.registered)
	d.registered = make(chan struct{})
}

// registrar is the registration service of an instance.
type registrar struct {
	registration.UnimplementedRegistrationServer
	driver  *Driver
	sockets Sockets
}

// GetInfo implements the registration service.
func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: r.driver.config.Name,
		Endpoint:          or(r.sockets.Announce, r.sockets.Endpoint),
		SupportedVersions: slices.Clone(r.driver.config.RegistrationVersions),
	}, nil
}

// NotifyRegistrationStatus implements the registration service.
func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	r.driver.note(Registration{Registered: s.GetPluginRegistered(), Error: s.GetError(), Socket: r.sockets.Registration})
	return &registration.RegistrationStatusResponse{}, nil
}
