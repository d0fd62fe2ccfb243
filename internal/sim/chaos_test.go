//go:build linux

package sim_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/sim"
)

// Pods come and go while the agent is killed again and again, also while it
// starts. When all pods have gone, nothing is left.
func TestKilledAtRandomMoments(t *testing.T) {
	kills := 50
	if long {
		kills = 500
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	n := sim.New(t)
	folder := prepare(t, n)
	pods := make([]*v1.Pod, 20)
	there := map[*v1.Pod]bool{}
	for i := range pods {
		pods[i] = everyKind(fmt.Sprintf("pod-%d", i), folder)
	}
	for range kills {
		n.Start()
		for range 1 + random.IntN(4) {
			pod := pods[random.IntN(len(pods))]
			if there[pod] {
				n.Delete(pod)
			} else {
				n.Apply(pod)
			}
			there[pod] = !there[pod]
			if random.IntN(3) == 0 {
				n.Apply(configMap("config", map[string]string{"a": fmt.Sprint(random.IntN(100)), "b": "beta"}))
			}
			time.Sleep(time.Duration(random.IntN(40)) * time.Millisecond) // a random moment is the point
		}
		n.Kill()
		n.Mounts() // fails on stacked ones
	}
	n.Apply(configMap("config", map[string]string{"a": "alpha", "b": "beta"}))
	n.Start()
	maps.DeleteFunc(there, func(_ *v1.Pod, wanted bool) bool { return !wanted })
	wanted := slices.Collect(maps.Keys(there))
	n.AwaitReady(wanted...)
	n.AwaitSteady()
	for _, pod := range wanted {
		checkEveryKind(t, n, pod)
		n.Delete(pod)
	}
	n.AwaitGone(pods...)
	n.AwaitClean()
}

// After a reboot nothing is mounted, while folders and records are there.
func TestReboot(t *testing.T) {
	n := sim.New(t)
	folder := prepare(t, n)
	if err := os.WriteFile(filepath.Join(folder, "kept"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	stays, goes := everyKind("stays", folder), everyKind("goes", folder)
	n.Apply(stays, goes)
	n.Start()
	n.AwaitReady(stays, goes)
	n.AwaitSteady()
	scratch := n.Path(stays, "kubernetes.io/empty-dir", "scratch", "work")
	if err := os.WriteFile(scratch, []byte("work"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Kill()
	targets := unmountAll(t, n)
	if len(targets) < 8 {
		t.Fatalf("only %v were mounted", targets)
	}
	n.Delete(goes)
	n.Start()
	n.AwaitGone(goes)
	n.Await("the pod is ready again", func(s sim.State) bool { return s.Ready(stays) && s.Steady() })
	checkEveryKind(t, n, stays)
	if got := read(t, scratch); got != "work" {
		t.Errorf("the work of before the reboot: %q", got)
	}
	// Nothing was written into the folders under the mounts: neither by who
	// took a folder for a mount, nor before the mount was made.
	n.Kill()
	for _, target := range unmountAll(t, n) {
		left, err := os.ReadDir(target)
		if err != nil || len(left) > 0 {
			t.Errorf("under the mount at %s: %v, %v", target, left, err)
		}
	}
	n.Start()
	n.Await("the pod is ready once more", func(s sim.State) bool { return s.Ready(stays) && s.Steady() })
	n.Delete(stays)
	n.AwaitGone(stays)
	n.AwaitClean()
	if got := read(t, filepath.Join(folder, "kept")); got != "data" {
		t.Errorf("the disk's data: %q", got)
	}
}

// unmountAll takes away all mounts below the root, as a reboot does, and
// returns their targets.
func unmountAll(t *testing.T, n *sim.Node) []string {
	t.Helper()
	targets := slices.Sorted(maps.Keys(n.Mounts()))
	for _, target := range slices.Backward(targets) {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Fatalf("unmount %s: %v", target, err)
		}
	}
	if left := n.Mounts(); len(left) > 0 {
		t.Fatalf("still mounted: %v", left)
	}
	return targets
}

// All pods go while the machine is down: nobody asks for what the folders and
// records tell of.
func TestRebootIntoAnEmptyNode(t *testing.T) {
	n := sim.New(t)
	folder := prepare(t, n)
	var pods []*v1.Pod
	for i := range 3 {
		pods = append(pods, everyKind(fmt.Sprintf("pod-%d", i), folder))
		n.Apply(pods[i])
	}
	n.Start()
	n.AwaitReady(pods...)
	n.Kill()
	unmountAll(t, n)
	for _, pod := range pods {
		n.Delete(pod)
	}
	n.Start()
	n.AwaitGone(pods...)
	n.AwaitClean()
}

// Records may be lost: a damaged file, a disk that forgot. Then the folders
// tell, and still nothing is taken down that a pod wants, and nothing is left
// of what none does.
func TestJournalIsLost(t *testing.T) {
	n := sim.New(t)
	folder := prepare(t, n)
	stays, goes := everyKind("stays", folder), everyKind("goes", folder)
	n.Apply(stays, goes)
	n.Start()
	n.AwaitReady(stays, goes)
	n.AwaitSteady()
	before := n.Mounts()
	n.Kill()
	if err := os.RemoveAll(n.Layout.StateDir()); err != nil {
		t.Fatal(err)
	}
	n.Delete(goes)
	n.Start()
	n.AwaitGone(goes)
	n.Await("the pod is ready", func(s sim.State) bool { return s.Ready(stays) && s.Steady() })
	checkEveryKind(t, n, stays)
	after := n.Mounts()
	for target, id := range before {
		if strings.Contains(target, string(stays.UID)) && after[target] != id {
			t.Errorf("%s was mounted anew", target)
		}
	}
	n.Delete(stays)
	n.AwaitGone(stays)
	n.AwaitClean()
}
