package csi

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/volumekit/volumekit/plugins"
)

// Defaults of [Health].
const (
	DefaultHealthTimeout  = 10 * time.Second
	DefaultHealthParallel = 4
	DefaultHealthJitter   = 1.0
)

// Health says how the health of volumes and storage is asked for.
type Health struct {
	// Period is how often. Zero means never.
	Period time.Duration
	// Jitter is the part of the period by which each pause is made longer, at
	// random and at most. Zero means DefaultHealthJitter, which is the
	// kubelet's; a negative number means none.
	Jitter float64
	// Timeout bounds one call. Zero means DefaultHealthTimeout.
	Timeout time.Duration
	// Parallel bounds the calls to one driver at the same time. Zero means
	// DefaultHealthParallel.
	Parallel int
	// Sink is told what changes. Optional: the pod gets events in any case.
	Sink HealthSink
}

// HealthSink is told of the health of volumes and storage: of each when a driver
// has answered for the first time, which corrects what an earlier process left
// behind, and then only when it has changed. Nothing is told of a volume whose
// pod goes.
//
// Its methods may be called side by side, for one volume or driver one after
// another. They may block until ctx ends, which is when the plugin does; as long
// as one does, it counts as a call to the driver. Other drivers do not wait.
type HealthSink interface {
	// VolumeHealth tells the faults of a pod's volume; none means healthy.
	VolumeHealth(ctx context.Context, volume plugins.PodVolume, pod plugins.PodRef, faults []plugins.Fault)
	// StorageHealth tells the faults of a driver's storage as seen from this
	// node; none means healthy.
	StorageHealth(ctx context.Context, driver string, faults []plugins.Fault)
}

func (h Health) timeout() time.Duration {
	if h.Timeout <= 0 {
		return DefaultHealthTimeout
	}
	return h.Timeout
}

func (h Health) parallel() int {
	if h.Parallel <= 0 {
		return DefaultHealthParallel
	}
	return h.Parallel
}

// pause is the time to the next round.
func (h Health) pause() time.Duration {
	jitter := h.Jitter
	if jitter == 0 {
		jitter = DefaultHealthJitter
	}
	return h.Period + time.Duration(max(0, jitter)*rand.Float64()*float64(h.Period)) //nolint:gosec // spreads load
}

// Health implements [plugins.HealthChecker]: it returns what the last answer
// said, and nothing as long as there is none. [Plugin.CheckHealth] asks.
func (p *Plugin) Health(_ context.Context, target plugins.Target) ([]plugins.Fault, error) {
	return p.health.volume(target.Volume), nil
}

// CheckHealth asks the driver for the health of a pod's volume now. What the
// periodic rounds know and tell stays as it is. The error is of class
// unsupported if the driver does not tell.
func (p *Plugin) CheckHealth(ctx context.Context, target plugins.Target) ([]plugins.Fault, error) {
	at, err := p.whereabouts(ctx, target)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.config.Health.timeout())
	defer cancel()
	d, err := p.drivers.driver(ctx, at.driver)
	if err != nil {
		return nil, err
	}
	return p.askVolumeHealth(ctx, d, at, target)
}

// watchHealth asks for the health of everything published, round after round,
// until ctx ends. Each driver has rounds of its own: one that does not answer
// delays no other, and is asked again when its last round has ended.
func (p *Plugin) watchHealth(ctx context.Context) error {
	if p.config.Health.Period <= 0 {
		<-ctx.Done()
		return nil
	}
	var rounds sync.WaitGroup
	defer rounds.Wait()
	busy := &busyDrivers{names: map[string]struct{}{}}
	for {
		timer := p.host.Time().NewTimer(p.config.Health.pause())
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		for name, volumes := range p.publishedByDriver() {
			if !busy.begin(name) {
				continue
			}
			rounds.Go(func() {
				defer busy.end(name)
				p.healthRound(ctx, name, volumes)
			})
		}
	}
}

// busyDrivers are those whose round has not ended.
type busyDrivers struct {
	mu    sync.Mutex
	names map[string]struct{}
}

func (b *busyDrivers) begin(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, busy := b.names[name]; busy {
		return false
	}
	b.names[name] = struct{}{}
	return true
}

func (b *busyDrivers) end(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.names, name)
}

// publishedByDriver lists what is published, and drivers of which nothing is.
// What is known of volumes that are not published any more is forgotten.
func (p *Plugin) publishedByDriver() map[string][]plugins.PodVolume {
	all := map[string][]plugins.PodVolume{}
	if list, ok := p.drivers.(interface{ Status() []DriverStatus }); ok {
		for _, d := range list.Status() {
			all[d.Name] = nil
		}
	}
	p.mu.Lock()
	for v, at := range p.live {
		all[at.driver] = append(all[at.driver], v)
	}
	p.mu.Unlock()
	p.health.keep(all)
	return all
}

// healthRound asks one driver for everything once. What is not answered stays
// as it was known.
func (p *Plugin) healthRound(ctx context.Context, name string, volumes []plugins.PodVolume) {
	slots := make(chan struct{}, p.config.Health.parallel())
	var calls sync.WaitGroup
	defer calls.Wait()
	run := func(check func() error) bool {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return false
		}
		calls.Go(func() {
			defer func() { <-slots }()
			if err := check(); err != nil && ctx.Err() == nil {
				p.host.Log.V(2).Info("Health stays as it was known", "driver", name, "reason", err.Error())
			}
		})
		return true
	}
	if !run(func() error { return p.checkStorage(ctx, name) }) {
		return
	}
	for _, v := range volumes {
		if !run(func() error { return p.checkVolume(ctx, name, v) }) {
			return
		}
	}
}

func (p *Plugin) checkStorage(ctx context.Context, name string) error {
	d, err := p.drivers.driver(ctx, name)
	if err != nil {
		return err
	}
	if !d.nodeCan.has(canStorageHealth) {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, p.config.Health.timeout())
	defer cancel()
	faults, err := askStorageHealth(limited, d)
	if err != nil || ctx.Err() != nil {
		return err
	}
	if p.health.setStorage(d.name, faults) && p.config.Health.Sink != nil {
		p.config.Health.Sink.StorageHealth(ctx, d.name, faults)
	}
	return nil
}

// checkVolume finds out about one volume: what the node sees, and what the driver
// says, if it says anything.
func (p *Plugin) checkVolume(ctx context.Context, name string, v plugins.PodVolume) error {
	at, ok := p.recall(v)
	if !ok || p.isLeaving(v) {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, p.config.Health.timeout())
	defer cancel()
	faults := p.lookAt(limited, at)
	d, err := p.drivers.driver(ctx, name)
	tells := err == nil && tellsHealth(d)
	if tells {
		var told []plugins.Fault
		told, err = p.askVolumeHealth(limited, d, at, p.host.Layout.Target(v, at.pod))
		faults = append(faults, told...)
	}
	if nothing := len(faults) == 0; ctx.Err() != nil || nothing && (err != nil || !tells && len(p.health.volume(v)) == 0) {
		return err
	}
	if _, still := p.recall(v); !still || p.isLeaving(v) {
		return nil // the pod went while the driver was asked
	}
	before, news := p.health.setVolume(v, faults)
	if !news {
		return nil
	}
	p.tellFaults(v, at, before, faults)
	if p.config.Health.Sink != nil {
		p.config.Health.Sink.VolumeHealth(ctx, v, at.pod, faults)
	}
	return nil
}
