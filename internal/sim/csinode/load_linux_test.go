package csinode_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/csi"
	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/volumemanager"
)

// crowd stores n volumes and returns a pod for each.
func (r *rig) crowd(n int) []*v1.Pod {
	r.Helper()
	pods := make([]*v1.Pod, n)
	for i := range pods {
		name := fmt.Sprintf("v%04d", i)
		r.volume(name)
		pods[i] = podOf("pod-"+name, name)
	}
	return pods
}

// A driver that is restarted again and again while pods come: each of them gets
// its volume.
func TestDriverRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	restarts, mounts := 10, 100
	if long {
		restarts, mounts = 100, 1000
	}
	r := newRig(t, settings{driver: func(c *csitest.Config) { staged(c); c.Mode = csitest.ModePlain; c.AbortBusy = false }, unwatched: true})
	pods := r.crowd(mounts)
	var all sync.WaitGroup
	all.Go(func() {
		for range restarts {
			before := len(r.driver.Calls())
			if err := r.driver.Restart(r.ctx); err != nil {
				t.Error(err)
				return
			}
			ctx, cancel := context.WithTimeout(r.ctx, time.Second)
			_, _ = r.driver.WaitCall(ctx, func(c csitest.Call) bool { return c.Seq > before+mounts/restarts })
			cancel()
		}
	})
	for _, pod := range pods {
		r.add(pod)
	}
	r.ready(pods...)
	all.Wait()
	r.down(pods...)
	r.released()
}

// Connections, descriptors and goroutines do not grow with what has come and
// gone.
func TestNothingGrowsWithCycles(t *testing.T) {
	cycles := 100
	if long {
		cycles = 1000
	}
	r := newRig(t, settings{driver: func(c *csitest.Config) { staged(c); c.Mode = csitest.ModePlain; c.KeepCalls = 100 }})
	r.volume("data")
	pod := podOf("one", "data")
	cycle := func() {
		r.up(pod)
		r.down(pod)
		r.released()
	}
	for range 5 {
		cycle()
	}
	count := func() (fds, goroutines int) {
		entries, err := os.ReadDir("/proc/self/fd")
		r.must(err)
		return len(entries), runtime.NumGoroutine()
	}
	fds, goroutines := count()
	for range cycles {
		cycle()
	}
	r.until("descriptors and goroutines are as few as before", func() bool {
		f, g := count()
		return f <= fds+2 && g <= goroutines+5
	})
}

// Volumes of a slow driver come at the pace that its limit allows.
func BenchmarkSlowDriver(b *testing.B) {
	const volumes, limit, delay = 500, 16, 20 * time.Millisecond
	floor := time.Duration(2*volumes/limit) * delay
	for range b.N {
		b.StopTimer()
		testing.Init()
		var took time.Duration
		ok := testing.RunTests(func(_, _ string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: b.Name(), F: func(t *testing.T) {
			r := newRig(t, settings{
				driver: func(c *csitest.Config) { staged(c); c.Mode = csitest.ModePlain },
				manager: func(c *volumemanager.Config) {
					c.Steps = reconciler.Options{PerPlugin: map[string]int{csi.Name: limit}}
				},
				unwatched: true,
			})
			r.driver.Script("NodeStageVolume", csitest.Fault{DelayBefore: delay})
			r.driver.Script("NodePublishVolume", csitest.Fault{DelayBefore: delay})
			pods := r.crowd(volumes)
			began := time.Now()
			r.up(pods...)
			took = time.Since(began)
			r.down(pods...)
		}}})
		if !ok {
			b.Fatal("it failed")
		}
		b.ReportMetric(took.Seconds()/floor.Seconds(), "x-of-RPC-time")
	}
}

var long = os.Getenv("VOLUMEKIT_LONG") != ""
