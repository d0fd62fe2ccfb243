//go:build linux

package sim_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/sim"
	"github.com/volumekit/volumekit/volumemanager"
)

func TestRemovalNeverCrossesAMount(t *testing.T) {
	n := sim.New(t)
	precious := filepath.Join(n.Dir, "precious")
	for i := range 20 {
		name := filepath.Join(precious, fmt.Sprintf("d%d", i), "file")
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte("precious"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	n.Start()
	pod := sim.Pod("pod", emptyDir("scratch"))
	n.Apply(pod)
	n.AwaitReady(pod)
	dir := n.Path(pod, "kubernetes.io/empty-dir", "scratch")
	sub, nested := filepath.Join(dir, "sub"), filepath.Join(dir, "deep/nested")
	file := filepath.Join(nested, "file")
	err := errors.Join(os.MkdirAll(sub, 0o755), os.MkdirAll(nested, 0o755), os.WriteFile(filepath.Join(dir, "own"), nil, 0o644),
		unix.Mount(precious, sub, "", unix.MS_BIND, ""),
		unix.Mount("nested", nested, "tmpfs", 0, "size=1m"),
		os.WriteFile(file, nil, 0o644),
		unix.Mount(filepath.Join(precious, "d0/file"), file, "", unix.MS_BIND, ""))
	if err != nil {
		t.Fatal(err)
	}
	n.Delete(pod)
	n.AwaitGone(pod)
	for i := range 20 {
		if got := read(t, filepath.Join(precious, fmt.Sprintf("d%d", i), "file")); got != "precious" {
			t.Errorf("d%d: %q", i, got)
		}
	}
	if left := n.Mounts(); len(left) > 0 {
		t.Errorf("mounts are left: %v", left)
	}
}

func TestHungStorageIsolates(t *testing.T) {
	n := sim.New(t)
	prepare(t, n)
	n.Settings.StepDeadline = 500 * time.Millisecond
	n.Start()
	a := sim.Pod("a", emptyDir("scratch"))
	n.Apply(a)
	n.AwaitReady(a)
	at := n.Path(a, "kubernetes.io/empty-dir", "scratch", "remote")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	storage := sim.NewStorage(t, at)
	storage.Hang()
	// A pod whose volume is the hung storage itself.
	stuck := sim.Pod("stuck", sim.Volume("host", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: filepath.Join(at, "x"), Type: ptr(v1.HostPathDirectory)}}))
	n.Apply(stuck)
	n.Await("the set-up on hung storage is seen to be stuck", func(s sim.State) bool {
		v := s.Volume(stuck, "host")
		return v.Stuck && v.Code == volumemanager.CodeStuckMounting
	})
	others(t, n, "b", 10)
	n.Delete(a)
	n.AwaitWithin(5*time.Second*slack, "a's teardown is blocked or done", func(s sim.State) bool {
		v := s.Volume(a, "scratch")
		_, known := s.Pod(a.UID)
		return v.Code == volumemanager.CodeFailsToDetach || !known
	})
	others(t, n, "c", 10)
	n.Kill()
	n.Settings.LazyAfter = time.Second
	n.Start()
	n.AwaitWithin(3*time.Second*slack, "the agent is up again", func(s sim.State) bool { return s.Snapshot.Ready })
	others(t, n, "d", 5)
	n.AwaitGone(a)
}

// others sets pods up and takes them away again.
func others(t *testing.T, n *sim.Node, prefix string, count int) {
	t.Helper()
	var pods []*v1.Pod
	for i := range count {
		pod := sim.Pod(fmt.Sprintf("%s-%d", prefix, i), emptyDir("scratch"), configVolume("config", "config"))
		pods = append(pods, pod)
		n.Apply(pod)
	}
	n.AwaitReady(pods...)
	for _, pod := range pods {
		n.Delete(pod)
	}
	n.AwaitGone(pods...)
}

func TestRootThroughASymbolicLink(t *testing.T) {
	n := sim.New(t)
	folder := prepare(t, n)
	real := filepath.Join(n.Dir, "x")
	if err := errors.Join(os.Mkdir(real, 0o755), os.Symlink(real, n.Settings.Root)); err != nil {
		t.Fatal(err)
	}
	n.Start()
	pod := everyKind("all", folder)
	n.Apply(pod)
	n.AwaitReady(pod)
	n.Layout.Root = real
	checkEveryKind(t, n, pod)
	n.Kill()
	n.Start()
	n.AwaitReady(pod)
	n.Delete(pod)
	n.AwaitGone(pod)
	n.Await("the device is unmounted", func(s sim.State) bool { return len(s.Snapshot.Volumes) == 0 })
	if left := n.Mounts(); len(left) > 0 {
		t.Errorf("mounts are left: %v", left)
	}
}

func TestRootThatIsNotShared(t *testing.T) {
	n := sim.New(t)
	if err := errors.Join(os.Mkdir(n.Settings.Root, 0o755),
		unix.Mount(n.Settings.Root, n.Settings.Root, "", unix.MS_BIND, ""),
		unix.Mount("", n.Settings.Root, "", unix.MS_PRIVATE, "")); err != nil {
		t.Fatal(err)
	}
	n.Start()
	s := n.Await("the start fails", func(s sim.State) bool { return s.Error != "" })
	if !strings.Contains(s.Error, volumemanager.ErrNotShared.Error()) {
		t.Errorf("error: %s", s.Error)
	}
	n.Kill()
	n.Settings.Propagation = volumemanager.MakeShared
	n.Start()
	pod := sim.Pod("pod", emptyDir("scratch"))
	n.Apply(pod)
	n.AwaitReady(pod)
	text := read(t, "/proc/self/mountinfo")
	for line := range strings.Lines(text) {
		if strings.Contains(line, " "+n.Settings.Root+" ") && !strings.Contains(line, "shared:") {
			t.Errorf("the root is not shared: %s", line)
		}
	}
}
