package csinode_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/internal/sim"
)

// A volume whose file system in user space has died comes apart, and comes back
// for the next pod (kubernetes/kubernetes#96361).
func TestDeadFUSE(t *testing.T) {
	if !nstest.RealRoot() {
		t.Skip("FUSE needs the root user here")
	}
	for _, restart := range []bool{false, true} {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			r := newRig(t, settings{driver: func(c *csitest.Config) { staged(c); c.Mode = csitest.ModeBind }})
			r.volume("data")
			pod := podOf("one", "data")
			r.up(pod)
			r.down(pod)
			r.released()
			folders, err := filepath.Glob(filepath.Join(r.dir, "driver/data/*/data"))
			if err != nil || len(folders) != 1 {
				t.Fatalf("%v, %v", folders, err)
			}
			storage := sim.NewStorage(t, folders[0])
			r.up(pod)
			if _, err := os.ReadDir(r.path(pod, "data")); err != nil {
				t.Fatal(err)
			}
			storage.Die()
			if _, err := os.ReadDir(r.path(pod, "data")); err == nil {
				t.Fatal("the storage is not dead")
			}
			if restart {
				r.stop()
				r.checker.COrestarted()
				r.start()
				r.until("the pod is told that its volume is dead", func() bool {
					s, _ := r.manager.Status(pod)
					return len(s.Volumes) == 1 && s.Volumes[0].Err != nil && strings.Contains(s.Volumes[0].Err.Error(), "is dead")
				})
			}
			r.down(pod)
			r.released()
			r.must(unix.Unmount(folders[0], unix.MNT_DETACH))
			r.up(pod)
			if err := os.WriteFile(r.path(pod, "data", "file"), nil, 0o600); err != nil {
				t.Error(err)
			}
		})
	}
}
