package hostpath_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/plugins/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func source(path string, typ v1.HostPathType) *v1.HostPathVolumeSource {
	return &v1.HostPathVolumeSource{Path: path, Type: &typ}
}

func inline(path string, typ v1.HostPathType) *plugins.Spec {
	return &plugins.Spec{Volume: &v1.Volume{Name: "vol", VolumeSource: v1.VolumeSource{HostPath: source(path, typ)}}}
}

func persistent(path string, typ v1.HostPathType) *plugins.Spec {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	pv.Spec.HostPath = source(path, typ)
	return &plugins.Spec{PV: pv}
}

func request(spec *plugins.Spec) plugins.SetUpRequest {
	return plugins.SetUpRequest{
		Target: plugins.Target{Volume: plugins.PodVolume{Pod: "uid", Plugin: hostpath.Name, Name: spec.Name()}},
		Spec:   spec, Object: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod"}},
	}
}

func setUp(t *testing.T, o hostpath.Options, path string, typ v1.HostPathType) (plugins.SetUpResult, error) {
	t.Helper()
	p := hostpath.New(&plugins.VolumeHost{}, o)
	spec := inline(path, typ)
	if _, err := p.Identify(spec); err != nil {
		t.Fatalf("Identify: %v", err)
	}
	return p.SetUp(t.Context(), request(spec))
}

// place is a folder with one thing of each type and links to them.
func place(t *testing.T) string {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, os.Mkdir(filepath.Join(dir, "dir"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o600))
	must(t, os.Symlink("file", filepath.Join(dir, "toFile")))
	must(t, os.Symlink("dir", filepath.Join(dir, "toDir")))
	must(t, os.Symlink("nothing", filepath.Join(dir, "dangling")))
	must(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	t.Chdir(dir) // a socket's address is short
	socket, err := net.Listen("unix", "socket")
	must(t, err)
	t.Cleanup(func() { _ = socket.Close() })
	return dir
}

func TestTypes(t *testing.T) {
	const (
		unset       = v1.HostPathUnset
		dir         = v1.HostPathDirectory
		dirCreate   = v1.HostPathDirectoryOrCreate
		file        = v1.HostPathFile
		fileCreate  = v1.HostPathFileOrCreate
		socket      = v1.HostPathSocket
		charDevice  = v1.HostPathCharDev
		blockDevice = v1.HostPathBlockDev
	)
	root := place(t)
	for _, test := range []struct {
		path string
		typ  v1.HostPathType
		want string // the resolved path, or "" for an error
		says string
	}{
		{"dir", unset, "dir", ""}, {"dir", dir, "dir", ""}, {"dir", dirCreate, "dir", ""},
		{"dir/", dir, "dir", ""}, {"./dir//", dir, "dir", ""},
		{"dir", file, "", "a regular file is wanted, but"}, {"dir", fileCreate, "", "is a folder"},
		{"dir", socket, "", "a socket is wanted"}, {"dir", blockDevice, "", "a block device is wanted"},
		{"file", unset, "file", ""}, {"file", file, "file", ""}, {"file", fileCreate, "file", ""},
		{"file", dir, "", "is a regular file"}, {"file", dirCreate, "", "a folder is wanted"},
		{"socket", unset, "socket", ""}, {"socket", socket, "socket", ""}, {"socket", file, "", "is a socket"},
		{"toFile", file, "file", ""}, {"toDir", dir, "dir", ""}, {"toDir/", unset, "dir", ""},
		{"missing", unset, "missing", ""}, {"missing", dir, "", "does not exist"}, {"missing", file, "", "does not exist"},
		{"missing", socket, "", "a socket is wanted"}, {"missing", charDevice, "", "does not exist"},
		{"toDir/missing/deep", unset, "dir/missing/deep", ""},
		{"dangling", unset, "", "leads to nothing"}, {"dangling", dirCreate, "", "leads to nothing"},
		{"dangling", fileCreate, "", "leads to nothing"}, {"dangling/sub", dirCreate, "", "leads to nothing"},
		{"loop", unset, "", "symbolic links"}, {"loop", dirCreate, "", "symbolic links"},
		{"file/sub", unset, "", "not a directory"}, {"file/sub", dirCreate, "", "not a directory"},
	} {
		t.Run(test.path+" "+string(test.typ), func(t *testing.T) {
			result, err := setUp(t, hostpath.Options{}, root+"/"+test.path, test.typ)
			if test.want == "" {
				if !errors.Is(err, plugins.ErrTransient) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("error %v, want a transient one with %q", err, test.says)
				}
				return
			}
			if want := filepath.Join(root, test.want); err != nil || result.Path != want {
				t.Errorf("path %q, error %v, want %q", result.Path, err, want)
			}
			if result.Mounted || result.Attributes != (plugins.Attributes{}) {
				t.Errorf("result %+v", result)
			}
		})
	}
	for _, name := range []string{"missing", "nothing", "dir/missing"} {
		if _, err := os.Lstat(name); !os.IsNotExist(err) {
			t.Errorf("%s was made: %v", name, err)
		}
	}
}

func TestMissingIsNotExist(t *testing.T) {
	if _, err := setUp(t, hostpath.Options{}, t.TempDir()+"/x", v1.HostPathFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}

func TestReadOnly(t *testing.T) {
	p := hostpath.New(&plugins.VolumeHost{}, hostpath.Options{})
	for name, change := range map[string]func(*plugins.SetUpRequest){
		"claim": func(r *plugins.SetUpRequest) { r.Spec.ReadOnly = true },
		"wish":  func(r *plugins.SetUpRequest) { r.Params.ReadOnly = true },
	} {
		req := request(persistent(t.TempDir(), v1.HostPathDirectory))
		change(&req)
		result, err := p.SetUp(t.Context(), req)
		if err != nil || !result.Attributes.ReadOnly || result.Attributes.Managed {
			t.Errorf("%s: %+v, %v", name, result, err)
		}
	}
}

func TestPolicy(t *testing.T) {
	root := place(t)
	var asked hostpath.Request
	refuse := errors.New("not for you")
	o := hostpath.Options{Policy: func(_ context.Context, r hostpath.Request) error {
		asked = r
		return refuse
	}}
	_, err := setUp(t, o, root+"/toDir/new/deep", v1.HostPathDirectoryOrCreate)
	if !errors.Is(err, plugins.ErrPermanent) || plugins.ClassOf(err) != plugins.ClassPermanent || !errors.Is(err, refuse) {
		t.Errorf("error %v", err)
	}
	if asked.Resolved != root+"/dir/new/deep" || asked.Exists || asked.Path != root+"/toDir/new/deep" || asked.Pod.Name != "pod" ||
		asked.Type != v1.HostPathDirectoryOrCreate || asked.Volume.Name != "vol" {
		t.Errorf("asked %+v", asked)
	}
	if _, err := os.Lstat(root + "/dir/new"); !os.IsNotExist(err) {
		t.Errorf("made before it was asked: %v", err)
	}
	// A wrong type is not told to whom the path is refused.
	if _, err := setUp(t, o, root+"/toFile", v1.HostPathSocket); !errors.Is(err, refuse) || !asked.Exists || asked.Resolved != root+"/file" {
		t.Errorf("error %v, asked %+v", err, asked)
	}
}

func TestPolicyThatEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := hostpath.New(&plugins.VolumeHost{}, hostpath.Options{Policy: func(ctx context.Context, _ hostpath.Request) error {
		cancel()
		return ctx.Err()
	}})
	if _, err := p.SetUp(ctx, request(inline(t.TempDir(), ""))); !errors.Is(err, plugins.ErrTransient) {
		t.Errorf("error %v is not transient", err)
	}
}

func TestUnder(t *testing.T) {
	root := place(t)
	o := hostpath.Options{Policy: hostpath.Under(root+"/dir", "/nowhere")}
	for path, allowed := range map[string]bool{
		"/dir": true, "/dir/sub": true, "/toDir": true, "/file": false, "/toFile": false, "": false, "/dirx": false,
	} {
		if _, err := setUp(t, o, root+path, ""); (err == nil) != allowed {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestIdentifyRefuses(t *testing.T) {
	p := hostpath.New(&plugins.VolumeHost{}, hostpath.Options{})
	block := persistent("/dev/null", "")
	mode := v1.PersistentVolumeBlock
	block.PV.Spec.VolumeMode = &mode
	nameless := inline("/tmp", "")
	nameless.Volume.Name = "a/b"
	for name, spec := range map[string]*plugins.Spec{
		"nil": nil, "empty": {}, "other source": {Volume: &v1.Volume{Name: "x"}},
		"relative": inline("tmp", ""), "no path": inline("", ""), "dots": inline("/tmp/../etc", ""), "dots at the end": inline("/tmp/..", ""),
		"NUL": inline("/tmp/\x00", ""), "type": inline("/tmp", "Folder"), "block": block, "name": nameless,
	} {
		if _, err := p.Identify(spec); !errors.Is(err, plugins.ErrPermanent) {
			t.Errorf("%s: error %v is not permanent", name, err)
		}
		if spec != nil {
			if _, err := p.SetUp(t.Context(), request(spec)); !errors.Is(err, plugins.ErrPermanent) {
				t.Errorf("%s: SetUp's error %v is not permanent", name, err)
			}
		}
	}
	if id, err := p.Identify(inline("/tmp/...", "")); err != nil || id.Storage != "/tmp/..." {
		t.Errorf("three dots: %+v, %v", id, err)
	}
	typeless := inline("/tmp", "")
	typeless.Volume.HostPath.Type = nil
	if _, err := p.Identify(typeless); err != nil {
		t.Errorf("no type: %v", err)
	}
}

func harness(real bool) plugintest.Harness {
	return plugintest.Harness{
		New: func(_ testing.TB, host *plugins.VolumeHost) plugins.VolumePlugin {
			return hostpath.New(host, hostpath.Options{})
		},
		Good: func(t testing.TB, _ *plugins.VolumeHost) []plugintest.Volume {
			dir, err := filepath.EvalSymlinks(t.TempDir())
			must(t, err)
			must(t, os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o600))
			list := []plugintest.Volume{
				{Name: "folder", Spec: inline(dir, v1.HostPathDirectory)},
				{Name: "newFolder", Spec: inline(dir+"/a/b", v1.HostPathDirectoryOrCreate)},
				{Name: "file", Spec: inline(dir+"/file", v1.HostPathFile)},
				{Name: "newFile", Spec: inline(dir+"/newFile", v1.HostPathFileOrCreate)},
				{Name: "persistent", Spec: persistent(dir, "")},
				{Name: "missing", Spec: inline(dir+"/x", "")},
			}
			if real {
				list = append(list, plugintest.Volume{Name: "device", Spec: inline("/dev/null", v1.HostPathCharDev)})
			}
			return list
		},
		Bad: func(t testing.TB, _ *plugins.VolumeHost) []plugintest.Volume {
			return []plugintest.Volume{
				{Name: "relative", Spec: inline("etc", "")},
				{Name: "dots", Spec: inline("/tmp/../etc", "")},
				{Name: "type", Spec: inline("/tmp", "Pipe")},
				{Name: "wrongType", Spec: inline(t.TempDir(), v1.HostPathSocket)},
			}
		},
	}
}

// FuzzPath: what Identify accepts is absolute and has no element "..".
func FuzzPath(f *testing.F) {
	for _, s := range []string{"/", "//", "/a/../b", "/..", "/a/..b", "a", "", "/a/./b", "/\x00", "/a/b/", "/..."} {
		f.Add(s)
	}
	p := hostpath.New(&plugins.VolumeHost{}, hostpath.Options{})
	f.Fuzz(func(t *testing.T, path string) {
		if _, err := p.Identify(inline(path, "")); err != nil {
			return
		}
		clean := filepath.ToSlash(filepath.Clean(path))
		for e := range strings.SplitSeq(filepath.ToSlash(path), "/") {
			if e == ".." {
				t.Errorf("%q is accepted", path)
			}
		}
		if !strings.HasPrefix(clean, "/") && !filepath.IsAbs(path) || strings.Contains(path, "\x00") {
			t.Errorf("%q is accepted", path)
		}
	})
}
