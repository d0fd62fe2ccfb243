package hostmount

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
)

// floorWalk changes the group of all in a tree, and with stat and the mode of
// each if so asked, by names and in parallel: without a look at links, mounts,
// errors that do not matter, or who moves what meanwhile.
func floorWalk(root string, gid int, modes bool) {
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	var walk func(dir int)
	walk = func(dir int) {
		defer func() { _ = unix.Close(dir) }()
		buf := make([]byte, 32<<10)
		for {
			n, err := unix.ReadDirent(dir, buf)
			check(err)
			if n == 0 {
				return
			}
			for _, e := range parseDirents(buf[:n]) {
				var st unix.Stat_t
				if modes {
					check(unix.Fstatat(dir, e.name, &st, unix.AT_SYMLINK_NOFOLLOW))
				}
				check(unix.Fchownat(dir, e.name, -1, gid, unix.AT_SYMLINK_NOFOLLOW))
				if modes {
					check(unix.Fchmodat(dir, e.name, st.Mode&0o7777|0o660, 0))
				}
				if e.kind != unix.DT_DIR {
					continue
				}
				sub, err := unix.Openat(dir, e.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
				check(err)
				select {
				case slots <- struct{}{}:
					wg.Go(func() {
						walk(sub)
						<-slots
					})
				default:
					walk(sub)
				}
			}
		}
	}
	dir, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(err)
	slots <- struct{}{}
	walk(dir)
	<-slots
	wg.Wait()
	check(unix.Chown(root, -1, gid))
}

// BenchmarkSetGroup re-owns 10^5 files, in turns with the floors: chown alone,
// and what the kubelet does to each (stat, chown, chmod). VOLUMEKIT_BENCH_DIR
// names a folder of another file system than tmpfs.
func BenchmarkSetGroup(b *testing.B) {
	nstest.Require(b)
	for _, shape := range []struct{ folders, files int }{{1000, 100}, {1, 100_000}, {20_000, 4}} {
		b.Run(fmt.Sprintf("%dx%d", shape.folders, shape.files), func(b *testing.B) {
			if !nstest.RealRoot() {
				b.Skip("a user namespace has one group alone")
			}
			root := benchDir(b)
			for i := range shape.folders {
				dir := folder(b, root, fmt.Sprintf("%d/%d", i%40, i))
				for j := range shape.files {
					try(b, os.WriteFile(filepath.Join(dir, fmt.Sprintf("a-file-%d", j)), nil, 0o600))
				}
			}
			m := New(Options{})
			ours := func(gid int) {
				try(b, m.SetGroup(b.Context(), root, mount.Ownership{Group: int64(gid)}))
			}
			gid := 1000
			ours(gid) // from here on modes are right
			var changed, chown, kubelet, unchanged spent
			for b.Loop() {
				gid += 3
				changed.by(func() { ours(gid) })
				unchanged.by(func() { ours(gid) })
				chown.by(func() { floorWalk(root, gid+1, false) })
				kubelet.by(func() { floorWalk(root, gid+2, true) })
			}
			b.ReportMetric(changed.wall.Seconds()*1000/float64(b.N), "ms/walk")
			b.ReportMetric(unchanged.wall.Seconds()*1000/float64(b.N), "ms/walk-unchanged")
			b.ReportMetric(changed.cpu.Seconds()/chown.cpu.Seconds(), "cpu/chown-floor")
			b.ReportMetric(changed.wall.Seconds()/chown.wall.Seconds(), "wall/chown-floor")
			b.ReportMetric(changed.cpu.Seconds()/kubelet.cpu.Seconds(), "cpu/kubelet-floor")
			b.ReportMetric(changed.wall.Seconds()/kubelet.wall.Seconds(), "wall/kubelet-floor")
		})
	}
}

// spent is what something took: on the clock, which neighbours disturb, and of
// the processors.
type spent struct{ wall, cpu time.Duration }

func (s *spent) by(f func()) {
	cpu, start := cpuTime(), time.Now()
	f()
	s.wall += time.Since(start)
	s.cpu += cpuTime() - cpu
}

func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchDir(b *testing.B) string {
	dir := os.Getenv("VOLUMEKIT_BENCH_DIR")
	if dir == "" {
		return nstest.Dir(b)
	}
	dir, err := os.MkdirTemp(dir, strings.ReplaceAll(filepath.Base(b.Name()), "/", "-"))
	try(b, err)
	b.Cleanup(func() { try(b, os.RemoveAll(dir)) })
	return dir
}
