package volumemanager

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/plugins"
)

// VolumeStats are the figures of one volume of a pod.
type VolumeStats struct {
	// Name is the name in the pod's spec. A volume under two names appears
	// twice.
	Name string `json:"name"`
	// Volume and ID name it.
	Volume plugins.PodVolume `json:"volume"`
	ID     plugins.VolumeID  `json:"id"`
	// Stats are the newest figures that are known; all nil and Time zero if
	// there are none.
	plugins.Stats
	// Age is how old they are.
	Age time.Duration `json:"age,omitempty"`
	// Err says why there are no new ones, Message is its text. Its class is
	// ClassUnsupported if the kind of volume, or its driver, does not measure.
	Err     error  `json:"-"`
	Message string `json:"message,omitempty"`
}

// Stats measures the volumes of a pod that are or may be on the node, side by
// side, and returns them sorted by name. It returns when all have answered or
// ctx has ended: a volume that has not answered by then has the figures of the
// last time, with their age and an error. A volume is measured by one call at a
// time; a plugin that does not return when ctx ends keeps its volume's turn until
// it does.
//
// The error is that the manager knows nothing of the pod. What went wrong with
// a volume is in its entry.
func (m *Manager) Stats(ctx context.Context, uid types.UID) ([]VolumeStats, error) {
	entries := m.actual.Pod(uid)
	if len(entries) == 0 {
		if _, known := m.desired.Pod(uid); !known {
			return nil, plugins.Permanentf("nothing is known of a pod with UID %q", uid)
		}
		return []VolumeStats{}, nil
	}
	m.measured.prune(m.actual.HasPod)
	answers := make([]chan error, len(entries))
	for i, entry := range entries {
		answers[i] = make(chan error, 1)
		go func() { answers[i] <- m.measure(ctx, entry) }()
	}
	var list []VolumeStats
	for i, entry := range entries {
		var err error
		select {
		case err = <-answers[i]:
		case <-ctx.Done():
			select {
			case err = <-answers[i]: // both are ready: the answer counts
			default:
				err = plugins.Transient(fmt.Errorf("the volume is not measured in time: %w", context.Cause(ctx)))
			}
		}
		list = append(list, m.statsOf(entry, err)...)
	}
	slices.SortStableFunc(list, func(a, b VolumeStats) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// statsOf tells what is known of a volume, under each of its names.
func (m *Manager) statsOf(entry asw.PodVolume, err error) []VolumeStats {
	s := VolumeStats{Volume: entry.Volume, ID: entry.ID, Err: err}
	if err != nil {
		s.Message = err.Error()
	}
	var known bool
	if s.Stats, known = m.measured.get(place{entry.Volume, entry.ID}); known {
		s.Age = max(0, m.host.Time().Now().Sub(s.Time))
	}
	names := entry.Names
	for _, w := range m.desired.Wish(entry.ID, []plugins.PodVolume{entry.Volume}).Pods {
		if w.Volume == entry.Volume && len(w.Names) > 0 {
			names = w.Names // a name may have been resolved after the volume was made for another
		}
	}
	if len(names) == 0 {
		names = []string{entry.Volume.Name}
	}
	list := make([]VolumeStats, len(names))
	for i, name := range names {
		list[i], list[i].Name = s, name
	}
	return list
}

// measure asks the volume's plugin, in turn.
func (m *Manager) measure(ctx context.Context, entry asw.PodVolume) (err error) {
	plugin, err := m.config.Plugins.ByName(entry.Volume.Plugin)
	if err != nil {
		return err
	}
	reader, ok := plugin.(plugins.StatsReader)
	if !ok {
		return plugins.Unsupportedf("plugin %s does not measure volumes", plugin.Name())
	}
	at := place{entry.Volume, entry.ID}
	leave, err := m.measured.enter(ctx, at)
	if err != nil {
		return err
	}
	var stats plugins.Stats
	done := false
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("plugin %s: %w", plugin.Name(), errPanicked)
		}
		if done && err == nil {
			leave(&stats)
		} else {
			leave(nil)
		}
	}()
	stats, err = reader.Stats(ctx, m.layout.Load().Target(entry.Volume, entry.Pod))
	if stats.Time.IsZero() {
		stats.Time = m.host.Time().Now()
	}
	done = true
	return err
}

// measured are the figures of the last time. Its zero value is empty.
type measured struct {
	mu   sync.Mutex
	last map[place]*measurement
}

// measurement is what is known of one volume.
type measurement struct {
	turn  chan struct{} // holds a token while nobody measures
	stats *plugins.Stats
}

// enter waits for the turn to measure a volume. leave ends it, with the new
// figures if there are any.
func (d *measured) enter(ctx context.Context, at place) (leave func(*plugins.Stats), err error) {
	d.mu.Lock()
	if d.last == nil {
		d.last = map[place]*measurement{}
	}
	one := d.last[at]
	if one == nil {
		one = &measurement{turn: make(chan struct{}, 1)}
		one.turn <- struct{}{}
		d.last[at] = one
	}
	d.mu.Unlock()
	select {
	case <-one.turn:
	case <-ctx.Done():
		return nil, plugins.Transient(fmt.Errorf("the volume is still being measured for somebody else: %w", context.Cause(ctx)))
	}
	return func(stats *plugins.Stats) {
		d.mu.Lock()
		if stats != nil {
			one.stats = stats
		}
		d.mu.Unlock()
		one.turn <- struct{}{}
	}, nil
}

func (d *measured) get(at place) (plugins.Stats, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if one := d.last[at]; one != nil && one.stats != nil {
		return *one.stats, true
	}
	return plugins.Stats{}, false
}

// prune forgets volumes of pods that are gone.
func (d *measured) prune(there func(types.UID) bool) {
	d.mu.Lock()
	pods := make([]types.UID, 0, len(d.last))
	for at := range d.last {
		pods = append(pods, at.volume.Pod)
	}
	d.mu.Unlock()
	slices.SortFunc(pods, cmp.Compare[types.UID])
	for _, uid := range slices.Compact(pods) {
		if there(uid) {
			continue
		}
		d.mu.Lock()
		for at, one := range d.last {
			if at.volume.Pod == uid && len(one.turn) == 1 {
				delete(d.last, at)
			}
		}
		d.mu.Unlock()
	}
}
