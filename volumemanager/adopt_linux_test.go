package volumemanager_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/builtin"
	"github.com/volumekit/volumekit/plugins/memory"
	"github.com/volumekit/volumekit/volumemanager"
)

// kubeletRoot writes what a kubelet leaves under its root.
type kubeletRoot struct {
	t    *testing.T
	root string
}

func (k kubeletRoot) write(text string, path ...string) {
	k.t.Helper()
	name := filepath.Join(k.root, filepath.Join(path...))
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o750), os.WriteFile(name, []byte(text), 0o644), os.Chmod(name, 0o644)); err != nil { //nolint:gosec // as the kubelet does
		k.t.Fatal(err)
	}
}

// volume makes the folder of a volume, with the file that says that it is
// ready, and a tmpfs on it if it lies in memory.
func (k kubeletRoot) volume(pod, plugin, name string, memory bool) string {
	k.t.Helper()
	dir := filepath.Join(k.root, "pods", pod, "volumes", "kubernetes.io~"+plugin, name)
	if err := errors.Join(os.MkdirAll(dir, 0o750), os.Chmod(dir, 0o777)); err != nil { //nolint:gosec // as the kubelet does
		k.t.Fatal(err)
	}
	if memory {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m,mode=0777"); err != nil {
			k.t.Fatal(err)
		}
	}
	ready := name
	if plugin != "empty-dir" {
		ready = "wrapped_" + name
	}
	k.write("", "pods", pod, "plugins", "kubernetes.io~empty-dir", ready, "ready")
	return dir
}

// content publishes files as the kubelet's atomic writer does.
func (k kubeletRoot) content(dir string, files ...string) {
	k.t.Helper()
	const version = "..2026_01_02_03_04_05.123456789"
	if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil { //nolint:gosec // as the kubelet does
		k.t.Fatal(err)
	}
	faults := []error{os.Chmod(filepath.Join(dir, version), 0o755), os.Symlink(version, filepath.Join(dir, "..data"))} //nolint:gosec // as the kubelet does
	for i := 0; i < len(files); i += 2 {
		name := filepath.Join(dir, version, files[i])
		faults = append(faults, os.WriteFile(name, []byte(files[i+1]), 0o644), os.Chmod(name, 0o644), //nolint:gosec // as the kubelet does
			os.Symlink(filepath.Join("..data", files[i]), filepath.Join(dir, files[i])))
	}
	if err := errors.Join(faults...); err != nil {
		k.t.Fatal(err)
	}
}

// pod leaves a pod with a volume of each kind.
func (k kubeletRoot) pod(uid string) {
	k.t.Helper()
	k.write("data", "pods", uid, "volumes", "kubernetes.io~empty-dir", "scratch", "file")
	k.volume(uid, "empty-dir", "scratch", false)
	k.write("data", k.rel(k.volume(uid, "empty-dir", "memory", true)), "file")
	k.content(k.volume(uid, "configmap", "map", false), "a", "alpha", "b", "beta")
	k.content(k.volume(uid, "secret", "s", true), "key", "value")
	k.content(k.volume(uid, "projected", "access", true), "old", "gone", "a", "out of date")
	k.content(k.volume(uid, "downward-api", "info", true), "name", "wanted")
}

func (k kubeletRoot) rel(path string) string {
	k.t.Helper()
	rel, err := filepath.Rel(k.root, path)
	if err != nil {
		k.t.Fatal(err)
	}
	return rel
}

// keptPod is the API's side of it.
func keptPod(name string) *v1.Pod {
	return pod(name,
		emptyVolume("scratch"),
		v1.Volume{Name: "memory", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}},
		configVolume("map", false), secretVolume("s"),
		v1.Volume{Name: "access", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "map"}}},
		}}}},
		v1.Volume{Name: "info", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
			{Path: "name", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}},
		}}}},
	)
}

// mounts lists what is mounted below a folder, by path.
func mounts(t *testing.T, dir string) map[string]uint64 {
	t.Helper()
	table, err := hostmount.New(hostmount.Options{}).Table(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list := map[string]uint64{}
	for _, e := range table.Below(dir) {
		list[strings.TrimPrefix(e.Target, dir)] = e.ID
	}
	return list
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		t.Fatal(err)
	}
	return s.Ino
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// adopter is a manager with real mounts on a root that somebody else left.
func adopter(t *testing.T, root string) (m *volumemanager.Manager, pods *memory.Pods) {
	t.Helper()
	store := memory.NewStore()
	if err := errors.Join(store.Apply(configMap("map", "a", "alpha", "b", "beta")), store.Apply(secret("s", "key", "value"))); err != nil {
		t.Fatal(err)
	}
	host := store.Host(plugins.Layout{Root: root}, hostmount.New(hostmount.Options{}))
	registry, err := builtin.Registry(host, builtin.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pods = memory.NewPods()
	m, err = volumemanager.New(volumemanager.Config{Host: host, Plugins: registry, Pods: pods})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return m, pods
}

// TestAdoptAKubeletsRoot: without a journal, from the tree alone.
func TestAdoptAKubeletsRoot(t *testing.T) {
	root := filepath.Join(nstest.Dir(t), "kubelet")
	k := kubeletRoot{t, root}
	k.pod("uid-wanted")
	k.pod("uid-gone")
	k.write("127.0.0.1 localhost", "pods/uid-gone/etc-hosts")
	k.write("", "pods/uid-csi/volumes/kubernetes.io~csi/pv-1/vol_data.json")
	csi := filepath.Join(root, "pods/uid-csi/volumes/kubernetes.io~csi/pv-1/mount")
	if err := errors.Join(os.Mkdir(csi, 0o750), unix.Mount("tmpfs", csi, "tmpfs", 0, "size=1m")); err != nil {
		t.Fatal(err)
	}
	k.write("data", k.rel(csi), "file")
	k.write("data", "pods/uid-vendor/volumes/vendor~x/data/file")
	kept := func(parts ...string) string {
		return filepath.Join(root, "pods/uid-wanted/volumes", filepath.Join(parts...))
	}
	before := mounts(t, filepath.Join(root, "pods/uid-wanted"))
	files := map[string]uint64{}
	for _, name := range []string{"kubernetes.io~configmap/map/a", "kubernetes.io~configmap/map/b", "kubernetes.io~secret/s/key", "kubernetes.io~downward-api/info/name"} {
		files[name] = inode(t, kept(name))
	}

	m, pods := adopter(t, root)
	wanted := keptPod("wanted")
	if err := pods.Set(wanted); err != nil {
		t.Fatal(err)
	}
	pods.MarkSynced()
	<-m.Ready()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := m.WaitForAttachAndMount(ctx, wanted); err != nil {
		t.Fatal(err)
	}
	if err := m.WaitForUnmount(ctx, keptPod("gone")); err != nil {
		t.Fatal(err)
	}

	after := mounts(t, filepath.Join(root, "pods/uid-wanted"))
	for path, id := range before {
		if after[path] != id {
			t.Errorf("%s: mount %d became %d", path, id, after[path])
		}
	}
	if len(after) != 4 || len(before) != 4 {
		t.Errorf("mounts %v, before %v", after, before)
	}
	for name, ino := range files {
		if inode(t, kept(name)) != ino {
			t.Errorf("%s was written again", name)
		}
	}
	for name, want := range map[string]string{
		"kubernetes.io~empty-dir/scratch/file": "data", "kubernetes.io~empty-dir/memory/file": "data",
		"kubernetes.io~configmap/map/a": "alpha", "kubernetes.io~secret/s/key": "value", "kubernetes.io~projected/access/a": "alpha",
	} {
		if got := readFile(t, kept(name)); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if _, err := os.Lstat(kept("kubernetes.io~projected/access/old")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("old content is still there: %v", err)
	}

	left, err := os.ReadDir(filepath.Join(root, "pods/uid-gone"))
	if err != nil || len(left) != 1 || left[0].Name() != "etc-hosts" {
		t.Errorf("left of the gone pod: %v, %v", left, err)
	}
	checkForeign(t, m, root)

	// And now for good: nothing that was adopted stays, and nothing else goes.
	if report, err := m.Drain(ctx); err != nil {
		t.Errorf("%+v, %v", report, err)
	}
	if _, err := os.Stat(filepath.Join(root, "pods/uid-wanted")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the adopted pod's folder: %v", err)
	}
	checkForeign(t, m, root)
	if left := mounts(t, root); len(left) != 1 {
		t.Errorf("mounts: %v", left)
	}
}

// checkForeign checks that volumes of unknown kinds are told and untouched.
func checkForeign(t *testing.T, m *volumemanager.Manager, root string) {
	t.Helper()
	faults := m.Snapshot().Faults
	if len(faults) != 2 || !has(faults[0].Path+faults[0].Message, "kubernetes.io~csi/pv-1", "no plugin named kubernetes.io/csi") ||
		!has(faults[1].Path+faults[1].Message, "vendor~x/data", "no plugin named vendor/x") {
		t.Errorf("faults: %+v", faults)
	}
	for _, name := range []string{
		"pods/uid-csi/volumes/kubernetes.io~csi/pv-1/mount/file", "pods/uid-vendor/volumes/vendor~x/data/file",
	} {
		if got := readFile(t, filepath.Join(root, name)); got != "data" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestAdoptWithoutASource: as long as the source has not told all pods, what a
// kubelet left stays as it is.
func TestAdoptWithoutASource(t *testing.T) {
	root := filepath.Join(nstest.Dir(t), "kubelet")
	k := kubeletRoot{t, root}
	k.pod("uid-left")
	before := mounts(t, root)
	m, pods := adopter(t, root)
	p := keptPod("left")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := m.WaitForUnmount(ctx, p); !errors.Is(err, volumemanager.ErrStillMounted) || !has(err.Error(), "uncertain") {
		t.Errorf("%v", err)
	}
	status, _ := m.Status(p)
	if status.Known || len(status.Volumes) != 6 {
		t.Errorf("%+v", status)
	}
	for _, v := range status.Volumes {
		if v.Phase != volumemanager.Kept || v.Code != volumemanager.CodeUnknown {
			t.Errorf("%+v", v)
		}
	}
	if after := mounts(t, root); len(after) != len(before) {
		t.Errorf("mounts: %v, before %v", after, before)
	}
	pods.MarkSynced()
	if err := m.WaitForUnmount(t.Context(), p); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(root, "pods/uid-left")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if left := mounts(t, root); len(left) != 0 {
		t.Errorf("mounts: %v", left)
	}
}
