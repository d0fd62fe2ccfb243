package builtin_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/builtin"
	"github.com/volumekit/volumekit/plugins/memory"
	"github.com/volumekit/volumekit/plugins/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestEveryInlineSourceHasOnePlugin: of the kinds that exist each finds its
// plugin, and no two plugins want the same.
func TestEveryInlineSourceHasOnePlugin(t *testing.T) {
	registry, err := builtin.Registry(&plugins.VolumeHost{}, builtin.Options{})
	must(t, err)
	want := map[string]v1.VolumeSource{
		"kubernetes.io/configmap":    {ConfigMap: &v1.ConfigMapVolumeSource{}},
		"kubernetes.io/downward-api": {DownwardAPI: &v1.DownwardAPIVolumeSource{}},
		"kubernetes.io/empty-dir":    {},
		"kubernetes.io/host-path":    {HostPath: &v1.HostPathVolumeSource{}},
		"kubernetes.io/projected":    {Projected: &v1.ProjectedVolumeSource{}},
		"kubernetes.io/secret":       {Secret: &v1.SecretVolumeSource{}},
	}
	for name, source := range want {
		p, err := registry.ForSpec(&plugins.Spec{Volume: &v1.Volume{Name: "v", VolumeSource: source}})
		if err != nil || p.Name() != name {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
	if names := registry.Names(); len(names) != len(want) {
		t.Errorf("plugins %q", names)
	}
}

const canary = "canary-77aa"

// object returns the config map or secret that the volumes are made of.
func objects(version string) []runtime.Object {
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "data"}
	return []runtime.Object{
		&v1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"a": "1", "version": version}},
		&v1.Secret{ObjectMeta: meta, Data: map[string][]byte{"a": []byte(canary), "version": []byte(canary + version)}},
	}
}

func reference() v1.LocalObjectReference { return v1.LocalObjectReference{Name: "data"} }

func projectedSources() []v1.VolumeProjection {
	return []v1.VolumeProjection{
		{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: reference(), Items: []v1.KeyToPath{{Key: "version", Path: "maps/version"}}}},
		{Secret: &v1.SecretProjection{LocalObjectReference: reference(), Items: []v1.KeyToPath{{Key: "version", Path: "secrets/version"}}}},
		{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "name", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}},
	}
}

// contentHarness tests one plugin whose content comes from a memory.Store.
func contentHarness(name string, good, bad v1.VolumeSource) plugintest.Harness {
	volume := func(name string, source v1.VolumeSource) []plugintest.Volume {
		return []plugintest.Volume{{
			Name: name,
			Spec: &plugins.Spec{Volume: &v1.Volume{Name: "vol", VolumeSource: *source.DeepCopy()}},
			Pod:  &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", Labels: map[string]string{"l": "1"}}},
		}}
	}
	store := func(host *plugins.VolumeHost) *memory.Store { return host.Secrets.(*memory.Store) }
	return plugintest.Harness{
		New: func(t testing.TB, host *plugins.VolumeHost) plugins.VolumePlugin {
			for _, p := range builtin.New(host, builtin.Options{}) {
				if p.Name() == name {
					return p
				}
			}
			t.Fatalf("there is no %s", name)
			return nil
		},
		Host: func(t testing.TB, host *plugins.VolumeHost) {
			s := memory.NewStore()
			for _, o := range objects("one") {
				must(t, s.Apply(o))
			}
			host.Secrets, host.ConfigMaps, host.Tokens = s, s, s
		},
		Good: func(testing.TB, *plugins.VolumeHost) []plugintest.Volume { return volume("good", good) },
		Bad:  func(testing.TB, *plugins.VolumeHost) []plugintest.Volume { return volume("bad", bad) },
		Change: func(t testing.TB, host *plugins.VolumeHost, v plugintest.Volume) {
			for _, o := range objects("two") {
				must(t, store(host).Apply(o))
			}
			if v.Pod != nil {
				v.Pod.Labels["l"] = "2"
			}
		},
		Break: func(t testing.TB, host *plugins.VolumeHost) {
			for _, o := range objects("") {
				must(t, store(host).Delete(o))
			}
		},
		Secrets: []string{canary},
	}
}

// quickDir is a folder in memory, where there is one that needs no mounting.
func quickDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "volumekit")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestContentPlugins(t *testing.T) {
	items := []v1.KeyToPath{{Key: "a", Path: "../a"}}
	field := func(path string) *v1.DownwardAPIVolumeSource {
		return &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{{Path: path, FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels['l']"}}}}
	}
	harnesses := map[string]plugintest.Harness{
		"configmap": contentHarness("kubernetes.io/configmap",
			v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: reference()}},
			v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: reference(), Items: items}}),
		"secret": contentHarness("kubernetes.io/secret",
			v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "data"}},
			v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "data", Items: items}}),
		"projected": contentHarness("kubernetes.io/projected",
			v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: projectedSources()}},
			v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{Secret: &v1.SecretProjection{LocalObjectReference: reference(), Items: items}}}}}),
		"downwardapi": contentHarness("kubernetes.io/downward-api",
			v1.VolumeSource{DownwardAPI: field("sub/label")}, v1.VolumeSource{DownwardAPI: field("/label")}),
	}
	for name, h := range harnesses {
		t.Run(name, func(t *testing.T) {
			t.Run("imitated mounts", func(t *testing.T) {
				h.Root = quickDir
				plugintest.TestPlugin(t, h)
			})
			t.Run("real mounts", func(t *testing.T) {
				nstest.Require(t)
				h.Root = nstest.Dir
				h.Mounter = func(testing.TB, string) mount.Mounter { return hostmount.New(hostmount.Options{}) }
				plugintest.TestPlugin(t, h)
			})
		})
	}
}

// Example sets one volume up and takes it away, as the engine does.
func Example() {
	root, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(root) }()
	host := &plugins.VolumeHost{
		Layout:  plugins.Layout{Root: root},
		Mounter: mounttest.New(mounttest.Options{Dir: root}),
	}
	registry, err := builtin.Registry(host, builtin.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "b9a7c9e4"}}
	spec := &plugins.Spec{Volume: &v1.Volume{Name: "scratch"}} // without a source: an emptyDir
	plugin, err := registry.ForSpec(spec)
	if err != nil {
		fmt.Println(err)
		return
	}
	volume := plugins.PodVolume{Pod: pod.UID, Plugin: plugin.Name(), Name: spec.Name()}
	target := host.Layout.Target(volume, plugins.PodRef{Namespace: pod.Namespace, Name: pod.Name})
	if err := os.MkdirAll(filepath.Dir(target.Path), 0o750); err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	_, err = plugin.SetUp(ctx, plugins.SetUpRequest{Target: target, Spec: spec, Object: pod})
	fmt.Println(strings.TrimPrefix(filepath.ToSlash(target.Path), filepath.ToSlash(root)), err)
	err = plugin.TearDown(ctx, plugins.TearDownRequest{Target: target})
	_, gone := os.Lstat(target.Path)
	fmt.Println(os.IsNotExist(gone), err)
	// Output:
	// /pods/b9a7c9e4/volumes/kubernetes.io~empty-dir/scratch <nil>
	// true <nil>
}

func TestRegistryWithoutAHost(t *testing.T) {
	if r, err := builtin.Registry(nil, builtin.Options{}); r != nil || err == nil {
		t.Errorf("%v, %v", r, err)
	}
}
