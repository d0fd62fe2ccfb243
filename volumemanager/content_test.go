package volumemanager_test

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/memory"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/volumemanager"
)

// linger is more than the time for which the files of an old content stay.
const linger = 10 * time.Second

// changes keeps what ContentChanged is told.
type changes struct {
	mu   sync.Mutex
	list []volumemanager.ContentChange
}

func (c *changes) add(change volumemanager.ContentChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, change)
}

func (c *changes) take() []volumemanager.ContentChange {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.list
	c.list = nil
	return list
}

func TestContentFollowsItsSource(t *testing.T) {
	onNode(t, func(n *node) {
		var seen changes
		n.config.ContentChanged = seen.add
		n.start()
		n.pods.MarkSynced()
		n.apply(configMap("map", "a", "1", "b", "1"), secret("s", "key", "1"))
		labels := v1.Volume{Name: "labels", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
		}}}}
		p := pod("p", configVolume("map", false), secretVolume("s"), labels)
		n.up(p)
		if first := seen.take(); len(first) != 3 {
			n.Errorf("the first content is told too: %+v", first)
		}
		version := n.volume(p, "map").ContentVersion

		for _, c := range []struct {
			change       func()
			volume, file string
			want         string
		}{
			{func() { n.apply(configMap("map", "a", "2", "b", "1")) }, "map", "a", "2"},
			{func() { n.apply(secret("s", "key", "2")) }, "s", "key", "2"},
			{func() {
				next := p.DeepCopy()
				next.Labels["a"] = "2"
				n.set(next)
			}, "labels", "labels", `a="2"`},
		} {
			c.change()
			n.pass(linger)
			if got := n.file(p, c.volume, c.file); got != c.want {
				n.Errorf("%s: %q", c.volume, got)
			}
			got := seen.take()
			if len(got) != 1 || !slices.Equal(got[0].Files, []string{c.file}) || !slices.Equal(got[0].Names, []string{c.volume}) ||
				got[0].Pod.Name != "p" || got[0].Path != n.MountedVolumes(p)[c.volume].Path || got[0].Version == "" {
				n.Errorf("%s: %+v", c.volume, got)
			}
		}
		if now := n.volume(p, "map").ContentVersion; now == version || now == "" {
			n.Errorf("version %q, before %q", now, version)
		}
		n.apply(configMap("map", "a", "2", "b", "1"), configMap("other", "x", "y"))
		n.pass(linger)
		if got := seen.take(); len(got) != 0 {
			n.Errorf("nothing changed: %+v", got)
		}
	})
}

func TestOptionalObjectsMayCome(t *testing.T) {
	onRunning(t, func(n *node) {
		p := pod("p", configVolume("map", true))
		n.up(p)
		n.apply(configMap("map", "a", "1"))
		synctest.Wait()
		if got := n.file(p, "map", "a"); got != "1" {
			n.Errorf("%q", got)
		}
		n.must(n.store.Delete(configMap("map")))
		n.pass(linger)
		if entries, err := os.ReadDir(filepath.Join(n.MountedVolumes(p)["map"].Path, "..data")); err != nil || len(entries) != 0 {
			n.Errorf("%v, %v", entries, err)
		}
	})
}

// TestStaleContent: live content outlives its source, and the status says so.
func TestStaleContent(t *testing.T) {
	onRunning(t, func(n *node) {
		n.apply(configMap("map", "a", "1"))
		p := pod("p", configVolume("map", false))
		n.up(p)
		n.must(n.store.Delete(configMap("map")))
		n.pass(linger)
		v := n.volume(p, "map")
		if !v.Ready || v.Phase != volumemanager.Mounted || v.Code != volumemanager.CodeStale || !has(v.Message, "ConfigMap ns/map") || n.file(p, "map", "a") != "1" {
			n.Errorf("%+v", v)
		}
		n.must(n.WaitForAttachAndMount(n.Context(), p))
		if plan, err := n.Plan(n.Context(), p); err != nil || !slices.Equal(kinds(plan.Volumes[0].Steps), []reconciler.Kind{reconciler.Refresh}) {
			n.Errorf("%+v, %v", plan, err)
		}
		n.apply(configMap("map", "a", "2"))
		n.pass(linger)
		if v := n.volume(p, "map"); v.Code != "" || n.file(p, "map", "a") != "2" {
			n.Errorf("%+v", v)
		}
	})
}

// silent hides that a store notifies.
type silent struct {
	plugins.SecretSource
	plugins.ConfigMapSource
	plugins.ClaimSource
	plugins.PersistentVolumeSource
	plugins.NodeSource
}

// TestSourcesThatDoNotNotify: what they have is found all the same, within an
// interval.
func TestSourcesThatDoNotNotify(t *testing.T) {
	onNode(t, func(n *node) {
		quiet := silent{n.store, n.store, n.store, n.store, n.store}
		n.host.Secrets, n.host.ConfigMaps, n.host.Claims, n.host.PersistentVolumes, n.host.Node = quiet, quiet, quiet, quiet, quiet
		n.host.Tokens, n.host.TrustBundles, n.host.PodCertificates, n.host.CSIDrivers, n.host.Attachments = nil, nil, nil, nil, nil
		n.host.RefreshInterval = time.Minute
		n.start()
		n.pods.MarkSynced()
		n.apply(configMap("map", "a", "1"))
		p := pod("p", configVolume("map", false), secretVolume("late"), claimVolume("d", "late", false), configVolume("optional", true))
		n.set(p)
		n.apply(secret("late", "key", "1"), configMap("map", "a", "2"), configMap("optional", "a", "1"))
		n.apply(boundDisk("late")...)
		synctest.Wait()
		if status, _ := n.Status(p); status.Ready || n.file(p, "map", "a") != "1" {
			n.Error("somebody notified")
		}
		if at := n.volume(p, "map").RefreshAt; at.IsZero() || time.Until(at) > time.Minute {
			n.Errorf("refresh at %v", at)
		}
		began := time.Now()
		n.must(n.WaitForAttachAndMount(n.Context(), p))
		if took := time.Since(began); took > time.Minute {
			n.Errorf("it took %v", took)
		}
		n.pass(time.Minute + time.Second)
		if n.file(p, "map", "a") != "2" || n.file(p, "optional", "a") != "1" || n.file(p, "late", "key") != "1" {
			n.Error("content was not read again")
		}
	})
}

// deaf is a store that loses its notices.
type deaf struct{ *memory.Store }

func (deaf) Subscribe(func(plugins.Ref)) (cancel func()) { return func() {} }

// TestLostNotices: a wait for an object whose notice was lost ends all the
// same, later.
func TestLostNotices(t *testing.T) {
	onNode(t, func(n *node) {
		s := deaf{n.store}
		n.host.ConfigMaps, n.host.Secrets, n.host.Claims, n.host.PersistentVolumes, n.host.Node = s, s, s, s, s
		n.host.Tokens, n.host.TrustBundles, n.host.PodCertificates, n.host.CSIDrivers, n.host.Attachments = s, s, s, s, s
		n.start()
		n.pods.MarkSynced()
		p := pod("p", configVolume("late", false))
		n.set(p)
		n.apply([]runtime.Object{configMap("late", "a", "1")}...)
		began := time.Now()
		n.must(n.WaitForAttachAndMount(n.Context(), p))
		if took := time.Since(began); took == 0 || took > 5*plugins.DefaultRefreshInterval {
			n.Errorf("it took %v", took)
		}
	})
}

// TestIdleCostsNothing: with sources that notify, nothing is done while nothing
// changes.
func TestIdleCostsNothing(t *testing.T) {
	onRunning(t, func(n *node) {
		n.apply(configMap("map", "a", "1"), secret("s", "key", "1"))
		p := pod("p", configVolume("map", false), secretVolume("s"), emptyVolume("e"), diskVolume("d", "one"))
		n.up(p)
		n.mounter.ForgetCalls()
		n.steps.take()
		before := tree(n.T, n.root)
		n.pass(time.Hour)
		if steps := n.steps.take(); len(steps) != 0 {
			n.Errorf("steps: %v", steps)
		}
		if calls := n.mounter.Calls(); len(calls) != 0 {
			n.Errorf("calls: %v", calls)
		}
		if !reflect.DeepEqual(tree(n.T, n.root), before) {
			n.Error("the tree changed")
		}
	})
}
