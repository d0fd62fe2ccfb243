//go:build linux

package sim_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/internal/sim"
	"github.com/volumekit/volumekit/plugins"
)

func TestMain(m *testing.M) {
	switch {
	case sim.IsAgent():
		sim.RunAgent()
	case sim.IsFuseServer():
		sim.ServeFuse()
	}
	nstest.Main(m)
}

func configMap(name string, data map[string]string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: data}
}

func secret(name string, data map[string][]byte) *v1.Secret {
	return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: data}
}

func emptyDir(name string) v1.Volume {
	return sim.Volume(name, v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})
}

func configVolume(name, from string) v1.Volume {
	return sim.Volume(name, v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: from}}})
}

// everyKind is a pod with a volume of every local kind.
func everyKind(name, folder string) *v1.Pod {
	size := resource.MustParse("16Mi")
	mode := int32(0o440)
	field := func(path string) *v1.ObjectFieldSelector { return &v1.ObjectFieldSelector{FieldPath: path} }
	directory := v1.HostPathDirectory
	pod := sim.Pod(name,
		configVolume("config", "config"),
		sim.Volume("secret", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "secret", DefaultMode: &mode}}),
		sim.Volume("info", v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: field("metadata.labels")}}}}),
		sim.Volume("access", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}},
			{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "config"}}},
			{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "secret"}, Items: []v1.KeyToPath{{Key: "user", Path: "db/user"}}}},
			{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: field("metadata.namespace")}}}},
		}}}),
		emptyDir("scratch"),
		sim.Volume("memory", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: &size}}),
		sim.Volume("host", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: folder, Type: &directory}}),
		sim.Volume("disk", sim.Claim("disk")),
		sim.Volume("block", sim.Claim("block")),
	)
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = c.VolumeMounts[:len(c.VolumeMounts)-1]
	c.VolumeDevices = []v1.VolumeDevice{{Name: "block", DevicePath: "/dev/block"}}
	return pod
}

// prepare gives the node the objects that everyKind refers to.
func prepare(t *testing.T, n *sim.Node) (folder string) {
	t.Helper()
	folder = filepath.Join(n.Dir, "data")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	pv, claim := sim.ClaimedDisk("disk", folder)
	block, blockClaim := sim.ClaimedDisk("block", folder)
	block.Spec.VolumeMode, blockClaim.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock), ptr(v1.PersistentVolumeBlock)
	n.Apply(block, blockClaim)
	n.Apply(configMap("config", map[string]string{"a": "alpha", "b": "beta"}),
		secret("secret", map[string][]byte{"user": []byte("u"), "password": []byte("p")}), pv, claim)
	return folder
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func statfs(t *testing.T, path string) syscall.Statfs_t {
	t.Helper()
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func checkEveryKind(t *testing.T, n *sim.Node, pod *v1.Pod) {
	t.Helper()
	checkEveryKindWith(t, n, pod, "alpha")
}

// checkEveryKindWith is checkEveryKind for another value of the config map's
// key "a".
func checkEveryKindWith(t *testing.T, n *sim.Node, pod *v1.Pod, alpha string) {
	t.Helper()
	path := func(plugin, name string, below ...string) string {
		return n.Path(pod, "kubernetes.io/"+plugin, name, below...)
	}
	if got := read(t, path("configmap", "config", "a")); got != alpha {
		t.Errorf("config map: %q", got)
	}
	if info, err := os.Stat(path("secret", "secret", "user")); err != nil || info.Mode().Perm() != 0o440 {
		t.Errorf("secret's mode: %v %v", info, err)
	}
	for _, dir := range []string{path("secret", "secret"), path("downward-api", "info"), path("projected", "access"), path("empty-dir", "memory")} {
		if s := statfs(t, dir); s.Type != unix.TMPFS_MAGIC {
			t.Errorf("%s is not on tmpfs", dir)
		}
		if _, mounted := n.Mounts()[dir]; !mounted {
			t.Errorf("%s is no mount", dir)
		}
	}
	if s := statfs(t, path("empty-dir", "memory")); int64(s.Blocks)*s.Bsize != 16<<20 {
		t.Errorf("memory: size %d", int64(s.Blocks)*s.Bsize)
	}
	if got := read(t, path("downward-api", "info", "labels")); got != fmt.Sprintf("app=%q", pod.Name) {
		t.Errorf("labels: %q", got)
	}
	if got := read(t, path("projected", "access", "namespace")); got != "default" {
		t.Errorf("namespace: %q", got)
	}
	if got := read(t, path("projected", "access", "token")); got == "" {
		t.Error("token: empty")
	}
	if got := read(t, path("projected", "access", "db/user")); got != "u" {
		t.Errorf("user: %q", got)
	}
	if info, err := os.Stat(path("empty-dir", "scratch")); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("scratch: %v %v", info, err)
	}
	if _, mounted := n.Mounts()[n.Path(pod, sim.DiskName, "pv-disk")]; !mounted {
		t.Error("disk is no mount")
	}
	link := n.Layout.PodDevice(plugins.PodVolume{Pod: pod.UID, Plugin: sim.DiskName, Name: "pv-block"})
	if device, err := os.Readlink(link); err != nil || filepath.Dir(device) != sim.DevicesDir(n.Layout) {
		t.Errorf("the block device's link: %s, %v", device, err)
	} else if _, err := os.Stat(device); err != nil {
		t.Error(err)
	}
}

// slack multiplies deadlines where a machine is shared with much else.
const slack = 5

func ptr[T any](v T) *T { return &v }
