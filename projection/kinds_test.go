package projection_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/configmap"
	"github.com/volumekit/volumekit/plugins/downwardapi"
	"github.com/volumekit/volumekit/plugins/projected"
	"github.com/volumekit/volumekit/plugins/secret"
	"github.com/volumekit/volumekit/projection"
)

func TestVolumeKinds(t *testing.T) {
	host := &plugins.VolumeHost{}
	object := v1.LocalObjectReference{Name: "obj"}
	kinds := []struct {
		plugin  *projection.Volume
		source  v1.VolumeSource
		storage string
	}{
		{configmap.New(host), v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: object}}, "vol/obj"},
		{secret.New(host), v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "obj"}}, "obj"},
		{downwardapi.New(host), v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{}}, "vol"},
		{projected.New(host), v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{}}, "vol"},
	}
	names := []string{"kubernetes.io/configmap", "kubernetes.io/secret", "kubernetes.io/downward-api", "kubernetes.io/projected"}
	for i, kind := range kinds {
		if kind.plugin.Name() != names[i] {
			t.Errorf("name %q", kind.plugin.Name())
		}
		for j, other := range kinds {
			spec := &plugins.Spec{Volume: &v1.Volume{Name: "vol", VolumeSource: other.source}}
			identity, err := kind.plugin.Identify(spec)
			if kind.plugin.Supports(spec) != (i == j) || (err == nil) != (i == j) || i == j && identity.Storage != kind.storage || identity.MountOptions {
				t.Errorf("%s on %s: %+v, %v", kind.plugin.Name(), spec.Kind(), identity, err)
			}
		}
		for _, spec := range []*plugins.Spec{nil, {}, {PV: &v1.PersistentVolume{}}, {Volume: &v1.Volume{}}} {
			if kind.plugin.Supports(spec) {
				t.Errorf("%s supports %+v", kind.plugin.Name(), spec)
			}
			if _, err := kind.plugin.Identify(spec); plugins.ClassOf(err) != plugins.ClassPermanent {
				t.Errorf("%s identifies %+v: %v", kind.plugin.Name(), spec, err)
			}
		}
	}
}
