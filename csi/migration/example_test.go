package migration_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/csi/migration"
	"github.com/volumekit/volumekit/plugins"
)

// Volumes that a plugin of the program's own provides stay with it; the others
// go to their CSI drivers.
func Example() {
	registry, err := plugins.NewRegistry( /* plugins of the program's own */ )
	if err != nil {
		panic(err)
	}
	translator, err := migration.New(migration.Config{
		Keep: func(spec *plugins.Spec) bool { _, err := registry.ForSpec(spec); return err == nil },
	})
	if err != nil {
		panic(err)
	}
	pod := &v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
		AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-east-1a/vol-1", ReadOnly: true},
	}}}}}
	spec, err := translator.Translate(context.Background(), &plugins.Spec{Volume: &pod.Spec.Volumes[0]}, pod)
	if err != nil {
		panic(err)
	}
	fmt.Println(spec.Kind(), spec.Name(), spec.PV.Spec.CSI.VolumeHandle, spec.ReadOnly)
	// Output: csi ebs.csi.aws.com-vol-1 vol-1 true
}
