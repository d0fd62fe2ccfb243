package migration

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
)

func TestPolicy(t *testing.T) {
	t.Parallel()
	keepReadOnly := func(s *plugins.Spec) bool { return s.Volume != nil && s.Volume.Cinder.ReadOnly }
	for name, c := range map[string]struct {
		config Config
		here   string // the driver that is installed
		source string
		want   string // "same", "translated" or "waits"
	}{
		"zero value":          {Config{}, "", "volumeID: c", "translated"},
		"installed":           {Config{Policy: WhenInstalled}, cinder, "volumeID: c", "translated"},
		"not installed":       {Config{Policy: WhenInstalled}, ebs, "volumeID: c", "waits"},
		"malformed, waits":    {Config{Policy: WhenInstalled}, "", "volumeID: ''", "waits"},
		"never":               {Config{Policy: Never}, cinder, "volumeID: c", "same"},
		"own, always":         {Config{Policy: Never, PolicyOf: map[string]Policy{cinder: Always}}, "", "volumeID: c", "translated"},
		"own, when installed": {Config{Policy: Never, PolicyOf: map[string]Policy{cinder: WhenInstalled}}, "", "volumeID: c", "waits"},
		"own, never":          {Config{PolicyOf: map[string]Policy{cinder: Never}}, "", "volumeID: c", "same"},
		"of another":          {Config{PolicyOf: map[string]Policy{ebs: Never}}, "", "volumeID: c", "translated"},
		"kept":                {Config{Keep: keepReadOnly}, "", "volumeID: c, readOnly: true", "same"},
		"kept, not installed": {Config{Policy: WhenInstalled, Keep: keepReadOnly}, "", "volumeID: c, readOnly: true", "same"},
		"not kept":            {Config{Keep: keepReadOnly}, "", "volumeID: c", "translated"},
	} {
		drivers := &installed{}
		drivers.add(c.here)
		c.config.Drivers = drivers
		tr := translator(t, c.config)
		clear(c.config.PolicyOf) // it is the caller's
		spec, pod := inline(t, "cinder: {"+c.source+"}")
		got, err := tr.Translate(t.Context(), spec, pod)
		switch c.want {
		case "same":
			if err != nil || got != spec {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		case "translated":
			if err != nil || !got.Migrated || got.Kind() != "csi" {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		case "waits":
			want := []plugins.Ref{{Kind: plugins.KindDriverSocket, Name: cinder}}
			if got != nil || plugins.ClassOf(err) != plugins.ClassWaiting || !slices.Equal(plugins.WaitsFor(err), want) {
				t.Errorf("%s: %v, %v", name, got, err)
				continue
			}
			for _, word := range []string{"cinder volume \"v\"", cinder, "not registered", "no in-tree plugin kubernetes.io/cinder"} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%s: %v lacks %q", name, err, word)
				}
			}
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	_, err := New(Config{Policy: 7, PolicyOf: map[string]Policy{
		"other.example.com": Always, ebs: WhenInstalled, cinder: Never,
	}})
	if plugins.ClassOf(err) != plugins.ClassPermanent {
		t.Fatal(err)
	}
	for _, text := range []string{"other.example.com", ebs + ": policy whenInstalled needs Config.Drivers", gce + ": there is no policy 7"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v lacks %q", err, text)
		}
	}
	if strings.Contains(err.Error(), cinder) {
		t.Error(err)
	}
}

func TestPolicyString(t *testing.T) {
	t.Parallel()
	for p, want := range map[Policy]string{Always: "always", WhenInstalled: "whenInstalled", Never: "never", 9: "policy 9"} {
		if p.String() != want {
			t.Errorf("%d is %q", p, p)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"kubernetes.io/aws-ebs": ebs, "kubernetes.io/azure-disk": azureDisk, "kubernetes.io/azure-file": azureFile,
		"kubernetes.io/cinder": cinder, "kubernetes.io/gce-pd": gce, "kubernetes.io/portworx-volume": portworx,
		"kubernetes.io/vsphere-volume": vsphere,
	}
	got := map[string]string{}
	for _, plugin := range Kinds() {
		driver, ok := DriverOf(plugin)
		back, known := InTreeName(driver)
		if !ok || !known || back != plugin {
			t.Errorf("%s: %s %v, %s %v", plugin, driver, ok, back, known)
		}
		got[plugin] = driver
	}
	if !reflect.DeepEqual(got, want) || !slices.IsSorted(Kinds()) {
		t.Errorf("%v", got)
	}
	for _, name := range []string{"", "kubernetes.io/rbd", "kubernetes.io/csi", ebs} {
		if driver, ok := DriverOf(name); ok || driver != "" {
			t.Errorf("%q: %q", name, driver)
		}
	}
	for _, name := range []string{"", "rbd.csi.ceph.com", "kubernetes.io/cinder"} {
		if plugin, ok := InTreeName(name); ok || plugin != "" {
			t.Errorf("%q: %q", name, plugin)
		}
	}
}

func TestMigratedPlugins(t *testing.T) {
	t.Parallel()
	drivers := &installed{}
	tr := translator(t, Config{Policy: WhenInstalled, Drivers: drivers, PolicyOf: map[string]Policy{vsphere: Always, ebs: Never}})
	for _, step := range []struct{ add, want string }{
		{"", "kubernetes.io/vsphere-volume"},
		{ebs, "kubernetes.io/vsphere-volume"},
		{gce, "kubernetes.io/gce-pd,kubernetes.io/vsphere-volume"},
		{azureDisk, "kubernetes.io/azure-disk,kubernetes.io/gce-pd,kubernetes.io/vsphere-volume"},
	} {
		drivers.add(step.add)
		if got := tr.MigratedPlugins(); got != step.want {
			t.Errorf("with %s: %q, want %q", step.add, got, step.want)
		}
	}
	if got := translator(t, Config{}).MigratedPlugins(); got != strings.Join(Kinds(), ",") {
		t.Errorf("always: %q", got)
	}
	if got := translator(t, Config{Policy: Never}).MigratedPlugins(); got != "" {
		t.Errorf("never: %q", got)
	}
	if v1.MigratedPluginsAnnotationKey != "storage.alpha.kubernetes.io/migrated-plugins" {
		t.Error("the doc comment names another annotation")
	}
}
