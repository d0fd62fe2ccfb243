package csi

import (
	"context"
	"sync"

	"github.com/volumekit/volumekit/plugins"
)

// watchLimits keeps what is known of the node's limits as fresh as the drivers'
// CSIDriver objects ask for (KEP-4876). It follows drivers that come and objects
// that change.
func (p *Plugin) watchLimits(ctx context.Context) error {
	due := newNameSet()
	defer p.config.Drivers.Subscribe(func(ref plugins.Ref) { due.add(ref.Name) })()
	if source, ok := p.host.CSIDrivers.(plugins.Notifier); ok {
		defer source.Subscribe(func(ref plugins.Ref) {
			if ref.Kind == plugins.KindCSIDriver {
				due.add(ref.Name)
			}
		})()
	}
	due.add("")
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-due.signal:
		}
		names := due.take()
		for _, driver := range p.config.Drivers.Status() { // objects without a driver are nothing to us
			name := driver.Name
			if !names[""] && !names[name] {
				continue
			}
			info, err := driverInfo(ctx, p.host, name)
			if err != nil {
				p.host.Log.V(1).Info("a driver's update period is not known", "driver", name, "reason", err.Error())
				continue
			}
			p.config.Drivers.setUpdatePeriod(name, info.AllocatableUpdatePeriod)
		}
	}
}

// nameSet collects names for a loop.
type nameSet struct {
	signal chan struct{} // says that there are some

	mu    sync.Mutex
	names map[string]bool
}

func newNameSet() *nameSet {
	return &nameSet{signal: make(chan struct{}, 1), names: map[string]bool{}}
}

func (s *nameSet) add(name string) {
	s.mu.Lock()
	s.names[name] = true
	s.mu.Unlock()
	select {
	case s.signal <- struct{}{}:
	default: // it has been said already
	}
}

func (s *nameSet) take() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := s.names
	s.names = map[string]bool{}
	return names
}
