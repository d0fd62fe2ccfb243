package volumemanager_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/volumemanager"
)

// tree lists all files below a folder.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		info, _ := d.Info()
		list = append(list, strings.Join([]string{path, info.Mode().String(), info.ModTime().String()}, " "))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func kinds(steps []reconciler.Step) []reconciler.Kind {
	var list []reconciler.Kind
	for _, s := range steps {
		list = append(list, s.Kind)
	}
	return list
}

func TestPlanDoesNothing(t *testing.T) {
	onRunning(t, func(n *node) {
		n.apply(boundDisk("c")...)
		p := pod("p", diskVolume("d", "one"), claimVolume("c", "c", false), claimVolume("absent", "absent", false),
			configVolume("map", false), diskVolume("bad", "refused"))
		synctest.Wait()
		before, log := tree(n.T, n.root), n.log.text()
		n.mounter.ForgetCalls()
		plan, err := n.Plan(n.Context(), p)
		n.must(err)
		if calls := n.mounter.Calls(); len(calls) > 0 {
			n.Errorf("calls: %+v", calls)
		}
		if after := tree(n.T, n.root); !reflect.DeepEqual(after, before) {
			n.Errorf("the tree changed: %v", after)
		}
		if s := n.Snapshot(); len(s.Pods) != 0 || len(s.Volumes) != 0 || len(n.events.List()) != 0 || n.log.text() != log || volumemanager.Remembered(n.Manager) != 0 {
			n.Errorf("something is remembered: %+v", s)
		}
		all := []reconciler.Kind{reconciler.Attach, reconciler.MountDevice, reconciler.SetUp}
		if len(plan.Volumes) != 5 || plan.Pod.Name != "p" {
			n.Fatalf("%+v", plan)
		}
		for i, want := range []struct {
			name  string
			kinds []reconciler.Kind
			class plugins.Class
		}{
			{"absent", nil, plugins.ClassWaiting},
			{"bad", nil, plugins.ClassPermanent},
			{"c", all, plugins.ClassNone},
			{"d", all, plugins.ClassNone},
			{"map", []reconciler.Kind{reconciler.SetUp}, plugins.ClassNone},
		} {
			v := plan.Volumes[i]
			if v.Name != want.name || !reflect.DeepEqual(kinds(v.Steps), want.kinds) || plugins.ClassOf(v.Err) != want.class || (v.Message == "") != (v.Err == nil) {
				n.Errorf("%+v", v)
			}
			for _, s := range v.Steps {
				if s.Reason == "" {
					n.Errorf("%s: no reason", s.Kind)
				}
			}
		}
		if v := plan.Volumes[3]; v.Path != filepath.Join(n.root, "pods/uid-p/volumes/example.com~disk/d") || v.ID != "example.com/disk/one" {
			n.Errorf("%+v", v)
		}
	})
}

func TestPlanOfWhatIsThere(t *testing.T) {
	onRunning(t, func(n *node) {
		n.apply(boundDisk("c")...)
		p := pod("p", claimVolume("d", "c", false), emptyVolume("e"))
		n.up(p)
		plan, err := n.Plan(n.Context(), p)
		n.must(err)
		for _, v := range plan.Volumes {
			if len(v.Steps) != 0 || len(v.Holds) != 0 || v.Err != nil {
				n.Errorf("%+v", v)
			}
		}
		// Another pod shares what is attached and staged.
		plan, err = n.Plan(n.Context(), pod("q", claimVolume("d", "c", false)))
		n.must(err)
		if got := kinds(plan.Volumes[0].Steps); !reflect.DeepEqual(got, []reconciler.Kind{reconciler.SetUp}) {
			n.Errorf("%v", got)
		}
		// A new version of the pod is planned, not the one that is known.
		next := pod("p", claimVolume("d", "c", false), emptyVolume("e"))
		group := int64(7)
		next.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
		plan, err = n.Plan(n.Context(), next)
		n.must(err)
		if got := kinds(plan.Volumes[0].Steps); !reflect.DeepEqual(got, []reconciler.Kind{reconciler.TearDown, reconciler.SetUp}) {
			n.Errorf("%v", got)
		}
		if v := n.volume(p, "d"); !v.Ready {
			n.Errorf("%+v", v)
		}
		// Two names, one of which may write: nothing changes.
		two := pod("p", claimVolume("a", "c", true), claimVolume("d", "c", false), emptyVolume("e"))
		plan, err = n.Plan(n.Context(), two)
		n.must(err)
		for _, v := range plan.Volumes {
			if len(v.Steps) != 0 {
				n.Errorf("%+v", v)
			}
		}
	})
}

func TestPlanSaysWhatIsInTheWay(t *testing.T) {
	onRunning(t, func(n *node) {
		n.apply(boundDisk("c", v1.ReadWriteOncePod)...)
		n.up(pod("p", claimVolume("d", "c", false)))
		plan, err := n.Plan(n.Context(), pod("q", claimVolume("d", "c", false)))
		n.must(err)
		if v := plan.Volumes[0]; len(v.Steps) != 0 || len(v.Holds) != 1 || v.Holds[0].Code != reconciler.HoldExclusive || v.Holds[0].By != "ns/p" {
			n.Errorf("%+v", v)
		}
		for _, bad := range []*v1.Pod{nil, {}, pod("q", emptyVolume(".."))} {
			if _, err := n.Plan(n.Context(), bad); plugins.ClassOf(err) != plugins.ClassPermanent {
				n.Errorf("%v", err)
			}
		}
	})
}

func TestPlanBeforeRun(t *testing.T) {
	onNode(t, func(n *node) {
		m, err := volumemanager.New(n.config)
		n.must(err)
		plan, err := m.Plan(n.Context(), pod("p", diskVolume("d", "one")))
		n.must(err)
		if len(plan.Volumes[0].Steps) != 3 {
			n.Errorf("%+v", plan)
		}
		if _, err := os.Stat(n.root); err == nil {
			n.Error("the root was made")
		}
	})
}
