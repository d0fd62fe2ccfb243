package plugins

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const uuid = "0b5a1c1e-7c1f-4b53-9c9c-0b1f6d5cbe01"

func inline(name string) *Spec { return &Spec{Volume: &v1.Volume{Name: name}} }

func persistent(name string, modes ...v1.PersistentVolumeAccessMode) *Spec {
	return &Spec{PV: &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1.PersistentVolumeSpec{AccessModes: modes},
	}}
}

func TestVolumeIDOf(t *testing.T) {
	t.Parallel()
	hash := types.UID(strings.Repeat("0f", 16))
	for name, c := range map[string]struct {
		identity Identity
		spec     *Spec
		pod      types.UID
		want     VolumeID
	}{
		"a pod's own":          {Identity{Storage: "s"}, inline("data"), uuid, "a.b/c/" + uuid + "-data"},
		"static pod":           {Identity{}, inline("data"), hash, VolumeID("a.b/c/" + string(hash) + "-data")},
		"hand-made uid":        {Identity{}, inline("data"), "web-1", "a.b/c/web-1/data"},
		"attached":             {Identity{Storage: "d^h", Attach: true}, persistent("pv"), uuid, "a.b/c/d^h"},
		"staged":               {Identity{Storage: "d^h", Device: true}, persistent("pv"), uuid, "a.b/c/d^h"},
		"shared, not staged":   {Identity{Storage: "d^h"}, persistent("pv", v1.ReadWriteMany), uuid, "a.b/c/" + uuid + "-pv"},
		"one pod":              {Identity{Storage: "d^h"}, persistent("pv", v1.ReadWriteOncePod), uuid, "a.b/c/d^h"},
		"one pod, no storage":  {Identity{}, persistent("pv", v1.ReadWriteOncePod), uuid, "a.b/c/pv"},
		"no spec":              {Identity{}, nil, uuid, "a.b/c/" + uuid + "-"},
		"storage with slashes": {Identity{Storage: "//h/x", Device: true}, inline("x"), uuid, "a.b/c///h/x"},
	} {
		got := VolumeIDOf("a.b/c", c.identity, c.spec, c.pod)
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if got.Plugin() != "a.b/c" {
			t.Errorf("%s: plugin %q", name, got.Plugin())
		}
	}
}

func TestVolumeIDPlugin(t *testing.T) {
	t.Parallel()
	for id, want := range map[VolumeID]string{
		"": "", "a": "a", "a/b": "a/b", "a/b/": "a/b", "a/b/c/d": "a/b", "/": "/", "//": "/", "///": "/",
	} {
		if got := id.Plugin(); got != want {
			t.Errorf("%q: %q, want %q", id, got, want)
		}
	}
}

// TestOwnVolumesHaveOwnIDs pairs up names that a dash could make the same.
func TestOwnVolumesHaveOwnIDs(t *testing.T) {
	t.Parallel()
	volumes := []PodVolume{
		{Pod: "a", Name: "b-c"}, {Pod: "a-b", Name: "c"}, {Pod: "a-b-c", Name: "d"}, {Pod: "a-b", Name: "c-d"},
		{Pod: uuid, Name: "x"}, {Pod: uuid + "-x", Name: "x"}, {Pod: uuid, Name: "x-x"},
		{Pod: types.UID(uuid[:8]), Name: uuid[9:] + "-x"}, {Pod: types.UID(strings.Repeat("a", 32)), Name: "b-c"},
		{Pod: types.UID(strings.Repeat("a", 32) + "-b"), Name: "c"},
	}
	seen := map[VolumeID]PodVolume{}
	for _, v := range volumes {
		id := VolumeIDOf("a.b/c", Identity{}, inline(v.Name), v.Pod)
		if other, ok := seen[id]; ok {
			t.Errorf("%v and %v are both %s", other, v, id)
		}
		seen[id] = v
	}
}

func FuzzVolumeID(f *testing.F) {
	for _, s := range hostile {
		f.Add(s[0], s[1], s[2], uuid, "data")
		f.Add(s[0], s[1], s[2], s[2], s[0])
	}
	f.Fuzz(func(t *testing.T, uid, plugin, name, uid2, name2 string) {
		one := PodVolume{Pod: types.UID(uid), Plugin: plugin, Name: name}
		two := PodVolume{Pod: types.UID(uid2), Plugin: plugin, Name: name2}
		if one.Check() != nil {
			return
		}
		id := VolumeIDOf(plugin, Identity{}, inline(name), one.Pod)
		shared := VolumeIDOf(plugin, Identity{Storage: name2, Device: true}, inline(name), one.Pod)
		if id.Plugin() != plugin || shared.Plugin() != plugin {
			t.Fatalf("%q and %q are not of plugin %q", id, shared, plugin)
		}
		if two.Check() != nil || one == two {
			return
		}
		if other := VolumeIDOf(plugin, Identity{}, inline(name2), two.Pod); id == other {
			t.Fatalf("%v and %v are both %q", one, two, id)
		}
		if one.String() == two.String() {
			t.Fatalf("%+v and %+v look the same", one, two)
		}
	})
}

func TestNamesForPeople(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]interface{ String() string }{
		"Secret ns/x": Ref{Kind: KindSecret, Namespace: "ns", Name: "x"},
		"Node x":      Ref{Kind: KindNode, Name: "x"},
		"ns/pod":      PodRef{Namespace: "ns", Name: "pod", UID: "u"},
		"u/a/b/n":     PodVolume{Pod: "u", Plugin: "a/b", Name: "n"},
	} {
		if got.String() != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
