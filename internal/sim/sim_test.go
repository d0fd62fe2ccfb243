//go:build linux

package sim_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/internal/sim"
	"github.com/volumekit/volumekit/volumemanager"
	"golang.org/x/sys/unix"
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
	return sim.Pod(name,
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
	)
}

// prepare gives the node the objects that everyKind refers to.
func prepare(t *testing.T, n *sim.Node) (folder string) {
	t.Helper()
	folder = filepath.Join(n.Dir, "data")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	pv, claim := sim.ClaimedDisk("disk", folder)
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
	path := func(plugin, name string, below ...string) string {
		return n.Path(pod, "kubernetes.io/"+plugin, name, below...)
	}
	if got := read(t, path("configmap", "config", "a")); got != "alpha" {
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
}

func TestEveryLocalKindComesAndGoes(t *testing.T) {
	n := sim.New(t)
	folder := prepare(t, n)
	before := n.Mounts()
	n.Settings.Propagation = volumemanager.MakeShared
	n.Start()
	pod := everyKind("all", folder)
	n.Apply(pod)
	state := n.AwaitReady(pod)
	checkEveryKind(t, n, pod)
	for _, v := range state.Snapshot.Pods[0].Volumes {
		if v.Code != "" || v.Phase != volumemanager.Mounted {
			t.Errorf("volume %s: %s %s", v.Name, v.Phase, v.Code)
		}
	}
	if err := os.WriteFile(n.Path(pod, sim.DiskName, "pv-disk", "kept"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Delete(pod)
	n.AwaitGone(pod)
	n.Await("the device is unmounted", func(s sim.State) bool { return len(s.Snapshot.Volumes) == 0 })
	if got := read(t, filepath.Join(folder, "kept")); got != "data" {
		t.Errorf("the disk's data: %q", got)
	}
	after := n.Mounts()
	delete(after, n.Layout.Root)
	if !maps.Equal(before, after) {
		t.Errorf("mounts are left: %v", after)
	}
	if left, _ := os.ReadDir(n.Layout.PodsDir()); len(left) > 0 {
		t.Errorf("pods are left: %v", left)
	}
}

func TestRestartIsInvisible(t *testing.T) {
	n := sim.New(t)
	folder := prepare(t, n)
	n.Start()
	var pods []*v1.Pod
	for i := range 5 {
		pod := everyKind(fmt.Sprintf("pod-%d", i), folder)
		pods = append(pods, pod)
		n.Apply(pod)
	}
	n.AwaitReady(pods...)
	n.AwaitSteady()
	before := n.Mounts()
	versions := map[string]string{}
	for _, pod := range pods {
		for _, at := range []string{n.Path(pod, "kubernetes.io/configmap", "config", "..data"), n.Path(pod, "kubernetes.io/secret", "secret", "..data")} {
			link, err := os.Readlink(at)
			if err != nil {
				t.Fatal(err)
			}
			versions[at] = link
		}
	}
	for round := range 10 {
		n.Kill()
		n.Start()
		if round%3 == 0 { // some die while they are still looking around
			time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond) //nolint:forbidigo // a random moment is the point
			continue
		}
		n.AwaitReady(pods...)
		n.AwaitSteady()
		if after := n.Mounts(); !maps.Equal(before, after) {
			t.Fatalf("round %d: mounts changed:\nbefore %v\nafter  %v", round, before, after)
		}
	}
	n.AwaitReady(pods...)
	for at, link := range versions {
		if now, err := os.Readlink(at); err != nil || now != link {
			t.Errorf("%s was written anew: %s, %v", at, now, err)
		}
	}
}

func TestPodsDeletedWhileDown(t *testing.T) {
	n := sim.New(t)
	folder := prepare(t, n)
	n.Start()
	var pods []*v1.Pod
	for i := range 5 {
		pod := everyKind(fmt.Sprintf("pod-%d", i), folder)
		pods = append(pods, pod)
		n.Apply(pod)
	}
	n.AwaitReady(pods...)
	n.AwaitSteady()
	before := n.Mounts()
	n.Kill()
	n.Delete(pods[0], pods[1], pods[2])
	n.Fault("PersistentVolumeClaim", "notfound")
	n.Fault("PersistentVolume", "notfound")
	n.Start()
	n.AwaitGone(pods[:3]...)
	after := n.Mounts()
	for target, id := range before {
		gone := strings.Contains(target, "uid-pod-0/") || strings.Contains(target, "uid-pod-1/") || strings.Contains(target, "uid-pod-2/")
		if now, there := after[target]; gone == there || there && now != id {
			t.Errorf("%s: %d before, %d now", target, id, now)
		}
	}
	s := n.State()
	for _, pod := range pods[3:] {
		if v := s.Volume(pod, "disk"); v.Code != volumemanager.CodeUnresolved && v.Code != volumemanager.CodeWaiting {
			t.Errorf("disk of %s: %+v", pod.Name, v)
		}
	}
}

func TestFlakyStartKeepsRunningPods(t *testing.T) {
	n := sim.New(t)
	prepare(t, n)
	pv, claim := sim.ClaimedDisk("b", filepath.Join(n.Dir, "data"))
	n.Apply(pv, claim)
	a, b := sim.Pod("a", configVolume("config", "config")), sim.Pod("b", sim.Volume("disk", sim.Claim("b")))
	n.Apply(a, b)
	n.Start()
	n.AwaitReady(a, b)
	before := n.Mounts()
	n.Kill()
	n.Fault("PersistentVolumeClaim", "error")
	n.Start()
	n.AwaitReady(a)
	target := n.Path(b, sim.DiskName, "pv-b")
	unknown := func(s sim.State) bool {
		status, _ := s.Pod(b.UID)
		for _, v := range status.Volumes {
			if v.Code == volumemanager.CodeUnknown && v.Phase == volumemanager.Kept {
				return true
			}
		}
		return false
	}
	n.Await("b's disk is kept because nobody knows", unknown)
	// Several safety passes later it is still there.
	deadline := time.Now().Add(3 * time.Second)
	n.Await("time passes", func(s sim.State) bool {
		if !unknown(s) || n.Mounts()[target] != before[target] {
			t.Fatalf("b's disk was touched: %v", n.Mounts())
		}
		return time.Now().After(deadline)
	})
	n.Fault("PersistentVolumeClaim", "")
	n.AwaitReady(a, b)
	n.AwaitSteady()
	if !maps.Equal(before, n.Mounts()) {
		t.Errorf("mounts changed: %v, %v", before, n.Mounts())
	}
}

func TestBlockedAPIServerHoldsUpOnlyClaims(t *testing.T) {
	n := sim.New(t)
	folder := prepare(t, n)
	old := sim.Pod("old", sim.Volume("disk", sim.Claim("disk")))
	n.Apply(old)
	n.Start()
	n.AwaitReady(old)
	n.Kill()
	for _, kind := range []string{"PersistentVolumeClaim", "PersistentVolume", "Node"} {
		n.Fault(kind, "block")
	}
	n.Start()
	local := sim.Pod("local", emptyDir("scratch"), sim.Volume("host", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: folder}}))
	n.Apply(local)
	n.AwaitWithin(2*time.Second*slack, "the pod with local volumes is ready", func(s sim.State) bool {
		status, _ := s.Pod(local.UID)
		return status.Ready
	})
	s := n.State()
	found := false
	for _, v := range s.Snapshot.Volumes {
		for _, p := range v.Pods {
			found = found || p.Volume.Pod == old.UID && p.State == "uncertain"
		}
	}
	if !found {
		t.Errorf("the volume from before is not uncertain: %+v", s.Snapshot.Volumes)
	}
}

// slack multiplies deadlines where a machine is shared with much else.
const slack = 5

func TestRemovalNeverCrossesAMount(t *testing.T) {
	n := sim.New(t)
	precious := filepath.Join(n.Dir, "precious")
	for i := range 20 {
		name := filepath.Join(precious, fmt.Sprintf("d%d", i), "file")
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte("precious"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	n.Start()
	pod := sim.Pod("pod", emptyDir("scratch"))
	n.Apply(pod)
	n.AwaitReady(pod)
	dir := n.Path(pod, "kubernetes.io/empty-dir", "scratch")
	sub, nested := filepath.Join(dir, "sub"), filepath.Join(dir, "deep/nested")
	file := filepath.Join(nested, "file")
	err := errors.Join(os.MkdirAll(sub, 0o755), os.MkdirAll(nested, 0o755), os.WriteFile(filepath.Join(dir, "own"), nil, 0o644),
		unix.Mount(precious, sub, "", unix.MS_BIND, ""),
		unix.Mount("nested", nested, "tmpfs", 0, "size=1m"),
		os.WriteFile(file, nil, 0o644),
		unix.Mount(filepath.Join(precious, "d0/file"), file, "", unix.MS_BIND, ""))
	if err != nil {
		t.Fatal(err)
	}
	n.Delete(pod)
	n.AwaitGone(pod)
	for i := range 20 {
		if got := read(t, filepath.Join(precious, fmt.Sprintf("d%d", i), "file")); got != "precious" {
			t.Errorf("d%d: %q", i, got)
		}
	}
	if left := n.Mounts(); len(left) > 0 {
		t.Errorf("mounts are left: %v", left)
	}
}

func TestHungStorageIsolates(t *testing.T) {
	n := sim.New(t)
	prepare(t, n)
	n.Settings.StepDeadline = 500 * time.Millisecond
	n.Start()
	a := sim.Pod("a", emptyDir("scratch"))
	n.Apply(a)
	n.AwaitReady(a)
	at := n.Path(a, "kubernetes.io/empty-dir", "scratch", "remote")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	storage := sim.NewStorage(t, at)
	storage.Hang()
	// A pod whose volume is the hung storage itself.
	stuck := sim.Pod("stuck", sim.Volume("host", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: filepath.Join(at, "x"), Type: ptr(v1.HostPathDirectory)}}))
	n.Apply(stuck)
	n.Await("the set-up on hung storage is seen to be stuck", func(s sim.State) bool {
		v := s.Volume(stuck, "host")
		return v.Stuck && v.Code == volumemanager.CodeStuckMounting
	})
	others(t, n, "b", 10)
	n.Delete(a)
	n.AwaitWithin(5*time.Second*slack, "a's teardown is blocked or done", func(s sim.State) bool {
		v := s.Volume(a, "scratch")
		_, known := s.Pod(a.UID)
		return v.Code == volumemanager.CodeFailsToDetach || !known
	})
	others(t, n, "c", 10)
	n.Kill()
	n.Settings.LazyAfter = time.Second
	n.Start()
	n.AwaitWithin(3*time.Second*slack, "the agent is up again", func(s sim.State) bool { return s.Snapshot.Ready })
	others(t, n, "d", 5)
	n.AwaitGone(a)
}

func ptr[T any](v T) *T { return &v }

// others sets pods up and takes them away again.
func others(t *testing.T, n *sim.Node, prefix string, count int) {
	t.Helper()
	var pods []*v1.Pod
	for i := range count {
		pod := sim.Pod(fmt.Sprintf("%s-%d", prefix, i), emptyDir("scratch"), configVolume("config", "config"))
		pods = append(pods, pod)
		n.Apply(pod)
	}
	n.AwaitReady(pods...)
	for _, pod := range pods {
		n.Delete(pod)
	}
	n.AwaitGone(pods...)
}

func TestKilledWriterLeavesWholeContent(t *testing.T) {
	for _, point := range []string{"writer.version-made", "writer.data-written", "writer.link-made", "writer.switched",
		"writer.links-made", "writer.links-removed", "writer.old-removed"} {
		t.Run(point, func(t *testing.T) {
			n := sim.New(t)
			n.Apply(configMap("config", map[string]string{"stays": "1", "goes": "1"}), secret("secret", map[string][]byte{"stays": []byte("1"), "goes": nil}))
			pod := sim.Pod("pod", configVolume("config", "config"),
				sim.Volume("secret", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "secret"}}))
			n.Apply(pod)
			n.Start()
			n.AwaitReady(pod)
			n.FailAt(point)
			n.Apply(configMap("config", map[string]string{"stays": "2", "comes": "2"}), secret("secret", map[string][]byte{"stays": []byte("2"), "comes": nil}))
			n.AwaitDeath()
			for _, dir := range []string{n.Path(pod, "kubernetes.io/configmap", "config"), n.Path(pod, "kubernetes.io/secret", "secret")} {
				if got := read(t, filepath.Join(dir, "stays")); got != "1" && got != "2" {
					t.Errorf("%s after the kill: %q", dir, got)
				}
			}
			n.Start()
			n.AwaitReady(pod)
			n.AwaitSteady()
			for _, dir := range []string{n.Path(pod, "kubernetes.io/configmap", "config"), n.Path(pod, "kubernetes.io/secret", "secret")} {
				checkWhole(t, dir, "stays", "comes")
			}
		})
	}
}

// checkWhole checks that a content folder holds the names, one version, and
// nothing else.
func checkWhole(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	versions, seen := 0, map[string]bool{}
	for _, e := range entries {
		switch {
		case e.Name() == "..data":
		case strings.HasPrefix(e.Name(), ".."):
			versions++
		default:
			seen[e.Name()] = true
			if _, err := os.Stat(filepath.Join(dir, e.Name())); err != nil {
				t.Errorf("%s does not resolve: %v", e.Name(), err)
			}
		}
	}
	if versions != 1 || len(seen) != len(names) {
		t.Errorf("%s holds %v", dir, entries)
	}
	for _, name := range names {
		if !seen[name] {
			t.Errorf("%s is missing in %s", name, dir)
		}
	}
}

func TestUpdatesAreQuickAndWhole(t *testing.T) {
	n := sim.New(t)
	content := func(version int) *v1.ConfigMap {
		data := map[string]string{}
		for i := range 20 {
			data[fmt.Sprintf("key-%d", i)] = fmt.Sprint(version)
		}
		data[fmt.Sprintf("odd-%d", version%7)] = fmt.Sprint(version)
		return configMap("config", data)
	}
	n.Apply(content(0))
	pod := sim.Pod("pod", configVolume("config", "config"))
	n.Apply(pod)
	n.Start()
	n.AwaitReady(pod)
	dir := n.Path(pod, "kubernetes.io/configmap", "config")
	for version := 1; version <= 500; version++ {
		n.Apply(content(version))
		deadline := time.Now().Add(time.Second * slack)
		for seen := ""; seen != fmt.Sprint(version); {
			if time.Now().After(deadline) {
				t.Fatalf("version %d did not arrive; %q is there", version, seen)
			}
			seen = oneVersion(t, dir)
		}
	}
	s := n.Await("the callback told of the last update", func(s sim.State) bool {
		return len(s.Changes) > 1 && strings.Contains(s.Changes[len(s.Changes)-1], "odd-3")
	})
	if last := s.Changes[len(s.Changes)-1]; !strings.HasPrefix(last, "pod config: ") || !strings.Contains(last, "odd-2") || !strings.Contains(last, "key-0") {
		t.Errorf("last change: %q", last)
	}
}

// oneVersion opens ..data once and returns the version that all files hold.
func oneVersion(t *testing.T, dir string) string {
	t.Helper()
	for {
		root, err := os.OpenRoot(filepath.Join(dir, "..data"))
		if err != nil {
			t.Fatalf("..data: %v", err)
		}
		version, err := allSame(root)
		_ = root.Close()
		switch {
		case errors.Is(err, fs.ErrNotExist): // this version was removed while it was read: look again
		case err != nil:
			t.Fatal(err)
		default:
			// Every name that has always been there resolves at every moment.
			read(t, filepath.Join(dir, "key-7"))
			return version
		}
	}
}

func allSame(root *os.Root) (version string, err error) {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return "", err
	}
	if len(entries) < 21 {
		return "", fs.ErrNotExist // being removed
	}
	for _, e := range entries {
		text, err := root.ReadFile(e.Name())
		if err != nil {
			return "", err
		}
		if version == "" {
			version = string(text)
		}
		if string(text) != version {
			return "", fmt.Errorf("mixed versions: %s is %s, others %s", e.Name(), text, version)
		}
	}
	return version, nil
}

func TestRootThroughASymbolicLink(t *testing.T) {
	n := sim.New(t)
	folder := prepare(t, n)
	real := filepath.Join(n.Dir, "x")
	if err := errors.Join(os.Mkdir(real, 0o755), os.Symlink(real, n.Settings.Root)); err != nil {
		t.Fatal(err)
	}
	n.Start()
	pod := everyKind("all", folder)
	n.Apply(pod)
	n.AwaitReady(pod)
	n.Layout.Root = real
	checkEveryKind(t, n, pod)
	n.Kill()
	n.Start()
	n.AwaitReady(pod)
	n.Delete(pod)
	n.AwaitGone(pod)
	n.Await("the device is unmounted", func(s sim.State) bool { return len(s.Snapshot.Volumes) == 0 })
	if left := n.Mounts(); len(left) > 0 {
		t.Errorf("mounts are left: %v", left)
	}
}

func TestRootThatIsNotShared(t *testing.T) {
	n := sim.New(t)
	if err := errors.Join(os.Mkdir(n.Settings.Root, 0o755),
		unix.Mount(n.Settings.Root, n.Settings.Root, "", unix.MS_BIND, ""),
		unix.Mount("", n.Settings.Root, "", unix.MS_PRIVATE, "")); err != nil {
		t.Fatal(err)
	}
	n.Start()
	s := n.Await("the start fails", func(s sim.State) bool { return s.Error != "" })
	if !strings.Contains(s.Error, volumemanager.ErrNotShared.Error()) {
		t.Errorf("error: %s", s.Error)
	}
	n.Kill()
	n.Settings.Propagation = volumemanager.MakeShared
	n.Start()
	pod := sim.Pod("pod", emptyDir("scratch"))
	n.Apply(pod)
	n.AwaitReady(pod)
	text := read(t, "/proc/self/mountinfo")
	for line := range strings.Lines(text) {
		if strings.Contains(line, " "+n.Settings.Root+" ") && !strings.Contains(line, "shared:") {
			t.Errorf("the root is not shared: %s", line)
		}
	}
}
