package csinode_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/volumemanager"
)

// A manager that starts over what another one left confirms it with the same
// arguments, and takes away what nobody wants any more.
func TestRestart(t *testing.T) {
	for _, mode := range []csitest.Mode{csitest.ModeTmpfs, csitest.ModePlain, csitest.ModeBlock} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			claim, gone := "data", "gone"
			change := func(*v1.PersistentVolume) {}
			if mode == csitest.ModeBlock {
				if claim, gone, change = "block", "blockgone", block; !nstest.RealRoot() {
					t.Skip("loop devices need the root user")
				}
			}
			r := newRig(t, settings{driver: func(c *csitest.Config) { c.Mode = mode }})
			r.volume(claim, change)
			r.volume(gone, change)
			stays, goes := podOf("stays", claim), podOf("goes", gone)
			r.up(stays, goes)
			r.stop()
			r.pods.Remove(goes.UID)
			r.driver.ResetCalls()
			r.checker.COrestarted()
			r.start()
			r.ready(stays)
			r.until("the other pod's volume is gone", func() bool { return len(r.manager.Snapshot().Volumes) == 1 })
			for _, call := range r.calls() {
				if strings.HasSuffix(call, "handle-"+claim) && strings.Contains(call, "Un") {
					t.Errorf("a running pod's volume was touched: %s", call)
				}
			}
			for _, want := range []string{"NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"} {
				if !slices.Contains(r.calls(), want+" handle-"+gone) {
					t.Errorf("no %s among %v", want, r.calls())
				}
			}
		})
	}
}

// Without a journal the files beside the volumes tell what they are: those of
// today, of the nested form, and in the places of older kubelets.
func TestAdoptWithoutAJournal(t *testing.T) {
	for name, c := range map[string]struct {
		// rewrite changes the text of a vol_data.json.
		rewrite func(old map[string]string) any
		// old stages where kubelets up to 1.23 did.
		old bool
	}{
		"flat": {},
		"nested": {rewrite: func(old map[string]string) any {
			source := map[string]string{"driver": old["driverName"], "volumeHandle": old["volumeHandle"], "fsType": "ext4"}
			return map[string]any{
				"spec":               map[string]any{"volumeSource": map[string]any{"csi": source}},
				"attachmentMetadata": map[string]string{"devicePath": "/dev/x"},
			}
		}},
		"without a mode, with keys of others": {rewrite: func(old map[string]string) any {
			delete(old, "volumeLifecycleMode")
			old["somebodyElse"] = "x"
			return old
		}},
	} {
		for _, wanted := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, settings{driver: staged, attach: nil})
				r.volume("data")
				pod := podOf("one", "data")
				r.up(pod)
				r.stop()
				r.must(os.RemoveAll(r.host.Layout.StateDir()))
				files, _ := filepath.Glob(filepath.Join(r.root, "plugins/kubernetes.io/csi/*/*/vol_data.json"))
				files = append(files, filepath.Join(filepath.Dir(r.path(pod, "data")), "vol_data.json"))
				if len(files) != 2 {
					t.Fatalf("files %v", files)
				}
				for _, file := range files {
					if c.rewrite == nil {
						break
					}
					text, err := os.ReadFile(file)
					r.must(err)
					var old map[string]string
					r.must(json.Unmarshal(text, &old))
					text, err = json.Marshal(c.rewrite(old))
					r.must(err)
					r.must(os.WriteFile(file, text, 0o600))
				}
				if !wanted {
					r.pods.Remove(pod.UID)
				}
				r.driver.ResetCalls()
				r.checker.COrestarted()
				r.start()
				if wanted {
					r.ready(pod)
					r.want("NodeStageVolume handle-data", "NodePublishVolume handle-data")
					return
				}
				r.until("nothing is left", func() bool {
					return slices.Equal(r.calls(), []string{"NodeUnpublishVolume handle-data", "NodeUnstageVolume handle-data"})
				})
				r.released()
			})
		}
	}
}

// What is staged and has no pod is found on disk alone.
func TestAdoptStagedAlone(t *testing.T) {
	for _, mode := range []csitest.Mode{csitest.ModeTmpfs, csitest.ModeBlock} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			claim, change := "data", func(*v1.PersistentVolume) {}
			if mode == csitest.ModeBlock {
				if claim, change = "block", block; !nstest.RealRoot() {
					t.Skip("loop devices need the root user")
				}
			}
			r := newRig(t, settings{driver: func(c *csitest.Config) { staged(c); c.Mode = mode }})
			r.volume(claim, change)
			pod := podOf("one", claim)
			r.up(pod)
			held := r.driver.Script("NodeUnstageVolume", csitest.Fault{Times: 1, Block: true})
			r.pods.Remove(pod.UID)
			r.must(held.Wait(r.ctx, 1))
			r.stop()
			held.Remove()
			r.must(os.RemoveAll(r.host.Layout.StateDir()))
			r.driver.ResetCalls()
			r.checker.COrestarted()
			r.start()
			r.until("it is unstaged", func() bool { return slices.Contains(r.calls(), "NodeUnstageVolume handle-"+claim) })
			r.released()
		})
	}
}

// A vol_data.json that is damaged is an error on its volume alone, and none
// where the journal knows better.
func TestDamagedFiles(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "cut": `{"driverName":"rig.vol`, "no handle": `{"driverName":"rig.volumekit.example"}`,
		"hostile driver": `{"driverName":"../../../etc","volumeHandle":"x"}`, "not text": `{"driverName":7,"volumeHandle":"x"}`,
		"binary": "\xff\xfe{}",
	} {
		for _, journal := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, settings{driver: staged, unwatched: !journal})
				r.volume("data")
				r.volume("well")
				pod, other := podOf("one", "data"), podOf("two", "well")
				r.up(pod, other)
				r.stop()
				file := filepath.Join(filepath.Dir(r.path(pod, "data")), "vol_data.json")
				sound, err := os.ReadFile(file)
				r.must(err)
				r.must(os.WriteFile(file, []byte(text), 0o600))
				if !journal {
					r.must(os.RemoveAll(r.host.Layout.StateDir()))
				}
				r.pods.Remove(pod.UID)
				r.pods.Remove(other.UID)
				r.driver.ResetCalls()
				r.checker.COrestarted()
				r.start()
				r.until("the other pod's volume is gone", func() bool { return slices.Contains(r.calls(), "NodeUnstageVolume handle-well") })
				if !journal {
					r.until("the fault is told", func() bool {
						return slices.ContainsFunc(r.manager.Snapshot().Faults, func(f volumemanager.FaultSnapshot) bool { return strings.Contains(f.Path+f.Message, "vol_data.json") })
					})
					if _, err := os.Lstat(file); err != nil {
						t.Errorf("the file is gone: %v", err)
					}
					// Whoever puts it right is understood by the next manager.
					r.stop()
					r.must(os.WriteFile(file, sound, 0o600))
					r.checker.COrestarted()
					r.start()
				}
				r.until("the volume is gone", func() bool { return slices.Contains(r.calls(), "NodeUnstageVolume handle-data") })
				r.released()
			})
		}
	}
}
