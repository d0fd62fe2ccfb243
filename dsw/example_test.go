package dsw_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
)

// scratch is a plugin for emptyDir volumes.
type scratch struct{}

func (scratch) Name() string                  { return "example.com/scratch" }
func (scratch) Supports(s *plugins.Spec) bool { return s.Volume != nil && s.Volume.EmptyDir != nil }
func (scratch) Identify(*plugins.Spec) (plugins.Identity, error) {
	return plugins.Identity{}, nil
}

func (scratch) SetUp(context.Context, plugins.SetUpRequest) (plugins.SetUpResult, error) {
	return plugins.SetUpResult{}, nil
}
func (scratch) TearDown(context.Context, plugins.TearDownRequest) error { return nil }

// A pod comes, its volume is resolved and wanted; the pod goes, and what is
// there of it is unwanted.
func ExampleWorld() {
	registry, err := plugins.NewRegistry(scratch{})
	if err != nil {
		fmt.Println(err)
		return
	}
	resolver := &dsw.Resolver{Host: &plugins.VolumeHost{}, Registry: registry}
	world := dsw.New(dsw.Options{})

	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "123"}}
	pod.Spec.Volumes = []v1.Volume{{Name: "tmp", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	pod.Spec.Containers = []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "tmp"}}}}

	world.BeginList()
	change := world.SetPod(pod)
	world.EndList()
	for _, u := range change.Resolve {
		task, ok := world.Begin(u)
		if !ok {
			continue
		}
		if res, err := resolver.Resolve(context.Background(), task.Pod, task.Name); err != nil {
			change = world.SetFailed(task, err, res.SpecRefs)
		} else {
			change = world.SetResolved(task, res)
		}
	}
	id := change.Volumes[0]
	wish := world.Wish(id, nil).Pods[0]
	fmt.Println(wish.Volume, wish.State)

	world.RemovePod("123")
	there := []plugins.PodVolume{wish.Volume}
	fmt.Println(world.Wish(id, there).Pods[0].State)
	// Output:
	// 123/example.com/scratch/tmp wanted
	// unwanted
}
