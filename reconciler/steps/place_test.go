package steps_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

// A persistent volume that is made anew under its name is another volume at
// the same path.
func TestOnePathTwoVolumes(t *testing.T) {
	r := newRig(t)
	w := simple("pod", "vol")
	first, second := plugins.VolumeID("test.io/fake/first"), plugins.VolumeID("test.io/fake/second")
	key := func(kind reconciler.Kind, id plugins.VolumeID) reconciler.Key {
		return reconciler.Key{Kind: kind, ID: id, Volume: w.podVolume()}
	}
	r.wantAs(w, first)
	r.must(key(reconciler.SetUp, first))
	r.wantAs(w, second)
	if err := r.do(key(reconciler.SetUp, second)); plugins.ClassOf(err) != plugins.ClassWaiting || !strings.Contains(err.Error(), string(first)) {
		t.Errorf("set up over the first: %v", err)
	}
	if len(r.journal.keys()) != 1 || r.plugin.count("setUp") != 1 {
		t.Errorf("records %v, calls %v", r.journal.keys(), r.plugin.calls)
	}
	// The first one is taken down by a call that hangs, and then by a lazy one.
	begun, release := make(chan struct{}), make(chan struct{})
	r.plugin.hook("tearDown", func(context.Context) error {
		close(begun)
		<-release
		return nil
	})
	stuck := make(chan error)
	go func() { stuck <- r.do(key(reconciler.TearDown, first)) }()
	<-begun
	r.plugin.hook("tearDown", nil)
	if err := r.exec.Do(context.Background(), reconciler.Step{Key: key(reconciler.TearDown, first), Lazy: true}); err != nil {
		t.Fatal(err)
	}
	if r.plugin.tearDown[1].Lazy != true {
		t.Error("the lazy teardown was not lazy")
	}
	// As long as the other call may still act on the path, nothing is made there.
	r.locked(func() { r.woken = nil })
	if err := r.do(key(reconciler.SetUp, second)); plugins.ClassOf(err) != plugins.ClassWaiting {
		t.Errorf("set up beside a call that hangs: %v", err)
	}
	close(release)
	if err := <-stuck; err != nil {
		t.Error(err)
	}
	if len(r.woken) != 1 || r.woken[0] != second {
		t.Errorf("woken: %v", r.woken)
	}
	r.must(key(reconciler.SetUp, second))
	if entry, _ := r.actual.PodVolume(w.podVolume()); entry.ID != second || entry.State != asw.Present {
		t.Errorf("entry: %+v", entry)
	}
	r.unwant(w)
	r.must(key(reconciler.TearDown, second))
	r.exec.Forget("pod")
	r.clean()
}

func TestHostileNamesReachNoFile(t *testing.T) {
	for _, w := range []wish{
		{pod: "../../escape", volume: "vol"}, {pod: "pod", volume: "../../../../../escape"}, {pod: "..", volume: "vol"},
		{pod: "pod", volume: "a/b"}, {pod: "pod", volume: "a\nb"}, {pod: "pod", volume: ".."},
	} {
		t.Run(fmt.Sprintf("%q", w.pod+" "+w.volume), func(t *testing.T) {
			r := newRig(t)
			dir := filepath.Dir(r.host.Layout.Root)
			escape := filepath.Join(dir, "escape") // where an empty folder would be removed
			if err := errors.Join(os.Mkdir(escape, 0o700), os.MkdirAll(r.host.Layout.PodsDir(), 0o700)); err != nil {
				t.Fatal(err)
			}
			r.want(w)
			id := w.key(reconciler.SetUp)
			if err := r.do(id); plugins.ClassOf(err) != plugins.ClassPermanent || !errors.Is(err, plugins.ErrBadName) {
				t.Errorf("set up: %v", err)
			}
			if err := r.actual.Load([]asw.Volume{{ID: w.id(), Pods: []asw.PodVolume{{Volume: w.podVolume(), State: asw.Uncertain, Found: true}}}}); err != nil {
				t.Fatal(err)
			}
			r.unwant(w)
			if err := r.do(w.key(reconciler.TearDown)); plugins.ClassOf(err) != plugins.ClassPermanent || !errors.Is(err, plugins.ErrBadName) {
				t.Errorf("teardown: %v", err)
			}
			r.actual.RemovePodVolume(w.podVolume())
			r.exec.RemovePodFolder(types.UID(w.pod))
			if len(r.plugin.calls) > 0 || len(r.journal.log) > 0 || !exists(escape) || !exists(r.host.Layout.PodsDir()) {
				t.Errorf("calls %v, journal %v", r.plugin.calls, r.journal.log)
			}
		})
	}
}

func TestDeviceMountPathsStayInTheirPlace(t *testing.T) {
	r := newRig(t)
	l := r.host.Layout
	for _, path := range []string{"/etc", "relative", l.Root, l.Root + "/../x", l.Root + "/plugins/../pods/x", l.PodsDir() + "/x", l.StateDir(), ""} {
		t.Run(path, func(t *testing.T) {
			r := newRig(t)
			r.plugin.path = strings.Replace(path, l.Root, r.host.Layout.Root, 1)
			if path == "" {
				r.plugin.fail("deviceMountPath", errors.New("what a name"))
			}
			w := wish{pod: "pod", volume: "vol", identity: plugins.Identity{Storage: "s", Device: true}}
			r.want(w)
			if err := r.do(w.key(reconciler.MountDevice)); plugins.ClassOf(err) != plugins.ClassPermanent {
				t.Errorf("mount: %v", err)
			}
			r.unwant(w)
			if path != "" {
				err := r.actual.Load([]asw.Volume{{ID: w.id(), Device: asw.Uncertain, DeviceMountPath: r.plugin.path}})
				if err != nil {
					t.Fatal(err)
				}
				if err := r.do(w.key(reconciler.UnmountDevice)); plugins.ClassOf(err) != plugins.ClassPermanent {
					t.Errorf("unmount: %v", err)
				}
			}
			if len(r.plugin.calls) > 0 || len(r.journal.log) > 0 {
				t.Errorf("calls %v, journal %v", r.plugin.calls, r.journal.log)
			}
		})
	}
}

func TestBlockDeviceLink(t *testing.T) {
	r := newRig(t)
	devices := make([]string, 2)
	for i := range devices {
		devices[i] = filepath.Join(r.host.Layout.Root, fmt.Sprintf("device-%d", i))
		if err := os.WriteFile(devices[i], nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w, other := wish{pod: "pod", volume: "vol", block: true}, wish{pod: "pod", volume: "vol.next", block: true}
	link, otherLink := r.host.Layout.PodDevice(w.podVolume()), r.host.Layout.PodDevice(other.podVolume())
	expect := func(link, device string) {
		t.Helper()
		if got, err := os.Readlink(link); err != nil || got != device {
			t.Errorf("%s leads to %q, %v", link, got, err)
		}
	}
	r.plugin.mapped = devices[1]
	r.want(other)
	r.must(other.key(reconciler.SetUp))
	r.plugin.mapped = devices[0]
	r.want(w)
	r.must(w.key(reconciler.SetUp))
	expect(link, devices[0])
	expect(otherLink, devices[1])
	entry, _ := r.actual.PodVolume(w.podVolume())
	if entry.Path != link || !entry.Attributes.Managed || !entry.Block || entry.Mounted {
		t.Errorf("entry: %+v", entry)
	}
	// After a restart the device may have another name; the link follows, over
	// what an interrupted try left beside it.
	if err := os.Symlink("/stale", filepath.Join(r.host.Layout.PodDir("pod"), ".device-0")); err != nil {
		t.Fatal(err)
	}
	entry.State = asw.Uncertain
	if err := r.actual.SetPodVolume(entry); err != nil {
		t.Fatal(err)
	}
	r.plugin.mapped = devices[1]
	r.must(w.key(reconciler.SetUp))
	expect(link, devices[1])
	_ = os.Remove(filepath.Join(r.host.Layout.PodDir("pod"), ".device-0"))

	// The link goes before the device does, and the teardown needs no link.
	r.plugin.hook("unmapDevice", func(context.Context) error {
		if exists(link) {
			t.Error("the link is there while the device goes")
		}
		return nil
	})
	r.desired.RemovePod("pod")
	r.must(w.key(reconciler.TearDown))
	r.plugin.hook("unmapDevice", nil)
	if err := os.Remove(otherLink); err != nil {
		t.Fatal(err)
	}
	r.must(other.key(reconciler.TearDown))
	for i := range devices {
		if !exists(devices[i]) {
			t.Error("the device itself was removed")
		}
	}
	r.clean()
}

func TestBlockDeviceThatIsNone(t *testing.T) {
	r := newRig(t)
	w := wish{pod: "pod", volume: "vol", block: true}
	r.want(w)
	for _, device := range []string{"", "sda", filepath.Join(r.host.Layout.Root, "none")} {
		r.plugin.mapped = device
		if err := r.do(w.key(reconciler.SetUp)); plugins.ClassOf(err) != plugins.ClassUncertain || r.state(w.key(reconciler.SetUp)) != asw.Uncertain {
			t.Errorf("%q: %v", device, err)
		}
		if exists(r.host.Layout.PodDevice(w.podVolume())) {
			t.Errorf("%q is linked", device)
		}
	}
	// A folder where the link belongs is nobody's to remove.
	if err := os.MkdirAll(filepath.Join(r.host.Layout.PodDevice(w.podVolume()), "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.plugin.mapped = r.host.Layout.Root
	if err := r.do(w.key(reconciler.SetUp)); plugins.ClassOf(err) != plugins.ClassUncertain {
		t.Errorf("over a folder: %v", err)
	}
	r.unwant(w)
	if err := r.do(w.key(reconciler.TearDown)); plugins.ClassOf(err) != plugins.ClassUncertain || r.plugin.count("unmapDevice") > 0 {
		t.Errorf("teardown: %v", err)
	}
	if err := os.RemoveAll(r.host.Layout.PodDevice(w.podVolume())); err != nil {
		t.Fatal(err)
	}
	r.settle(w)
}

func TestPodFolderGoesWhenEmpty(t *testing.T) {
	r := newRig(t)
	l := r.host.Layout
	w := simple("pod", "vol")
	r.want(w)
	r.must(w.key(reconciler.SetUp))
	r.exec.RemovePodFolder("pod")
	if !exists(l.PodVolume(w.podVolume())) {
		t.Fatal("the folder of a live pod is gone")
	}
	// What others keep there stays, and is not entered through a link.
	outside := filepath.Join(filepath.Dir(l.Root), "outside")
	if err := errors.Join(
		os.MkdirAll(filepath.Join(outside, "empty"), 0o700),
		os.MkdirAll(filepath.Join(l.PodPluginsDir("pod"), "empty"), 0o700),
		os.Symlink(outside, l.PodSubpathsDir("pod")),
		os.MkdirAll(filepath.Join(l.PodDevicesDir("pod"), "x~y", "kept"), 0o700),
	); err != nil {
		t.Fatal(err)
	}
	r.unwant(w)
	r.must(w.key(reconciler.TearDown))
	for path, want := range map[string]bool{
		filepath.Join(outside, "empty"):                      true,
		l.PodSubpathsDir("pod"):                              true,
		filepath.Join(l.PodDevicesDir("pod"), "x~y", "kept"): true,
		l.PodPluginsDir("pod"):                               false,
		l.PodVolumesDir("pod"):                               false,
	} {
		if exists(path) != want {
			t.Errorf("%s: exists %v", path, !want)
		}
	}
	if err := errors.Join(os.Remove(l.PodSubpathsDir("pod")), os.Remove(filepath.Join(l.PodDevicesDir("pod"), "x~y", "kept"))); err != nil {
		t.Fatal(err)
	}
	r.exec.RemovePodFolder("pod")
	r.clean()
}

// A pod that comes back while its folders are being removed finds them made.
func TestPodThatComesBackWhileItsFolderGoes(t *testing.T) {
	r := newRig(t)
	w := simple("pod", "vol")
	const rounds = 100
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				r.exec.RemovePodFolder("pod")
				runtime.Gosched()
			}
		}
	})
	for range rounds {
		r.want(w)
		if err := r.do(w.key(reconciler.SetUp)); err != nil {
			t.Error(err)
			break
		}
		if !exists(r.host.Layout.PodVolume(w.podVolume())) {
			t.Error("the volume is not there")
		}
		r.unwant(w)
		if err := r.do(w.key(reconciler.TearDown)); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	wg.Wait()
	r.exec.RemovePodFolder("pod")
	r.clean()
}

// A set-up that finds the folders being removed waits for that, as long as its
// context lets it.
func TestSetUpWaitsForTheRemovalOfFolders(t *testing.T) {
	r := newRig(t)
	w := simple("pod", "vol")
	removing, done := make(chan struct{}), make(chan struct{})
	go r.exec.HoldFolder("pod", removing, done)
	<-removing
	r.want(w)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.exec.Do(ctx, reconciler.Step{Key: w.key(reconciler.SetUp)}); plugins.ClassOf(err) != plugins.ClassTransient {
		t.Errorf("error: %v", err)
	}
	// Its journal was asked to forget with a context that had not ended.
	if r.state(w.key(reconciler.SetUp)) != asw.Absent || len(r.journal.keys()) > 0 || r.plugin.count("setUp") > 0 {
		t.Errorf("%v, %v", r.journal.keys(), r.plugin.calls)
	}
	ended := make(chan error)
	go func() { ended <- r.do(w.key(reconciler.SetUp)) }()
	close(done)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	r.settle(w)
}

// A teardown that the pod's own deletion overtakes still removes the folders,
// whichever of the two is the last.
func TestLastOneOutRemovesTheFolders(t *testing.T) {
	for range 30 {
		r := newRig(t)
		w := simple("pod", "vol")
		r.want(w)
		r.must(w.key(reconciler.SetUp))
		r.desired.SetPod(&v1.Pod{ObjectMeta: podMeta("pod")}) // without the volume
		var wg sync.WaitGroup
		wg.Go(func() { r.must(w.key(reconciler.TearDown)) })
		wg.Go(func() {
			r.gone(w)
		})
		wg.Wait()
		r.clean()
	}
}
