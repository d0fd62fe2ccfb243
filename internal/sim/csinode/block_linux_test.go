package csinode_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/csi"
	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/plugins"
)

// loops are the loop devices that are in use for files of the rig.
func (r *rig) loops() int {
	r.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	r.must(err)
	n := 0
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(text), r.dir) {
			n++
		}
	}
	return n
}

// device is the pod's link to its block device.
func (r *rig) device(pod *v1.Pod, pv string) string {
	return r.host.Layout.PodDevice(plugins.PodVolume{Pod: pod.UID, Plugin: csi.Name, Name: pv})
}

// A block volume is a device in the kubelet's places, over restarts too; there
// is no loop device but the driver's, and none is left when the device vanished
// under the pod.
func TestBlockVolume(t *testing.T) {
	if !nstest.RealRoot() {
		t.Skip("loop devices need the root user")
	}
	for _, lost := range []bool{false, true} {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			r := newRig(t, settings{
				driver: func(c *csitest.Config) { staged(c); c.Mode = csitest.ModeBlock },
				csi:    func(c *csi.Config) { c.Health = csi.Health{Period: 20 * time.Millisecond} },
			})
			r.volume("block", block)
			pod := podOf("one", "block")
			r.up(pod)
			var first unix.Stat_t
			r.must(unix.Stat(r.device(pod, "block"), &first))
			if first.Mode&unix.S_IFMT != unix.S_IFBLK {
				t.Fatalf("the pod's device has mode %o", first.Mode)
			}
			base := filepath.Join(r.root, "plugins/kubernetes.io/csi/volumeDevices")
			for _, path := range []string{"publish/block/uid-one", "block/dev/uid-one"} {
				var s unix.Stat_t
				if err := unix.Stat(filepath.Join(base, path), &s); err != nil || s.Rdev != first.Rdev {
					t.Errorf("%s: device %x, want %x, %v", path, s.Rdev, first.Rdev, err)
				}
			}
			if to, err := os.Readlink(r.device(pod, "block")); err != nil || to != filepath.Join(base, "publish/block/uid-one") {
				t.Errorf("the link leads to %q, %v", to, err)
			}
			if _, err := os.Stat(filepath.Join(base, "block/data/vol_data.json")); err != nil {
				t.Error(err)
			}
			loops := r.loops()
			for range 5 {
				r.restart()
				r.ready(pod)
			}
			if n := r.loops(); n != loops {
				t.Errorf("%d loop devices after five restarts, %d before", n, loops)
			}
			if lost {
				published := filepath.Join(base, "publish/block/uid-one")
				r.must(unix.Unmount(published, 0))
				r.must(os.Remove(published))
				r.until("the status names the lost device", func() bool {
					s, _ := r.manager.Status(pod)
					return len(s.Volumes) == 1 && len(s.Volumes[0].Faults) == 1 && strings.Contains(s.Volumes[0].Faults[0].Message, published)
				})
			}
			r.down(pod)
			r.released()
			if n := r.loops(); n != 0 {
				t.Errorf("%d loop devices are left", n)
			}
			if !lost {
				return
			}
			told := false
			for _, e := range r.events.List() {
				told = told || e.Reason == "VolumeDeviceLost" && strings.Contains(e.Message, "block")
			}
			if !told {
				t.Error("nobody was told of the lost device")
			}
		})
	}
}
