package plugins

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/volumekit/volumekit/mount"
)

func TestCheckName(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"a", "data", "pvc-1.2", "...", "..data", "a b", "ü", "~", strings.Repeat("x", 255)} {
		if err := CheckName(good); err != nil {
			t.Errorf("%q was refused: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", ".", "..", "a/b", "/", "../x", "a\\b", "a\x00b", "a\nb", "a\rb", "a\tb", "\x1b[31m", "\x7f", "\u0085", "a\xffb",
		strings.Repeat("x", 256),
	} {
		if err := CheckName(bad); !errors.Is(err, ErrBadName) {
			t.Errorf("%q gave %v", bad, err)
		}
	}
}

func TestCheckPlugin(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"kubernetes.io/csi", "example.com/Volume_1.x", "a/b", strings.Repeat("a", 63) + "/b"} {
		if err := CheckPlugin(good); err != nil {
			t.Errorf("%q was refused: %v", good, err)
		}
	}
	long := strings.TrimSuffix(strings.Repeat(strings.Repeat("a", 62)+".", 4), ".")
	for _, bad := range []string{
		"", "/", "a", "/b", "a/", "a/b/c", "../x", "../../etc/x", "a/..", "a/.", "a~b", "a~b/c", "a/b~c", "A.com/x", "a/ b",
		long + "/" + strings.Repeat("b", 63),
	} {
		if err := CheckPlugin(bad); !errors.Is(err, ErrBadName) {
			t.Errorf("%q gave %v", bad, err)
		}
	}
}

func TestLayoutIsTheKubelets(t *testing.T) {
	t.Parallel()
	l := Layout{Root: "/var/lib/kubelet"}
	v := PodVolume{Pod: "uid", Plugin: "kubernetes.io/empty-dir", Name: "data"}
	for want, got := range map[string]string{
		"pods": l.PodsDir(), "pods/uid": l.PodDir("uid"),
		"pods/uid/volumes":                                    l.PodVolumesDir("uid"),
		"pods/uid/volumes/example.com~x":                      l.PodVolumesOf("uid", "example.com/x"),
		"pods/uid/volumes/kubernetes.io~empty-dir/data":       l.PodVolume(v),
		"pods/uid/volumeDevices":                              l.PodDevicesDir("uid"),
		"pods/uid/volumeDevices/kubernetes.io~empty-dir/data": l.PodDevice(v),
		"pods/uid/plugins":                                    l.PodPluginsDir("uid"),
		"pods/uid/plugins/kubernetes.io~empty-dir/data":       l.PodPrivate(v),
		"pods/uid/volume-subpaths":                            l.PodSubpathsDir("uid"),
		"plugins/kubernetes.io/empty-dir":                     l.PluginDir(v.Plugin),
		"plugins_registry":                                    l.RegistryDir(),
		"volumekit":                                           l.StateDir(),
	} {
		if want = filepath.Join(l.Root, filepath.FromSlash(want)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	target := l.Target(v, PodRef{Namespace: "ns", Name: "pod", UID: "another"})
	want := Target{
		Volume: v, Pod: PodRef{Namespace: "ns", Name: "pod", UID: "uid"},
		Path: l.PodVolume(v), PrivateDir: l.PodPrivate(v),
	}
	if target != want {
		t.Errorf("%+v, want %+v", target, want)
	}
}

func TestPodVolumeCheck(t *testing.T) {
	t.Parallel()
	good := PodVolume{Pod: "uid", Plugin: "a.b/c", Name: "data"}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for name, bad := range map[string]PodVolume{
		"uid":         {Pod: "../..", Plugin: good.Plugin, Name: good.Name},
		"uid slash":   {Pod: "a/b", Plugin: good.Plugin, Name: good.Name},
		"no uid":      {Plugin: good.Plugin, Name: good.Name},
		"plugin":      {Pod: good.Pod, Plugin: "../x", Name: good.Name},
		"twin plugin": {Pod: good.Pod, Plugin: "a.b~c", Name: good.Name},
		"name":        {Pod: good.Pod, Plugin: good.Plugin, Name: ".."},
		"nothing":     {},
	} {
		if err := bad.Check(); !errors.Is(err, ErrBadName) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// hostile are seeds for the fuzz tests.
var hostile = [][3]string{
	{"0b5a1c1e-7c1f-4b53-9c9c-0b1f6d5cbe01", "kubernetes.io/csi", "pvc-1"},
	{"..", "a.b/c", ".."}, {"a/b", "../../x", "c"}, {"a", "a~b/c", "b/../../../etc"},
	{"a", "a/b/c", "d"}, {"\x00", "x/y", "\xff"}, {"", "", ""}, {".", "/", "."}, {"a-b", "x.y/z", "c"}, {"a", "x.y/z", "b-c"},
}

func FuzzLayoutStaysInside(f *testing.F) {
	for _, s := range hostile {
		f.Add(s[0], s[1], s[2])
	}
	l := Layout{Root: filepath.FromSlash("/root/of/it")}
	f.Fuzz(func(t *testing.T, uid, plugin, name string) {
		v := PodVolume{Pod: types.UID(uid), Plugin: plugin, Name: name}
		if v.Check() != nil {
			return
		}
		dirs := map[string]string{
			l.PodVolume(v):  l.PodVolumesDir(v.Pod),
			l.PodDevice(v):  l.PodDevicesDir(v.Pod),
			l.PodPrivate(v): l.PodPluginsDir(v.Pod),
		}
		for path, dir := range dirs {
			rest, below := strings.CutPrefix(path, dir+string(filepath.Separator))
			if !below || !mount.Inside(filepath.ToSlash(l.PodsDir()), filepath.ToSlash(path)) {
				t.Fatalf("%q is not below %q", path, dir)
			}
			if got, want := rest, filepath.Join(EscapePlugin(plugin), name); got != want {
				t.Fatalf("%q in place of %q", got, want)
			}
		}
		if filepath.Dir(l.PodDir(v.Pod)) != l.PodsDir() {
			t.Fatalf("%q is not a child of %q", l.PodDir(v.Pod), l.PodsDir())
		}
		if dir := l.PluginDir(plugin); filepath.Dir(filepath.Dir(dir)) != filepath.Join(l.Root, "plugins") {
			t.Fatalf("%q is not two levels below plugins", dir)
		}
		if UnescapePlugin(EscapePlugin(plugin)) != plugin {
			t.Fatalf("plugin %q is not found again from its folder", plugin)
		}
	})
}

// The quick check of a plugin's name accepts nothing that the full one refuses.
func FuzzPlainlyQualified(f *testing.F) {
	for _, name := range []string{"kubernetes.io/empty-dir", "a/b", "A/b", "a..b/c", "-a/b", "a/b-", "a/b/c", "/a", "a/", "é/a", "a~b/c"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if plainlyQualified(name) && (len(validation.IsQualifiedName(name)) > 0 || strings.Count(name, "/") != 1 || CheckName(EscapePlugin(name)) != nil) {
			t.Errorf("%q passes the quick check only", name)
		}
	})
}
