package plugins_test

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
)

// scratch is the smallest plugin there can be: a folder for each pod.
type scratch struct{}

func (scratch) Name() string { return "example.com/scratch" }

func (scratch) Supports(spec *plugins.Spec) bool {
	return spec.Volume != nil && spec.Volume.EmptyDir != nil
}

func (scratch) Identify(*plugins.Spec) (plugins.Identity, error) { return plugins.Identity{}, nil }

func (scratch) SetUp(context.Context, plugins.SetUpRequest) (plugins.SetUpResult, error) {
	return plugins.SetUpResult{}, nil // an embedder's plugin makes request.Path here
}

func (scratch) TearDown(context.Context, plugins.TearDownRequest) error { return nil }

// A registry says which plugin provides a volume, and why none does.
func ExampleRegistry() {
	registry, err := plugins.NewRegistry(scratch{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, source := range []v1.VolumeSource{
		{EmptyDir: &v1.EmptyDirVolumeSource{}},
		{NFS: &v1.NFSVolumeSource{Server: "files", Path: "/export"}},
	} {
		spec := &plugins.Spec{Volume: &v1.Volume{Name: "data", VolumeSource: source}}
		plugin, err := registry.ForSpec(spec)
		if err != nil {
			fmt.Println(plugins.ClassOf(err), "-", err)
			continue
		}
		fmt.Println(plugin.Name())
	}
	// Output:
	// example.com/scratch
	// unsupported - no plugin for volume data (nfs; registered: example.com/scratch)
}

// The class of an error decides what happens next. It survives wrapping.
func ExampleClassOf() {
	secret := plugins.Ref{Kind: plugins.KindSecret, Namespace: "shop", Name: "tls"}
	for _, err := range []error{
		plugins.Permanent(errors.New("the path is not absolute")),
		fmt.Errorf("read content: %w", plugins.Transient(errors.New("connection refused"))),
		plugins.WaitFor(secret, errors.New("not found")),
		context.DeadlineExceeded, // nobody knows what was done by then
	} {
		fmt.Printf("%s: %v\n", plugins.ClassOf(err), err)
	}
	// Output:
	// permanent: the path is not absolute
	// transient: read content: connection refused
	// waiting: waiting for Secret shop/tls: not found
	// uncertain: context deadline exceeded
}

// The layout is the kubelet's tree. Names are checked before they become
// folders.
func ExampleLayout() {
	layout := plugins.Layout{Root: "/var/lib/volumekit"}
	for _, name := range []string{"data", "../../etc"} {
		volume := plugins.PodVolume{Pod: "0b5a1c1e", Plugin: "example.com/scratch", Name: name}
		if err := volume.Check(); err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(layout.PodVolume(volume))
	}
	// Output:
	// /var/lib/volumekit/pods/0b5a1c1e/volumes/example.com~scratch/data
	// name cannot be used as a folder: "../../etc"
}

// Objects that people write by hand lack what an API server fills in.
func ExampleDefaultPod() {
	pod := &v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{
		{Name: "scratch"},
		{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}},
	}}}
	full := plugins.DefaultPod(pod)
	fmt.Println(full.Spec.Volumes[0].EmptyDir != nil)
	fmt.Printf("%#o\n", *full.Spec.Volumes[1].ConfigMap.DefaultMode)
	fmt.Println(plugins.DefaultPod(full) == full)
	// Output:
	// true
	// 0644
	// true
}
