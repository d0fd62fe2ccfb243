package volumemanager_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/volumemanager"
)

// TestSnapshotIsPlainJSON: a snapshot of everything that can be wrong survives
// JSON, with the errors as text.
func TestSnapshotIsPlainJSON(t *testing.T) {
	onRunning(t, func(n *node) {
		n.disk.on(func(ctx context.Context, step reconciler.Kind, storage string) error {
			switch {
			case storage == "burns" && step == reconciler.SetUp:
				return errDisk
			case storage == "hangs" && step == reconciler.Attach:
				<-ctx.Done()
			}
			return nil
		})
		n.apply(configMap("map", "k", "v"))
		p := pod("p", diskVolume("burns", "burns"), diskVolume("hangs", "hangs"), diskVolume("fine", "fine"),
			configVolume("map", false), configVolume("absent", false), claimVolume("claim", "absent", false), emptyVolume("e"))
		n.set(p)
		bad := pod("bad", emptyVolume("bad/name"))
		n.pods.Set(bad) // refused by the source itself
		n.pass(10 * time.Second)
		s := n.Snapshot()
		text, err := json.Marshal(s)
		n.must(err)
		var back volumemanager.Snapshot
		n.must(json.Unmarshal(text, &back))
		again, err := json.Marshal(back)
		n.must(err)
		if string(again) != string(text) {
			n.Errorf("it changed:\n%s\n%s", text, again)
		}
		if !has(string(text), `"ready":true`, "on fire", `"class":"transient"`, `"code":"StuckMounting"`, "ConfigMap ns/absent", `"attempts":`,
			`"nextTry":`, `"running":true`, `"inUse":["example.com/disk/burns","example.com/disk/fine","example.com/disk/hangs"]`, "not found") {
			n.Errorf("%s", text)
		}
		if len(back.Volumes) != len(s.Volumes) || !reflect.DeepEqual(back.Volumes[0].Plan, s.Volumes[0].Plan) {
			n.Errorf("%+v", back)
		}
		plan, err := n.Plan(n.Context(), p)
		n.must(err)
		if text, err := json.Marshal(plan); err != nil || !has(string(text), "not found") {
			n.Errorf("%s, %v", text, err)
		}
		ctx, cancel := context.WithTimeout(n.Context(), time.Second)
		defer cancel()
		report, err := n.Drain(ctx)
		if text, jerr := json.Marshal(report); err == nil || jerr != nil || !has(string(text), "hangs") {
			n.Errorf("%s, %v, %v", text, jerr, err)
		}
	})
}

// TestNoSecretGetsOut: neither a secret's content nor a token is ever in what
// the manager says, whatever fails.
func TestNoSecretGetsOut(t *testing.T) {
	const canary = "canary-4711"
	onNode(t, func(n *node) {
		n.host.Tokens = tokens(canary)
		n.start()
		n.pods.MarkSynced()
		n.apply(secret("s", "key", canary), configMap("s", "other", "x"))
		bad := v1.Volume{Name: "bad", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{
			SecretName: "s", Items: []v1.KeyToPath{{Key: "key", Path: "a"}, {Key: "absent", Path: "b"}},
		}}}
		access := v1.Volume{Name: "access", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}},
			{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "s"}}},
		}}}}
		conflict := access.DeepCopy()
		conflict.Name = "conflict"
		conflict.Projected.Sources[1].Secret.Items = []v1.KeyToPath{{Key: "key", Path: "token/below"}}
		p := pod("p", secretVolume("s"), bad, access, *conflict)
		n.set(p)
		n.pass(time.Minute)
		if n.file(p, "s", "key") != canary || n.file(p, "access", "token") != canary {
			n.Error("the canaries are not where they belong")
		}
		n.apply(secret("s", "key", canary+"-2"))
		n.pass(time.Minute)
		text, err := json.Marshal(n.Snapshot())
		n.must(err)
		status, _ := n.Status(p)
		plan, _ := n.Plan(n.Context(), p)
		ctx, cancel := context.WithTimeout(n.Context(), time.Second)
		defer cancel()
		wait := n.WaitForAttachAndMount(ctx, p)
		n.steps.mu.Lock()
		said := fmt.Sprintf("%s\n%+v\n%#v\n%+v\n%+v\n%v\n%v\n%v\n%+v\n%s", text, status, status, plan, n.PodConditions(p),
			wait, n.steps.errs, n.events.List(), n.MountedVolumes(p), n.log.text())
		n.steps.mu.Unlock()
		if has(said, canary) {
			n.Error("a secret got out")
		}
		if wait == nil || !has(said, "absent") {
			n.Errorf("nothing failed: %s", said)
		}
	})
}

// tokens issues the same token to everybody.
type tokens string

func (s tokens) Token(context.Context, plugins.TokenRequest) (plugins.Token, error) {
	now := time.Now()
	return plugins.Token{Value: string(s), Issued: now, Expires: now.Add(time.Hour)}, nil
}

func TestEventsComeOncePerChange(t *testing.T) {
	onRunning(t, func(n *node) {
		n.disk.fail(reconciler.SetUp, errDisk)
		p := pod("p", diskVolume("d", "one"))
		n.set(p)
		n.pass(time.Minute)
		n.disk.fail(reconciler.SetUp, errors.New("another fault"))
		n.pass(5 * time.Minute)
		n.disk.on(nil)
		n.pass(5 * time.Minute)
		want := []string{"SuccessfulAttachVolume", "FailedMount", "FailedMount", "SuccessfulMountVolume"}
		if got := n.reasons(p); !reflect.DeepEqual(got, want) {
			n.Errorf("%v", got)
		}
		q := pod("q", claimVolume("d", "absent", false))
		n.set(q)
		n.pass(time.Hour)
		for _, label := range []string{"2", "3"} { // which makes it be tried again
			next := q.DeepCopy()
			next.Labels["a"] = label
			n.set(next)
		}
		if got := n.reasons(q); !reflect.DeepEqual(got, []string{"FailedMount"}) {
			n.Errorf("%v", got)
		}
	})
	onNode(t, func(n *node) {
		n.config.QuietMounts = true
		n.start()
		n.pods.MarkSynced()
		p := pod("p", emptyVolume("e"))
		n.up(p)
		if got := n.reasons(p); len(got) != 0 {
			n.Errorf("%v", got)
		}
	})
}

func TestObserverSeesEveryStep(t *testing.T) {
	onRunning(t, func(n *node) {
		p := pod("p", diskVolume("d", "one"))
		n.up(p)
		n.wantSteps("attach  none", "mountDevice  none", "setUp d none")
		n.disk.fail(reconciler.TearDown, errDisk)
		n.pods.Remove(p.UID)
		n.pass(100 * time.Millisecond)
		n.disk.on(nil)
		n.must(n.WaitForUnmount(n.Context(), p))
		n.nothingLeft()
		n.wantSteps("tearDown d transient", "tearDown d none", "unmountDevice  none", "detach  none")
		n.steps.mu.Lock()
		defer n.steps.mu.Unlock()
		if len(n.steps.started) != 7 {
			n.Errorf("%v", n.steps.started)
		}
	})
}
