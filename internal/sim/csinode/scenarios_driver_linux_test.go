package csinode_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/volumekit/volumekit/csi"
	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/csi/csitest/checker"
)

// A volume whose driver is away waits on the way up and on the way down, and
// goes on when the driver is back.
func TestDriverIsAway(t *testing.T) {
	for claim, change := range kinds {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, settings{driver: ofKind(t, claim)})
			r.volume(claim, change)
			one, two := podOf("one", claim), podOf("two", claim)
			r.up(one)
			r.must(r.driver.Stop())
			r.driver.ResetCalls()
			r.add(two)
			r.pods.Remove(one.UID)
			r.fails(two, driverName)
			if got := r.failure(two); !strings.HasPrefix(got, "waiting: ") {
				t.Error(got)
			}
			if !r.manager.PossiblyMounted(one.UID) {
				t.Error("the volume of the pod that has gone is given up")
			}
			r.checker.Restarted()
			r.must(r.driver.Start(r.ctx))
			r.ready(two)
			r.down(one)
			r.pods.Remove(two.UID)
			r.must(r.driver.Stop())
			r.checker.Restarted()
			r.must(r.driver.Start(r.ctx))
			r.down(two)
			r.released()
		})
	}
}

// A driver that dies in the middle of a call, before or after its work, costs
// nobody their volume.
func TestDriverDiesInACall(t *testing.T) {
	for _, method := range []string{
		"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume",
	} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,after=%v", method, after), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, settings{driver: func(c *csitest.Config) { c.Capabilities = capabilitiesFor(true, true) },
					checker: func(o *checker.Options) { o.MaxCapabilityCalls = 0 }})
				r.volume("data")
				pod := podOf("one", "data")
				script := r.driver.Script(method, csitest.Fault{Times: 1, Restart: true, AfterWork: after})
				r.up(pod)
				r.down(pod)
				r.released()
				if script.Hits() != 1 {
					t.Errorf("it happened %d times", script.Hits())
				}
			})
		}
	}
}

// A driver whose capabilities are not known yet is not used, and once they are
// it is.
func TestCapabilitiesComeLate(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: staged, checker: func(o *checker.Options) { o.MaxCapabilityCalls = 0 }})
	r.stop()
	late := r.driver.Script("NodeGetCapabilities", csitest.Fault{Code: codes.Unavailable, Message: "the cloud is away"})
	r.volume("data")
	pod := podOf("one", "data")
	r.add(pod)
	r.checker.COrestarted()
	r.start()
	r.fails(pod, "the cloud is away")
	r.want()
	late.Remove()
	r.ready(pod)
	r.want("NodeStageVolume handle-data", "NodePublishVolume handle-data")
}

// Many pods that come and go at the same time with one volume, by two persistent
// volumes, and its growth and figures meanwhile: the driver, which refuses a
// second call, never has to.
func TestOneCallInFlight(t *testing.T) {
	t.Parallel()
	r := newGrowing(t, false)
	r.driver.Script("*", csitest.Fault{DelayBefore: 5 * time.Millisecond})
	same := func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "handle" }
	r.volume("data", same)
	r.volume("other", same)
	var pods []*v1.Pod
	for i := range 12 {
		pods = append(pods, podOf(fmt.Sprint("pod", i), []string{"data", "other"}[i%2]))
	}
	r.up(pods...)
	r.driver.ResetCalls()
	var all sync.WaitGroup
	for _, pod := range pods[:6] {
		all.Go(func() {
			for range 3 {
				_, _ = r.manager.Stats(r.ctx, pod.UID)
			}
		})
	}
	r.controllerGrew("data", "128Mi")
	for i, pod := range pods {
		if r.pods.Remove(pod.UID); i%3 == 0 {
			r.add(pod)
		}
	}
	r.grown("data", "128Mi")
	all.Wait()
	for i, pod := range pods {
		if i%3 == 0 {
			r.ready(pod)
		}
	}
	for _, call := range r.driver.Calls() {
		if call.Code == codes.Aborted {
			t.Errorf("%s met another call", call.Method)
		}
	}
}

// A volume that has to grow before its first pod is asked for once.
func TestVolumeGrowsWhenItIsMounted(t *testing.T) {
	for _, pods := range []int{1, 2} {
		t.Run(fmt.Sprint(pods), func(t *testing.T) {
			t.Parallel()
			r := newGrowing(t, false)
			r.volume("data")
			r.controllerGrew("data", "128Mi")
			one := podOf("one", "data")
			r.add(one)
			if pods == 2 {
				r.up(podOf("two", "data"))
			}
			r.ready(one)
			r.grown("data", "128Mi")
			if n := r.count("NodeExpandVolume"); n != 1 {
				t.Errorf("%d expansions", n)
			}
			r.restart()
			r.ready(one)
			if n := r.count("NodeExpandVolume"); n != 1 {
				t.Errorf("%d expansions after a restart", n)
			}
		})
	}
}

// A driver that repeats in its errors what it was given, tokens and secrets
// alike, brings none of it into logs, events, status or files.
func TestNoSecretGetsOut(t *testing.T) {
	for _, inSecrets := range []bool{false, true} {
		t.Run(fmt.Sprintf("in secrets=%v", inSecrets), func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var text strings.Builder
			log := funcr.New(func(prefix, args string) {
				mu.Lock()
				defer mu.Unlock()
				text.WriteString(prefix + args + "\n")
			}, funcr.Options{Verbosity: 10})
			r := newRig(t, settings{
				driver:  func(c *csitest.Config) { c.Capabilities = capabilitiesFor(true, true) },
				drivers: func(c *csi.DriversConfig) { c.Log = log },
				csi:     func(c *csi.Config) { c.Host.Log = log; c.RepublishPeriod = 20 * time.Millisecond },
			})
			r.csiDriver(func(s *storagev1.CSIDriverSpec) {
				s.TokenRequests, s.ServiceAccountTokenInSecrets = []storagev1.TokenRequest{{Audience: "vault"}}, &inSecrets
				s.PodInfoOnMount, s.RequiresRepublish = ptr(true), ptr(true)
			})
			canaries := []string{}
			for _, name := range []string{"attach", "stage", "publish"} {
				canaries = append(canaries, "canary-of-"+name)
				r.apply(secret(name, map[string]string{"key": "canary-of-" + name}))
			}
			r.volume("data", func(pv *v1.PersistentVolume) {
				s := pv.Spec.CSI
				s.ControllerPublishSecretRef, s.NodeStageSecretRef, s.NodePublishSecretRef = ref("attach"), ref("stage"), ref("publish")
			})
			for method, message := range map[string]string{
				"ControllerPublishVolume": canaries[0], "NodeStageVolume": canaries[1], "NodePublishVolume": canaries[2],
			} {
				r.driver.Script(method, csitest.Fault{Times: 2, Code: codes.Internal, Message: "login " + message + " is wrong"})
			}
			pod := podOf("one", "data")
			r.up(pod)
			token := r.tokenOf(pod)
			r.driver.Script("NodePublishVolume", csitest.Fault{Times: 1, Code: codes.Unauthenticated, Message: "token " + token + " has expired"})
			n := r.count("NodePublishVolume")
			r.until("it is published again and again", func() bool { return r.count("NodePublishVolume") > n+3 })
			r.searchFor(append(canaries, token), func() string {
				mu.Lock()
				defer mu.Unlock()
				return text.String()
			})
		})
	}
}

// tokenOf is the token that the driver has for a pod.
func (r *rig) tokenOf(_ *v1.Pod) string {
	r.Helper()
	publish := request[interface {
		GetVolumeContext() map[string]string
		GetSecrets() map[string]string
	}](r, "NodePublishVolume", "")
	var tokens map[string]struct{ Token string }
	r.must(json.Unmarshal([]byte(publish.GetVolumeContext()[tokensKey]+publish.GetSecrets()[tokensKey]), &tokens))
	return tokens["vault"].Token
}

// searchFor looks for texts in everything that gets out of the manager.
func (r *rig) searchFor(canaries []string, log func() string) {
	r.Helper()
	snapshot, err := json.Marshal(r.manager.Snapshot())
	r.must(err)
	places := map[string]string{"log": log(), "snapshot": string(snapshot), "events": fmt.Sprint(r.events.List()), "drivers": fmt.Sprintf("%+v", r.drivers.Status())}
	if !strings.Contains(places["log"], "handle-data") || !strings.Contains(places["events"], "Internal") {
		r.Error("there is nothing to look through")
	}
	r.must(filepath.WalkDir(r.root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var text []byte
			text, err = os.ReadFile(path)
			places[path] = string(text)
		}
		if errors.Is(err, fs.ErrNotExist) { // replaced meanwhile
			return nil
		}
		return err
	}))
	for where, text := range places {
		for _, canary := range canaries {
			if canary == "" || strings.Contains(text, canary) {
				r.Errorf("a secret (%.9s...) is in %s", canary, where)
			}
		}
	}
}
