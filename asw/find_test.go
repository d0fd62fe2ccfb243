package asw_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/plugins"
)

var at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// plain is a plugin that knows nothing of found volumes.
type plain struct{ name string }

func (p plain) Name() string                                          { return p.name }
func (plain) Supports(*plugins.Spec) bool                             { return false }
func (plain) Identify(*plugins.Spec) (plugins.Identity, error)        { return plugins.Identity{}, nil }
func (plain) TearDown(context.Context, plugins.TearDownRequest) error { return nil }
func (plain) SetUp(context.Context, plugins.SetUpRequest) (plugins.SetUpResult, error) {
	return plugins.SetUpResult{}, nil
}

// clever is one that can tell.
type clever struct {
	plain
	tell func(ctx context.Context, found plugins.Target, block bool) (plugins.Reconstructed, error)
}

func (c clever) Reconstruct(ctx context.Context, found plugins.Target, block bool) (plugins.Reconstructed, error) {
	return c.tell(ctx, found, block)
}

const (
	emptyDir = "kubernetes.io/empty-dir"
	csi      = "kubernetes.io/csi"
	uidA     = types.UID("aaaaaaaa-0000-4000-8000-000000000000")
	uidB     = types.UID("bbbbbbbb-0000-4000-8000-000000000000")
)

// tellCSI says that all volumes are one shared storage.
func tellCSI(_ context.Context, found plugins.Target, _ bool) (plugins.Reconstructed, error) {
	if found.Volume.Name == "broken" {
		return plugins.Reconstructed{}, errors.New("vol_data.json is damaged")
	}
	return plugins.Reconstructed{
		Identity:        plugins.Identity{Storage: "driver^" + found.Volume.Name, Device: true, Durable: true, Undo: plugins.Undo{"handle": "h"}},
		DeviceMountPath: "/global/" + found.Volume.Name,
	}, nil
}

func finder(t testing.TB, root string) *asw.Finder {
	t.Helper()
	r, err := plugins.NewRegistry(plain{emptyDir}, plain{"example.com/my-kind"}, clever{plain{csi}, tellCSI})
	must(t, err)
	return &asw.Finder{Layout: plugins.Layout{Root: root}, Registry: r}
}

// tree makes folders, for names with "@" symbolic links to what follows, and
// for others with "=" files.
func tree(t testing.TB, root string, paths ...string) {
	t.Helper()
	for _, p := range paths {
		link, target, isLink := strings.Cut(p, "@")
		file, _, isFile := strings.Cut(p, "=")
		switch {
		case isLink:
			must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(link)), 0o700))
			must(t, os.Symlink(target, filepath.Join(root, link)))
		case isFile:
			must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(file)), 0o700))
			must(t, os.WriteFile(filepath.Join(root, file), nil, 0o600))
		default:
			must(t, os.MkdirAll(filepath.Join(root, p), 0o700))
		}
	}
}

func find(t testing.TB, f *asw.Finder, c journal.Contents) asw.Findings {
	t.Helper()
	found, err := f.Find(t.Context(), c, at)
	must(t, err)
	return found
}

// faultPaths lists the faults' paths below the root.
func faultPaths(t testing.TB, root string, found asw.Findings) []string {
	t.Helper()
	var list []string
	for _, f := range found.Faults {
		if f.Err == nil {
			t.Errorf("fault without an error: %v", f)
		}
		rel, err := filepath.Rel(root, f.Path)
		must(t, err)
		list = append(list, rel)
	}
	return list
}

func foundPod(f *asw.Finder, id plugins.VolumeID, uid types.UID, plugin, name string) asw.PodVolume {
	v := plugins.PodVolume{Pod: uid, Plugin: plugin, Name: name}
	return asw.PodVolume{
		Volume: v, ID: id, Pod: plugins.PodRef{UID: uid}, State: asw.Uncertain, Found: true, Path: f.Layout.PodVolume(v), Since: at,
	}
}

// TestKubeletsTree adopts what a kubelet leaves: it has no journal.
func TestKubeletsTree(t *testing.T) {
	root := t.TempDir()
	a, b := "pods/"+string(uidA), "pods/"+string(uidB)
	tree(t, root,
		a+"/volumes/kubernetes.io~empty-dir/cache", a+"/volumes/kubernetes.io~empty-dir/tmp",
		a+"/volumes/kubernetes.io~csi/pvc-1/mount", a+"/volumes/kubernetes.io~csi/pvc-1/vol_data.json=",
		a+"/plugins/kubernetes.io~empty-dir/cache/ready=", a+"/containers/c", a+"/etc-hosts=",
		b+"/volumes/kubernetes.io~csi/pvc-1/mount", b+"/volumeDevices/kubernetes.io~csi/pvc-2@/dev/sda",
		"pods/cccccccc-0000-4000-8000-000000000000/volumes/kubernetes.io~empty-dir", "pods/dddddddd-0000-4000-8000-000000000000",
		"plugins/kubernetes.io/csi/driver/x/globalmount", "pods/a-file=",
	)
	f := finder(t, root)
	found := find(t, f, journal.Contents{})

	cache, tmp := plugins.VolumeIDOf(emptyDir, plugins.Identity{}, specNamed("cache"), uidA), plugins.VolumeIDOf(emptyDir, plugins.Identity{}, specNamed("tmp"), uidA)
	undo := plugins.Undo{"handle": "h"}
	shared := func(id plugins.VolumeID, uid types.UID, name string) asw.PodVolume {
		pv := foundPod(f, id, uid, csi, name)
		pv.Undo = undo
		return pv
	}
	block := shared(csi+"/driver^pvc-2", uidB, "pvc-2")
	block.Block, block.Path = true, f.Layout.PodDevice(block.Volume)
	want := asw.Findings{
		Volumes: []asw.Volume{
			{
				ID: csi + "/driver^pvc-1", Device: asw.Uncertain, DeviceMountPath: "/global/pvc-1", Undo: undo,
				Identity: plugins.Identity{Storage: "driver^pvc-1", Device: true, Durable: true, Undo: undo},
				Pods:     []asw.PodVolume{shared(csi+"/driver^pvc-1", uidA, "pvc-1"), shared(csi+"/driver^pvc-1", uidB, "pvc-1")},
			},
			{
				ID: csi + "/driver^pvc-2", Device: asw.Uncertain, DeviceMountPath: "/global/pvc-2", Undo: undo,
				Identity: plugins.Identity{Storage: "driver^pvc-2", Device: true, Durable: true, Undo: undo},
				Pods:     []asw.PodVolume{block},
			},
			{ID: cache, Pods: []asw.PodVolume{foundPod(f, cache, uidA, emptyDir, "cache")}},
			{ID: tmp, Pods: []asw.PodVolume{foundPod(f, tmp, uidA, emptyDir, "tmp")}},
		},
		EmptyPods: []types.UID{"cccccccc-0000-4000-8000-000000000000", "dddddddd-0000-4000-8000-000000000000"},
	}
	if !reflect.DeepEqual(found, want) {
		t.Errorf("got  %+v\nwant %+v", found, want)
	}
	must(t, asw.New().Load(found.Volumes))
}

func specNamed(name string) *plugins.Spec {
	s := plugins.Spec{}
	s.Volume = volumeNamed(name)
	return &s
}

// TestRecordsWin: a record is believed, with a folder and without.
func TestRecordsWin(t *testing.T) {
	root := t.TempDir()
	tree(t, root, "pods/"+string(uidA)+"/volumes/kubernetes.io~csi/pvc-1", "pods/"+string(uidB))
	f := finder(t, root)
	id := plugins.VolumeID(csi + "/recorded^pvc-1")
	pod := func(uid types.UID, name string) journal.Record {
		return journal.Record{
			Key:   journal.Key{ID: id, Volume: plugins.PodVolume{Pod: uid, Plugin: csi, Name: name}},
			Pod:   plugins.PodRef{Namespace: "ns", Name: "web", UID: uid},
			Names: []string{"data"}, Attach: true, Device: true, Durable: true, Storage: "recorded^pvc-1", Undo: plugins.Undo{"pod": string(uid)},
		}
	}
	node := journal.Record{
		Key: journal.Key{ID: id}, Attach: true, Device: true, Durable: true, Parallel: true, Storage: "recorded^pvc-1",
		DevicePath: "/dev/sda", DeviceMountPath: "/g", Undo: plugins.Undo{"node": "n"},
	}
	staged := journal.Record{Key: journal.Key{ID: csi + "/alone"}, Device: true, Storage: "alone", DeviceMountPath: "/g2"}
	private := journal.Record{Key: journal.Key{ID: "gone.example/kind/x", Volume: plugins.PodVolume{Pod: uidB, Plugin: "gone.example/kind", Name: "x"}}, Block: true}
	found := find(t, f, journal.Contents{Records: []journal.Record{node, pod(uidB, "pvc-1"), pod(uidA, "pvc-1"), staged, private}})

	recorded := func(uid types.UID) asw.PodVolume {
		pv := foundPod(f, id, uid, csi, "pvc-1")
		pv.Pod, pv.Names, pv.Undo = plugins.PodRef{Namespace: "ns", Name: "web", UID: uid}, []string{"data"}, plugins.Undo{"pod": string(uid)}
		return pv
	}
	gone := foundPod(f, "gone.example/kind/x", uidB, "gone.example/kind", "x")
	gone.Block, gone.Path = true, f.Layout.PodDevice(gone.Volume)
	want := asw.Findings{Volumes: []asw.Volume{
		{ID: "gone.example/kind/x", Pods: []asw.PodVolume{gone}},
		{ID: csi + "/alone", Device: asw.Uncertain, DeviceMountPath: "/g2", Identity: plugins.Identity{Storage: "alone", Device: true}},
		{
			ID: id, Attachment: asw.Uncertain, Device: asw.Uncertain, DevicePath: "/dev/sda", DeviceMountPath: "/g", Undo: plugins.Undo{"node": "n"},
			// One record does not say that pods may go in parallel.
			Identity: plugins.Identity{Storage: "recorded^pvc-1", Attach: true, Device: true, Durable: true, Undo: plugins.Undo{"node": "n"}},
			Pods:     []asw.PodVolume{recorded(uidA), recorded(uidB)},
		},
	}}
	if !reflect.DeepEqual(found, want) {
		t.Errorf("got  %+v\nwant %+v", found, want)
	}
}

func TestHostileTree(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not have such names")
	}
	outside := t.TempDir()
	tree(t, outside, "volumes/kubernetes.io~empty-dir/secret", "kubernetes.io~empty-dir/secret", "secret")
	root := t.TempDir()
	a := "pods/" + string(uidA)
	tree(t, root,
		"pods/linked@"+outside,
		"pods/back\\slash/volumes/kubernetes.io~empty-dir/x",
		"pods/line\nbreak",
		"pods/bad\xff/volumes",
		"pods/volumes-linked/volumes@"+outside+"/volumes",
		"pods/plugin-linked/volumes/kubernetes.io~empty-dir@"+outside+"/kubernetes.io~empty-dir",
		"pods/volume-linked/volumes/kubernetes.io~empty-dir/x@"+outside+"/secret",
		"pods/file/volumes=",
		a+"/volumes/kubernetes.io~empty-dir/good",
		a+"/volumes/kubernetes.io~empty-dir/line\nbreak",
		a+"/volumes/kubernetes.io~empty-dir/stray=",
		a+"/volumes/kubernetes.io~unknown/x",
		a+"/volumes/kubernetes.io~two~tildes/x",
		a+"/volumes/~/x", a+"/volumes/..data/x", a+"/volumes/example.com~my-kind/x",
		a+"/volumes/kubernetes.io~csi/broken",
		a+"/volumes/kubernetes.io~csi/both", a+"/volumeDevices/kubernetes.io~csi/both@/dev/null",
		a+"/volumeDevices/kubernetes.io~csi/folder",
	)
	f := finder(t, root)
	found := find(t, f, journal.Contents{})
	var names []string
	for _, v := range found.Volumes {
		for _, pv := range v.Pods {
			must(t, pv.Volume.Check())
			names = append(names, pv.Volume.String())
		}
	}
	prefix := string(uidA) + "/"
	if want := []string{prefix + "example.com/my-kind/x", prefix + csi + "/both", prefix + emptyDir + "/good"}; !reflect.DeepEqual(names, want) {
		t.Errorf("found %q\nwant  %q", names, want)
	}
	want := []string{
		a + "/volumeDevices/kubernetes.io~csi/both", a + "/volumeDevices/kubernetes.io~csi/folder",
		a + "/volumes/..data/x",
		a + "/volumes/kubernetes.io~csi/broken",
		a + "/volumes/kubernetes.io~empty-dir/line\nbreak", a + "/volumes/kubernetes.io~empty-dir/stray",
		a + "/volumes/kubernetes.io~two~tildes/x", a + "/volumes/kubernetes.io~unknown/x",
		a + "/volumes/~/x",
		"pods/back\\slash", "pods/bad\xff", "pods/file/volumes", "pods/line\nbreak",
		"pods/plugin-linked/volumes/kubernetes.io~empty-dir", "pods/volume-linked/volumes/kubernetes.io~empty-dir/x",
		"pods/volumes-linked/volumes",
	}
	if got := faultPaths(t, root, found); !reflect.DeepEqual(got, want) {
		t.Errorf("faults %q\nwant   %q", got, want)
	}
	for _, fault := range found.Faults {
		if strings.HasSuffix(fault.Path, "unknown/x") && (!errors.Is(fault.Err, plugins.ErrNoPlugin) || fault.Volume.Name != "x") {
			t.Errorf("unknown plugin: %+v", fault)
		}
	}
	if len(found.EmptyPods) > 0 {
		t.Errorf("empty: %q", found.EmptyPods)
	}
}

func TestDamageIsAFaultOfItsVolume(t *testing.T) {
	root := t.TempDir()
	f := finder(t, root)
	key := journal.Key{ID: "v", Volume: plugins.PodVolume{Pod: uidA, Plugin: emptyDir, Name: "x"}}
	found := find(t, f, journal.Contents{Damaged: []journal.Damage{
		{File: root + "/volumekit/journal.damaged", Line: 3, Key: &key, Reason: "bad"},
		{File: root + "/volumekit/journal.damaged", Line: 4, Key: &journal.Key{ID: "node"}, Reason: "bad"},
		{File: root + "/volumekit/journal.damaged", Line: 5, Reason: "worse"},
	}})
	if len(found.Faults) != 3 || len(found.Volumes) != 0 {
		t.Fatalf("%+v", found)
	}
	if got := found.Faults[0]; *got.Volume != key.Volume || got.ID != "v" || !strings.Contains(got.String(), "line 3") {
		t.Errorf("%+v", got)
	}
	if got := found.Faults[1]; got.Volume != nil || got.ID != "node" {
		t.Errorf("%+v", got)
	}
	if got := found.Faults[2]; got.Volume != nil || got.ID != "" {
		t.Errorf("%+v", got)
	}
}

func TestRecordOfTwoVolumes(t *testing.T) {
	f := finder(t, t.TempDir())
	v := plugins.PodVolume{Pod: uidA, Plugin: emptyDir, Name: "x"}
	found := find(t, f, journal.Contents{Records: []journal.Record{
		{Key: journal.Key{ID: "old", Volume: v}}, {Key: journal.Key{ID: "old"}, Device: true}, {Key: journal.Key{ID: "new", Volume: v}},
	}})
	if len(found.Volumes) != 2 || len(found.Volumes[0].Pods) != 1 || found.Volumes[0].ID != "new" || len(found.Volumes[1].Pods) != 0 {
		t.Errorf("%+v", found.Volumes)
	}
	if len(found.Faults) != 1 || found.Faults[0].ID != "old" {
		t.Errorf("%+v", found.Faults)
	}
	must(t, asw.New().Load(found.Volumes))
}

func TestNothingThere(t *testing.T) {
	if found := find(t, finder(t, filepath.Join(t.TempDir(), "missing")), journal.Contents{}); !reflect.DeepEqual(found, asw.Findings{}) {
		t.Errorf("%+v", found)
	}
}

// TestHungPodHoldsNoOther: a plugin that never answers for one pod costs that
// pod alone.
func TestHungPodHoldsNoOther(t *testing.T) {
	root := t.TempDir()
	tree(t, root, "pods/hung/volumes/kubernetes.io~csi/x", "pods/hung2/volumes/kubernetes.io~csi/x", "pods/well/volumes/kubernetes.io~csi/x")
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		r, err := plugins.NewRegistry(clever{plain{csi}, func(ctx context.Context, found plugins.Target, block bool) (plugins.Reconstructed, error) {
			if strings.HasPrefix(string(found.Volume.Pod), "hung") {
				<-release // without regard for ctx
			}
			return tellCSI(ctx, found, block)
		}})
		must(t, err)
		f := &asw.Finder{Layout: plugins.Layout{Root: root}, Registry: r, Parallel: 1}
		start := time.Now()
		found, err := f.Find(t.Context(), journal.Contents{}, at)
		must(t, err)
		if got := faultPaths(t, root, found); !reflect.DeepEqual(got, []string{"pods/hung", "pods/hung2"}) || !errors.Is(found.Faults[0].Err, context.DeadlineExceeded) {
			t.Errorf("faults %v", found.Faults)
		}
		if len(found.Volumes) != 1 || found.Volumes[0].Pods[0].Volume.Pod != "well" {
			t.Errorf("%+v", found.Volumes)
		}
		if took := time.Since(start); took != 2*asw.DefaultPodTimeout {
			t.Errorf("took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		record := journal.Record{Key: journal.Key{ID: "v", Volume: plugins.PodVolume{Pod: "hung", Plugin: csi, Name: "y"}}}
		found, err = f.Find(ctx, journal.Contents{Records: []journal.Record{record}}, at)
		if !errors.Is(err, context.DeadlineExceeded) || len(found.Volumes) == 0 {
			t.Errorf("ended context: %v, %+v", err, found)
		}
	})
}

// TestFromJournalToWorld goes the whole way.
func TestFromJournalToWorld(t *testing.T) {
	root := t.TempDir()
	f := finder(t, root)
	j, err := journal.Open(t.Context(), f.Layout.StateDir(), journal.Options{})
	must(t, err)
	rec := journal.Record{Key: journal.Key{ID: "v", Volume: plugins.PodVolume{Pod: uidA, Plugin: emptyDir, Name: "x"}}, Names: []string{"data"}}
	must(t, j.Put(t.Context(), rec))
	must(t, j.Close())
	j, err = journal.Open(t.Context(), f.Layout.StateDir(), journal.Options{})
	must(t, err)
	defer func() { _ = j.Close() }()
	w := asw.New()
	must(t, w.Load(find(t, f, j.Contents()).Volumes))
	if got, ok := w.PodVolume(rec.Volume); !ok || !got.Found || got.State != asw.Uncertain || got.ID != "v" {
		t.Errorf("%+v", got)
	}
}

// FuzzFind gives folders any name: only names that can be folders come out,
// and nothing is both found and at fault.
func FuzzFind(f *testing.F) {
	f.Add("u", "kubernetes.io~empty-dir", "n", false)
	f.Add("u", "kubernetes.io~csi", "n", true)
	f.Add("..", "~~", ".", false)
	f.Add("a\\b", "a~b~c", "\x01", true)
	f.Add("u", "kubernetes.io/empty-dir", "../../x", false)
	f.Fuzz(func(t *testing.T, uid, folder, name string, block bool) {
		root := t.TempDir()
		kind := "volumes"
		if block {
			kind = "volumeDevices"
		}
		path := filepath.Join(root, "pods", uid, kind, folder, name)
		if !strings.HasPrefix(path, root+"/") || os.MkdirAll(filepath.Dir(path), 0o700) != nil {
			return
		}
		if block && os.Symlink("/dev/null", path) != nil || !block && os.Mkdir(path, 0o700) != nil {
			return
		}
		found := find(t, finder(t, root), journal.Contents{})
		for _, v := range found.Volumes {
			for _, pv := range v.Pods {
				must(t, pv.Volume.Check())
				if _, err := os.Lstat(pv.Path); err != nil {
					t.Errorf("found at %q: %v", pv.Path, err)
				}
			}
		}
		if len(found.Volumes) > 0 && len(found.Faults) > 0 {
			t.Errorf("%+v", found)
		}
	})
}

// BenchmarkFind looks at 1,000 pods of four volumes, beside a walk over the
// same tree and the bare reading of the same folders one after another.
func BenchmarkFind(b *testing.B) {
	root := b.TempDir()
	var folders []string
	var records []journal.Record
	for n := range 1000 {
		uid := types.UID(fmt.Sprintf("%08d-0000-4000-8000-000000000000", n))
		dir := filepath.Join(root, "pods", string(uid))
		folders = append(folders, dir, filepath.Join(dir, "volumes"))
		for _, kind := range []string{"configmap", "secret", "projected", "empty-dir"} {
			plugin := filepath.Join(dir, "volumes", "kubernetes.io~"+kind)
			folders = append(folders, plugin)
			must(b, os.MkdirAll(filepath.Join(plugin, "volume"), 0o700))
			v := plugins.PodVolume{Pod: uid, Plugin: "kubernetes.io/" + kind, Name: "volume"}
			records = append(records, journal.Record{Key: journal.Key{ID: plugins.VolumeIDOf(v.Plugin, plugins.Identity{}, specNamed(v.Name), uid), Volume: v}})
		}
	}
	r, err := plugins.NewRegistry(plain{"kubernetes.io/configmap"}, plain{"kubernetes.io/secret"}, plain{"kubernetes.io/projected"}, plain{emptyDir})
	must(b, err)
	f := &asw.Finder{Layout: plugins.Layout{Root: root}, Registry: r}
	b.Run("floor=walk", func(b *testing.B) {
		for b.Loop() {
			must(b, filepath.WalkDir(filepath.Join(root, "pods"), func(string, fs.DirEntry, error) error { return nil }))
		}
	})
	b.Run("floor=readdir", func(b *testing.B) {
		for b.Loop() {
			for _, dir := range folders {
				_, err := os.ReadDir(dir)
				must(b, err)
			}
		}
	})
	for name, c := range map[string]journal.Contents{"folders": {}, "records": {Records: records}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if found := find(b, f, c); len(found.Volumes) != 4000 || len(found.Faults) > 0 {
					b.Fatalf("%d volumes, faults %v", len(found.Volumes), found.Faults)
				}
			}
		})
	}
}
