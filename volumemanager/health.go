package volumemanager

import (
	"context"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/plugins"
)

// faults are those that the volume's plugin knows of; none of one that panics.
func (m *Manager) faults(entry asw.PodVolume) (list []plugins.Fault) {
	defer func() {
		if recover() != nil {
			m.host.Log.Error(errPanicked, "Ask a plugin for a volume's health", "plugin", entry.Volume.Plugin)
			list = nil
		}
	}()
	plugin, err := m.config.Plugins.ByName(entry.Volume.Plugin)
	if err != nil {
		return nil
	}
	checker, ok := plugin.(plugins.HealthChecker)
	if !ok {
		return nil
	}
	list, err = checker.Health(context.Background(), m.layout.Load().Target(entry.Volume, entry.Pod)) //nolint:forbidigo // from memory
	if err != nil {
		return nil
	}
	return list
}
