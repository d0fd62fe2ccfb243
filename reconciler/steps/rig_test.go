package steps_test

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/memory"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/reconciler/steps"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// rig is an executor with everything around it.
type rig struct {
	t       testing.TB
	host    *plugins.VolumeHost
	desired *dsw.World
	actual  *asw.World
	journal *fakeJournal
	mounts  *mounttest.Mounter
	plugin  *fakePlugin
	exec    *steps.Executor
	events  *memory.Recorder

	mu       sync.Mutex
	fault    func(point string) error
	points   []string
	started  []reconciler.Key
	finished []error
	changed  []plugins.PodVolume
	woken    []plugins.VolumeID
	contents []plugins.Content
}

func newRig(t testing.TB) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{
		t: t, desired: dsw.New(dsw.Options{AllVolumes: true}), actual: asw.New(),
		journal: newFakeJournal(), mounts: mounttest.New(mounttest.Options{Dir: dir}), events: memory.NewRecorder(0),
	}
	r.host = &plugins.VolumeHost{
		Layout: plugins.Layout{Root: filepath.Join(dir, "root")}, Mounter: r.mounts, NodeName: "node", Events: r.events,
		Faults: r.at,
	}
	if err := os.Mkdir(r.host.Layout.Root, 0o750); err != nil {
		t.Fatal(err)
	}
	r.plugin = &fakePlugin{host: r.host, name: "test.io/fake", hooks: map[string]func(context.Context) error{}}
	r.build(r.plugin)
	r.desired.EndList()
	return r
}

// build makes the executor, with other plugins than the usual one.
func (r *rig) build(list ...plugins.VolumePlugin) {
	r.t.Helper()
	registry, err := plugins.NewRegistry(list...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.exec = steps.New(steps.Config{
		Host: r.host, Registry: registry, Desired: r.desired, Actual: r.actual, Journal: r.journal, Observer: r,
		Changed: func(v plugins.PodVolume) { r.locked(func() { r.changed = append(r.changed, v) }) },
		Wake:    func(ids ...plugins.VolumeID) { r.locked(func() { r.woken = append(r.woken, ids...) }) },
		ContentChanged: func(_ plugins.PodVolume, _ plugins.PodRef, c plugins.Content) {
			r.locked(func() { r.contents = append(r.contents, c) })
		},
	})
}

func (r *rig) locked(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// at is the host's fault hook.
func (r *rig) at(point string) error {
	r.mu.Lock()
	fault := r.fault
	r.points = append(r.points, point)
	r.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(point)
}

func (r *rig) failAt(point string, err error) {
	r.locked(func() {
		r.fault = func(p string) error {
			if p == point {
				return err
			}
			return nil
		}
	})
}

func (r *rig) StepStarted(step reconciler.Step) {
	r.locked(func() { r.started = append(r.started, step.Key) })
}

func (r *rig) StepFinished(_ reconciler.Step, _ time.Duration, err error) {
	r.locked(func() { r.finished = append(r.finished, err) })
}

// wish is one volume of one pod as a test asks for it.
type wish struct {
	pod, volume string
	plugin      string // empty means the usual one
	identity    plugins.Identity
	block       bool
	params      plugins.Params
}

func (w wish) podVolume() plugins.PodVolume {
	if w.plugin == "" {
		w.plugin = "test.io/fake"
	}
	return plugins.PodVolume{Pod: types.UID(w.pod), Plugin: w.plugin, Name: w.volume}
}

func (w wish) spec() *plugins.Spec {
	return &plugins.Spec{Volume: &v1.Volume{Name: w.volume, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
}

func (w wish) id() plugins.VolumeID {
	return plugins.VolumeIDOf(w.podVolume().Plugin, w.identity, w.spec(), types.UID(w.pod))
}

func (w wish) key(kind reconciler.Kind) reconciler.Key {
	key := reconciler.Key{Kind: kind, ID: w.id(), Volume: w.podVolume()}
	switch kind {
	case reconciler.Attach, reconciler.Detach, reconciler.MountDevice, reconciler.UnmountDevice:
		key.Volume = plugins.PodVolume{}
	}
	return key
}

// want tells the desired state of the wish, as the volume that id names.
func (r *rig) want(w wish) { r.wantAs(w, w.id()) }

func (r *rig) wantAs(w wish, id plugins.VolumeID) {
	r.t.Helper()
	pod := &v1.Pod{
		ObjectMeta: podMeta(w.pod),
		Spec:       v1.PodSpec{Volumes: []v1.Volume{*w.spec().Volume}},
	}
	r.desired.SetPod(pod)
	task, ok := r.desired.Begin(dsw.Unresolved{Pod: pod.UID, Name: w.volume})
	if !ok {
		r.t.Fatalf("%s has no volume %s", w.pod, w.volume)
	}
	r.desired.SetResolved(task, dsw.Resolution{
		Volume: w.podVolume(), ID: id, Spec: w.spec(), Identity: w.identity, Block: w.block, Params: w.params,
		ContentRefs: []plugins.Ref{{Kind: "Secret", Namespace: "ns", Name: "content"}},
	})
}

func podMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}
}

func (r *rig) unwant(w wish) { r.desired.RemovePod(types.UID(w.pod)) }

// gone is what follows when a pod has left for good.
func (r *rig) gone(w wish) {
	r.unwant(w)
	r.exec.Forget(types.UID(w.pod))
	r.exec.RemovePodFolder(types.UID(w.pod))
}

// do runs a step.
func (r *rig) do(key reconciler.Key) error {
	return r.exec.Do(context.Background(), reconciler.Step{Key: key})
}

func (r *rig) must(key reconciler.Key) {
	r.t.Helper()
	if err := r.do(key); err != nil {
		r.t.Fatal(err)
	}
}

// planned reports whether a step is in its volume's plan.
func (r *rig) planned(key reconciler.Key) bool {
	return slices.ContainsFunc(r.exec.Plan(key.ID).Steps, func(s reconciler.Step) bool { return s.Key == key })
}

// state says how what a step is about is in the actual state.
func (r *rig) state(key reconciler.Key) asw.Presence {
	v, _ := r.actual.Volume(key.ID)
	switch key.Kind {
	case reconciler.Attach, reconciler.Detach:
		return v.Attachment
	case reconciler.MountDevice, reconciler.UnmountDevice:
		return v.Device
	}
	entry, ok := r.actual.PodVolume(key.Volume)
	if !ok || entry.ID != key.ID {
		return asw.Absent
	}
	return entry.State
}

// clean fails the test if anything is left.
func (r *rig) clean() {
	r.t.Helper()
	if volumes, pods := r.actual.Len(); volumes+pods > 0 {
		r.t.Errorf("actual state: %v", slices.Collect(r.actual.Volumes()))
	}
	if left := r.journal.keys(); len(left) > 0 {
		r.t.Errorf("journal: %v", left)
	}
	if left := r.mounts.Leftovers(); len(left) > 0 {
		r.t.Errorf("mounts: %v", left)
	}
	_ = filepath.WalkDir(r.host.Layout.PodsDir(), func(path string, _ fs.DirEntry, err error) error {
		if err == nil && path != r.host.Layout.PodsDir() {
			r.t.Errorf("left: %s", path)
		}
		return nil
	})
	if events, waits := r.exec.Remembered(); events+waits > 0 {
		r.t.Errorf("remembered: events of %d scopes, waits of %d", events, waits)
	}
}

// fakeJournal keeps records in memory, with faults.
type fakeJournal struct {
	mu      sync.Mutex
	records map[journal.Key]journal.Record
	log     []string // "put", "put durable", "delete", "delete durable"
	// put and del are asked before a change; wrote after a put took effect.
	put   func(journal.Record) error
	wrote func() error
	del   func(journal.Key) error
}

func newFakeJournal() *fakeJournal { return &fakeJournal{records: map[journal.Key]journal.Record{}} }

var errDisk = errors.New("no space left on device")

func (f *fakeJournal) Put(_ context.Context, rec journal.Record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.put != nil {
		if err := f.put(rec); err != nil {
			return err
		}
	}
	f.note("put", rec.Durable)
	rec.Undo = maps.Clone(rec.Undo)
	f.records[rec.Key] = rec
	if f.wrote != nil {
		return f.wrote()
	}
	return nil
}

func (f *fakeJournal) Delete(ctx context.Context, key journal.Key, durable bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if f.del != nil {
		if err := f.del(key); err != nil {
			return err
		}
	}
	f.note("delete", durable)
	delete(f.records, key)
	return nil
}

func (f *fakeJournal) note(op string, durable bool) {
	if durable {
		op += " durable"
	}
	f.log = append(f.log, op)
}

func (f *fakeJournal) keys() []journal.Key {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.records))
}

func (f *fakeJournal) get(key journal.Key) (journal.Record, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rec, ok := f.records[key]
	return rec, ok
}

func recordKey(key reconciler.Key) journal.Key { return journal.Key{ID: key.ID, Volume: key.Volume} }

// barePlugin can do what every plugin can: it mounts a tmpfs.
type barePlugin struct{ *fakePlugin }

func (b barePlugin) Name() string                                     { return "test.io/bare" }
func (b barePlugin) Supports(*plugins.Spec) bool                      { return false }
func (b barePlugin) Identify(*plugins.Spec) (plugins.Identity, error) { return plugins.Identity{}, nil }
func (b barePlugin) TearDown(c context.Context, r plugins.TearDownRequest) error {
	return b.fakePlugin.TearDown(c, r)
}
func (b barePlugin) SetUp(c context.Context, r plugins.SetUpRequest) (plugins.SetUpResult, error) {
	return b.fakePlugin.SetUp(c, r)
}

// bare hides the optional parts.
func bare(p *fakePlugin) plugins.VolumePlugin {
	return struct{ plugins.VolumePlugin }{barePlugin{p}}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
