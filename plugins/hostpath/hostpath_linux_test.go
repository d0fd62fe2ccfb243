package hostpath_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/hostpath"
	"github.com/volumekit/volumekit/plugins/plugintest"
)

func TestConformance(t *testing.T) { plugintest.TestPlugin(t, harness(true)) }

func TestDevices(t *testing.T) {
	if _, err := setUp(t, hostpath.Options{}, "/dev/null", v1.HostPathCharDev); err != nil {
		t.Error(err)
	}
	if _, err := setUp(t, hostpath.Options{}, "/dev/null", v1.HostPathBlockDev); err == nil || !strings.Contains(err.Error(), "is a character device") {
		t.Errorf("error %v", err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	must(t, unix.Mkfifo(pipe, 0o600))
	if _, err := setUp(t, hostpath.Options{}, pipe, v1.HostPathFile); err == nil || !strings.Contains(err.Error(), "is a named pipe") {
		t.Errorf("error %v", err)
	}
	if _, err := setUp(t, hostpath.Options{}, pipe, ""); err != nil { // and does not wait for a writer
		t.Error(err)
	}
	if !nstest.RealRoot() {
		return // an ordinary user makes no device nodes
	}
	block := filepath.Join(t.TempDir(), "block")
	must(t, unix.Mknod(block, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 250)))) // opened, it would have no driver
	if _, err := setUp(t, hostpath.Options{}, block, v1.HostPathBlockDev); err != nil {
		t.Error(err)
	}
	if _, err := setUp(t, hostpath.Options{}, block, v1.HostPathCharDev); err == nil || !strings.Contains(err.Error(), "is a block device") {
		t.Errorf("error %v", err)
	}
}

func TestCreate(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	root, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, os.Mkdir(root+"/real", 0o700))
	must(t, os.Symlink("real", root+"/link"))
	for range 2 { // it is there the second time
		result, err := setUp(t, hostpath.Options{}, root+"/link/a/b/c", v1.HostPathDirectoryOrCreate)
		if err != nil || result.Path != root+"/real/a/b/c" {
			t.Errorf("path %q, %v", result.Path, err)
		}
		result, err = setUp(t, hostpath.Options{}, root+"/link/a/file", v1.HostPathFileOrCreate)
		if err != nil || result.Path != root+"/real/a/file" {
			t.Errorf("path %q, %v", result.Path, err)
		}
	}
	for name, want := range map[string]fs.FileMode{
		"real": fs.ModeDir | 0o700, "real/a": fs.ModeDir | 0o755, "real/a/b/c": fs.ModeDir | 0o755, "real/a/file": 0o644,
	} {
		if info, err := os.Lstat(filepath.Join(root, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want mode %v", name, info, err, want)
		}
	}
	_, err = setUp(t, hostpath.Options{}, root+"/none/file", v1.HostPathFileOrCreate)
	if err == nil || !strings.Contains(err.Error(), "its folder does not exist") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Lstat(root + "/none"); !os.IsNotExist(err) {
		t.Errorf("the folder was made: %v", err)
	}
}

// TestNotExaminedIsNotMissing: a path that one may not look at is not made.
func TestNotExaminedIsNotMissing(t *testing.T) {
	long := t.TempDir() + "/" + strings.Repeat("x", 300)
	if _, err := setUp(t, hostpath.Options{}, long, v1.HostPathDirectoryOrCreate); !errors.Is(err, unix.ENAMETOOLONG) {
		t.Errorf("error %v", err)
	}
	if os.Geteuid() == 0 {
		return // nothing is closed to root
	}
	closed := t.TempDir() + "/closed"
	must(t, os.Mkdir(closed, 0))
	if _, err := setUp(t, hostpath.Options{}, closed+"/x", v1.HostPathDirectoryOrCreate); !errors.Is(err, fs.ErrPermission) || !errors.Is(err, plugins.ErrTransient) {
		t.Errorf("error %v", err)
	}
}

// TestLinkIsPutInTheWay: between the look and the making, somebody puts a link
// where the folder is to be. Nothing is made behind it.
func TestLinkIsPutInTheWay(t *testing.T) {
	for _, typ := range []v1.HostPathType{v1.HostPathDirectoryOrCreate, v1.HostPathFileOrCreate} {
		root, err := filepath.EvalSymlinks(t.TempDir())
		must(t, err)
		must(t, os.Mkdir(root+"/secret", 0o755))
		must(t, os.Mkdir(root+"/data", 0o755))
		path, link := root+"/data/new/deep", "../secret"
		if typ == v1.HostPathFileOrCreate {
			path, link = root+"/data/new", "../secret/file"
		}
		host := &plugins.VolumeHost{Faults: func(string) error { return os.Symlink(link, root+"/data/new") }}
		_, err = hostpath.New(host, hostpath.Options{}).SetUp(t.Context(), request(inline(path, typ)))
		if !errors.Is(err, plugins.ErrTransient) {
			t.Errorf("%s: error %v", typ, err)
		}
		if list, err := os.ReadDir(root + "/secret"); err != nil || len(list) > 0 {
			t.Errorf("%s: made behind the link: %v, %v", typ, list, err)
		}
	}
}

// TestFolderIsMovedAway: what is made goes where the path led when it was
// judged, and the result does not point elsewhere.
func TestFolderIsMovedAway(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, os.Mkdir(root+"/data", 0o755))
	must(t, os.Mkdir(root+"/secret", 0o755))
	host := &plugins.VolumeHost{Faults: func(string) error {
		return errors.Join(os.Rename(root+"/data", root+"/moved"), os.Symlink("secret", root+"/data"))
	}}
	result, err := hostpath.New(host, hostpath.Options{}).SetUp(t.Context(), request(inline(root+"/data/new", v1.HostPathDirectoryOrCreate)))
	if !errors.Is(err, plugins.ErrTransient) {
		t.Errorf("result %+v, error %v", result, err)
	}
	if list, err := os.ReadDir(root + "/secret"); err != nil || len(list) > 0 {
		t.Errorf("made elsewhere: %v, %v", list, err)
	}
}

// TestCreatedByManyAtOnce: pods that ask for one new folder all get it.
func TestCreatedByManyAtOnce(t *testing.T) {
	for range 20 {
		path := t.TempDir() + "/a/b/c"
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if _, err := setUp(t, hostpath.Options{}, path, v1.HostPathDirectoryOrCreate); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
}

// TestResolvedPathIsHandedOut: turning the link after SetUp changes nothing.
func TestResolvedPathIsHandedOut(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, errors.Join(os.Mkdir(root+"/one", 0o755), os.Mkdir(root+"/two", 0o755), os.Symlink("one", root+"/link")))
	result, err := setUp(t, hostpath.Options{Policy: hostpath.Under(root + "/one")}, root+"/link", v1.HostPathDirectory)
	if err != nil || result.Path != root+"/one" {
		t.Errorf("path %q, %v", result.Path, err)
	}
	must(t, errors.Join(os.Remove(root+"/link"), os.Symlink("two", root+"/link")))
	if _, err := setUp(t, hostpath.Options{Policy: hostpath.Under(root + "/one")}, root+"/link", v1.HostPathDirectory); !errors.Is(err, plugins.ErrPermanent) {
		t.Errorf("error %v", err)
	}
}

// TestNoPathLeadsThere: a pipe of this process has no path on the host.
func TestNoPathLeadsThere(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer func() { _ = errors.Join(r.Close(), w.Close()) }()
	name := "/proc/self/fd/" + strconv.Itoa(int(r.Fd()))
	if _, err := setUp(t, hostpath.Options{}, name, ""); !errors.Is(err, plugins.ErrTransient) || !strings.Contains(err.Error(), "not reachable") {
		t.Errorf("error %v", err)
	}
}

func TestNoDescriptorIsLeft(t *testing.T) {
	count := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(list)
	}
	root := place(t)
	before := count()
	for range 20 {
		for _, path := range []string{"/dir", "/missing", "/dangling", "/loop", "/a/b", "/file/x"} {
			_, _ = setUp(t, hostpath.Options{}, root+path, v1.HostPathDirectoryOrCreate)
			_, _ = setUp(t, hostpath.Options{}, root+path+"f", v1.HostPathFileOrCreate)
		}
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
