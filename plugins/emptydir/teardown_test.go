package emptydir_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
)

// bothKinds runs a test with imitated and with real mounts.
func bothKinds(t *testing.T, test func(t *testing.T, n *node)) {
	t.Helper()
	t.Run("imitated mounts", func(t *testing.T) { test(t, fakeNode(t)) })
	t.Run("real mounts", func(t *testing.T) { test(t, realNode(t)) })
}

func (n *node) mount(m mount.Mount) {
	n.t.Helper()
	must(n.t, n.host.Mounter.Mount(n.t.Context(), m))
}

// mounted lists what is mounted below the root.
func (n *node) mounted() []mount.Entry {
	n.t.Helper()
	table, err := n.host.Mounter.Table(n.t.Context())
	must(n.t, err)
	return table.Below(n.root)
}

// precious makes a folder that must survive.
func (n *node) precious() (dir string, check func()) {
	dir = filepath.Join(n.root, "precious")
	must(n.t, os.MkdirAll(filepath.Join(dir, "deep"), 0o755))
	files := []string{filepath.Join(dir, "a"), filepath.Join(dir, "deep", "b")}
	for _, f := range files {
		must(n.t, os.WriteFile(f, []byte("precious"), 0o600))
	}
	return dir, func() {
		n.t.Helper()
		for _, f := range files {
			if data, err := os.ReadFile(f); err != nil || string(data) != "precious" {
				n.t.Errorf("%s: %q, %v", f, data, err)
			}
		}
	}
}

// TestRemovalNeverCrossesAMount: a bind of the same file system, a tmpfs of
// its own and in that the bind of a file, all inside the volume.
func TestRemovalNeverCrossesAMount(t *testing.T) {
	for _, medium := range []v1.StorageMedium{"", v1.StorageMediumMemory} {
		for _, lazy := range []bool{false, true} {
			t.Run(fmt.Sprintf("medium %q lazy %t", medium, lazy), func(t *testing.T) {
				bothKinds(t, func(t *testing.T, n *node) {
					precious, check := n.precious()
					req := n.request(specOf(&v1.EmptyDirVolumeSource{Medium: medium}), podWith())
					n.setUp(req)
					sub, nested := filepath.Join(req.Path, "own", "sub"), filepath.Join(req.Path, "nested")
					must(t, os.MkdirAll(sub, 0o755))
					must(t, os.MkdirAll(nested, 0o755))
					must(t, os.WriteFile(filepath.Join(req.Path, "own", "file"), nil, 0o600))
					n.mount(mount.Mount{Source: precious, Target: sub, Options: mount.Options{Bind: true}})
					n.mount(mount.Mount{Source: "t", Target: nested, FSType: "tmpfs"})
					file := filepath.Join(nested, "file")
					must(t, os.WriteFile(file, nil, 0o600))
					n.mount(mount.Mount{Source: filepath.Join(precious, "a"), Target: file, Options: mount.Options{Bind: true}})
					must(t, n.plugin.TearDown(t.Context(), plugins.TearDownRequest{Target: req.Target, Lazy: lazy}))
					check()
					if _, err := os.Lstat(req.Path); !os.IsNotExist(err) {
						t.Errorf("the target is still there: %v", err)
					}
					if left := n.mounted(); len(left) > 0 {
						t.Errorf("still mounted: %v", left)
					}
				})
			})
		}
	}
}

func TestMountOnTheVolumeItself(t *testing.T) {
	bothKinds(t, func(t *testing.T, n *node) {
		precious, check := n.precious()
		req := n.request(specOf(&v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}), podWith())
		n.setUp(req)
		for range 3 {
			n.mount(mount.Mount{Source: precious, Target: req.Path, Options: mount.Options{Bind: true}})
		}
		n.tearDown(req)
		check()
		if left := n.mounted(); len(left) > 0 {
			t.Errorf("still mounted: %v", left)
		}
	})
}

func TestKubeletsOwnFileIsRemoved(t *testing.T) {
	n := fakeNode(t)
	req := n.request(specOf(nil), podWith())
	n.setUp(req)
	must(t, os.MkdirAll(req.PrivateDir, 0o750))
	must(t, os.WriteFile(filepath.Join(req.PrivateDir, "ready"), nil, 0o644))
	n.tearDown(req)
	if _, err := os.Lstat(req.PrivateDir); !os.IsNotExist(err) {
		t.Errorf("the private folder is still there: %v", err)
	}
}

func TestBusyVolume(t *testing.T) {
	for name, below := range map[string]bool{"itself": false, "mount inside": true} {
		t.Run(name, func(t *testing.T) {
			n := fakeNode(t)
			req := n.request(specOf(&v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}), podWith())
			n.setUp(req)
			busy := req.Path
			if below {
				busy = filepath.Join(req.Path, "sub")
				must(t, os.Mkdir(busy, 0o755))
				n.mount(mount.Mount{Source: "t", Target: busy, FSType: "tmpfs"})
			}
			n.fake.Busy(busy)
			err := n.plugin.TearDown(t.Context(), plugins.TearDownRequest{Target: req.Target})
			if !errors.Is(err, mount.ErrBusy) || plugins.ClassOf(err) != plugins.ClassUncertain {
				t.Errorf("error %v", err)
			}
			if len(n.mounted()) == 0 {
				t.Error("the busy mount is gone")
			}
			must(t, n.plugin.TearDown(t.Context(), plugins.TearDownRequest{Target: req.Target, Lazy: true}))
			if left := n.mounted(); len(left) > 0 {
				t.Errorf("still mounted: %v", left)
			}
		})
	}
}

func TestTearDownPassesErrorsOn(t *testing.T) {
	boom := errors.New("boom")
	for _, op := range []mounttest.Op{mounttest.OpRemoveAll, mounttest.OpUnmount, mounttest.OpTable} {
		t.Run(string(op), func(t *testing.T) {
			n := fakeNode(t)
			req := n.request(specOf(&v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}), podWith())
			n.setUp(req)
			sub := filepath.Join(req.Path, "sub")
			must(t, os.Mkdir(sub, 0o755))
			n.mount(mount.Mount{Source: "t", Target: sub, FSType: "tmpfs"})
			undo := n.fake.Fail(op, "", boom)
			if err := n.plugin.TearDown(t.Context(), plugins.TearDownRequest{Target: req.Target}); !errors.Is(err, boom) {
				t.Errorf("error %v", err)
			}
			undo()
			n.tearDown(req)
		})
	}
}

// endless finds a mount in one path however often it is unmounted.
type endless struct {
	*mounttest.Mounter
	path string
}

func (m endless) RemoveAll(ctx context.Context, path string) error {
	if path == m.path {
		return fmt.Errorf("%w: %s", mount.ErrCrossesMount, path)
	}
	return m.Mounter.RemoveAll(ctx, path)
}

func TestTearDownGivesUp(t *testing.T) {
	n := fakeNode(t)
	req := n.request(specOf(nil), podWith())
	n.setUp(req)
	n.host.Mounter = endless{n.fake, req.Path}
	err := n.plugin.TearDown(t.Context(), plugins.TearDownRequest{Target: req.Target})
	if !errors.Is(err, mount.ErrCrossesMount) {
		t.Errorf("error %v", err)
	}
}
