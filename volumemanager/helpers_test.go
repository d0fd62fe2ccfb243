package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/builtin"
	"github.com/volumekit/volumekit/plugins/memory"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/volumemanager"
)

// node is a manager with sources in memory, imitated mounts, and a plugin that
// does as it is told. It lives in a bubble of testing/synctest: time stands
// still while anything moves, and settle waits until nothing does.
type node struct {
	*testing.T
	root    string
	store   *memory.Store
	pods    *memory.Pods
	events  *memory.Recorder
	mounter *mounttest.Mounter
	disk    *disk
	steps   *observer
	log     *lines
	host    *plugins.VolumeHost
	config  volumemanager.Config
	*volumemanager.Manager

	cancel context.CancelFunc
	ended  chan error
}

// onNode runs a test on a node that is not started yet.
func onNode(t *testing.T, test func(n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, filepath.Join(t.TempDir(), "root"))
		defer func() {
			if n.cancel != nil {
				n.stop()
			}
		}()
		test(n)
	})
}

// onRunning runs a test on a node that is ready.
func onRunning(t *testing.T, test func(n *node)) {
	t.Helper()
	onNode(t, func(n *node) {
		n.start()
		n.pods.MarkSynced()
		<-n.Ready()
		test(n)
	})
}

func newNode(t *testing.T, root string) *node {
	t.Helper()
	n := &node{
		T: t, root: root, store: memory.NewStore(), pods: memory.NewPods(), events: memory.NewRecorder(0),
		mounter: mounttest.New(mounttest.Options{Dir: root}), steps: &observer{}, log: &lines{},
	}
	n.host = n.store.Host(plugins.Layout{Root: root}, n.mounter)
	n.host.Events, n.host.NodeName = n.events, "node"
	n.host.Log = funcr.New(func(prefix, args string) { n.log.add(prefix + args) }, funcr.Options{Verbosity: 9})
	n.disk = &disk{mounter: n.mounter, layout: n.host.Layout}
	registry, err := plugins.NewRegistry(append(builtin.New(n.host, builtin.Options{}), n.disk)...)
	n.must(err)
	n.config = volumemanager.Config{Host: n.host, Plugins: registry, Pods: n.pods, Observer: n.steps}
	return n
}

// start makes the manager out of n.config and runs it.
func (n *node) start() {
	n.Helper()
	manager, err := volumemanager.New(n.config)
	n.must(err)
	n.Manager = manager
	ctx, cancel := context.WithCancel(n.Context())
	n.cancel, n.ended = cancel, make(chan error, 1)
	go func() { n.ended <- manager.Run(ctx) }()
	synctest.Wait()
}

func (n *node) stop() {
	n.Helper()
	n.cancel()
	n.cancel = nil
	if err := <-n.ended; err != nil {
		n.Errorf("run: %v", err)
	}
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) apply(objects ...runtime.Object) {
	n.Helper()
	for _, o := range objects {
		n.must(n.store.Apply(o))
	}
}

// set tells pods and waits until nothing moves.
func (n *node) set(pods ...*v1.Pod) {
	n.Helper()
	for _, pod := range pods {
		n.must(n.pods.Set(pod))
	}
	synctest.Wait()
}

func (n *node) up(pods ...*v1.Pod) {
	n.Helper()
	n.set(pods...)
	for _, pod := range pods {
		ctx, cancel := context.WithTimeout(n.Context(), time.Minute)
		n.must(n.WaitForAttachAndMount(ctx, pod))
		cancel()
	}
}

func (n *node) down(pods ...*v1.Pod) {
	n.Helper()
	for _, pod := range pods {
		n.pods.Remove(pod.UID)
	}
	for _, pod := range pods {
		ctx, cancel := context.WithTimeout(n.Context(), time.Minute)
		n.must(n.WaitForUnmount(ctx, pod))
		cancel()
	}
}

// pass lets time pass, in no time: that of the bubble.
func (n *node) pass(d time.Duration) { time.Sleep(d) }

// volume is the status of a pod's volume.
func (n *node) volume(pod *v1.Pod, name string) volumemanager.VolumeStatus {
	n.Helper()
	status, _ := n.Status(pod)
	for _, v := range status.Volumes {
		if v.Name == name {
			return v
		}
	}
	n.Fatalf("pod %s has no volume %s: %+v", pod.Name, name, status)
	return volumemanager.VolumeStatus{}
}

func (n *node) file(pod *v1.Pod, volume, name string) string {
	n.Helper()
	text, err := os.ReadFile(filepath.Join(n.MountedVolumes(pod)[volume].Path, name))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// nothingLeft checks that the pods' folder is empty and nothing is mounted.
func (n *node) nothingLeft() {
	n.Helper()
	synctest.Wait()
	if left := n.mounter.Leftovers(); len(left) > 0 {
		n.Errorf("mounts are left: %+v", left)
	}
	entries, err := os.ReadDir(filepath.Join(n.root, "pods"))
	if err != nil || len(entries) > 0 {
		n.Errorf("pod folders are left: %v, %v", entries, err)
	}
}

func pod(name string, volumes ...v1.Volume) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"a": "1"}}}
	c := v1.Container{Name: "main"}
	for _, v := range volumes {
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	p.Spec.Volumes, p.Spec.Containers = volumes, []v1.Container{c}
	return p
}

func emptyVolume(name string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}
}

func configVolume(name string, optional bool) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
		LocalObjectReference: v1.LocalObjectReference{Name: name}, Optional: &optional,
	}}}
}

func secretVolume(name string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name}}}
}

func diskVolume(name, storage string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Glusterfs: &v1.GlusterfsVolumeSource{EndpointsName: storage}}}
}

func claimVolume(name, claim string, readOnly bool) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{
		ClaimName: claim, ReadOnly: readOnly,
	}}}
}

func configMap(name string, data ...string) *v1.ConfigMap {
	cm := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string]string{}}
	for i := 0; i < len(data); i += 2 {
		cm.Data[data[i]] = data[i+1]
	}
	return cm
}

func secret(name, key, value string) *v1.Secret {
	return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string][]byte{key: []byte(value)}}
}

// boundDisk is a claim and the disk that it is bound to.
func boundDisk(name string, modes ...v1.PersistentVolumeAccessMode) []runtime.Object {
	if len(modes) == 0 {
		modes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	}
	return []runtime.Object{
		&v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
			Spec: v1.PersistentVolumeSpec{
				AccessModes: modes, ClaimRef: &v1.ObjectReference{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
				PersistentVolumeSource: v1.PersistentVolumeSource{Glusterfs: &v1.GlusterfsPersistentVolumeSource{EndpointsName: "pv-" + name}},
			},
			Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
		},
		&v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
			Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name, AccessModes: modes},
			Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
		},
	}
}

// disk is a volume kind that is attached, has a device mount, and is bound from
// there to each pod. It calls do before each step.
type disk struct {
	mounter mount.Mounter
	layout  plugins.Layout

	mu sync.Mutex
	do func(ctx context.Context, step reconciler.Kind, storage string) error
}

const diskPlugin = "example.com/disk"

// on sets what happens at each step.
func (d *disk) on(do func(ctx context.Context, step reconciler.Kind, storage string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.do = do
}

// fail makes one kind of step fail, until it is told otherwise.
func (d *disk) fail(kind reconciler.Kind, err error) {
	d.on(func(_ context.Context, step reconciler.Kind, _ string) error {
		if step == kind {
			return err
		}
		return nil
	})
}

func (d *disk) at(ctx context.Context, step reconciler.Kind, storage string) error {
	d.mu.Lock()
	do := d.do
	d.mu.Unlock()
	if do == nil {
		return nil
	}
	return do(ctx, step, storage)
}

func (d *disk) Name() string { return diskPlugin }

func (d *disk) storage(spec *plugins.Spec) string {
	switch {
	case spec.PV != nil && spec.PV.Spec.Glusterfs != nil:
		return spec.PV.Spec.Glusterfs.EndpointsName
	case spec.Volume != nil && spec.Volume.Glusterfs != nil:
		return spec.Volume.Glusterfs.EndpointsName
	}
	return ""
}

func (d *disk) Supports(spec *plugins.Spec) bool { return d.storage(spec) != "" }

func (d *disk) Identify(spec *plugins.Spec) (plugins.Identity, error) {
	storage := d.storage(spec)
	switch storage {
	case "refused":
		return plugins.Identity{}, plugins.Permanent(errors.New("no such kind of disk"))
	case "panics":
		panic("canary-panic")
	}
	return plugins.Identity{Storage: storage, Attach: true, Device: true, Undo: plugins.Undo{"storage": storage}}, nil
}

func (d *disk) Attach(ctx context.Context, req plugins.DeviceRequest) (plugins.DeviceResult, error) {
	return plugins.DeviceResult{DevicePath: "/dev/fake"}, d.at(ctx, reconciler.Attach, req.Undo["storage"])
}

func (d *disk) Detach(ctx context.Context, req plugins.DeviceRequest) error {
	return d.at(ctx, reconciler.Detach, req.Undo["storage"])
}

func (d *disk) DeviceMountPath(spec *plugins.Spec) (string, error) {
	return filepath.Join(d.layout.PluginDir(diskPlugin), d.storage(spec)), nil
}

func (d *disk) MountDevice(ctx context.Context, req plugins.DeviceRequest) (plugins.DeviceResult, error) {
	if err := d.at(ctx, reconciler.MountDevice, req.Undo["storage"]); err != nil {
		return plugins.DeviceResult{}, err
	}
	if err := os.MkdirAll(req.Path, 0o750); err != nil {
		return plugins.DeviceResult{}, err
	}
	point, err := d.mounter.Inspect(ctx, req.Path)
	if err == nil && !point.Mounted {
		err = d.mounter.Mount(ctx, mount.Mount{Source: req.Undo["storage"], Target: req.Path, FSType: "ext4"})
	}
	return plugins.DeviceResult{Mounted: true}, err
}

func (d *disk) UnmountDevice(ctx context.Context, req plugins.DeviceRequest) error {
	if err := d.at(ctx, reconciler.UnmountDevice, req.Undo["storage"]); err != nil {
		return err
	}
	if err := mount.UnmountAll(ctx, d.mounter, req.Path, mount.UnmountOptions{}); err != nil {
		return err
	}
	return d.mounter.RemoveAll(ctx, req.Path)
}

func (d *disk) SetUp(ctx context.Context, req plugins.SetUpRequest) (plugins.SetUpResult, error) {
	if err := d.at(ctx, reconciler.SetUp, req.Undo["storage"]); err != nil {
		return plugins.SetUpResult{}, err
	}
	if err := os.MkdirAll(req.Path, 0o750); err != nil {
		return plugins.SetUpResult{}, err
	}
	point, err := d.mounter.Inspect(ctx, req.Path)
	if err == nil && !point.Mounted {
		err = d.mounter.Mount(ctx, mount.Mount{Source: req.DeviceMountPath, Target: req.Path, Options: mount.Options{Bind: true}})
	}
	return plugins.SetUpResult{Mounted: true}, err
}

func (d *disk) TearDown(ctx context.Context, req plugins.TearDownRequest) error {
	if err := d.at(ctx, reconciler.TearDown, req.Undo["storage"]); err != nil {
		return err
	}
	if err := mount.UnmountAll(ctx, d.mounter, req.Path, mount.UnmountOptions{Lazy: req.Lazy}); err != nil {
		return err
	}
	return d.mounter.RemoveAll(ctx, req.Path)
}

// observer keeps what an Observer is told.
type observer struct {
	mu             sync.Mutex
	started, ended []string
	errs           []error
}

func (o *observer) StepStarted(step reconciler.Step) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.started = append(o.started, fmt.Sprintf("%s %s", step.Kind, step.Volume.Name))
}

func (o *observer) StepFinished(step reconciler.Step, _ time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = append(o.ended, fmt.Sprintf("%s %s %s", step.Kind, step.Volume.Name, plugins.ClassOf(err)))
	if err != nil {
		o.errs = append(o.errs, err)
	}
}

// take returns the steps that ended since it was called last.
func (o *observer) take() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.ended
	o.ended = nil
	return list
}

// lines are lines of a log.
type lines struct {
	mu   sync.Mutex
	list []string
}

func (l *lines) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, line)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.list, "\n")
}

// reasons lists the events about a pod by reason.
func (n *node) reasons(p *v1.Pod) []string {
	var list []string
	for _, e := range n.events.List() {
		if e.UID == p.UID {
			list = append(list, e.Reason)
		}
	}
	return list
}

func (n *node) wantSteps(want ...string) {
	n.Helper()
	if got := n.steps.take(); !slices.Equal(got, want) {
		n.Errorf("steps\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// has reports whether a text holds all parts.
func has(text string, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(text, p) })
}
