package csinode_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/csi"
	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/csi/csitest/checker"
	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/memory"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/volumemanager"
)

// patience is how long a test waits for what must come: no claim about speed.
const patience = 30 * time.Second

// driverName is the driver of a rig.
const driverName = "rig.volumekit.example"

// settings are what tests of a rig differ in. The zero value is a driver with
// all capabilities, on tmpfs, attached directly.
type settings struct {
	driver  func(*csitest.Config)
	checker func(*checker.Options)
	csi     func(*csi.Config)
	drivers func(*csi.DriversConfig)
	manager func(*volumemanager.Config)
	// attach makes the attacher; nil attaches directly.
	attach func(r *rig) csi.Attacher
	// unwatched leaves the checker's verdict to the test.
	unwatched bool
}

// rig is a manager with the plugin, and a real driver that it finds by its
// endpoint. Every call passes a checker of the orchestrator's conduct.
type rig struct {
	*testing.T
	dir, root string
	ctx       context.Context
	driver    *csitest.Driver
	checker   *checker.Checker
	store     *memory.Store
	pods      *memory.Pods
	events    *memory.Recorder
	host      *plugins.VolumeHost
	plugin    *csi.Plugin
	drivers   *csi.Drivers
	manager   *volumemanager.Manager

	settings settings
	cancel   context.CancelFunc
	ended    chan error
}

func newRig(t *testing.T, s settings) *rig {
	t.Helper()
	nstest.Require(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	dir := nstest.Dir(t)
	r := &rig{T: t, dir: dir, root: filepath.Join(dir, "root"), ctx: ctx, settings: s,
		store: memory.NewStore(), pods: memory.NewPods(), events: memory.NewRecorder(1000)}
	r.startDriver()
	r.pods.MarkSynced()
	r.start()
	t.Cleanup(r.end)
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) startDriver() {
	r.Helper()
	options := checker.Options{Filesystem: true, DriverName: driverName, MaxCapabilityCalls: 1}
	if r.settings.checker != nil {
		r.settings.checker(&options)
	}
	r.checker = checker.New(options)
	config := csitest.Config{
		Dir: filepath.Join(r.dir, "driver"), Name: driverName, Capabilities: csitest.AllCapabilities(), AutoCreate: true, AbortBusy: true,
		Interceptors: []grpc.UnaryServerInterceptor{r.checker.UnaryServer()},
		Node:         csitest.NodeInfo{NodeID: "node-1"},
	}
	if r.settings.driver != nil {
		r.settings.driver(&config)
	}
	var err error
	r.driver, err = csitest.New(config)
	r.must(err)
	r.must(r.driver.Start(r.ctx))
	r.Cleanup(func() { _ = r.driver.Stop() })
}

// start starts a manager on the root: the first, or the next one.
func (r *rig) start() {
	r.Helper()
	r.host = r.store.Host(plugins.Layout{Root: r.root}, hostmount.New(hostmount.Options{}))
	r.host.NodeName, r.host.Events = "node", r.events
	endpoint := csi.Endpoint{Name: r.driver.Name(), Node: r.driver.Endpoint()}
	if len(r.driverCapabilities().Plugin) > 0 {
		endpoint.Controller = r.driver.Endpoint()
	}
	dc := csi.DriversConfig{Endpoints: []csi.Endpoint{endpoint}}
	if r.settings.drivers != nil {
		r.settings.drivers(&dc)
	}
	r.drivers = csi.NewDrivers(dc)
	config := csi.Config{Host: r.host, Drivers: r.drivers}
	if r.settings.attach != nil {
		config.Attacher = r.settings.attach(r)
	} else {
		config.Attacher = csi.DirectAttach(r.drivers, r.host, csi.DirectOptions{})
	}
	if r.settings.csi != nil {
		r.settings.csi(&config)
	}
	var err error
	r.plugin, err = csi.New(config)
	r.must(err)
	registry, err := plugins.NewRegistry(r.plugin)
	r.must(err)
	mc := volumemanager.Config{
		Host: r.host, Plugins: registry, Pods: r.pods, Root: volumemanager.AnyPropagation,
		Steps: reconciler.Options{Backoff: reconciler.Backoff{Base: 20 * time.Millisecond, Max: time.Second}},
	}
	if r.settings.manager != nil {
		r.settings.manager(&mc)
	}
	r.manager, err = volumemanager.New(mc)
	r.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.ended = cancel, make(chan error, 1)
	go func(m *volumemanager.Manager) { r.ended <- m.Run(ctx) }(r.manager)
}

func (r *rig) driverCapabilities() csitest.Capabilities {
	c := csitest.Config{Capabilities: csitest.AllCapabilities()}
	if r.settings.driver != nil {
		r.settings.driver(&c)
	}
	return c.Capabilities
}

// stop ends the manager. What is mounted stays.
func (r *rig) stop() {
	r.Helper()
	if r.cancel == nil {
		return
	}
	r.cancel()
	if err := <-r.ended; err != nil && !errors.Is(err, context.Canceled) {
		r.Errorf("the manager ended with %v", err)
	}
	r.cancel = nil
}

// restart ends the manager and starts another on the same root.
func (r *rig) restart() {
	r.Helper()
	r.stop()
	r.checker.COrestarted()
	r.start()
}

// end takes everything away and looks at what is left.
func (r *rig) end() {
	if r.Failed() {
		r.stop()
		r.Logf("calls:\n%s", strings.Join(r.calls(), "\n"))
		return
	}
	r.driver.ClearScripts()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if report, err := r.manager.Drain(ctx); err != nil {
		r.Errorf("drain: %v, %+v", err, report)
	}
	r.clean()
	r.stop()
	if !r.settings.unwatched {
		r.checker.VerifyClean(r.T)
	}
}

// clean fails the test if anything of a volume is left.
func (r *rig) clean() {
	r.Helper()
	for _, v := range r.driver.Volumes() {
		if v.Staged != nil || len(v.Published) > 0 || len(v.Attached) > 0 {
			r.Errorf("the driver still has %+v", v)
		}
	}
	left := []string{}
	for _, dir := range []string{"pods", "plugins"} {
		_ = filepath.WalkDir(filepath.Join(r.root, dir), func(path string, d fs.DirEntry, err error) error {
			rel, _ := filepath.Rel(r.root, path)
			fixed := strings.HasSuffix(rel, "/volumeDevices/publish") || strings.HasSuffix(rel, "/volumeDevices/staging")
			if err == nil && !fixed && (!d.IsDir() || strings.Count(rel, "/") > 3) {
				left = append(left, rel)
			}
			return nil
		})
	}
	if len(left) > 0 {
		r.Errorf("left on disk: %v", left)
	}
	records, err := journal.Read(r.host.Layout.StateDir())
	r.must(err)
	if len(records.Records) > 0 {
		r.Errorf("left in the journal: %+v", records.Records)
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	r.must(err)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], r.root+"/") {
			r.Errorf("still mounted: %s", f[4])
		}
	}
}

// volume stores a persistent volume of the driver and a claim that is bound to
// it, both called name.
func (r *rig) volume(name string, change ...func(*v1.PersistentVolume)) {
	r.Helper()
	pv, claim := persistent(name, change...)
	r.apply(pv, claim)
}

func persistent(name string, change ...func(*v1.PersistentVolume)) (*v1.PersistentVolume, *v1.PersistentVolumeClaim) {
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("64Mi")}
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("claim-" + name)},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: name},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: size},
	}
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: driverName, VolumeHandle: "handle-" + name, FSType: "ext4",
			}},
			ClaimRef: &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: name, UID: claim.UID},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}
	for _, f := range change {
		f(pv)
	}
	claim.Spec.AccessModes, claim.Spec.VolumeMode = pv.Spec.AccessModes, pv.Spec.VolumeMode
	return pv, claim
}

func block(pv *v1.PersistentVolume) {
	mode := v1.PersistentVolumeBlock
	pv.Spec.VolumeMode, pv.Spec.CSI.FSType = &mode, ""
}

func modes(list ...v1.PersistentVolumeAccessMode) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) { pv.Spec.AccessModes = list }
}

// podOf is a pod that mounts claims; a claim called "block..." is used as a
// device.
func podOf(name string, claims ...string) *v1.Pod {
	c := v1.Container{Name: "main", Image: "none"}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1.PodSpec{ServiceAccountName: "sa"},
	}
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
		if strings.HasPrefix(claim, "block") {
			c.VolumeDevices = append(c.VolumeDevices, v1.VolumeDevice{Name: claim, DevicePath: "/dev/" + claim})
		} else {
			c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: claim, MountPath: "/" + claim})
		}
	}
	pod.Spec.Containers = []v1.Container{c}
	return pod
}

func (r *rig) add(pods ...*v1.Pod) {
	r.Helper()
	for _, pod := range pods {
		r.must(r.pods.Set(pod))
	}
}

// up adds pods and waits until their volumes are ready.
func (r *rig) up(pods ...*v1.Pod) {
	r.Helper()
	r.add(pods...)
	r.ready(pods...)
}

func (r *rig) ready(pods ...*v1.Pod) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	for _, pod := range pods {
		r.must(r.manager.WaitForAttachAndMount(ctx, pod))
	}
}

// down removes pods and waits until nothing of them is left.
func (r *rig) down(pods ...*v1.Pod) {
	r.Helper()
	for _, pod := range pods {
		r.pods.Remove(pod.UID)
	}
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	for _, pod := range pods {
		r.must(r.manager.WaitForUnmount(ctx, pod))
	}
}

// released waits until the volume of a claim is neither staged nor attached.
func (r *rig) released() {
	r.Helper()
	r.until("no volume is known", func() bool { return len(r.manager.Snapshot().Volumes) == 0 })
}

// until waits for a condition.
func (r *rig) until(what string, holds func() bool) {
	r.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			r.Fatalf("not in time: %s", what)
		}
	}
}

// calls are the calls about volumes since the last reset, "Method handle", with
// the code if it is not OK.
func (r *rig) calls() []string {
	var list []string
	for _, c := range r.driver.Calls() {
		if c.VolumeID == "" {
			continue
		}
		text := c.Method + " " + c.VolumeID
		if c.Done && c.Code != 0 {
			text += " " + c.Code.String()
		}
		list = append(list, text)
	}
	return list
}

// want compares the calls about volumes.
func (r *rig) want(calls ...string) {
	r.Helper()
	if got := r.calls(); !slices.Equal(got, calls) {
		r.Errorf("calls:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(calls, "\n  "))
	}
}

// path is where a pod finds a volume.
func (r *rig) path(pod *v1.Pod, pv string, below ...string) string {
	at := r.host.Layout.PodVolume(plugins.PodVolume{Pod: pod.UID, Plugin: csi.Name, Name: pv})
	return filepath.Join(append([]string{at, "mount"}, below...)...)
}

// apply stores objects.
func (r *rig) apply(objects ...runtime.Object) {
	r.Helper()
	for _, o := range objects {
		r.must(r.store.Apply(o))
	}
}

// request returns the last request of a method for a volume.
func request[T any](r *rig, method, volume string) T {
	r.Helper()
	var found T
	ok := false
	for _, c := range r.driver.Calls() {
		if c.Method == method && (volume == "" || c.VolumeID == volume) {
			found, ok = c.Request.(T)
		}
	}
	if !ok {
		r.Fatalf("no %s for %q among:\n  %s", method, volume, strings.Join(r.calls(), "\n  "))
	}
	return found
}
