package volumemanager_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/builtin"
	"github.com/volumekit/volumekit/plugins/memory"
	"github.com/volumekit/volumekit/volumemanager"
)

// Each benchmark measures the manager and, in the same run, the floor: the bare
// system calls that give the same volumes, with the same parallelism and no
// journal. The metric "x-floor" is the ratio; machines are noisy, ratios less
// so. "x-floor-cpu" is the ratio of the processor time of both, which other
// programs disturb least. Figures of several rounds are medians. Run them with
//
//	go test -run '^$' -bench . -benchtime 1x ./volumemanager
//
// As root the root folder is on an XFS image in memory, else on what $TMPDIR is.

// benchRoot returns a folder on the file system for benchmarks, and its type.
func benchRoot(b *testing.B) string {
	b.Helper()
	nstest.Require(b)
	dir := b.TempDir()
	if mkfs, err := exec.LookPath("mkfs.xfs"); err == nil && nstest.RealRoot() {
		image := filepath.Join("/dev/shm", "volumekit-bench-"+strconv.Itoa(os.Getpid())+".xfs")
		b.Cleanup(func() { _ = os.Remove(image) })
		if err := os.WriteFile(image, nil, 0o600); err == nil && os.Truncate(image, 4<<30) == nil &&
			exec.Command(mkfs, "-q", image).Run() == nil && exec.Command("mount", "-o", "loop", image, dir).Run() == nil {
			b.Cleanup(func() { _ = exec.Command("umount", "-l", dir).Run() })
		}
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		b.Fatal(err)
	}
	var s unix.Statfs_t
	_ = unix.Statfs(dir, &s)
	b.Logf("root on file system type %#x", s.Type)
	return dir
}

// benchNode is a manager with in-memory sources.
type benchNode struct {
	b       *testing.B
	pods    *memory.Pods
	store   *memory.Store
	manager *volumemanager.Manager
	stop    func()
}

func newBenchNode(b *testing.B, root string) *benchNode {
	b.Helper()
	n := &benchNode{b: b, store: memory.NewStore(), pods: memory.NewPods()}
	for _, o := range benchObjects() {
		if err := n.store.Apply(o); err != nil {
			b.Fatal(err)
		}
	}
	n.start(root)
	return n
}

func (n *benchNode) start(root string) {
	n.b.Helper()
	host := n.store.Host(plugins.Layout{Root: root}, hostmount.New(hostmount.Options{}))
	registry, err := builtin.Registry(host, builtin.Options{})
	if err != nil {
		n.b.Fatal(err)
	}
	n.manager, err = volumemanager.New(volumemanager.Config{Host: host, Plugins: registry, Pods: n.pods})
	if err != nil {
		n.b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.manager.Run(ctx) }()
	n.stop = func() {
		cancel()
		<-ended
	}
	n.pods.MarkSynced()
	select {
	case <-n.manager.Ready():
	case err := <-ended:
		n.b.Fatal(err)
	}
}

func (n *benchNode) up(pods ...*v1.Pod) {
	for _, pod := range pods {
		n.pods.Set(pod)
	}
	n.wait(pods...)
}

func (n *benchNode) wait(pods ...*v1.Pod) {
	for _, pod := range pods {
		if err := n.manager.WaitForAttachAndMount(n.b.Context(), pod); err != nil {
			n.b.Fatal(err)
		}
	}
}

func (n *benchNode) down(pods ...*v1.Pod) {
	for _, pod := range pods {
		n.pods.Remove(pod.UID)
	}
	for _, pod := range pods {
		if err := n.manager.WaitForUnmount(n.b.Context(), pod); err != nil {
			n.b.Fatal(err)
		}
	}
}

func benchObjects() []runtime.Object {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "bench", Name: name} }
	text := strings.Repeat("x", 400)
	return []runtime.Object{
		&v1.ConfigMap{ObjectMeta: meta("settings"), Data: map[string]string{"a.conf": text, "b.conf": text, "c.conf": text}},
		&v1.ConfigMap{ObjectMeta: meta("kube-root-ca.crt"), Data: map[string]string{"ca.crt": strings.Repeat("x", 900)}},
		&v1.Secret{ObjectMeta: meta("credentials"), Data: map[string][]byte{"user": make([]byte, 32), "password": make([]byte, 32)}},
	}
}

func benchVolumes() map[string]v1.Volume {
	return map[string]v1.Volume{
		"scratch": {Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		"settings": {Name: "settings", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
			LocalObjectReference: v1.LocalObjectReference{Name: "settings"}}}},
		"credentials": {Name: "credentials", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "credentials"}}},
		"api-access": {Name: "api-access", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}},
			{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "kube-root-ca.crt"}}},
			{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{
				Path: "namespace", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
		}}}},
	}
}

var (
	one  = []string{"scratch"}
	four = []string{"settings", "credentials", "api-access", "scratch"}
)

func benchPods(n int, volumes []string) []*v1.Pod {
	all := benchVolumes()
	pods := make([]*v1.Pod, n)
	for i := range pods {
		name := fmt.Sprintf("pod-%05d", i)
		c := v1.Container{Name: "main"}
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: name, UID: types.UID("uid-" + name)}}
		for _, v := range volumes {
			p.Spec.Volumes = append(p.Spec.Volumes, all[v])
			c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: v, MountPath: "/" + v})
		}
		p.Spec.Containers, p.Spec.ServiceAccountName = []v1.Container{c}, "default"
		pods[i] = p
	}
	return pods
}

// The floor: the same volumes by bare system calls.

func floorUp(dir string, volumes []string) error {
	for _, v := range volumes {
		at := filepath.Join(dir, v)
		if err := os.Mkdir(at, 0o777); err != nil {
			return err
		}
		var err error
		switch v {
		case "settings":
			err = publishFiles(at, 400, "a.conf", "b.conf", "c.conf")
		case "credentials":
			if err = unix.Mount("tmpfs", at, "tmpfs", 0, "size=1m"); err == nil {
				err = publishFiles(at, 32, "user", "password")
			}
		case "api-access":
			if err = unix.Mount("tmpfs", at, "tmpfs", 0, "size=1m"); err == nil {
				err = publishFiles(at, 900, "token", "ca.crt", "namespace")
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func floorDown(dir string, volumes []string) error {
	for _, v := range volumes {
		at := filepath.Join(dir, v)
		if v == "credentials" || v == "api-access" {
			if err := unix.Unmount(at, 0); err != nil {
				return err
			}
		}
		if err := os.RemoveAll(at); err != nil {
			return err
		}
	}
	return os.Remove(dir)
}

// publishFiles makes a set of files appear at once, as the manager does.
func publishFiles(dir string, size int, names ...string) error {
	data := filepath.Join(dir, "..data-1")
	if err := os.Mkdir(data, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(data, name), make([]byte, size), 0o644); err != nil {
			return err
		}
	}
	next := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink("..data-1", next); err != nil {
		return err
	}
	if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
		return err
	}
	for _, name := range names {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// floorAll does the floor for many pods with the parallelism of a manager whose
// steps all processors share.
func floorAll(b *testing.B, root string, n int, volumes []string, do func(dir string, volumes []string) error) spent {
	b.Helper()
	began := mark(b)
	var wg sync.WaitGroup
	next := make(chan int)
	for range goruntime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				if err := do(filepath.Join(root, strconv.Itoa(i)), volumes); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return began.since(b)
}

func floorPodUp(dir string, volumes []string) error {
	if err := os.Mkdir(dir, 0o750); err != nil {
		return err
	}
	return floorUp(dir, volumes)
}

func quantile(d []time.Duration, q float64) float64 {
	slices.Sort(d)
	return float64(d[int(q*float64(len(d)-1))].Microseconds()) / 1000
}

// BenchmarkPodLatency: one pod at a time on an idle manager, from the moment
// the source tells it until its volumes are ready, and until they are gone.
func BenchmarkPodLatency(b *testing.B) {
	for name, volumes := range map[string][]string{"emptyDir": one, "four volumes": four} {
		b.Run(name, func(b *testing.B) {
			root := benchRoot(b)
			n := newBenchNode(b, filepath.Join(root, "node"))
			defer n.stop()
			const rounds = 500
			for b.Loop() {
				var up, down, floorUps, floorDowns []time.Duration
				for i, pod := range benchPods(rounds, volumes) {
					began := time.Now()
					n.up(pod)
					up = append(up, time.Since(began))
					began = time.Now()
					n.down(pod)
					down = append(down, time.Since(began))

					dir := filepath.Join(root, strconv.Itoa(i))
					began = time.Now()
					if err := floorPodUp(dir, volumes); err != nil {
						b.Fatal(err)
					}
					floorUps = append(floorUps, time.Since(began))
					began = time.Now()
					if err := floorDown(dir, volumes); err != nil {
						b.Fatal(err)
					}
					floorDowns = append(floorDowns, time.Since(began))
				}
				b.ReportMetric(quantile(up, 0.5), "ms-up-p50")
				b.ReportMetric(quantile(up, 0.99), "ms-up-p99")
				b.ReportMetric(quantile(down, 0.5), "ms-down-p50")
				b.ReportMetric(quantile(down, 0.99), "ms-down-p99")
				b.ReportMetric(quantile(up, 0.5)/quantile(floorUps, 0.5), "x-floor-up")
				b.ReportMetric(quantile(down, 0.5)/quantile(floorDowns, 0.5), "x-floor-down")
			}
		})
	}
}

// BenchmarkBurst: many four-volume pods at once.
func BenchmarkBurst(b *testing.B) {
	for _, count := range []int{100, 1000, 5000} {
		b.Run(strconv.Itoa(count), func(b *testing.B) {
			root := benchRoot(b)
			found := rounds{}
			for b.Loop() {
				floorRoot := filepath.Join(root, "floor")
				if err := os.Mkdir(floorRoot, 0o755); err != nil {
					b.Fatal(err)
				}
				floorUp := floorAll(b, floorRoot, count, four, floorPodUp)
				floorDown := floorAll(b, floorRoot, count, four, floorDown)
				_ = os.Remove(floorRoot)

				n := newBenchNode(b, filepath.Join(root, "node"))
				pods := benchPods(count, four)
				peak := watchPeak()
				began := mark(b)
				n.up(pods...)
				up := began.since(b)
				began = mark(b)
				n.down(pods...)
				down := began.since(b)
				goroutines, heap := peak()
				n.stop()
				found.add("goroutines-peak", float64(goroutines))
				found.add("MB-heap-peak", heap/1e6)
				found.add("s-up", up.wall.Seconds())
				found.add("s-down", down.wall.Seconds())
				found.ratio("up", up, floorUp)
				found.ratio("down", down, floorDown)
			}
			found.report(b)
		})
	}
}

// watchPeak samples goroutines and heap until its result is called, which
// returns the largest numbers.
func watchPeak() func() (goroutines int, heap float64) {
	stop, done := make(chan struct{}), make(chan struct{})
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	var goroutines int
	var heap uint64
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				metrics.Read(sample)
				goroutines, heap = max(goroutines, goruntime.NumGoroutine()), max(heap, sample[0].Value.Uint64())
			case <-stop:
				return
			}
		}
	}()
	return func() (int, float64) {
		close(stop)
		<-done
		return goroutines, float64(heap)
	}
}

// spent is what some work took.
type spent struct{ wall, cpu time.Duration }

// started is when and with how much processor time some work began.
type started struct {
	at  time.Time
	cpu time.Duration
}

func mark(b *testing.B) started {
	b.Helper()
	return started{time.Now(), cpuTime(b)}
}

func (s started) since(b *testing.B) spent {
	b.Helper()
	return spent{time.Since(s.at), cpuTime(b) - s.cpu}
}

// rounds are the figures of each round of a benchmark, by unit.
type rounds map[string][]float64

func (r rounds) add(unit string, value float64) { r[unit] = append(r[unit], value) }

func (r rounds) ratio(what string, ours, floor spent) {
	r.add("x-floor-"+what, ours.wall.Seconds()/floor.wall.Seconds())
	r.add("x-floor-cpu-"+what, ours.cpu.Seconds()/floor.cpu.Seconds())
}

// report reports medians.
func (r rounds) report(b *testing.B) {
	b.Helper()
	for unit, values := range r {
		slices.Sort(values)
		b.ReportMetric(values[len(values)/2], unit)
	}
}

// BenchmarkIdle: nothing changes while four-volume pods are mounted.
func BenchmarkIdle(b *testing.B) {
	for _, count := range []int{0, 1000, 5000} {
		b.Run(strconv.Itoa(count), func(b *testing.B) {
			root := benchRoot(b)
			n := newBenchNode(b, filepath.Join(root, "node"))
			pods := benchPods(count, four)
			n.up(pods...)
			goruntime.GC()
			for b.Loop() {
				const span = 10 * time.Second
				var before, after goruntime.MemStats
				goruntime.ReadMemStats(&before)
				cpu := cpuTime(b)
				<-time.After(span) // idling is what is measured
				cpu = cpuTime(b) - cpu
				goruntime.ReadMemStats(&after)
				b.ReportMetric(100*cpu.Seconds()/span.Seconds(), "%-of-a-core")
				b.ReportMetric(float64(after.Mallocs-before.Mallocs)/span.Seconds(), "allocs/s")
			}
			n.down(pods...)
			n.stop()
		})
	}
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkRestart: a new manager finds the four-volume pods of an earlier one,
// until all are confirmed. The floor is reading the tree once.
func BenchmarkRestart(b *testing.B) {
	for _, count := range []int{100, 1000} {
		b.Run(strconv.Itoa(count), func(b *testing.B) {
			root := filepath.Join(benchRoot(b), "node")
			n := newBenchNode(b, root)
			pods := benchPods(count, four)
			n.up(pods...)
			n.stop()
			found := rounds{}
			for b.Loop() {
				began := mark(b)
				if err := readTree(filepath.Join(root, "pods")); err != nil {
					b.Fatal(err)
				}
				floor := began.since(b)
				began = mark(b)
				n.start(root)
				n.wait(pods...)
				took := began.since(b)
				n.stop()
				found.add("s", took.wall.Seconds())
				found.add("s-floor", floor.wall.Seconds())
				found.ratio("restart", took, floor)
			}
			found.report(b)
			n.start(root)
			n.down(pods...)
			n.stop()
		})
	}
}

// readTree reads every folder and file once, one after another.
func readTree(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			_, err = os.ReadFile(path)
		}
		return err
	})
}
