package volumemanager_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/memory"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/volumemanager"
)

func TestNewSaysAllThatIsWrong(t *testing.T) {
	_, err := volumemanager.New(volumemanager.Config{})
	if err == nil || !has(err.Error(), "Config.Plugins", "Config.Pods", "Config.Host is not set") {
		t.Errorf("%v", err)
	}
	_, err = volumemanager.New(volumemanager.Config{
		Host: &plugins.VolumeHost{Layout: plugins.Layout{Root: "relative"}}, Root: 7,
	})
	if err == nil || !has(err.Error(), "Config.Host.Mounter", `not absolute: "relative"`, "Config.Root has no meaning: 7") {
		t.Errorf("%v", err)
	}
}

func TestNewDoesNothing(t *testing.T) {
	onNode(t, func(n *node) {
		m, err := volumemanager.New(n.config)
		n.must(err)
		if _, err := os.Stat(n.root); !errors.Is(err, os.ErrNotExist) {
			n.Errorf("the root is there: %v", err)
		}
		if calls := n.mounter.Calls(); len(calls) > 0 {
			n.Errorf("calls: %v", calls)
		}
		// All queries may be made before Run.
		p := pod("p", emptyVolume("e"))
		if _, known := m.Status(p); known || len(m.MountedVolumes(p)) > 0 || len(m.VolumesInUse()) > 0 || m.Snapshot().Ready {
			n.Error("something is known before Run")
		}
		if !m.PossiblyMounted(p.UID) {
			n.Error("nobody knows yet that nothing is mounted")
		}
		m.Retry(p)
		ctx, cancel := context.WithTimeout(n.Context(), time.Second)
		defer cancel()
		if err := m.WaitForUnmount(ctx, p); !errors.Is(err, volumemanager.ErrStillMounted) || !errors.Is(err, context.DeadlineExceeded) {
			n.Errorf("wait before Run: %v", err)
		}
		if _, err := m.Drain(ctx); !errors.Is(err, volumemanager.ErrNotDrained) {
			n.Errorf("drain before Run: %v", err)
		}
	})
}

func TestRunWorksOnceAndEndsClean(t *testing.T) {
	onRunning(t, func(n *node) {
		p := pod("p", emptyVolume("e"))
		n.up(p)
		if err := n.Manager.Run(n.Context()); !errors.Is(err, volumemanager.ErrRunning) {
			n.Errorf("second run: %v", err)
		}
		missing := pod("missing", configVolume("absent", false))
		n.set(missing)
		waits := make(chan error, 2)
		go func() { waits <- n.WaitForAttachAndMount(n.Context(), missing) }()
		go func() { waits <- n.WaitForUnmount(n.Context(), p) }()
		synctest.Wait()
		n.stop()
		for range 2 {
			if err := <-waits; !errors.Is(err, volumemanager.ErrStopped) {
				n.Errorf("a wait ended with %v", err)
			}
		}
		if _, err := os.Stat(n.MountedVolumes(p)["e"].Path); err != nil {
			n.Errorf("what is mounted stays: %v", err)
		}
	})
}

func TestRunOnARootThatIsTaken(t *testing.T) {
	onRunning(t, func(n *node) {
		p := pod("p", emptyVolume("e"))
		n.up(p)
		second, err := volumemanager.New(n.config)
		n.must(err)
		if err := second.Run(n.Context()); !errors.Is(err, journal.ErrLocked) || !has(err.Error(), "start the volume manager", "process") {
			n.Errorf("%v", err)
		}
		if err := second.WaitForUnmount(n.Context(), p); !errors.Is(err, volumemanager.ErrStopped) {
			n.Errorf("wait on a manager that did not start: %v", err)
		}
		n.down(p)
	})
}

func TestRunFailsWhileItStarts(t *testing.T) {
	fault := errors.New("no such call")
	for _, c := range []struct {
		name   string
		damage func(n *node)
		want   error
	}{
		{"propagation", func(n *node) { n.mounter.Fail(mounttest.OpPropagation, "", fault) }, fault},
		{"namespace", func(n *node) { n.mounter.Fail(mounttest.OpNamespace, "", fault) }, fault},
		{"root is a file", func(n *node) { n.must(os.WriteFile(n.root, nil, 0o600)) }, nil},
		{"pods is a file", func(n *node) {
			n.must(os.MkdirAll(n.root, 0o750))
			n.must(os.WriteFile(filepath.Join(n.root, "pods"), nil, 0o600))
		}, nil},
		{"not shared", func(n *node) {
			n.mounter = mounttest.New(mounttest.Options{Dir: n.root, Private: true})
			n.host.Mounter = n.mounter
		}, volumemanager.ErrNotShared},
	} {
		t.Run(c.name, func(t *testing.T) {
			onNode(t, func(n *node) {
				c.damage(n)
				m, err := volumemanager.New(n.config)
				n.must(err)
				err = m.Run(n.Context())
				if err == nil || c.want != nil && !errors.Is(err, c.want) {
					n.Errorf("%v", err)
				}
				if closed(m.Ready()) {
					n.Error("it is ready")
				}
			})
		})
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestRunIsCancelledWhileItStarts(t *testing.T) {
	onNode(t, func(n *node) {
		hold := n.mounter.Hang(mounttest.OpNamespace, "")
		m, err := volumemanager.New(n.config)
		n.must(err)
		ctx, cancel := context.WithCancel(n.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		<-hold.Reached()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			n.Errorf("%v", err)
		}
		hold.Release()
		n.start() // the root is free again
		n.pods.MarkSynced()
		<-n.Ready()
	})
}

func TestReadyComesWithTheWholeList(t *testing.T) {
	onNode(t, func(n *node) {
		p := pod("p", emptyVolume("e"))
		n.must(n.pods.Set(p))
		n.start()
		if closed(n.Ready()) || n.Snapshot().Ready {
			n.Error("ready before the pods are told")
		}
		n.must(n.WaitForAttachAndMount(n.Context(), p)) // setting up need not wait for that
		n.pods.Remove(p.UID)
		synctest.Wait()
		if v := n.volume(p, "e"); v.Code != volumemanager.CodeUnknown || v.Phase != volumemanager.Kept || v.Advice == "" {
			n.Errorf("%+v", v)
		}
		n.pods.MarkSynced()
		n.must(n.WaitForUnmount(n.Context(), p))
		if !closed(n.Ready()) {
			n.Error("not ready")
		}
		n.nothingLeft()
	})
}

func TestPropagation(t *testing.T) {
	for _, how := range []volumemanager.Propagation{volumemanager.MakeShared, volumemanager.AnyPropagation} {
		onNode(t, func(n *node) {
			n.mounter = mounttest.New(mounttest.Options{Dir: n.root, Private: true})
			n.host.Mounter, n.disk.mounter = n.mounter, n.mounter
			n.config.Root = how
			n.start()
			n.pods.MarkSynced()
			p := pod("p", diskVolume("d", "one"), emptyVolume("e"))
			n.up(p)
			v, want := n.volume(p, "d"), volumemanager.Code("")
			if how == volumemanager.AnyPropagation {
				want = volumemanager.CodeNotVisible
			}
			if v.Code != want || !v.Ready || (v.Advice == "") != (want == "") || (v.Message == "") != (want == "") {
				n.Errorf("%d: %+v", how, v)
			}
			if v := n.volume(p, "e"); v.Code != "" {
				n.Errorf("%d: a folder is seen anywhere: %+v", how, v)
			}
			n.down(p)
		})
	}
}

// ending is a reconciler that ends by itself.
type ending struct{ reconciler.Reconciler }

func (ending) Run(context.Context, reconciler.Engine) error { return nil }

func TestAPartThatEndsEndsAll(t *testing.T) {
	onNode(t, func(n *node) {
		n.config.Reconciler = ending{reconciler.NewSequential()}
		m, err := volumemanager.New(n.config)
		n.must(err)
		if err := m.Run(n.Context()); err == nil || !has(err.Error(), "the reconciler") {
			n.Errorf("%v", err)
		}
	})
}

func TestTwoManagersInOneProcess(t *testing.T) {
	onRunning(t, func(n *node) {
		other := newNode(n.T, filepath.Join(n.TempDir(), "other"))
		other.start()
		defer other.stop()
		other.pods.MarkSynced()
		p := pod("p", emptyVolume("e"), diskVolume("d", "one"))
		n.up(p)
		other.up(p)
		n.down(p)
		n.nothingLeft()
		if !other.PossiblyMounted(p.UID) || len(other.MountedVolumes(p)) != 2 {
			n.Error("one manager took the other's volumes")
		}
		other.down(p)
		other.nothingLeft()
	})
}

// flaky is a pod source that does one thing for each call.
type flaky struct {
	calls []func(ctx context.Context, sink plugins.PodSink) error
}

func (f *flaky) WatchPods(ctx context.Context, sink plugins.PodSink) error {
	call := f.calls[0]
	f.calls = f.calls[1:]
	return call(ctx, sink)
}

func TestPodSourceThatFailsPanicsAndListsAnew(t *testing.T) {
	onNode(t, func(n *node) {
		a, b, c := pod("a", emptyVolume("e")), pod("b", emptyVolume("e")), pod("c", emptyVolume("e"))
		second := make(chan struct{})
		n.config.Pods = &flaky{calls: []func(context.Context, plugins.PodSink) error{
			func(_ context.Context, s plugins.PodSink) error {
				s.SetPod(a)
				s.SetPod(b)
				s.Synced()
				return errors.New("the connection broke")
			},
			func(_ context.Context, s plugins.PodSink) error {
				s.SetPod(c)
				panic("canary-panic")
			},
			func(context.Context, plugins.PodSink) error { return nil },
			func(ctx context.Context, s plugins.PodSink) error {
				<-second
				s.SetPod(b)
				s.SetPod(c)
				s.SetPod(nil)
				s.Synced()
				<-ctx.Done()
				return ctx.Err()
			},
		}}
		n.start()
		for _, p := range []*v1.Pod{a, b, c} {
			n.must(n.WaitForAttachAndMount(n.Context(), p))
		}
		n.pass(time.Minute)
		if len(n.Snapshot().Pods) != 3 {
			n.Error("pods were lost by a broken list")
		}
		close(second)
		n.must(n.WaitForUnmount(n.Context(), a))
		for _, p := range []*v1.Pod{b, c} {
			if status, _ := n.Status(p); !status.Ready {
				n.Errorf("%+v", status)
			}
		}
		if log := n.log.text(); !has(log, "the connection broke", "it panicked with a string", "ended by itself") || has(log, "canary") {
			n.Errorf("log: %s", log)
		}
	})
}

func TestPodsThatAreRefused(t *testing.T) {
	onNode(t, func(n *node) {
		source := &podChannel{sink: make(chan plugins.PodSink, 1)}
		n.config.Pods = source
		n.start()
		sink := <-source.sink
		good := pod("p", emptyVolume("e"))
		sink.SetPod(good)
		sink.Synced()
		n.must(n.WaitForAttachAndMount(n.Context(), good))

		bad := pod("p", emptyVolume("e"), emptyVolume("e"))
		for range 3 {
			sink.SetPod(bad)
		}
		synctest.Wait()
		status, _ := n.Status(good)
		if status.Ready || !status.Known || plugins.ClassOf(status.Err) != plugins.ClassPermanent || len(status.Volumes) != 1 || !status.Volumes[0].Ready {
			n.Errorf("a refused version takes nothing away: %+v", status)
		}
		if err := n.WaitForAttachAndMount(n.Context(), good); !errors.Is(err, volumemanager.ErrNotReady) || plugins.ClassOf(err) != plugins.ClassPermanent {
			n.Errorf("wait: %v", err)
		}
		if got := n.reasons(good); len(got) != 2 || got[1] != "FailedMount" {
			n.Errorf("told once per change: %v", got)
		}
		sink.SetPod(good)
		if err := n.WaitForAttachAndMount(n.Context(), good); err != nil {
			n.Errorf("taken back: %v", err)
		}

		fresh := pod("q", emptyVolume("bad/name"))
		sink.SetPod(fresh)
		if status, known := n.Status(fresh); !known || status.Pod.Name != "q" || len(status.Volumes) != 0 || status.Message == "" {
			n.Errorf("%+v, %v", status, known)
		}
		if c := n.PodConditions(fresh); len(c.Conditions) != 1 || !has(c.Conditions[0].Message, "bad/name") {
			n.Errorf("%+v", c)
		}
		sink.RemovePod(fresh.UID)
		if _, known := n.Status(fresh); known {
			n.Error("it is gone")
		}
	})
}

// podChannel hands the sink to the test.
type podChannel struct{ sink chan plugins.PodSink }

func (p *podChannel) WatchPods(ctx context.Context, sink plugins.PodSink) error {
	p.sink <- sink
	<-ctx.Done()
	return ctx.Err()
}

// TestHostileUIDs: what a source tells becomes no path, come or gone.
func TestHostileUIDs(t *testing.T) {
	onNode(t, func(n *node) {
		source := &podChannel{sink: make(chan plugins.PodSink, 1)}
		n.config.Pods = source
		n.start()
		sink := <-source.sink
		sink.Synced()
		beside := filepath.Join(filepath.Dir(n.root), "beside")
		for _, dir := range []string{filepath.Join(n.root, "volumes"), filepath.Join(beside, "volumes", "x")} {
			n.must(os.MkdirAll(dir, 0o750))
		}
		for _, uid := range []types.UID{"", ".", "..", "../../beside", "a/b", "x\x00"} {
			p := pod("p", emptyVolume("e"))
			p.UID = uid
			sink.SetPod(p)
			synctest.Wait()
			if err := n.WaitForAttachAndMount(n.Context(), p); !errors.Is(err, volumemanager.ErrNotReady) || !errors.Is(err, plugins.ErrBadName) {
				n.Errorf("%q: %v", uid, err)
			}
			n.must(n.WaitForUnmount(n.Context(), pod("other")))
			sink.RemovePod(uid)
		}
		for _, dir := range []string{filepath.Join(n.root, "volumes"), filepath.Join(n.root, "plugins"), filepath.Join(beside, "volumes", "x")} {
			if _, err := os.Stat(dir); err != nil {
				n.Error(err)
			}
		}
		if s := n.Snapshot(); len(s.Pods) != 0 || len(s.Volumes) != 0 {
			n.Errorf("%+v", s)
		}
	})
}

func TestPluginThatPanicsWhileResolving(t *testing.T) {
	onRunning(t, func(n *node) {
		bad, good := pod("bad", diskVolume("d", "panics"), emptyVolume("e")), pod("good", emptyVolume("e"))
		n.set(bad, good)
		n.must(n.WaitForAttachAndMount(n.Context(), good))
		err := n.WaitForAttachAndMount(n.Context(), bad)
		if !errors.Is(err, volumemanager.ErrNotReady) || plugins.ClassOf(err) != plugins.ClassPermanent || has(err.Error(), "canary") {
			n.Errorf("%v", err)
		}
		if _, err := n.Plan(n.Context(), bad); err != nil {
			n.Errorf("plan: %v", err)
		}
	})
}

// running is a source with work in the background, whose first run breaks.
type running struct {
	*memory.Store
	runs chan time.Time
}

func (r *running) Run(ctx context.Context) error {
	first := len(r.runs) == 0
	r.runs <- time.Now()
	if first {
		return errors.New("it broke")
	}
	<-ctx.Done()
	return ctx.Err()
}

func TestRunnersAreRunAndStartedAgain(t *testing.T) {
	onNode(t, func(n *node) {
		r := &running{n.store, make(chan time.Time, 5)}
		n.host.Secrets = r
		n.config.SourcePause = time.Minute
		n.start()
		n.pass(time.Hour)
		if len(r.runs) != 2 {
			n.Fatalf("%d runs", len(r.runs))
		}
		if first, second := <-r.runs, <-r.runs; second.Sub(first) != time.Minute {
			n.Errorf("the pause was %v", second.Sub(first))
		}
	})
}
