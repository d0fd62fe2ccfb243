package plugins

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// stub supports the volumes of one kind.
type stub struct{ name, kind string }

func (s stub) Name() string                                    { return s.name }
func (s stub) Supports(spec *Spec) bool                        { return spec.Kind() == s.kind }
func (s stub) Identify(*Spec) (Identity, error)                { return Identity{}, nil }
func (s stub) TearDown(context.Context, TearDownRequest) error { return nil }
func (s stub) SetUp(context.Context, SetUpRequest) (SetUpResult, error) {
	return SetUpResult{}, nil
}

func volumeOf(source v1.VolumeSource) *Spec {
	return &Spec{Volume: &v1.Volume{Name: "v", VolumeSource: source}}
}

func TestNewRegistryReportsAllFaults(t *testing.T) {
	t.Parallel()
	r, err := NewRegistry(stub{name: "a.b/c"}, nil, stub{name: "bad"}, stub{name: "a/b/c"}, stub{name: "../x"}, stub{name: "a.b/c"})
	if r != nil || ClassOf(err) != ClassPermanent {
		t.Fatalf("%v, %v (%v)", r, err, ClassOf(err))
	}
	for _, part := range []string{"plugin 1 is nil", `"bad"`, `"a/b/c"`, `"../x"`, "a.b/c is registered twice"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in: %v", part, err)
		}
	}
}

func TestRegistryByName(t *testing.T) {
	t.Parallel()
	r, err := NewRegistry(stub{name: "z.b/c"}, stub{name: "a.b/c"})
	if err != nil {
		t.Fatal(err)
	}
	names := r.Names()
	if !slices.Equal(names, []string{"a.b/c", "z.b/c"}) {
		t.Errorf("names %q", names)
	}
	names[0] = "changed"
	if r.Names()[0] != "a.b/c" {
		t.Error("the caller changed the registry")
	}
	if p, err := r.ByName("z.b/c"); err != nil || p.Name() != "z.b/c" {
		t.Errorf("%v, %v", p, err)
	}
	for _, name := range []string{"", "a.b/d"} {
		p, err := r.ByName(name)
		if p != nil || !errors.Is(err, ErrNoPlugin) || ClassOf(err) != ClassUnsupported {
			t.Errorf("%q: %v, %v", name, p, err)
		}
	}
}

func TestRegistryForSpec(t *testing.T) {
	t.Parallel()
	r, err := NewRegistry(stub{"a.b/one", "secret"}, stub{"a.b/two", "nfs"}, stub{"a.b/three", "nfs"})
	if err != nil {
		t.Fatal(err)
	}
	none, err := NewRegistry()
	if err != nil {
		t.Fatal(err)
	}
	secret := volumeOf(v1.VolumeSource{Secret: &v1.SecretVolumeSource{}})
	for name, c := range map[string]struct {
		in    *Registry
		spec  *Spec
		want  string
		is    error
		class Class
		says  string
	}{
		"one":       {r, secret, "a.b/one", nil, ClassNone, ""},
		"none":      {r, volumeOf(v1.VolumeSource{CSI: &v1.CSIVolumeSource{}}), "", ErrNoPlugin, ClassUnsupported, "(csi; registered: a.b/one"},
		"many":      {r, volumeOf(v1.VolumeSource{NFS: &v1.NFSVolumeSource{}}), "", ErrAmbiguous, ClassPermanent, "a.b/three, a.b/two"},
		"no source": {r, inline("x"), "", ErrNoPlugin, ClassUnsupported, "nothing"},
		"empty":     {r, &Spec{}, "", nil, ClassPermanent, "empty"},
		"nil":       {r, nil, "", nil, ClassPermanent, "empty"},
		"no plugin": {none, secret, "", ErrNoPlugin, ClassUnsupported, ""},
	} {
		p, err := c.in.ForSpec(c.spec)
		if c.want != "" {
			if err != nil || p.Name() != c.want {
				t.Errorf("%s: %v, %v", name, p, err)
			}
			continue
		}
		if p != nil || ClassOf(err) != c.class || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v (%v)", name, p, err, ClassOf(err))
		}
	}
}

// full has every optional part.
type full struct {
	stub
	Referrer
	Refresher
	Attacher
	DeviceMounter
	BlockMapper
	Expander
	Reconstructor
	DeviceFinder
	StatsReader
	HealthChecker
	Notifier
	Runner
}

func TestCapabilitiesOf(t *testing.T) {
	t.Parallel()
	if got := CapabilitiesOf(stub{}); got != (Capabilities{}) {
		t.Errorf("a plain plugin has %+v", got)
	}
	if got := CapabilitiesOf(nil); got != (Capabilities{}) {
		t.Errorf("nil has %+v", got)
	}
	p := &full{}
	if got, want := CapabilitiesOf(p), (Capabilities{p, p, p, p, p, p, p, p, p, p, p, p}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
