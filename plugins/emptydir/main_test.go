package emptydir_test

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/plugins/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// ptr returns a pointer to a value.
func ptr[T any](v T) *T { return &v }

func quantity(text string) *resource.Quantity { return ptr(resource.MustParse(text)) }

func specOf(source *v1.EmptyDirVolumeSource) *plugins.Spec {
	return &plugins.Spec{Volume: &v1.Volume{Name: "vol", VolumeSource: v1.VolumeSource{EmptyDir: source}}}
}

func podWith(volumes ...v1.Volume) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod", UID: "11111111-2222-4333-8444-555555555555"},
		Spec:       v1.PodSpec{Volumes: volumes},
	}
}

// node is a root folder with a mounter and the plugin.
type node struct {
	t      testing.TB
	root   string
	host   *plugins.VolumeHost
	plugin *emptydir.Plugin
	fake   *mounttest.Mounter
}

func newNode(t testing.TB, root string, m mount.Mounter) *node {
	n := &node{t: t, root: root, host: &plugins.VolumeHost{Layout: plugins.Layout{Root: root}, Mounter: m}}
	n.plugin = emptydir.New(n.host)
	return n
}

// fakeNode has imitated mounts.
func fakeNode(t testing.TB) *node {
	root := filepath.Join(t.TempDir(), "root")
	must(t, os.Mkdir(root, 0o755))
	m := mounttest.New(mounttest.Options{Dir: root})
	n := newNode(t, root, m)
	n.fake = m
	return n
}

// realNode has the kernel's.
func realNode(t testing.TB) *node {
	return newNode(t, nstest.Dir(t), hostmount.New(hostmount.Options{}))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// request asks for the volume of a pod whose folders are made.
func (n *node) request(spec *plugins.Spec, pod *v1.Pod) plugins.SetUpRequest {
	name := plugins.PodVolume{Pod: pod.UID, Plugin: emptydir.Name, Name: spec.Name()}
	req := plugins.SetUpRequest{
		Target: n.host.Layout.Target(name, plugins.PodRef{Namespace: pod.Namespace, Name: pod.Name}),
		Spec:   spec, Object: pod,
	}
	must(n.t, os.MkdirAll(filepath.Dir(req.Path), 0o755))
	return req
}

func (n *node) setUp(req plugins.SetUpRequest) plugins.SetUpResult {
	n.t.Helper()
	result, err := n.plugin.SetUp(n.t.Context(), req)
	must(n.t, err)
	return result
}

func (n *node) tearDown(req plugins.SetUpRequest) {
	n.t.Helper()
	must(n.t, n.plugin.TearDown(n.t.Context(), plugins.TearDownRequest{Target: req.Target}))
	if _, err := os.Lstat(req.Path); !os.IsNotExist(err) {
		n.t.Errorf("the target is still there: %v", err)
	}
}

func harness() plugintest.Harness {
	volume := func(name string, source *v1.EmptyDirVolumeSource) plugintest.Volume {
		return plugintest.Volume{Name: name, Spec: specOf(source), Pod: podWith()}
	}
	return plugintest.Harness{
		New: func(_ testing.TB, host *plugins.VolumeHost) plugins.VolumePlugin { return emptydir.New(host) },
		Good: func(testing.TB, *plugins.VolumeHost) []plugintest.Volume {
			grouped := volume("fsGroup", &v1.EmptyDirVolumeSource{})
			grouped.Params.FSGroup = ptr(int64(os.Getegid()))
			return []plugintest.Volume{
				volume("noSource", nil),
				volume("folder", &v1.EmptyDirVolumeSource{}),
				volume("memory", &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: quantity("1Mi")}),
				grouped,
			}
		},
		Bad: func(testing.TB, *plugins.VolumeHost) []plugintest.Volume {
			return []plugintest.Volume{
				volume("medium", &v1.EmptyDirVolumeSource{Medium: "Tape"}),
				volume("pageSize", &v1.EmptyDirVolumeSource{Medium: "HugePages-many"}),
				volume("limit", &v1.EmptyDirVolumeSource{SizeLimit: quantity("-1")}),
				volume("mode", &v1.EmptyDirVolumeSource{Mode: ptr(int32(0o2777))}),
				volume("noHugePages", &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumHugePages}),
			}
		},
	}
}

func TestConformance(t *testing.T) {
	t.Run("imitated mounts", func(t *testing.T) { plugintest.TestPlugin(t, harness()) })
	t.Run("real mounts", func(t *testing.T) {
		nstest.Require(t)
		h := harness()
		h.Root = nstest.Dir
		h.Mounter = func(testing.TB, string) mount.Mounter { return hostmount.New(hostmount.Options{}) }
		plugintest.TestPlugin(t, h)
	})
}
