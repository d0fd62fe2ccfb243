//go:build linux

package sim_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/sim"
	"github.com/volumekit/volumekit/volumemanager"
)

func TestEveryLocalKindComesAndGoes(t *testing.T) {
	n := sim.New(t)
	folder := prepare(t, n)
	before := n.Mounts()
	n.Settings.Propagation = volumemanager.MakeShared
	n.Start()
	pod := everyKind("all", folder)
	n.Apply(pod)
	state := n.AwaitReady(pod)
	checkEveryKind(t, n, pod)
	for _, v := range state.Snapshot.Pods[0].Volumes {
		if v.Code != "" || v.Phase != volumemanager.Mounted {
			t.Errorf("volume %s: %s %s", v.Name, v.Phase, v.Code)
		}
	}
	if err := os.WriteFile(n.Path(pod, sim.DiskName, "pv-disk", "kept"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Delete(pod)
	n.AwaitGone(pod)
	n.Await("the device is unmounted", func(s sim.State) bool { return len(s.Snapshot.Volumes) == 0 })
	if got := read(t, filepath.Join(folder, "kept")); got != "data" {
		t.Errorf("the disk's data: %q", got)
	}
	after := n.Mounts()
	delete(after, n.Layout.Root)
	if !maps.Equal(before, after) {
		t.Errorf("mounts are left: %v", after)
	}
	if left, _ := os.ReadDir(n.Layout.PodsDir()); len(left) > 0 {
		t.Errorf("pods are left: %v", left)
	}
}

func TestRestartIsInvisible(t *testing.T) {
	n := sim.New(t)
	folder := prepare(t, n)
	n.Start()
	var pods []*v1.Pod
	for i := range 5 {
		pod := everyKind(fmt.Sprintf("pod-%d", i), folder)
		pods = append(pods, pod)
		n.Apply(pod)
	}
	n.AwaitReady(pods...)
	n.AwaitSteady()
	before := n.Mounts()
	versions := map[string]string{}
	for _, pod := range pods {
		for _, at := range []string{n.Path(pod, "kubernetes.io/configmap", "config", "..data"), n.Path(pod, "kubernetes.io/secret", "secret", "..data")} {
			link, err := os.Readlink(at)
			if err != nil {
				t.Fatal(err)
			}
			versions[at] = link
		}
	}
	for round := range 10 {
		n.Kill()
		n.Start()
		if round%3 == 0 { // some die while they are still looking around
			time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond) // a random moment is the point
			continue
		}
		n.AwaitReady(pods...)
		n.AwaitSteady()
		if after := n.Mounts(); !maps.Equal(before, after) {
			t.Fatalf("round %d: mounts changed:\nbefore %v\nafter  %v", round, before, after)
		}
	}
	n.AwaitReady(pods...)
	for at, link := range versions {
		if now, err := os.Readlink(at); err != nil || now != link {
			t.Errorf("%s was written anew: %s, %v", at, now, err)
		}
	}
}

func TestPodsDeletedWhileDown(t *testing.T) {
	n := sim.New(t)
	folder := prepare(t, n)
	n.Start()
	var pods []*v1.Pod
	for i := range 5 {
		pod := everyKind(fmt.Sprintf("pod-%d", i), folder)
		pods = append(pods, pod)
		n.Apply(pod)
	}
	n.AwaitReady(pods...)
	n.AwaitSteady()
	before := n.Mounts()
	n.Kill()
	n.Delete(pods[0], pods[1], pods[2])
	n.Fault("PersistentVolumeClaim", "notfound")
	n.Fault("PersistentVolume", "notfound")
	n.Start()
	n.AwaitGone(pods[:3]...)
	after := n.Mounts()
	for target, id := range before {
		gone := strings.Contains(target, "uid-pod-0/") || strings.Contains(target, "uid-pod-1/") || strings.Contains(target, "uid-pod-2/")
		if now, there := after[target]; gone == there || there && now != id {
			t.Errorf("%s: %d before, %d now", target, id, now)
		}
	}
	s := n.State()
	for _, pod := range pods[3:] {
		if v := s.Volume(pod, "disk"); v.Code != volumemanager.CodeUnresolved && v.Code != volumemanager.CodeWaiting {
			t.Errorf("disk of %s: %+v", pod.Name, v)
		}
	}
}

func TestFlakyStartKeepsRunningPods(t *testing.T) {
	n := sim.New(t)
	prepare(t, n)
	pv, claim := sim.ClaimedDisk("b", filepath.Join(n.Dir, "data"))
	n.Apply(pv, claim)
	a, b := sim.Pod("a", configVolume("config", "config")), sim.Pod("b", sim.Volume("disk", sim.Claim("b")))
	n.Apply(a, b)
	n.Start()
	n.AwaitReady(a, b)
	before := n.Mounts()
	n.Kill()
	n.Fault("PersistentVolumeClaim", "error")
	n.Start()
	n.AwaitReady(a)
	target := n.Path(b, sim.DiskName, "pv-b")
	unknown := func(s sim.State) bool {
		status, _ := s.Pod(b.UID)
		for _, v := range status.Volumes {
			if v.Code == volumemanager.CodeUnknown && v.Phase == volumemanager.Kept {
				return true
			}
		}
		return false
	}
	n.Await("b's disk is kept because nobody knows", unknown)
	// Several safety passes later it is still there.
	deadline := time.Now().Add(3 * time.Second)
	n.Await("time passes", func(s sim.State) bool {
		if !unknown(s) || n.Mounts()[target] != before[target] {
			t.Fatalf("b's disk was touched: %v", n.Mounts())
		}
		return time.Now().After(deadline)
	})
	n.Fault("PersistentVolumeClaim", "")
	n.AwaitReady(a, b)
	n.AwaitSteady()
	if !maps.Equal(before, n.Mounts()) {
		t.Errorf("mounts changed: %v, %v", before, n.Mounts())
	}
}

func TestBlockedAPIServerHoldsUpOnlyClaims(t *testing.T) {
	n := sim.New(t)
	folder := prepare(t, n)
	old := sim.Pod("old", sim.Volume("disk", sim.Claim("disk")))
	n.Apply(old)
	n.Start()
	n.AwaitReady(old)
	n.Kill()
	for _, kind := range []string{"PersistentVolumeClaim", "PersistentVolume", "Node"} {
		n.Fault(kind, "block")
	}
	n.Start()
	local := sim.Pod("local", emptyDir("scratch"), sim.Volume("host", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: folder}}))
	n.Apply(local)
	n.AwaitWithin(2*time.Second*slack, "the pod with local volumes is ready", func(s sim.State) bool {
		status, _ := s.Pod(local.UID)
		return status.Ready
	})
	s := n.State()
	found := false
	for _, v := range s.Snapshot.Volumes {
		for _, p := range v.Pods {
			found = found || p.Volume.Pod == old.UID && p.State == "uncertain"
		}
	}
	if !found {
		t.Errorf("the volume from before is not uncertain: %+v", s.Snapshot.Volumes)
	}
}
