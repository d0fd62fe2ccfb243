package csi

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/projection"
)

// Points at which the host's Faults are called.
const (
	// FaultPrepared is behind the folders and files for a stage or publish,
	// before the driver is called.
	FaultPrepared = "csi.prepared"
	// FaultCalled is behind a call that made or undid something.
	FaultCalled = "csi.called"
	// FaultCleared is between the removal of the file about a volume and that of
	// its folder.
	FaultCleared = "csi.cleared"
)

// DefaultRepublishPeriod is how often a volume is published again whose driver
// requires that: about as often as the kubelet does it.
const DefaultRepublishPeriod = time.Minute

// Config is what a [Plugin] needs. Host and Drivers are required.
type Config struct {
	// Host supplies objects and the mounter: the one that the manager has.
	Host *plugins.VolumeHost
	// Drivers is where drivers are found. The plugin runs it.
	Drivers *Drivers
	// Attacher attaches volumes whose driver requires that. Nil waits for a
	// control plane to do it, see [WaitAttach].
	Attacher Attacher
	// Parallel names the drivers that bear several publishes of one volume at
	// the same time: the same function as in [DriversConfig]. Nil means none.
	Parallel func(driver string) bool
	// RepublishPeriod is how often volumes of drivers that require it are
	// published again. Zero means DefaultRepublishPeriod.
	RepublishPeriod time.Duration
	// Background is further work that runs as long as the plugin does, such as
	// the plugin watcher of package csi/registration.
	Background []plugins.Runner
	// Expansion says who enlarges storage, and is told of it. Optional.
	Expansion Expansion
	// Health says how volumes' health is asked for. Optional.
	Health Health
}

// Plugin is the volume plugin for csi sources. It is safe for concurrent use.
type Plugin struct {
	host     *plugins.VolumeHost
	config   Config
	drivers  directory
	attacher Attacher
	tokens   tokens

	mu sync.Mutex
	// live are the volumes that are published, as far as this process has
	// published them.
	live map[plugins.PodVolume]published
	// tried are volumes of which a publish of this process failed.
	tried map[plugins.PodVolume]bool
	// restaged are volumes that were staged again because a driver denied that
	// they were staged, with the driver's generation then.
	restaged map[string]uint64

	// leaving are volumes that are being unpublished: nothing is asked about them
	// at the place that they leave.
	leaving map[plugins.PodVolume]struct{}
	// refused are volumes that their driver cannot expand while they are in
	// use, with its answer.
	refused map[string]error
	health  healthBook
}

// published is what later calls about a published volume need.
type published struct {
	source
	target  string // what was published
	staging string // empty where nothing was staged
	block   bool
	mounted bool // as far as that was seen when it was published
	pod     plugins.PodRef
	spec    *plugins.Spec
	growth  growth
}

var (
	_ plugins.VolumePlugin  = (*Plugin)(nil)
	_ plugins.Referrer      = (*Plugin)(nil)
	_ plugins.Refresher     = (*Plugin)(nil)
	_ plugins.Attacher      = (*Plugin)(nil)
	_ plugins.DeviceMounter = (*Plugin)(nil)
	_ plugins.BlockMapper   = (*Plugin)(nil)
	_ plugins.Expander      = (*Plugin)(nil)
	_ plugins.Reconstructor = (*Plugin)(nil)
	_ plugins.DeviceFinder  = (*Plugin)(nil)
	_ plugins.StatsReader   = (*Plugin)(nil)
	_ plugins.HealthChecker = (*Plugin)(nil)
	_ plugins.Notifier      = (*Plugin)(nil)
	_ plugins.Runner        = (*Plugin)(nil)
)

// New returns a plugin. It does nothing before it is run, which a manager that
// has it in its registry does.
func New(c Config) (*Plugin, error) {
	switch {
	case c.Host == nil:
		return nil, errors.New("field Config.Host is not set: the plugin reads objects and mounts through it")
	case c.Drivers == nil:
		return nil, errors.New("field Config.Drivers is not set: it says where drivers are, see NewDrivers")
	case c.Drivers.owned.Swap(true):
		return nil, errors.New("field Config.Drivers has a plugin already, which runs it: each plugin needs its own")
	}
	p := &Plugin{
		host: c.Host, config: c, drivers: c.Drivers, attacher: c.Attacher,
		tokens: tokens{projection.NewTokenCache(c.Host)},
		live:   map[plugins.PodVolume]published{}, tried: map[plugins.PodVolume]bool{}, leaving: map[plugins.PodVolume]struct{}{}, restaged: map[string]uint64{},
	}
	if p.attacher == nil {
		p.attacher = WaitAttach(c.Host, WaitOptions{})
	}
	if p.config.RepublishPeriod <= 0 {
		p.config.RepublishPeriod = DefaultRepublishPeriod
	}
	return p, nil
}

// Name implements [plugins.VolumePlugin].
func (p *Plugin) Name() string { return Name }

// Supports implements [plugins.VolumePlugin].
func (p *Plugin) Supports(spec *plugins.Spec) bool {
	if spec.PV != nil {
		return spec.PV.Spec.CSI != nil
	}
	return spec.Volume != nil && spec.Volume.CSI != nil
}

// Keys of [plugins.Undo].
const (
	undoDriver    = "driver"
	undoHandle    = "handle"
	undoBlock     = "block"
	undoEphemeral = "ephemeral"
	// undoContext is the publish context as JSON.
	undoContext = "publishContext"
	// undoStaged is "false" for a volume whose driver has no staging.
	undoStaged = "staged"
	// undoAlso are further places at which the volume was found staged, as a JSON
	// list.
	undoAlso = "alsoStaged"
	// undoAttach begins the keys of an [Attacher].
	undoAttach = "attach."
)

// maxHandle bounds handles: the spec says 128 bytes, and drivers of clouds that
// name disks by URL have longer ones.
const maxHandle = 2048

// Identify implements [plugins.VolumePlugin].
func (p *Plugin) Identify(spec *plugins.Spec) (plugins.Identity, error) {
	s, err := sourceOf(spec, "")
	if err != nil {
		return plugins.Identity{}, err
	}
	if err := CheckDriverName(s.driver); err != nil {
		return plugins.Identity{}, err
	}
	if _, err := volumeAttributes(spec); err != nil {
		return plugins.Identity{}, err
	}
	id := plugins.Identity{
		Lane: s.driver, Durable: true, Parallel: p.parallel(s.driver),
		Undo: plugins.Undo{undoDriver: s.driver},
	}
	if s.ephemeral {
		id.Undo[undoEphemeral] = "true"
		return id, nil
	}
	if err := checkHandle(s.handle); err != nil {
		return plugins.Identity{}, err
	}
	if isBlock(spec) && reserved(spec.Name()) {
		return plugins.Identity{}, plugins.Permanentf("a block volume cannot belong to a persistent volume called %q: its folder would be one that all block volumes have", spec.Name())
	}
	id.Undo[undoHandle] = s.handle
	secret, err := attachSecretOf(spec.PV)
	if err != nil {
		return plugins.Identity{}, err
	}
	if secret != "" { // so that a detach knows it whatever became of the attach
		id.Undo[undoAttach+undoSecret] = secret
	}
	id.Undo[undoBlock] = strconv.FormatBool(isBlock(spec))
	id.Storage = storageName(s.driver, s.handle)
	id.Attach, id.Device, id.MountOptions, id.SELinuxContext = p.attaches(), true, true, true
	id.Size = p.config.Expansion.wished(spec)
	return id, nil
}

// attaches reports whether volumes may have to be attached at all.
func (p *Plugin) attaches() bool {
	_, none := p.attacher.(noAttach)
	return !none
}

// storageName is the volume's name within the plugin, as in the kubelet.
func storageName(driver, handle string) string { return driver + "^" + handle }

func checkHandle(handle string) error {
	if handle == "" || len(handle) > maxHandle || !printable(handle) {
		return plugins.Permanentf("%q is no volume handle: text of 1 to %d bytes without control characters", shorten(handle, 128), maxHandle)
	}
	return nil
}

func (p *Plugin) parallel(driver string) bool {
	return p.config.Parallel != nil && p.config.Parallel(driver)
}

// References implements [plugins.Referrer]: a driver that comes, and what is
// said of it, may change how its volumes are to be published.
func (p *Plugin) References(spec *plugins.Spec, _ *v1.Pod) []plugins.Ref {
	s, err := sourceOf(spec, "")
	if err != nil {
		return nil
	}
	return []plugins.Ref{{Kind: plugins.KindCSIDriver, Name: s.driver}, socketRef(s.driver)}
}

// Subscribe implements [plugins.Notifier]: it tells of drivers that come and go.
func (p *Plugin) Subscribe(notify func(plugins.Ref)) (cancel func()) {
	return p.config.Drivers.Subscribe(notify)
}

// Run implements [plugins.Runner].
func (p *Plugin) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	var errs []error
	var mu sync.Mutex
	run := func(r plugins.Runner) {
		all.Go(func() {
			err := r.Run(ctx)
			mu.Lock()
			defer mu.Unlock()
			if ctx.Err() == nil { // one part cannot do without another
				errs = append(errs, err)
				cancel(err)
			}
		})
	}
	run(p.config.Drivers)
	run(runner(p.watchHealth))
	run(runner(p.watchLimits))
	for _, r := range p.config.Background {
		run(r)
	}
	all.Wait()
	return errors.Join(errs...)
}

// runner makes a [plugins.Runner] of a function.
type runner func(ctx context.Context) error

func (r runner) Run(ctx context.Context) error { return r(ctx) }

// places are looked up when they are needed: the manager resolves the root when
// it starts.
func (p *Plugin) places() places { return places{p.host.Layout} }

func (p *Plugin) remember(v plugins.PodVolume, what published) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live[v] = what
	delete(p.tried, v)
	delete(p.leaving, v)
	delete(p.tried, v)
	delete(p.refused, storageName(what.driver, what.handle))
}

func (p *Plugin) recall(v plugins.PodVolume) (published, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	what, ok := p.live[v]
	return what, ok
}

func (p *Plugin) drop(v plugins.PodVolume) {
	p.tokens.cache.Forget(v)
	p.mu.Lock()
	defer p.mu.Unlock()
	gone := p.live[v].source
	delete(p.live, v)
	delete(p.leaving, v)
	p.forgetRefusal(gone)
}
