package volumekit_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/builtin"
	"github.com/volumekit/volumekit/plugins/memory"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/volumemanager"
)

// podWith returns a pod whose one container uses the volume.
func podWith(volume v1.Volume) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "6f1e0f6c-6b1c-4b0e-9f57-0d5f3e2b7a11"},
		Spec: v1.PodSpec{
			Volumes:    []v1.Volume{volume},
			Containers: []v1.Container{{Name: "main", VolumeMounts: []v1.VolumeMount{{Name: volume.Name, MountPath: "/" + volume.Name}}}},
		},
	}
}

// A whole manager: objects and pods come from memory, and mounts are imitated so
// that the example runs anywhere. On a real node the mounter is hostmount.New.
func Example() {
	root, err := os.MkdirTemp("", "volumekit-")
	check(err)
	defer remove(root)
	store := memory.NewStore()
	host := store.Host(plugins.Layout{Root: root}, mounttest.New(mounttest.Options{Dir: root}))
	registry, err := builtin.Registry(host, builtin.Options{})
	check(err)
	manager, err := volumemanager.New(volumemanager.Config{Host: host, Plugins: registry, Pods: store.Pods()})
	check(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }() // owns every goroutine

	check(store.Apply(&v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "settings"}, Data: map[string]string{"greeting": "hello"},
	}))
	pod := podWith(v1.Volume{Name: "settings", VolumeSource: v1.VolumeSource{
		ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}},
	}})
	check(store.Apply(pod))
	store.Pods().MarkSynced()

	check(manager.WaitForAttachAndMount(ctx, pod))
	volume := manager.MountedVolumes(pod)["settings"]
	text, err := os.ReadFile(filepath.Join(volume.Path, "greeting"))
	check(err)
	fmt.Printf("%s reads %q\n", volume.Volume.Name, text)

	check(store.Delete(pod)) // no container of it runs any more
	check(manager.WaitForUnmount(ctx, pod))
	_, err = os.Stat(host.Layout.PodDir(pod.UID))
	fmt.Println("left:", !errors.Is(err, os.ErrNotExist))
	cancel()
	fmt.Println("ended:", <-ended)
	// Output:
	// settings reads "hello"
	// left: false
	// ended: <nil>
}

// teller is an Observer that tells what was done.
type teller struct{}

func (teller) StepStarted(reconciler.Step) {}

func (teller) StepFinished(step reconciler.Step, _ time.Duration, err error) {
	fmt.Printf("%s of %s because %s: %v\n", step.Kind, step.Volume.Name, step.Reason, err)
}

// The reconciler is replaced by one that runs a step only when it is told to,
// so that a test can look at the node between any two.
func Example_replacingTheReconciler() {
	root, err := os.MkdirTemp("", "volumekit-")
	check(err)
	defer remove(root)
	store := memory.NewStore()
	host := store.Host(plugins.Layout{Root: root}, mounttest.New(mounttest.Options{Dir: root}))
	registry, err := builtin.Registry(host, builtin.Options{})
	check(err)
	steps := reconciler.NewSequential()
	manager, err := volumemanager.New(volumemanager.Config{
		Host: host, Plugins: registry, Pods: store.Pods(), Reconciler: steps, Observer: teller{},
	})
	check(err)
	pod := podWith(v1.Volume{Name: "scratch"}) // without a source it is an emptyDir
	check(store.Apply(pod))
	store.Pods().MarkSynced()

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }()
	<-manager.Ready() // the pod is known, and nothing is done for it
	fmt.Println("ready:", len(manager.MountedVolumes(pod)))
	for did := true; did; {
		did, err = steps.Step(ctx)
		check(err)
	}
	fmt.Println("ready:", len(manager.MountedVolumes(pod)))
	cancel()
	fmt.Println("ended:", <-ended)
	// Output:
	// ready: 0
	// setUp of scratch because the pod wants it: <nil>
	// ready: 1
	// ended: <nil>
}

// greeting is a volume kind made in-house: a folder with one file, whose text
// stands in the pod. It is chosen by the driver's name of a flexVolume source.
type greeting struct{ host *plugins.VolumeHost }

func (greeting) Name() string { return "example.com/greeting" }

func (g greeting) Supports(spec *plugins.Spec) bool {
	return spec != nil && spec.Volume != nil && spec.Volume.FlexVolume != nil && spec.Volume.FlexVolume.Driver == g.Name()
}

func (g greeting) Identify(spec *plugins.Spec) (plugins.Identity, error) {
	if !g.Supports(spec) {
		return plugins.Identity{}, plugins.Permanentf("this is no %s", g.Name())
	}
	if spec.Volume.FlexVolume.Options["text"] == "" {
		return plugins.Identity{}, plugins.Permanentf("the option %q is missing", "text")
	}
	return plugins.Identity{}, nil
}

// SetUp may be repeated at any time: nobody ever sees half a file.
func (greeting) SetUp(ctx context.Context, req plugins.SetUpRequest) (plugins.SetUpResult, error) {
	if err := ctx.Err(); err != nil {
		return plugins.SetUpResult{}, plugins.Transient(err) // nothing was done
	}
	text := req.Spec.Volume.FlexVolume.Options["text"] + ", " + req.Pod.Name
	next := filepath.Join(req.Path, ".next")
	for _, do := range []func() error{
		func() error { return os.MkdirAll(req.Path, 0o755) },
		func() error { return os.WriteFile(next, []byte(text), 0o644) },
		func() error { return os.Rename(next, filepath.Join(req.Path, "text")) },
	} {
		if err := do(); err != nil {
			return plugins.SetUpResult{}, err // no class: nobody knows what is there
		}
	}
	return plugins.SetUpResult{}, nil
}

// TearDown has the request alone to go by, perhaps in another process.
func (g greeting) TearDown(ctx context.Context, req plugins.TearDownRequest) error {
	return g.host.Mounter.RemoveAll(ctx, req.Path)
}

// A volume kind of one's own needs five methods; what else it can do it says by
// the optional interfaces of package plugins. Package plugintest tries it.
func Example_volumeKindOfOnesOwn() {
	root, err := os.MkdirTemp("", "volumekit-")
	check(err)
	defer remove(root)
	store := memory.NewStore()
	host := store.Host(plugins.Layout{Root: root}, mounttest.New(mounttest.Options{Dir: root}))
	registry, err := plugins.NewRegistry(greeting{host}) // or beside those of builtin.New
	check(err)
	manager, err := volumemanager.New(volumemanager.Config{Host: host, Plugins: registry, Pods: store.Pods()})
	check(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }()
	store.Pods().MarkSynced()

	for _, options := range []map[string]string{{}, {"text": "Good morning"}} {
		pod := podWith(v1.Volume{Name: "hi", VolumeSource: v1.VolumeSource{
			FlexVolume: &v1.FlexVolumeSource{Driver: "example.com/greeting", Options: options},
		}})
		check(store.Apply(pod))
		if err := manager.WaitForAttachAndMount(ctx, pod); err != nil {
			fmt.Println(plugins.ClassOf(err), "-", err)
			check(store.Delete(pod))
			check(manager.WaitForUnmount(ctx, pod))
			continue
		}
		volume := manager.MountedVolumes(pod)["hi"]
		text, err := os.ReadFile(filepath.Join(volume.Path, "text"))
		check(err)
		fmt.Printf("%s, at %s\n", text, strings.TrimPrefix(filepath.ToSlash(volume.Path), filepath.ToSlash(root)))
	}
	cancel()
	fmt.Println("ended:", <-ended)
	// Output:
	// permanent - pod shop/web: volumes are not ready: hi: volume hi of pod shop/web: the option "text" is missing
	// Good morning, web, at /pods/6f1e0f6c-6b1c-4b0e-9f57-0d5f3e2b7a11/volumes/example.com~greeting/hi
	// ended: <nil>
}

// check ends an example at an error. A program handles it.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// remove removes an example's root, and what imitated mounts kept beside it.
func remove(root string) {
	check(errors.Join(os.RemoveAll(root), os.RemoveAll(root+".stash")))
}
