package csinode_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/csi"
	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/csi/csitest/checker"
	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/internal/sim"
)

// killed is a node whose agent is a process to be killed, with a driver that
// registers in its folder and lives on.
type killed struct {
	*testing.T
	*sim.Node
	driver      *csitest.Driver
	checker     *checker.Checker
	stays, goes *v1.Pod
}

func newKilled(t *testing.T, settings ...func(*csitest.Config)) *killed {
	t.Helper()
	nstest.Require(t)
	n := sim.New(t)
	n.Settings.CSI = &sim.CSI{Attach: "direct"}
	k := &killed{T: t, Node: n, checker: checker.New(checker.Options{Filesystem: true})}
	registry := n.Layout.RegistryDir()
	if err := os.MkdirAll(registry, 0o750); err != nil {
		t.Fatal(err)
	}
	config := csitest.Config{
		Dir: filepath.Join(n.Dir, "driver"), Name: driverName, Capabilities: capabilitiesFor(true, true), AutoCreate: true,
		Mode: csitest.ModeBind, Sockets: csitest.Sockets{Registration: filepath.Join(registry, "reg.sock")},
		Interceptors: []grpc.UnaryServerInterceptor{k.checker.UnaryServer()},
	}
	for _, f := range settings {
		f(&config)
	}
	var err error
	if k.driver, err = csitest.New(config); err == nil {
		err = k.driver.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.driver.Stop() })
	k.Apply(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{
		PodInfoOnMount:       ptr(true),
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
	}})
	for _, name := range []string{"shared", "stays", "goes"} {
		pv, claim := sim.ClaimedCSI(name, driverName, "handle-"+name)
		k.Apply(pv, claim)
	}
	k.stays, k.goes = k.pod("stays"), k.pod("goes")
	return k
}

// pod has a volume of its own, one that it shares, and an inline one.
func (k *killed) pod(name string) *v1.Pod {
	return sim.Pod(name, sim.Volume("own", sim.Claim(name)), sim.Volume("shared", sim.Claim("shared")),
		sim.Volume("inline", v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driverName}}))
}

func (k *killed) bothReady(s sim.State) bool {
	return s.Ready(k.stays) && s.Ready(k.goes) && s.Steady()
}

func nothingKnown(s sim.State) bool {
	return s.Snapshot.Ready && len(s.Snapshot.Volumes)+len(s.Snapshot.Pods) == 0
}

// finish starts the agent again with one pod gone, and checks that the other
// has its volumes, and that nothing is left when that goes too.
func (k *killed) finish() {
	k.Helper()
	k.checker.COrestarted()
	k.Delete(k.goes)
	k.Start()
	k.AwaitGone(k.goes)
	k.Await("the pod that stays is ready, and nothing of the other is left", func(s sim.State) bool {
		for _, v := range k.driver.Volumes() {
			if v.ID == "handle-goes" && (v.Staged != nil || len(v.Published)+len(v.Attached) > 0) {
				return false
			}
		}
		return s.Ready(k.stays) && s.Steady()
	})
	if err := os.WriteFile(k.Path(k.stays, csi.Name, "pv-stays", "mount", "file"), []byte("data"), 0o600); err != nil {
		k.Error(err)
	}
	k.Delete(k.stays)
	k.AwaitGone(k.stays)
	k.AwaitClean()
	for _, v := range k.driver.Volumes() {
		if v.Staged != nil || len(v.Published)+len(v.Attached) > 0 {
			k.Errorf("the driver still has %+v", v)
		}
	}
	if files, _ := filepath.Glob(filepath.Join(k.Layout.PluginDir(csi.Name), "*", "*")); slices.ContainsFunc(files, func(f string) bool {
		return !strings.HasSuffix(filepath.Dir(f), "volumeDevices")
	}) {
		k.Errorf("left: %v", files)
	}
	k.checker.VerifyClean(k.T)
}

// phases are what the agent is killed in.
var killPhases = map[string]func(k *killed, arm func(), ended func(func(sim.State) bool)){
	"up": func(k *killed, arm func(), ended func(func(sim.State) bool)) {
		k.Start()
		k.Await("it runs", func(s sim.State) bool { return s.Snapshot.Ready })
		arm()
		k.Apply(k.stays, k.goes)
		ended(k.bothReady)
	},
	"down": func(k *killed, arm func(), ended func(func(sim.State) bool)) {
		k.Apply(k.stays, k.goes)
		k.Start()
		k.Await("both pods are ready", k.bothReady)
		arm()
		k.Delete(k.stays, k.goes)
		ended(nothingKnown)
		k.Apply(k.stays, k.goes) // one comes back
	},
}

// An agent that is killed anywhere on the way up or down leaves nothing that the
// next one does not finish, and the driver sees no call that the spec forbids.
func TestKilledAnywhere(t *testing.T) {
	for name, phase := range killPhases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for point, passings := range countPoints(t, phase) {
				tries := []int{1, 1 + rand.IntN(passings)}
				if long {
					tries = nil
					for i := range passings {
						tries = append(tries, i+1)
					}
				}
				for _, passing := range slices.Compact(tries) {
					t.Run(fmt.Sprintf("%s/%d", point, passing), func(t *testing.T) {
						t.Parallel()
						k := newKilled(t)
						phase(k, func() { k.FailAtPassing(point, passing) }, func(holds func(sim.State) bool) {
							if !k.DiesBefore("the phase is over", holds) {
								k.Kill()
							}
						})
						k.finish()
					})
				}
			}
		})
	}
}

// countPoints runs a phase and returns which points it passes, and how often.
func countPoints(t *testing.T, phase func(*killed, func(), func(func(sim.State) bool))) map[string]int {
	k := newKilled(t)
	k.Settings.Count = true
	before := map[string]int{}
	var after sim.State
	phase(k, func() { maps.Copy(before, k.State().Passed) }, func(holds func(sim.State) bool) { after = k.Await("the phase is over", holds) })
	k.Kill()
	passed := map[string]int{}
	for point, n := range after.Passed {
		if n -= before[point]; n > 0 && (strings.HasPrefix(point, "csi.") || strings.HasPrefix(point, "step.") || strings.HasPrefix(point, "journal.")) {
			passed[point] = n
		}
	}
	if passed[csi.FaultCalled] == 0 || passed["step.begun"] == 0 {
		t.Fatalf("the phase passes %v", passed)
	}
	return passed
}

// An agent that dies after the driver has unpublished and before it unstages:
// one unstage, with the path of the stage (kubernetes/kubernetes#85476).
func TestKilledBetweenUnpublishAndUnstage(t *testing.T) {
	t.Parallel()
	k := newKilled(t)
	pod := sim.Pod("one", sim.Volume("own", sim.Claim("goes")))
	k.Apply(pod)
	k.Start()
	k.AwaitReady(pod)
	var staged string
	for _, v := range k.driver.Volumes() {
		staged = v.Staged.Path
	}
	k.driver.ResetCalls()
	k.FailAt(csi.FaultCalled)
	k.Delete(pod)
	k.AwaitDeath()
	k.checker.COrestarted()
	k.Start()
	k.AwaitClean()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	call, err := k.driver.WaitCall(ctx, csitest.Ended("NodeUnstageVolume", ""))
	if err != nil || k.driver.CallCounts()["NodeUnstageVolume"] != 1 {
		t.Fatalf("%v, %v", k.driver.CallCounts(), err)
	}
	if got := call.Request.(interface{ GetStagingTargetPath() string }).GetStagingTargetPath(); got != staged {
		t.Errorf("unstaged %s, staged %s", got, staged)
	}
	if _, err := os.Lstat(filepath.Dir(staged)); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", filepath.Dir(staged), err)
	}
	k.checker.VerifyClean(t)
}

// An agent that is killed while the driver is at work, and again, and again.
func TestKilledDuringCalls(t *testing.T) {
	for _, method := range []string{
		"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume",
	} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,after=%v", method, after), func(t *testing.T) {
				t.Parallel()
				k := newKilled(t)
				down := strings.Contains(method, "Un")
				k.Apply(k.stays, k.goes)
				if down {
					k.Start()
					k.Await("both pods are ready", k.bothReady)
				}
				held := k.driver.Script(method, csitest.Fault{Hang: true, AfterWork: after, Times: 1})
				if down {
					k.Delete(k.stays, k.goes)
				} else {
					k.Start()
				}
				ctx, cancel := context.WithTimeout(t.Context(), sim.Patience)
				defer cancel()
				if err := held.Wait(ctx, 1); err != nil {
					t.Fatal(err)
				}
				k.Kill()
				if down {
					k.Apply(k.stays, k.goes)
				}
				held.Remove() // the driver goes on with what it was at
				k.finish()
			})
		}
	}
}
