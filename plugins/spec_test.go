package plugins

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSparseSpecs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec       *Spec
		name, kind string
	}{
		"nil":       {nil, "", "nothing"},
		"empty":     {&Spec{}, "", "nothing"},
		"no source": {inline("x"), "x", "nothing"},
		"pv":        {persistent("pv"), "pv", "nothing"},
		"claim":     {&Spec{Claim: &v1.PersistentVolumeClaim{}}, "", "nothing"},
		"inline":    {&Spec{Volume: &v1.Volume{Name: "x", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}}}, "x", "configMap"},
		"both": {&Spec{
			Volume: &v1.Volume{Name: "x", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}},
			PV: &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: v1.PersistentVolumeSpec{
				PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{}},
			}},
		}, "pv", "csi"},
	} {
		if got := c.spec.Name(); got != c.name {
			t.Errorf("%s: name %q, want %q", name, got, c.name)
		}
		if got := c.spec.Kind(); got != c.kind {
			t.Errorf("%s: kind %q, want %q", name, got, c.kind)
		}
		if c.spec.Mode() != v1.PersistentVolumeFilesystem || c.spec.OnePod() ||
			len(c.spec.AccessModes()) != 0 || len(c.spec.MountOptions()) != 0 {
			t.Errorf("%s: a sparse spec has more than nothing", name)
		}
	}
}

func TestSpecMode(t *testing.T) {
	t.Parallel()
	for text, want := range map[v1.PersistentVolumeMode]v1.PersistentVolumeMode{
		"Block": v1.PersistentVolumeBlock, "Filesystem": v1.PersistentVolumeFilesystem, "": v1.PersistentVolumeFilesystem,
	} {
		s := persistent("pv")
		s.PV.Spec.VolumeMode = &text
		if got := s.Mode(); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestSpecOnePod(t *testing.T) {
	t.Parallel()
	if !persistent("pv", v1.ReadWriteOncePod).OnePod() || !persistent("pv", v1.ReadWriteOncePod, v1.ReadWriteOncePod).OnePod() {
		t.Error("ReadWriteOncePod alone is for one pod")
	}
	if persistent("pv", v1.ReadWriteOncePod, v1.ReadOnlyMany).OnePod() || persistent("pv", v1.ReadWriteOnce).OnePod() {
		t.Error("other modes are not")
	}
}

func TestSpecMountOptions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		annotation *string
		field      []string
		want       []string
	}{
		"none":             {nil, nil, nil},
		"field":            {nil, []string{"ro", "vers=4"}, []string{"ro", "vers=4"}},
		"annotation wins":  {ptr("a,b"), []string{"ro"}, []string{"a", "b"}},
		"empty annotation": {ptr(""), []string{"ro"}, nil},
		"empty elements":   {ptr(",a,,b,"), nil, []string{"a", "b"}},
		"empty in field":   {nil, []string{"", "ro"}, []string{"ro"}},
	} {
		s := persistent("pv")
		s.PV.Spec.MountOptions = slices.Clone(c.field)
		if c.annotation != nil {
			s.PV.Annotations = map[string]string{v1.MountOptionAnnotation: *c.annotation}
		}
		if got := s.MountOptions(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if !slices.Equal(s.PV.Spec.MountOptions, c.field) {
			t.Errorf("%s: the spec was changed", name)
		}
	}
}

func ptr[T any](v T) *T { return &v }
