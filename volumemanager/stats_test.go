package volumemanager_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/volumekit/volumekit/plugins"
)

// meter is a kind of volume that is measured and has faults.
type meter struct {
	*disk
	measure func(ctx context.Context, storage string) (plugins.Stats, error)
	faults  func() ([]plugins.Fault, error)
	calls   atomic.Int32
}

func (m *meter) Stats(ctx context.Context, target plugins.Target) (plugins.Stats, error) {
	m.calls.Add(1)
	return m.measure(ctx, target.Volume.Name)
}

func (m *meter) Health(context.Context, plugins.Target) ([]plugins.Fault, error) { return m.faults() }

// onMeter runs a test on a node with a pod that has the disks "one" and "two",
// and "again" which is one too.
func onMeter(t *testing.T, test func(n *node, m *meter)) {
	t.Helper()
	onNode(t, func(n *node) {
		m := &meter{disk: n.disk, faults: func() ([]plugins.Fault, error) { return nil, nil }}
		registry, err := plugins.NewRegistry(m)
		n.must(err)
		n.config.Plugins = registry
		n.start()
		n.pods.MarkSynced()
		n.apply(boundDisk("one")...)
		n.apply(boundDisk("two")...)
		n.up(pod("p", claimVolume("one", "one", false), claimVolume("again", "one", false), claimVolume("two", "two", false)))
		test(n, m)
	})
}

func figure(n int64) plugins.Stats { return plugins.Stats{CapacityBytes: &n} }

func TestStatsOfAPod(t *testing.T) {
	onMeter(t, func(n *node, m *meter) {
		broken := errors.New("broken")
		m.measure = func(_ context.Context, name string) (plugins.Stats, error) {
			if name == "pv-two" {
				return plugins.Stats{}, plugins.Transient(broken)
			}
			return figure(10), nil
		}
		list, err := n.Stats(n.Context(), "uid-p")
		n.must(err)
		if len(list) != 3 || list[0].Name != "again" || list[1].Name != "one" || list[2].Name != "two" {
			n.Fatalf("%+v", list)
		}
		if *list[0].CapacityBytes != 10 || *list[1].CapacityBytes != 10 || list[1].Err != nil || list[1].Age != 0 || list[1].Volume.Name != "pv-one" {
			n.Errorf("one: %+v", list[1])
		}
		if list[2].CapacityBytes != nil || !errors.Is(list[2].Err, broken) || list[2].Message == "" {
			n.Errorf("two: %+v", list[2])
		}
		if m.calls.Load() != 2 {
			n.Errorf("%d calls for two volumes", m.calls.Load())
		}
		if _, err := n.Stats(n.Context(), "nobody"); plugins.ClassOf(err) != plugins.ClassPermanent {
			n.Errorf("unknown pod: %v", err)
		}
		m.measure = func(context.Context, string) (plugins.Stats, error) { panic("canary") }
		list, err = n.Stats(n.Context(), "uid-p")
		n.must(err)
		if list[1].Err == nil || *list[1].CapacityBytes != 10 {
			n.Errorf("panic: %+v", list[1])
		}
	})
}

func TestHungVolumeDelaysNoOthersStats(t *testing.T) {
	onMeter(t, func(n *node, m *meter) {
		m.measure = func(context.Context, string) (plugins.Stats, error) { return figure(10), nil }
		_, err := n.Stats(n.Context(), "uid-p")
		n.must(err)
		release := make(chan struct{})
		m.measure = func(_ context.Context, name string) (plugins.Stats, error) {
			if name == "pv-one" {
				<-release // whatever ctx says
			}
			return figure(20), nil
		}
		m.calls.Store(0)
		for range 3 {
			n.pass(time.Minute)
			ctx, cancel := context.WithTimeout(n.Context(), 5*time.Second)
			began := time.Now()
			list, err := n.Stats(ctx, "uid-p")
			cancel()
			n.must(err)
			if took := time.Since(began); took != 5*time.Second {
				n.Errorf("it took %v", took)
			}
			one, two := list[1], list[2]
			if two.Err != nil || *two.CapacityBytes != 20 || two.Age > 5*time.Second {
				n.Errorf("two: %+v", two)
			}
			if !errors.Is(one.Err, context.DeadlineExceeded) || *one.CapacityBytes != 10 || one.Age < time.Minute {
				n.Errorf("one: %+v", one)
			}
		}
		if got := m.calls.Load(); got != 4 {
			n.Errorf("%d calls: one hangs, three of the other were expected", got)
		}
		close(release)
		synctest.Wait()
		list, err := n.Stats(n.Context(), "uid-p")
		n.must(err)
		if list[1].Err != nil || *list[1].CapacityBytes != 20 {
			n.Errorf("at last: %+v", list[1])
		}
	})
}

func TestStatsOfKindsThatDoNotMeasure(t *testing.T) {
	onRunning(t, func(n *node) {
		p := pod("p", diskVolume("disk", "d"))
		n.up(p)
		list, err := n.Stats(n.Context(), p.UID)
		n.must(err)
		if len(list) != 1 || plugins.ClassOf(list[0].Err) != plugins.ClassUnsupported || !list[0].Time.IsZero() {
			n.Errorf("%+v", list)
		}
		none := pod("none")
		n.set(none)
		if list, err := n.Stats(n.Context(), none.UID); err != nil || len(list) != 0 {
			n.Errorf("a pod without volumes: %+v, %v", list, err)
		}
	})
}

func TestFaultsInTheStatus(t *testing.T) {
	onMeter(t, func(n *node, m *meter) {
		p := pod("p", claimVolume("one", "one", false))
		faults := func() []plugins.Fault {
			s, _ := n.Status(p)
			var list []plugins.Fault
			for _, v := range s.Volumes {
				list = append(list, v.Faults...)
			}
			return list
		}
		if got := faults(); len(got) != 0 {
			n.Errorf("healthy: %+v", got)
		}
		m.faults = func() ([]plugins.Fault, error) { return []plugins.Fault{{Status: "Degraded"}}, nil }
		if got := faults(); len(got) != 3 || got[0].Status != "Degraded" {
			n.Errorf("degraded: %+v", got)
		}
		for _, bad := range []func() ([]plugins.Fault, error){
			func() ([]plugins.Fault, error) { return nil, errors.New("unknown") }, func() ([]plugins.Fault, error) { panic("canary") },
		} {
			m.faults = bad
			if got := faults(); len(got) != 0 {
				n.Errorf("unknown: %+v", got)
			}
		}
	})
}
