package plugintest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
)

// patience is how long a call of the plugin may take before it counts as
// hanging.
const patience = 20 * time.Second

// world is one node: a root folder, a mounter, a host and a plugin. It plays
// the engine.
type world struct {
	t      testing.TB
	h      Harness
	check  check
	volume string
	root   string
	mounts *stepper
	host   *plugins.VolumeHost
	plugin plugins.VolumePlugin
	// next makes another world like this one, with the same volume.
	next func() (*world, Volume)

	mu       sync.Mutex // guards what follows
	spoken   []string   // what the plugin said: errors, log lines, events, records
	failures []failure
	others   []*world
}

// stop ends a check from within.
type stop struct{}

func newWorld(t testing.TB, h Harness, c check, base, name, volume string) *world {
	w := &world{t: t, h: h, check: c, volume: volume, root: filepath.Join(base, name)}
	if err := os.MkdirAll(w.root, 0o755); err != nil {
		t.Fatal(err)
	}
	var m mount.Mounter
	if h.Mounter != nil {
		m = h.Mounter(t, w.root)
	} else {
		m = mounttest.New(mounttest.Options{Dir: w.root})
	}
	w.mounts = &stepper{Mounter: m}
	w.host = &plugins.VolumeHost{
		Layout: plugins.Layout{Root: w.root}, Mounter: w.mounts.mounter(), NodeName: "node",
		Faults: w.mounts.at, Events: listener{w},
		Log: funcr.New(func(prefix, args string) { w.hear(prefix + " " + args) }, funcr.Options{Verbosity: 10}),
	}
	if h.Host != nil {
		h.Host(t, w.host)
	}
	w.plugin = h.New(t, w.host)
	return w
}

// another is a fresh world for the same volume, closed with this one.
func (w *world) another() (*world, Volume) {
	other, v := w.next()
	other.next = w.next
	w.others = append(w.others, other)
	return other, v
}

// restart stands for a new process on the same node. bare takes the API away.
func (w *world) restart(bare bool) {
	host := *w.host
	if bare {
		host = plugins.VolumeHost{Layout: host.Layout, Mounter: host.Mounter, NodeName: host.NodeName, Faults: host.Faults, Log: host.Log}
	}
	w.plugin = w.h.New(w.t, &host)
}

// close ends the world, unmounts what is left, and returns what was found.
func (w *world) close() []failure {
	w.mounts.calm()
	w.unmountAll()
	found := w.failures
	for _, other := range w.others {
		found = append(found, other.close()...)
	}
	return found
}

// recovered ends a check that stopped or panicked.
func (w *world) recovered() {
	switch r := recover().(type) {
	case nil, stop:
	default:
		w.errorf("panic: %v\n%s", r, debug.Stack())
	}
}

func (w *world) errorf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures = append(w.failures, failure{w.check.name, w.check.rule, w.volume, fmt.Sprintf(format, args...)})
}

// fatalf ends the check.
func (w *world) fatalf(format string, args ...any) {
	w.errorf(format, args...)
	panic(stop{})
}

// hear keeps what the plugin said.
func (w *world) hear(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spoken = append(w.spoken, text)
}

// listener is the event recorder.
type listener struct{ w *world }

func (l listener) Event(_ runtime.Object, kind, reason, message string) {
	l.w.hear(kind + " " + reason + " " + message)
}

// errHangs is what call returns for a call that does not come back.
var errHangs = errors.New("the call does not return")

// call runs f in a goroutine of its own, as the engine does. A panic becomes an
// error of the check.
func (w *world) call(what string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				w.errorf("%s panics: %v\n%s", what, r, debug.Stack())
				done <- errors.New(what + " panicked")
			}
		}()
		done <- f()
	}()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	select {
	case err := <-done:
		if err != nil {
			w.hear(err.Error())
		}
		return err
	case <-limit.C:
		w.fatalf("%s does not return", what)
		return errHangs
	}
}

// part is one pod's use of a volume, and what the engine would know of it.
type part struct {
	Volume
	target plugins.Target
	id     plugins.VolumeID
	ident  plugins.Identity
	undo   plugins.Undo
	device plugins.DeviceRequest
	result plugins.SetUpResult
}

// part prepares the nth pod's use of v: names, and the folders around it that
// the engine makes and removes.
func (w *world) part(v Volume, n int) *part {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod"}}
	if v.Pod != nil {
		pod = v.Pod.DeepCopy()
	}
	pod.UID = types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", n))
	v.Pod = pod
	p := &part{Volume: v}
	name := plugins.PodVolume{Pod: pod.UID, Plugin: w.plugin.Name(), Name: v.Spec.Name()}
	if err := name.Check(); err != nil {
		w.fatalf("the harness's volume cannot be named: %v", err)
	}
	p.target = w.host.Layout.Target(name, plugins.PodRef{Namespace: pod.Namespace, Name: pod.Name})
	for _, path := range []string{p.target.Path, p.target.PrivateDir} {
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			w.t.Fatal(err)
		}
	}
	return p
}

// identify asks for the identity and records what the engine records.
func (w *world) identify(p *part) error {
	return w.call("Identify", func() (err error) {
		p.ident, err = w.plugin.Identify(p.Spec)
		p.id = plugins.VolumeIDOf(w.plugin.Name(), p.ident, p.Spec, p.Pod.UID)
		p.record(w, p.ident.Undo)
		return err
	})
}

func (p *part) record(w *world, add plugins.Undo) {
	for key, value := range add {
		if p.undo == nil {
			p.undo = plugins.Undo{}
		}
		p.undo[key] = value
		w.hear(key + "=" + value)
	}
}

// up runs every step that makes the volume.
func (w *world) up(ctx context.Context, p *part, again bool) error {
	if err := w.identify(p); err != nil {
		return err
	}
	parts := plugins.CapabilitiesOf(w.plugin)
	p.device.ID, p.device.Spec, p.device.Undo, p.device.Params = p.id, p.Spec, p.undo, p.Params
	if p.ident.Attach {
		if err := w.deviceStep(ctx, "Attach", p, parts.Attacher.Attach); err != nil {
			return err
		}
	}
	if p.ident.Device {
		path, err := parts.DeviceMounter.DeviceMountPath(p.Spec)
		if err != nil {
			return err
		}
		p.device.Path = path
		if err := w.deviceStep(ctx, "MountDevice", p, parts.DeviceMounter.MountDevice); err != nil {
			return err
		}
	}
	return w.setUp(ctx, p, again)
}

func (w *world) deviceStep(ctx context.Context, what string, p *part, do func(context.Context, plugins.DeviceRequest) (plugins.DeviceResult, error)) error {
	return w.call(what, func() error {
		got, err := do(ctx, p.device)
		if err != nil {
			return err
		}
		if got.DevicePath != "" {
			p.device.DevicePath = got.DevicePath
		}
		p.record(w, got.Undo)
		p.device.Undo = p.undo
		return nil
	})
}

func (p *part) request(again bool) plugins.SetUpRequest {
	return plugins.SetUpRequest{
		Target: p.target, Spec: p.Spec, Object: p.Pod, Again: again, Params: p.Params, Undo: p.undo,
		DevicePath: p.device.DevicePath, DeviceMountPath: p.device.Path,
	}
}

// setUp runs the last step alone.
func (w *world) setUp(ctx context.Context, p *part, again bool) error {
	return w.call("SetUp", func() error {
		got, err := w.plugin.SetUp(ctx, p.request(again))
		if err == nil {
			p.result = got
			w.hear(got.Content.Version)
			if p.result.Path == "" {
				p.result.Path = p.target.Path
			}
		}
		return err
	})
}

// down runs every step that takes the volume away, without a spec.
func (w *world) down(ctx context.Context, p *part) error {
	err := w.call("TearDown", func() error {
		return w.plugin.TearDown(ctx, plugins.TearDownRequest{Target: p.target, Undo: p.undo, DeviceMountPath: p.device.Path})
	})
	if err != nil {
		return err
	}
	parts := plugins.CapabilitiesOf(w.plugin)
	device := p.device
	device.Spec = nil
	if p.ident.Device && device.Path != "" {
		if err := w.call("UnmountDevice", func() error { return parts.DeviceMounter.UnmountDevice(ctx, device) }); err != nil {
			return err
		}
	}
	if p.ident.Attach {
		return w.call("Detach", func() error { return parts.Attacher.Detach(ctx, device) })
	}
	return nil
}

// mustUp and mustDown end the check where the step fails.
func (w *world) mustUp(p *part, again bool) {
	if err := w.up(context.Background(), p, again); err != nil {
		w.fatalf("set-up: %v", err)
	}
	if err := w.promised(p); err != nil {
		w.fatalf("%v", err)
	}
}

func (w *world) mustDown(p *part) {
	if err := w.down(context.Background(), p); err != nil {
		w.fatalf("teardown: %v", err)
	}
}

// promised compares what SetUp said with what is there.
func (w *world) promised(p *part) error {
	path := p.result.Path
	if !mount.Inside(p.target.Path, path) { // a place of the host's own
		path = p.target.Path
		if p.result.Mounted {
			return fmt.Errorf("SetUp promises a mount at %s, which is not in the pod's volume", p.result.Path)
		}
	} else if _, err := os.Lstat(path); err != nil {
		return fmt.Errorf("SetUp succeeded, but nothing is at the path: %w", err)
	}
	point, err := w.mounts.Mounter.Inspect(context.Background(), path)
	switch {
	case err != nil:
		return err
	case p.result.Mounted && !point.Mounted:
		return fmt.Errorf("SetUp promises a mount at %s, but none is there", path)
	case !p.result.Mounted && point.Mounted:
		return fmt.Errorf("a mount is at %s that SetUp does not tell of", path)
	}
	return nil
}
