//go:build unix

package emptydir_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/emptydir"
)

const allBits = fs.ModePerm | fs.ModeSetgid | fs.ModeSetuid | fs.ModeSticky

func modeOf(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info.Mode() & allBits
}

func groupOf(t *testing.T, path string) uint32 {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info.Sys().(*syscall.Stat_t).Gid
}

func TestFolderMode(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	for name, test := range map[string]struct {
		source *v1.EmptyDirVolumeSource
		group  bool
		want   fs.FileMode
	}{
		"no source":        {nil, false, 0o777},
		"default":          {&v1.EmptyDirVolumeSource{}, false, 0o777},
		"mode":             {&v1.EmptyDirVolumeSource{Mode: ptr(int32(0o1750))}, false, 0o750 | fs.ModeSticky},
		"mode 0":           {&v1.EmptyDirVolumeSource{Mode: ptr(int32(0))}, false, 0},
		"fsGroup":          {&v1.EmptyDirVolumeSource{}, true, 0o777 | fs.ModeSetgid},
		"fsGroup and mode": {&v1.EmptyDirVolumeSource{Mode: ptr(int32(0o700))}, true, 0o770 | fs.ModeSetgid},
	} {
		t.Run(name, func(t *testing.T) {
			n := fakeNode(t)
			req := n.request(specOf(test.source), podWith())
			if test.group {
				req.Params.FSGroup = ptr(int64(os.Getegid()))
			}
			result := n.setUp(req)
			if got := modeOf(t, req.Path); got != test.want {
				t.Errorf("mode %v, want %v", got, test.want)
			}
			if want := (plugins.Attributes{Managed: true, SELinuxRelabel: true}); result.Attributes != want || result.Mounted {
				t.Errorf("result %+v", result)
			}
			n.tearDown(req)
		})
	}
}

func TestForeignGroup(t *testing.T) {
	n := fakeNode(t)
	req := n.request(specOf(nil), podWith())
	req.Params.FSGroup = ptr(int64(54321))
	if nstest.RealRoot() {
		n.setUp(req)
		if g := groupOf(t, req.Path); g != 54321 {
			t.Errorf("group %d", g)
		}
		return
	}
	_, err := n.plugin.SetUp(t.Context(), req)
	if !errors.Is(err, plugins.ErrUnsupported) || !strings.Contains(err.Error(), "fsGroup 54321") {
		t.Errorf("error %v, want an unsupported one that names the group", err)
	}
	if _, err := os.Lstat(req.Path); !os.IsNotExist(err) {
		t.Errorf("the folder was left: %v", err)
	}
}

// TestLiveFolderIsNotTouched: a database that closed its folder must find it
// closed after the agent's restart.
func TestLiveFolderIsNotTouched(t *testing.T) {
	n := fakeNode(t)
	req := n.request(specOf(nil), podWith())
	n.setUp(req)
	file := filepath.Join(req.Path, "data")
	must(t, os.WriteFile(file, []byte("x"), 0o600))
	req.Again = true
	for _, mode := range []fs.FileMode{0o700, 0} {
		must(t, os.Chmod(req.Path, mode))
		n.setUp(req)
		if got := modeOf(t, req.Path); mode != 0 && got != mode || mode == 0 && os.Geteuid() == 0 && got != 0 {
			t.Errorf("mode %v became %v", mode, got)
		}
	}
	must(t, os.Chmod(req.Path, 0o700))
	if data, err := os.ReadFile(file); err != nil || string(data) != "x" {
		t.Errorf("content %q, %v", data, err)
	}
	req.Again = false // nobody uses it: the mode may be set right
	n.setUp(req)
	if got := modeOf(t, req.Path); got != 0o777 {
		t.Errorf("mode %v", got)
	}
}

// TestGroupThatIsNone: a number that does not fit must not become another one.
func TestGroupThatIsNone(t *testing.T) {
	for _, group := range []int64{-1, 1 << 31, 1 << 32, 1<<32 + 5} {
		for name, spec := range map[string]*v1.EmptyDirVolumeSource{"disk": nil, "memory": {Medium: v1.StorageMediumMemory}} {
			n := fakeNode(t)
			req := n.request(specOf(spec), podWith())
			req.Params.FSGroup = &group
			if _, err := n.plugin.SetUp(t.Context(), req); plugins.ClassOf(err) != plugins.ClassPermanent || !errors.Is(err, plugins.ErrBadID) {
				t.Errorf("%s, group %d: %v", name, group, err)
			}
			if _, err := os.Lstat(req.Path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s, group %d: something was made (%v)", name, group, err)
			}
		}
	}
}

// TestUnfinishedFolder: death between making a folder and giving it its mode.
func TestUnfinishedFolder(t *testing.T) {
	n := fakeNode(t)
	req := n.request(specOf(nil), podWith())
	req.Params.FSGroup = ptr(int64(os.Getegid()))
	n.host.Faults = func(string) error { return errors.New("killed") }
	if _, err := n.plugin.SetUp(t.Context(), req); !errors.Is(err, plugins.ErrUncertain) {
		t.Fatalf("error %v", err)
	}
	if got := modeOf(t, req.Path) & fs.ModePerm; got != 0 {
		t.Errorf("an unfinished folder has mode %v", got)
	}
	n.host.Faults = nil
	req.Again = true
	n.setUp(req)
	if got := modeOf(t, req.Path); got != 0o777|fs.ModeSetgid {
		t.Errorf("mode %v", got)
	}
}

func TestWhatIsInTheWay(t *testing.T) {
	memory := specOf(&v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory})
	file := func(n *node, path string) { must(n.t, os.WriteFile(path, nil, 0o600)) }
	link := func(n *node, path string) { must(n.t, os.Symlink(n.root, path)) }
	mounted := func(fsType string) func(*node, string) {
		return func(n *node, path string) {
			must(n.t, os.Mkdir(path, 0o755))
			must(n.t, n.host.Mounter.Mount(n.t.Context(), mount.Mount{Source: "x", Target: path, FSType: fsType}))
		}
	}
	for name, test := range map[string]struct {
		spec *plugins.Spec
		put  func(*node, string)
		want string
	}{
		"file for folder":     {specOf(nil), file, "no folder"},
		"file for memory":     {memory, file, "no folder"},
		"link for folder":     {specOf(nil), link, "no folder"},
		"link for memory":     {memory, link, "no folder"},
		"mount for folder":    {specOf(nil), mounted("tmpfs"), "a mount (tmpfs)"},
		"another file system": {memory, mounted("ext4"), "a mount ("},
	} {
		t.Run(name, func(t *testing.T) {
			n := fakeNode(t)
			req := n.request(test.spec, podWith())
			test.put(n, req.Path)
			for _, req.Again = range []bool{false, true} {
				_, err := n.plugin.SetUp(t.Context(), req)
				if !errors.Is(err, plugins.ErrUncertain) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v, want an uncertain one with %q", err, test.want)
				}
			}
			n.tearDown(req)
		})
	}
}

func TestDeadMemoryIsNotTakenForAVolume(t *testing.T) {
	n := fakeNode(t)
	req := n.request(specOf(&v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}), podWith())
	n.setUp(req)
	must(t, n.fake.Corrupt(req.Path, syscall.ENOTCONN))
	if _, err := n.plugin.SetUp(t.Context(), req); err == nil || !strings.Contains(err.Error(), "dead") {
		t.Errorf("error %v", err)
	}
	n.tearDown(req)
}

// nodes is a source of one node.
type nodes struct {
	node *v1.Node
	err  error
}

func (s nodes) Node(ctx context.Context) (*v1.Node, error) {
	return s.node, errors.Join(s.err, ctx.Err())
}

func TestMemoryOptions(t *testing.T) {
	node := func(memory string) plugins.NodeSource {
		return nodes{node: &v1.Node{Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceMemory: resource.MustParse(memory)}}}}
	}
	limited := podWith()
	limited.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse("3Mi")}}}}
	for name, test := range map[string]struct {
		source v1.EmptyDirVolumeSource
		pod    *v1.Pod
		node   plugins.NodeSource
		group  *int64
		want   string
	}{
		"nothing known":    {v1.EmptyDirVolumeSource{}, podWith(), nil, nil, "mode=1777,noswap"},
		"limit":            {v1.EmptyDirVolumeSource{SizeLimit: quantity("2Mi")}, limited, node("1Gi"), nil, "mode=1777,size=2097152,noswap"},
		"limit zero":       {v1.EmptyDirVolumeSource{SizeLimit: quantity("0")}, podWith(), node("5Mi"), nil, "mode=1777,size=5242880,noswap"},
		"pod smaller":      {v1.EmptyDirVolumeSource{SizeLimit: quantity("1Gi")}, limited, nil, nil, "mode=1777,size=3145728,noswap"},
		"node smallest":    {v1.EmptyDirVolumeSource{SizeLimit: quantity("1Gi")}, limited, node("1Mi"), nil, "mode=1777,size=1048576,noswap"},
		"node unreadable":  {v1.EmptyDirVolumeSource{}, limited, nodes{err: errors.New("no API")}, nil, "mode=1777,size=3145728,noswap"},
		"node nil":         {v1.EmptyDirVolumeSource{}, podWith(), nodes{}, nil, "mode=1777,noswap"},
		"mode":             {v1.EmptyDirVolumeSource{Mode: ptr(int32(0o700))}, podWith(), nil, nil, "mode=700,noswap"},
		"group":            {v1.EmptyDirVolumeSource{}, podWith(), nil, ptr(int64(7)), "mode=3777,gid=7,noswap"},
		"group and mode 0": {v1.EmptyDirVolumeSource{Mode: ptr(int32(0))}, podWith(), nil, ptr(int64(7)), "mode=2070,gid=7,noswap"},
	} {
		t.Run(name, func(t *testing.T) {
			n := fakeNode(t)
			n.host.Node = test.node
			test.source.Medium = v1.StorageMediumMemory
			req := n.request(specOf(&test.source), test.pod)
			req.Params.FSGroup = test.group
			result := n.setUp(req)
			calls := n.fake.Calls(mounttest.OpMount)
			if len(calls) != 1 || calls[0].Mount.FSType != "tmpfs" {
				t.Fatalf("calls %v", calls)
			}
			if got := strings.Join(calls[0].Mount.Options.Strings(), ","); got != test.want {
				t.Errorf("options %s, want %s", got, test.want)
			}
			sized := strings.Contains(test.want, "size=")
			if !result.Mounted || (result.Size != nil) != sized {
				t.Errorf("result %+v", result)
			}
			n.tearDown(req)
		})
	}
}

func TestEndedWhileReadingTheNode(t *testing.T) {
	n := fakeNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	n.host.Node = cancelling{cancel}
	req := n.request(specOf(&v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}), podWith())
	if _, err := n.plugin.SetUp(ctx, req); !errors.Is(err, plugins.ErrTransient) || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Lstat(req.Path); !os.IsNotExist(err) {
		t.Errorf("the folder was made: %v", err)
	}
}

type cancelling struct{ cancel func() }

func (c cancelling) Node(ctx context.Context) (*v1.Node, error) {
	c.cancel()
	return nil, ctx.Err()
}

func TestMountFails(t *testing.T) {
	memory := specOf(&v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory})
	for name, test := range map[string]struct {
		err      error
		leftover bool
		want     error
	}{
		"unsupported":                 {mount.ErrUnsupported, false, plugins.ErrUnsupported},
		"not permitted":               {fs.ErrPermission, false, plugins.ErrUnsupported},
		"option":                      {mount.ErrBadOption, false, plugins.ErrUnsupported},
		"no memory":                   {syscall.ENOMEM, false, plugins.ErrTransient},
		"empty folder was there":      {syscall.ENOMEM, true, plugins.ErrTransient},
		"unsupported over a leftover": {mount.ErrUnsupported, true, plugins.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			n := fakeNode(t)
			req := n.request(memory, podWith())
			if test.leftover {
				must(t, os.Mkdir(req.Path, 0o755))
			}
			n.fake.Fail(mounttest.OpMount, req.Path, test.err)
			if _, err := n.plugin.SetUp(t.Context(), req); !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
			if _, err := os.Lstat(req.Path); !os.IsNotExist(err) {
				t.Errorf("the folder was left: %v", err)
			}
		})
	}
	t.Run("full folder was there", func(t *testing.T) {
		n := fakeNode(t)
		req := n.request(memory, podWith())
		must(t, os.MkdirAll(filepath.Join(req.Path, "sub"), 0o755))
		n.fake.Fail(mounttest.OpMount, req.Path, syscall.ENOMEM)
		if _, err := n.plugin.SetUp(t.Context(), req); !errors.Is(err, plugins.ErrUncertain) {
			t.Errorf("error %v", err)
		}
	})
}

func TestSupports(t *testing.T) {
	p := emptydir.New(&plugins.VolumeHost{})
	both := specOf(&v1.EmptyDirVolumeSource{})
	both.PV = &v1.PersistentVolume{}
	for name, test := range map[string]struct {
		spec *plugins.Spec
		want bool
	}{
		"nil": {nil, false}, "empty": {&plugins.Spec{}, false},
		"no source": {specOf(nil), true}, "emptyDir": {specOf(&v1.EmptyDirVolumeSource{}), true},
		"with a PV": {both, false},
		"other":     {&plugins.Spec{Volume: &v1.Volume{VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}}}, false},
	} {
		if got := p.Supports(test.spec); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if _, err := p.Identify(&plugins.Spec{Volume: &v1.Volume{Name: ".."}}); !errors.Is(err, plugins.ErrPermanent) {
		t.Errorf("a name that is no folder's: %v", err)
	}
}

func TestReadOnlyWishReachesTheContainer(t *testing.T) {
	n := fakeNode(t)
	req := n.request(specOf(nil), podWith())
	req.Params.ReadOnly = true
	if result := n.setUp(req); !result.Attributes.ReadOnly {
		t.Errorf("attributes %+v", result.Attributes)
	}
}

// TestHotPath holds the cost of the plain volume: no look at the mounts, one
// removal each for the volume and the plugin's own folder.
func TestHotPath(t *testing.T) {
	n := fakeNode(t)
	req := n.request(specOf(nil), podWith())
	n.setUp(req)
	if calls := n.fake.Calls(); len(calls) != 0 {
		t.Errorf("SetUp calls the mounter: %v", calls)
	}
	n.tearDown(req)
	var ops []mounttest.Op
	for _, c := range n.fake.Calls() {
		ops = append(ops, c.Op)
	}
	if !slices.Equal(ops, []mounttest.Op{mounttest.OpRemoveAll, mounttest.OpRemoveAll}) {
		t.Errorf("TearDown calls %v", ops)
	}
}
