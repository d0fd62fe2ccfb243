package volumemanager

// Remembered counts what a manager keeps about waits, steps and resolutions.
func Remembered(m *Manager) int {
	m.watchers.mu.Lock()
	defer m.watchers.mu.Unlock()
	m.log.mu.Lock()
	defer m.log.mu.Unlock()
	m.unresolved.mu.Lock()
	defer m.unresolved.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.watchers.pods) + len(m.log.volumes) + len(m.log.pods) + m.log.running + len(m.unresolved.pods) + len(m.invalid)
}
