package projection_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/configmap"
	"github.com/volumekit/volumekit/plugins/secret"
	"github.com/volumekit/volumekit/projection"
)

// shm is a folder in memory, where the machine has one.
func shm(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "projection")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = errors.Join(os.RemoveAll(dir), os.RemoveAll(dir+".stash")) })
	return dir
}

const hidden = "hunter2-canary"

// store holds one secret and one config map with the same content.
type store struct {
	mu   sync.Mutex
	data map[string]string
	err  error
}

func (s *store) set(data map[string]string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data, s.err = data, err
}

func (s *store) get() (map[string]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && s.data == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "things"}, "thing")
	}
	return maps.Clone(s.data), s.err
}

func (s *store) ConfigMap(context.Context, string, string) (*v1.ConfigMap, error) {
	data, err := s.get()
	return &v1.ConfigMap{Data: data}, err
}

func (s *store) Secret(context.Context, string, string) (*v1.Secret, error) {
	data, err := s.get()
	return &v1.Secret{StringData: data}, err
}

// world is a root folder with a mounter.
type world struct {
	t       *testing.T
	store   *store
	host    *plugins.VolumeHost
	mounter mount.Mounter
	plugin  *projection.Volume
	req     plugins.SetUpRequest
}

func newWorld(t *testing.T, kind string, m mount.Mounter, root string) *world {
	w := &world{t: t, store: &store{data: map[string]string{"a": "1", "b": hidden}}, mounter: m}
	w.host = &plugins.VolumeHost{Layout: plugins.Layout{Root: root}, Mounter: m, ConfigMaps: w.store, Secrets: w.store}
	volume := &v1.Volume{Name: "vol"}
	switch kind {
	case configmap.Name:
		w.plugin, volume.ConfigMap = configmap.New(w.host), &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}}
	case secret.Name:
		w.plugin, volume.Secret = secret.New(w.host), &v1.SecretVolumeSource{SecretName: "s"}
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "uid"}}
	name := plugins.PodVolume{Pod: pod.UID, Plugin: kind, Name: "vol"}
	w.req = plugins.SetUpRequest{
		Target: w.host.Layout.Target(name, plugins.PodRef{Namespace: "ns", Name: "pod"}),
		Spec:   &plugins.Spec{Volume: volume}, Object: pod,
	}
	if err := os.MkdirAll(filepath.Dir(w.req.Path), 0o750); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) setUp() (plugins.SetUpResult, error) {
	return w.plugin.SetUp(context.Background(), w.req)
}

func (w *world) mustSetUp() plugins.SetUpResult {
	w.t.Helper()
	res, err := w.setUp()
	if err != nil {
		w.t.Fatal(err)
	}
	return res
}

func (w *world) tearDown() error {
	return w.plugin.TearDown(context.Background(), plugins.TearDownRequest{Target: w.req.Target})
}

func (w *world) mustTearDown() {
	w.t.Helper()
	if err := w.tearDown(); err != nil {
		w.t.Fatal(err)
	}
	w.gone()
}

func (w *world) gone() {
	w.t.Helper()
	if left, err := os.Lstat(w.req.Path); !errors.Is(err, os.ErrNotExist) {
		w.t.Errorf("left: %v, %v", left, err)
	}
}

// shows checks what a container would see.
func (w *world) shows(want map[string]string) {
	w.t.Helper()
	got := map[string]string{}
	entries, err := os.ReadDir(w.req.Path)
	if err != nil {
		w.t.Fatal(err)
	}
	versions := 0
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..2") {
			versions++
		}
		if !strings.HasPrefix(e.Name(), "..") {
			data, err := os.ReadFile(filepath.Join(w.req.Path, e.Name()))
			if err != nil {
				w.t.Error(err)
			}
			got[e.Name()] = string(data)
		}
	}
	if !maps.Equal(got, want) || versions != 1 {
		w.t.Errorf("shown %q in %d versions", got, versions)
	}
}

// everywhere runs a test with imitated mounts, with and without building file
// systems aside, and with real ones where they are possible.
func everywhere(t *testing.T, kinds []string, test func(t *testing.T, w *world)) {
	for _, kind := range kinds {
		for _, noBuild := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/imitated/noBuild=%t", kind, noBuild), func(t *testing.T) {
				t.Parallel()
				root := shm(t)
				m := mounttest.New(mounttest.Options{Dir: root, NoBuild: noBuild})
				w := newWorld(t, kind, m, root)
				test(t, w)
				if left := m.Leftovers(); len(left) > 0 {
					t.Errorf("left mounted: %v", left)
				}
			})
			t.Run(fmt.Sprintf("%s/real/noBuild=%t", kind, noBuild), func(t *testing.T) {
				t.Parallel()
				root := nstest.Dir(t)
				var m mount.Mounter = hostmount.New(hostmount.Options{})
				if noBuild {
					m = struct{ mount.Mounter }{m}
				}
				test(t, newWorld(t, kind, m, root))
				table, err := m.Table(context.Background())
				if left := table.Below(root); err != nil || len(left) > 0 {
					t.Errorf("left mounted: %v, %v", left, err)
				}
			})
		}
	}
}

var both = []string{configmap.Name, secret.Name}

func TestVolumeLife(t *testing.T) {
	everywhere(t, both, func(t *testing.T, w *world) {
		first := map[string]string{"a": "1", "b": hidden}
		res := w.mustSetUp()
		w.shows(first)
		want := plugins.Attributes{ReadOnly: true, Managed: true, SELinuxRelabel: true}
		if res.Mounted != (w.plugin.Name() == secret.Name) || res.Attributes != want || res.Path != "" ||
			!slices.Equal(res.Content.Changed, []string{"a", "b"}) || strings.Contains(res.Content.Version, hidden) {
			t.Errorf("result %+v", res)
		}
		point, err := w.mounter.Inspect(context.Background(), w.req.Path)
		if err != nil || point.Mounted != res.Mounted || point.Mounted && point.FSType != "tmpfs" {
			t.Errorf("at the target: %+v, %v", point, err)
		}
		if info, err := os.Stat(w.req.Path); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o755 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		stats, err := w.plugin.Stats(context.Background(), w.req.Target)
		if err != nil || stats.InodesUsed == nil || *stats.InodesUsed != 7 {
			t.Errorf("stats %+v, %v", stats, err)
		}

		w.req.Again = true
		if again := w.mustSetUp(); again.Content.Version != res.Content.Version || len(again.Content.Changed) > 0 {
			t.Errorf("again: %+v", again)
		}
		w.store.set(map[string]string{"a": "2", "c": "3"}, nil)
		content, err := w.plugin.Refresh(context.Background(), w.req)
		if err != nil || !slices.Equal(content.Changed, []string{"a", "b", "c"}) || content.Version == res.Content.Version || content.RefreshAt.IsZero() {
			t.Errorf("refresh: %+v, %v", content, err)
		}
		w.shows(map[string]string{"a": "2", "c": "3"})

		// A vanished object leaves what is there, and makes new pods wait.
		w.store.set(nil, nil)
		_, err = w.plugin.Refresh(context.Background(), w.req)
		if _, again := w.setUp(); plugins.ClassOf(err) != plugins.ClassWaiting || plugins.ClassOf(again) != plugins.ClassWaiting {
			t.Errorf("%v, %v", err, again)
		}
		w.shows(map[string]string{"a": "2", "c": "3"})
		w.mustTearDown()
		w.mustTearDown()
		w.req.Again = false
		if _, err := w.setUp(); plugins.ClassOf(err) != plugins.ClassWaiting {
			t.Errorf("without its object: %v", err)
		}
		w.gone()
		w.store.set(map[string]string{"a": "2"}, nil)
		if _, err := w.plugin.Refresh(context.Background(), w.req); plugins.ClassOf(err) != plugins.ClassUncertain {
			t.Error("a refresh made a volume that was gone")
		}
		if _, err := w.plugin.Stats(context.Background(), w.req.Target); err == nil {
			t.Error("stats of nothing")
		}
	})
}

// Whatever point fails: a first set-up leaves nothing, a later one and a
// refresh leave whole content.
func TestVolumeFaults(t *testing.T) {
	old, next := map[string]string{"a": "1", "b": hidden}, map[string]string{"a": "2", "c": hidden}
	points := []string{projection.FaultVersionMade, projection.FaultDataWritten, projection.FaultLinkMade, projection.FaultSwitched,
		projection.FaultLinksMade, projection.FaultLinksRemoved, projection.FaultOldRemoved}
	everywhere(t, both, func(t *testing.T, w *world) {
		for i, point := range points {
			broken := func(p string) error {
				if p == point {
					return errors.New("broken")
				}
				return nil
			}
			w.host.Faults = broken
			w.store.set(old, nil)
			if _, err := w.setUp(); plugins.ClassOf(err) != plugins.ClassTransient || strings.Contains(err.Error(), hidden) {
				t.Errorf("%s: %v of class %s", point, err, plugins.ClassOf(err))
			}
			w.gone()
			for _, refresh := range []bool{false, true} {
				w.host.Faults = nil
				w.store.set(old, nil)
				w.mustSetUp()
				w.host.Faults = broken
				w.store.set(next, nil)
				_, err := w.plugin.Refresh(context.Background(), w.req)
				if !refresh {
					w.mustSetUpOld(old)
					_, err = w.setUp()
				}
				if err == nil {
					t.Errorf("%s: the fault is lost", point)
				}
				want := old
				if i >= slices.Index(points, projection.FaultSwitched) {
					want = next
				}
				w.shows(want)
				w.host.Faults = nil
				w.mustTearDown()
			}
		}
	})
}

// mustSetUpOld brings the volume back to old content, without faults.
func (w *world) mustSetUpOld(old map[string]string) {
	faults, now := w.host.Faults, w.store.data
	w.host.Faults = nil
	w.store.set(old, nil)
	w.mustSetUp()
	w.host.Faults = faults
	w.store.set(now, nil)
}

func TestVolumeAfterReboot(t *testing.T) {
	everywhere(t, []string{secret.Name}, func(t *testing.T, w *world) {
		if err := os.MkdirAll(filepath.Join(w.req.Path, "..2020_01_01_00_00_00.1"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(w.req.Path, "left"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w.req.Again = true
		if _, err := w.plugin.Refresh(context.Background(), w.req); plugins.ClassOf(err) != plugins.ClassUncertain || !strings.Contains(err.Error(), "is gone") {
			t.Errorf("refresh of a folder that should be a mount: %v", err)
		}
		w.mustSetUp()
		w.shows(map[string]string{"a": "1", "b": hidden})
		w.mustTearDown()
	})
}

// Only mounts of the right kind are written to.
func TestVolumeRefusesForeign(t *testing.T) {
	ctx := context.Background()
	everywhere(t, both, func(t *testing.T, w *world) {
		precious := filepath.Join(w.host.Layout.Root, "precious")
		for _, err := range []error{os.Mkdir(precious, 0o755), os.Mkdir(w.req.Path, 0o755), os.WriteFile(precious+"/file", nil, 0o600)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		foreign := mount.Mount{Source: precious, Target: w.req.Path, Options: mount.Options{Bind: true}}
		if w.plugin.Name() == secret.Name {
			foreign = mount.Mount{Source: "ramfs", Target: w.req.Path, FSType: "ramfs"}
		}
		if err := w.mounter.Mount(ctx, foreign); err != nil {
			t.Skipf("cannot mount %s here: %v", foreign.FSType, err)
		}
		if _, err := w.setUp(); plugins.ClassOf(err) != plugins.ClassUncertain {
			t.Errorf("set-up: %v", err)
		}
		if _, err := w.plugin.Refresh(ctx, w.req); plugins.ClassOf(err) != plugins.ClassUncertain {
			t.Errorf("refresh: %v", err)
		}
		if entries, err := os.ReadDir(w.req.Path); err != nil || len(entries) > 1 {
			t.Errorf("written to a foreign mount: %v, %v", entries, err)
		}
		w.mustTearDown()
		if _, err := os.Stat(precious + "/file"); err != nil {
			t.Errorf("deleted through a mount: %v", err)
		}
	})
	everywhere(t, both, func(t *testing.T, w *world) {
		if err := os.WriteFile(w.req.Path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := w.setUp(); err == nil || !strings.Contains(err.Error(), "not a folder") {
			t.Errorf("a file at the target: %v", err)
		}
		w.mustTearDown()
	})
}

// Layers and mounts inside go before anything is deleted.
func TestVolumeTearDown(t *testing.T) {
	ctx := context.Background()
	everywhere(t, both, func(t *testing.T, w *world) {
		precious := filepath.Join(w.host.Layout.Root, "precious")
		wrapped := filepath.Join(w.host.Layout.PodPluginsDir("uid"), "kubernetes.io~empty-dir", "wrapped_vol")
		for _, err := range []error{
			os.MkdirAll(wrapped, 0o750), os.WriteFile(wrapped+"/ready", nil, 0o600),
			os.Mkdir(precious, 0o755), os.WriteFile(precious+"/file", nil, 0o600),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		w.mustSetUp()
		inside := filepath.Join(w.req.Path, "inside")
		if err := os.MkdirAll(inside+"/deep", 0o755); err != nil {
			t.Fatal(err)
		}
		for _, m := range []mount.Mount{
			{Source: precious, Target: inside + "/deep", Options: mount.Options{Bind: true}},
			{Source: "tmpfs", Target: inside, FSType: "tmpfs"},
		} {
			if err := w.mounter.Mount(ctx, m); err != nil {
				t.Fatal(err)
			}
		}
		w.mustTearDown()
		w.mustSetUp()
		for range 2 {
			if err := w.mounter.Mount(ctx, mount.Mount{Source: "tmpfs", Target: w.req.Path, FSType: "tmpfs"}); err != nil {
				t.Fatal(err)
			}
		}
		w.mustTearDown()
		if _, err := os.Stat(precious + "/file"); err != nil {
			t.Errorf("deleted through a mount: %v", err)
		}
		if _, err := os.Lstat(wrapped); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a kubelet's mark is left: %v", err)
		}
	})
}

func TestVolumeBusy(t *testing.T) {
	root := shm(t)
	m := mounttest.New(mounttest.Options{Dir: root})
	w := newWorld(t, secret.Name, m, root)
	w.mustSetUp()
	m.Busy(w.req.Path)
	if err := w.tearDown(); !errors.Is(err, mount.ErrBusy) {
		t.Errorf("busy: %v", err)
	}
	w.shows(map[string]string{"a": "1", "b": hidden})
	if err := w.plugin.TearDown(context.Background(), plugins.TearDownRequest{Target: w.req.Target, Lazy: true}); err != nil {
		t.Errorf("lazy: %v", err)
	}
	w.gone()
}

func TestVolumeNoSwap(t *testing.T) {
	for _, noBuild := range []bool{false, true} {
		root := shm(t)
		m := mounttest.New(mounttest.Options{Dir: root, NoBuild: noBuild})
		op := mounttest.OpBuild
		if noBuild {
			op = mounttest.OpMount
		}
		w := newWorld(t, secret.Name, m, root)
		m.Inject(mounttest.Fault{Op: op, Err: mount.ErrBadOption, Times: 1})
		for range 2 {
			w.mustSetUp()
			w.mustTearDown()
		}
		var seen []bool
		for _, call := range m.Calls(op) {
			seen = append(seen, slices.Contains(call.Mount.Options.Data, "noswap"))
			if o := call.Mount.Options; !o.NoSuid || !o.NoDev || !slices.Contains(o.Data, "mode=0755") || !slices.Contains(o.Data, "size=268435456") {
				t.Errorf("options %s", o)
			}
		}
		if !slices.Equal(seen, []bool{true, false, false}) {
			t.Errorf("noswap was asked for: %v", seen)
		}
	}
}

// fixed is a mounter that cannot resize.
type fixed struct{ mount.Mounter }

// smallVolume shows the first content on a tmpfs of 32 KiB.
func smallVolume(t *testing.T, mounter func(*hostmount.Mounter) mount.Mounter) *world {
	t.Helper()
	root := nstest.Dir(t)
	m := hostmount.New(hostmount.Options{})
	w := newWorld(t, secret.Name, mounter(m), root)
	if err := os.Mkdir(w.req.Path, 0o755); err != nil {
		t.Fatal(err)
	}
	small := mount.Mount{Source: "tmpfs", Target: w.req.Path, FSType: "tmpfs", Options: mount.Options{Data: []string{"size=32k"}}}
	if err := m.Mount(context.Background(), small); err != nil {
		t.Fatal(err)
	}
	w.mustSetUp()
	return w
}

// TestVolumeGrows: content that outgrows its tmpfs makes it larger.
func TestVolumeGrows(t *testing.T) {
	for _, again := range []bool{false, true} {
		w := smallVolume(t, func(m *hostmount.Mounter) mount.Mounter { return m })
		w.store.set(map[string]string{"a": strings.Repeat("x", 100<<10)}, nil)
		var err error
		if again {
			w.req.Again = true
			_, err = w.setUp()
		} else {
			_, err = w.plugin.Refresh(context.Background(), w.req)
		}
		if err != nil {
			t.Errorf("set-up %t: %v", again, err)
		}
		w.shows(map[string]string{"a": strings.Repeat("x", 100<<10)})
		w.mustTearDown()
	}
}

// A tmpfs that is full, and cannot grow, takes no new version, keeps the old
// one, and says what would help.
func TestVolumeFull(t *testing.T) {
	w := smallVolume(t, func(m *hostmount.Mounter) mount.Mounter { return fixed{m} })
	old := map[string]string{"a": "1", "b": hidden}
	for range 3 {
		w.store.set(map[string]string{"a": strings.Repeat("x", 100<<10)}, nil)
		if _, err := w.plugin.Refresh(context.Background(), w.req); plugins.ClassOf(err) != plugins.ClassTransient || !strings.Contains(err.Error(), "no space") ||
			!strings.Contains(err.Error(), "after the volume is torn down") {
			t.Errorf("%v of class %s", err, plugins.ClassOf(err))
		}
		w.shows(old)
	}
	w.store.set(map[string]string{"a": "3"}, nil)
	if _, err := w.plugin.Refresh(context.Background(), w.req); err != nil {
		t.Error(err)
	}
	w.shows(map[string]string{"a": "3"})
	w.mustTearDown()
}
