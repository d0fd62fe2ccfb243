package migration

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	intree "k8s.io/csi-translation-lib/plugins"
	"k8s.io/klog/v2"

	"github.com/volumekit/volumekit/plugins"
)

func TestRefuses(t *testing.T) {
	t.Parallel()
	type refusal struct {
		spec *plugins.Spec
		pod  *v1.Pod
		text string
	}
	cases := map[string]refusal{}
	for name, c := range map[string]struct{ source, text string }{
		"vsphere policy, a panic": {`vsphereVolume: {volumePath: p, storagePolicyName: gold}`, "vsphereVolume volume \"v\": the translation library panicked: runtime error"},
		"malformed id":            {`awsElasticBlockStore: {volumeID: "aws://z/disk"}`, "awsElasticBlockStore volume \"v\""},
		"hostile id":              {`awsElasticBlockStore: {volumeID: "aws://z/\n\u0001vol"}`, "Invalid disk name (aws://z/??vol)"},
		"endless id":              {`awsElasticBlockStore: {volumeID: "aws://z/` + strings.Repeat("x", 1<<16) + `"}`, "..."},
		"unmanaged disk":          {`azureDisk: {diskURI: "https://x/vhds/d", kind: Dedicated}`, "kind(Dedicated)"},
		"no disk, gce":            {`gcePersistentDisk: {}`, "does not say"},
		"no disk, ebs":            {`awsElasticBlockStore: {}`, "does not say"},
		"no disk, cinder":         {`cinder: {}`, "does not say"},
		"no disk, azureDisk":      {`azureDisk: {}`, "does not say"},
		"no secret, azureFile":    {`azureFile: {shareName: s}`, "does not say"},
		"no share, azureFile":     {`azureFile: {secretName: s}`, "does not say"},
		"no disk, vsphere":        {`vsphereVolume: {}`, "does not say"},
		"no disk, portworx":       {`portworxVolume: {}`, "does not say"},
		"two kinds":               {`cinder: {volumeID: c}, portworxVolume: {volumeID: c}`, "more than one source: kubernetes.io/cinder and kubernetes.io/portworx-volume"},
		"csi as well":             {`cinder: {volumeID: c}, csi: {driver: d}`, "more than one source: kubernetes.io/cinder and csi"},
	} {
		spec, pod := inline(t, c.source)
		cases[name] = refusal{spec, pod, c.text}
	}
	spec, _ := inline(t, `azureFile: {secretName: s, shareName: sh}`) // would be a secret of namespace default
	cases["inline without pod"] = refusal{spec, nil, "without its pod"}
	for name, c := range map[string]struct{ pv, text string }{
		"no disk, PV":               {`{cinder: {}}`, "cinder volume \"pv-1\": its source does not say"},
		"two kinds, PV":             {`{cinder: {volumeID: c}, portworxVolume: {volumeID: c}}`, "more than one source"},
		"csi as well, PV":           {`{cinder: {volumeID: c}, csi: {driver: d, volumeHandle: h}}`, "more than one source"},
		"no namespace for a secret": {`{azureFile: {secretName: s, shareName: sh}}`, "secret namespace"},
	} {
		pv := &v1.PersistentVolume{Spec: *parse[v1.PersistentVolumeSpec](t, c.pv)}
		pv.Name = "pv-1"
		cases[name] = refusal{&plugins.Spec{PV: pv}, nil, c.text}
	}
	zones := &v1.PersistentVolume{Spec: *parse[v1.PersistentVolumeSpec](t, `{gcePersistentDisk: {pdName: d}}`)}
	zones.Labels = map[string]string{v1.LabelTopologyZone: "a__b"}
	cases["malformed zones"] = refusal{&plugins.Spec{PV: zones}, nil, "zone"}

	for name, c := range cases {
		got, err := translator(t, Config{}).Translate(t.Context(), c.spec, c.pod)
		if got != nil || plugins.ClassOf(err) != plugins.ClassPermanent || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, %v, want %q", name, got, err, c.text)
		} else if text := err.Error(); len(text) > 1200 || strings.ContainsAny(text, "\n\x01") {
			t.Errorf("%s: the text has %d bytes: %.80q", name, len(text), text)
		}
	}
}

// odd is a library that does what it should not.
type odd struct {
	intree.InTreePlugin
	do func() (*v1.PersistentVolume, error)
}

func (o odd) TranslateInTreeInlineVolumeToCSI(klog.Logger, *v1.Volume, string) (*v1.PersistentVolume, error) {
	return o.do()
}

func (o odd) TranslateInTreePVToCSI(klog.Logger, *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	return o.do()
}

func TestOddLibrary(t *testing.T) {
	t.Parallel()
	csi := func(text string) *v1.PersistentVolume { return parse[v1.PersistentVolume](t, text) }
	for name, c := range map[string]struct {
		do   func() (*v1.PersistentVolume, error)
		text string
	}{
		"panics":          {func() (*v1.PersistentVolume, error) { panic("s3cret") }, "panicked: a value of type string"},
		"panics an error": {func() (*v1.PersistentVolume, error) { panic(errors.New("s3cret")) }, "panicked: a value of type *errors.errorString"},
		"fails":           {func() (*v1.PersistentVolume, error) { return csi("{}"), errCause }, "the cause"},
		"fails, retry":    {func() (*v1.PersistentVolume, error) { return nil, plugins.Transient(errCause) }, "the cause"},
		"nothing":         {func() (*v1.PersistentVolume, error) { return nil, nil }, "no volume of CSI driver cinder"},
		"no source":       {func() (*v1.PersistentVolume, error) { return csi("{}"), nil }, "no volume of CSI driver cinder"},
		"other driver": {func() (*v1.PersistentVolume, error) {
			return csi("spec: {csi: {driver: d, volumeHandle: h}}"), nil
		}, "no volume of CSI driver cinder"},
		"no handle": {func() (*v1.PersistentVolume, error) {
			return csi("spec: {csi: {driver: cinder.csi.openstack.org, volumeHandle: ''}}"), nil
		}, "no volume of CSI driver cinder"},
	} {
		tr := translator(t, Config{})
		for i := range tr.kinds {
			tr.kinds[i].lib = odd{tr.kinds[i].lib, c.do}
		}
		spec, pod := inline(t, "cinder: {volumeID: c}")
		pv := &plugins.Spec{PV: parse[v1.PersistentVolume](t, "{metadata: {name: v}, spec: {cinder: {volumeID: c}}}")}
		for _, s := range []*plugins.Spec{spec, pv} {
			got, err := tr.Translate(t.Context(), s, pod)
			if got != nil || plugins.ClassOf(err) != plugins.ClassPermanent || !strings.Contains(err.Error(), c.text) ||
				!strings.HasPrefix(err.Error(), `cinder volume "v": `) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		}
	}
}

// TestHostileIDs gives ids that must not become paths.
func TestHostileIDs(t *testing.T) {
	t.Parallel()
	tr, seen := translator(t, Config{}), map[string]string{}
	for _, id := range hostile {
		for _, kind := range []string{"cinder: {volumeID: %q}", "gcePersistentDisk: {pdName: %q}", "vsphereVolume: {volumePath: %q}",
			"portworxVolume: {volumeID: %q}", "azureDisk: {diskURI: %q}", "awsElasticBlockStore: {volumeID: %q}", "azureFile: {shareName: %q, secretName: s}"} {
			spec, pod := inline(t, fmt.Sprintf(kind, "here"))
			setID(spec.Volume, id)
			pod.Spec.Volumes = []v1.Volume{*spec.Volume}
			got, err := tr.Translate(t.Context(), spec, pod)
			if err != nil {
				t.Errorf("%q as %s: %v", id, kind, err)
				continue
			}
			name := got.Name()
			if err := plugins.CheckName(name); err != nil {
				t.Errorf("%q as %s: %v", id, kind, err)
			}
			if before, twice := seen[name]; twice {
				t.Errorf("%q and %q have the name %q", id, before, name)
			}
			seen[name] = id
			if handle := got.PV.Spec.CSI.VolumeHandle; !strings.Contains(handle, id) {
				t.Errorf("%q as %s: handle %q", id, kind, handle)
			}
		}
	}
}

var hostile = []string{
	".", "..", "../..", "/", "//", "a/b", "a~b", "a//b", "a~~b", "/etc/passwd", "a\\b", "a\nb", "a\x00b", "\xff\xfe", "-",
	strings.Repeat("x", 300), strings.Repeat("x", 299) + "y", strings.Repeat("/x", 150), strings.Repeat("é", 128),
}

func setID(v *v1.Volume, id string) {
	switch {
	case v.Cinder != nil:
		v.Cinder.VolumeID = id
	case v.GCEPersistentDisk != nil:
		v.GCEPersistentDisk.PDName = id
	case v.VsphereVolume != nil:
		v.VsphereVolume.VolumePath = id
	case v.PortworxVolume != nil:
		v.PortworxVolume.VolumeID = id
	case v.AzureDisk != nil:
		v.AzureDisk.DataDiskURI = id
	case v.AWSElasticBlockStore != nil:
		v.AWSElasticBlockStore.VolumeID = id
	case v.AzureFile != nil:
		v.AzureFile.ShareName = id
	}
}

func TestFolderName(t *testing.T) {
	t.Parallel()
	hash := func(s string) bool { return strings.HasPrefix(s, "d~~") && len(s) == len("d~~")+64 }
	for name, want := range map[string]string{ // empty for a hash
		"d-vol-1": "d-vol-1", "/a/b": "~a~b", "d-[s] x/y.vmdk": "d-[s] x~y.vmdk", "#a#b#c": "#a#b#c",
		strings.Repeat("x", 255): strings.Repeat("x", 255),
		"":                       "", ".": "", "..": "", "d-a~b": "", "d-a//b": "", "a\\b": "", "a\tb": "", "\xff": "",
		strings.Repeat("x", 256): "",
	} {
		if got := folderName("d", name); got != want && (want != "" || !hash(got)) {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	if folderName("d", "") == folderName("d", ".") {
		t.Error("two names have one hash")
	}
}

func FuzzFolderName(f *testing.F) {
	for i, id := range hostile {
		f.Add(id, hostile[(i+1)%len(hostile)])
	}
	f.Add("/a", "~a")
	f.Add("~~", "//")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := folderName(azureDisk, a), folderName(azureDisk, b)
		if err := plugins.CheckName(x); err != nil {
			t.Errorf("%q: %v", a, err)
		}
		if (a == b) != (x == y) {
			t.Errorf("%q is %q, %q is %q", a, x, b, y)
		}
		if again := folderName(azureDisk, x); a != x && again == x {
			t.Errorf("%q and %q are both %q", a, x, x)
		}
	})
}
