package csinode_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/volumekit/volumekit/csi"
	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/csi/csitest/checker"
	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/volumemanager"
)

// kinds of volumes for tests that are alike for both.
var kinds = map[string]func(*v1.PersistentVolume){"data": func(*v1.PersistentVolume) {}, "block": block}

// ofKind is a driver with staging for a claim of that name.
func ofKind(t *testing.T, claim string) func(*csitest.Config) {
	t.Helper()
	if claim == "block" && !nstest.RealRoot() {
		t.Skip("loop devices need the root user")
	}
	return func(c *csitest.Config) {
		if staged(c); claim == "block" {
			c.Mode = csitest.ModeBlock
		}
	}
}

// dataFiles are the vol_data.json of the rig's only volume: beside the staging
// path, beside the target, that of a device.
func (r *rig) dataFiles() []string {
	r.Helper()
	var files []string
	for _, pattern := range []string{"plugins/kubernetes.io/csi/*/*/vol_data.json", "pods/*/volumes/*/*/vol_data.json", "plugins/kubernetes.io/csi/volumeDevices/*/data/vol_data.json"} {
		found, err := filepath.Glob(filepath.Join(r.root, pattern))
		r.must(err)
		files = append(files, found...)
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// onDisk lists what lies in the places of volumes, but the folders that stay.
func (r *rig) onDisk() []string {
	r.Helper()
	var all []string
	for _, dir := range []string{"plugins/kubernetes.io/csi", "pods"} {
		_ = filepath.WalkDir(filepath.Join(r.root, dir), func(path string, _ fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			r.must(err)
			rel, err := filepath.Rel(r.root, path)
			r.must(err)
			if strings.Contains(rel, "handle") || strings.Count(rel, "/") > 3 && !strings.HasSuffix(rel, "volumeDevices/publish") && !strings.HasSuffix(rel, "volumeDevices/staging") {
				all = append(all, rel)
			}
			return nil
		})
	}
	return all
}

// A stage or a publish that was refused leaves nothing on the disk; one that may
// have happened leaves everything for the one who undoes it.
func TestFilesAfterFailures(t *testing.T) {
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		for _, code := range []codes.Code{codes.InvalidArgument, codes.Internal, codes.DeadlineExceeded} {
			for claim, change := range kinds {
				t.Run(method+","+code.String()+","+claim, func(t *testing.T) {
					t.Parallel()
					r := newRig(t, settings{driver: ofKind(t, claim)})
					r.volume(claim, change)
					pod := podOf("one", claim)
					script := r.driver.Script(method, csitest.Fault{Code: code})
					r.add(pod)
					r.fails(pod, code.String())
					files, staged := len(r.dataFiles()), method == "NodePublishVolume"
					kept := code != codes.InvalidArgument
					want := 0
					if kept || staged {
						want = 1
					}
					if kept && staged && claim == "data" {
						want = 2
					}
					if files != want {
						t.Errorf("%d files, want %d: %v", files, want, r.onDisk())
					}
					// But the empty folder of the pod, which the engine has made.
					if left := r.onDisk(); want == 0 && slices.ContainsFunc(left, func(p string) bool { return strings.HasPrefix(p, "plugins") }) {
						t.Errorf("left: %v", left)
					}
					if n := r.count("NodeUnpublishVolume") + r.count("NodeUnstageVolume"); n > 0 {
						t.Errorf("undone while the pod still wants it: %v", r.calls())
					}
					script.Remove()
					r.manager.Retry(pod)
					r.ready(pod)
				})
			}
		}
	}
}

// A publish that is refused after a restart, of a volume that was there before,
// takes nothing from the pod that has it.
func TestRefusedPublishOfWhatIsThere(t *testing.T) {
	for _, journal := range []bool{true, false} {
		for claim, change := range kinds {
			t.Run(fmt.Sprintf("journal=%v,%s", journal, claim), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, settings{driver: ofKind(t, claim)})
				r.volume(claim, change)
				pod := podOf("one", claim)
				r.up(pod)
				before := r.dataFiles()
				r.stop()
				if !journal {
					r.must(os.RemoveAll(r.host.Layout.StateDir()))
				}
				script := r.driver.Script("NodePublishVolume", csitest.Fault{Code: codes.InvalidArgument})
				r.driver.ResetCalls()
				r.checker.COrestarted()
				r.start()
				r.must(script.Wait(r.ctx, 1))
				r.fails(pod, "InvalidArgument")
				if got := r.failure(pod); strings.Contains(got, "still mounted") { // it was tried to clear the place
					t.Error(got)
				}
				if after := r.dataFiles(); !slices.Equal(before, after) {
					t.Errorf("files %v, before %v", after, before)
				}
				if v := r.driver.Volumes(); len(v[0].Published) != 1 || r.count("NodeUnpublishVolume") > 0 {
					t.Errorf("the driver has %+v after %v", v, r.calls())
				}
				if claim == "data" {
					if err := os.WriteFile(r.path(pod, claim, "file"), nil, 0o600); err != nil {
						t.Errorf("the mount of a running pod is gone: %v", err)
					}
				}
				script.Remove()
				r.manager.Retry(pod)
				r.ready(pod)
			})
		}
	}
}

// Where the file about a volume cannot be written the driver is not asked, and
// nothing half-written stays.
func TestFileThatCannotBeWritten(t *testing.T) {
	for claim, change := range kinds {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, settings{driver: ofKind(t, claim)})
			r.volume(claim, change)
			dir := filepath.Join(r.root, "plugins/kubernetes.io/csi", driverName, fmt.Sprintf("%x", sha256.Sum256([]byte("handle-data"))))
			if claim == "block" {
				dir = filepath.Join(r.root, "plugins/kubernetes.io/csi/volumeDevices/block/data")
			}
			obstacle := filepath.Join(dir, "vol_data.json")
			r.must(os.MkdirAll(filepath.Join(obstacle, "full"), 0o750))
			pod := podOf("one", claim)
			r.add(pod)
			r.fails(pod, "vol_data.json")
			r.want()
			if left, err := filepath.Glob(filepath.Join(dir, ".vol_data*")); err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			r.must(os.RemoveAll(obstacle))
			r.manager.Retry(pod)
			r.ready(pod)
		})
	}
}

// A driver without staging has no place for it either.
func TestNoFolderWithoutStaging(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: func(c *csitest.Config) { c.Capabilities = capabilitiesFor(false, false) }})
	r.volume("data")
	pod := podOf("one", "data")
	r.up(pod)
	if got, err := filepath.Glob(filepath.Join(r.root, "plugins/kubernetes.io/csi", driverName, "*")); err != nil || len(got) > 0 {
		t.Errorf("there is %v, %v", got, err)
	}
	if got := request[*csipb.NodePublishVolumeRequest](r, "NodePublishVolume", "").GetStagingTargetPath(); got != "" {
		t.Errorf("published from %q", got)
	}
	r.restart()
	r.ready(pod)
	r.down(pod)
	r.released()
	if n := r.count("NodeUnstageVolume") + r.count("NodeStageVolume"); n > 0 {
		t.Errorf("calls %v", r.calls())
	}
}

// damages are what may have become of a file.
var damages = map[string]func(path string) error{
	"missing": os.Remove,
	"empty":   func(path string) error { return os.WriteFile(path, nil, 0o600) },
	"cut": func(path string) error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		return os.Truncate(path, info.Size()/2)
	},
	"of another volume": func(path string) error {
		return os.WriteFile(path, []byte(`{"driverName":"rig.volumekit.example"}`), 0o600)
	},
	"a link": func(path string) error {
		return errors.Join(os.Remove(path), os.Symlink("/etc/passwd", path))
	},
}

// Any of the three files may be damaged: with the journal nobody notices. A
// volume that a pod has is taken apart without it too, as the other file tells
// what it is.
func TestDamageOfEachFile(t *testing.T) {
	for name, damage := range damages {
		for _, c := range []struct {
			claim, file string
			journal     bool
		}{
			{"data", "plugins/kubernetes.io/csi/" + driverName, true}, {"data", "plugins/kubernetes.io/csi/" + driverName, false},
			{"data", "pods/", true}, {"block", "volumeDevices", true},
		} {
			t.Run(fmt.Sprintf("%s,%s,journal=%v", name, filepath.Base(c.file), c.journal), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, settings{driver: ofKind(t, c.claim)})
				r.volume(c.claim, kinds[c.claim])
				pod := podOf("one", c.claim)
				r.up(pod)
				r.stop()
				if !c.journal {
					r.must(os.RemoveAll(r.host.Layout.StateDir()))
				}
				hit := 0
				for _, file := range r.dataFiles() {
					if strings.Contains(file, c.file) {
						hit++
						r.must(damage(file))
					}
				}
				if hit != 1 {
					t.Fatalf("damaged %d files", hit)
				}
				r.pods.Remove(pod.UID)
				r.driver.ResetCalls()
				r.checker.COrestarted()
				r.start()
				r.until("it is taken apart", func() bool { return slices.Contains(r.calls(), "NodeUnstageVolume handle-"+c.claim) })
				r.released()
				r.want("NodeUnpublishVolume handle-"+c.claim, "NodeUnstageVolume handle-"+c.claim)
			})
		}
	}
}

// What is staged, and nothing tells which volume it is, stays as it is, and is
// told.
func TestStagedAndUnknown(t *testing.T) {
	for _, name := range []string{"missing", "empty", "cut"} {
		for claim, change := range kinds {
			t.Run(name+","+claim, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, settings{driver: ofKind(t, claim)})
				r.volume(claim, change)
				pod := podOf("one", claim)
				r.up(pod)
				refused := r.driver.Script("NodeUnstageVolume", csitest.Fault{Code: codes.Internal})
				r.pods.Remove(pod.UID)
				r.must(refused.Wait(r.ctx, 1))
				r.stop()
				refused.Remove()
				r.must(os.RemoveAll(r.host.Layout.StateDir()))
				file := r.dataFiles()
				if len(file) != 1 {
					t.Fatalf("files %v", file)
				}
				sound, err := os.ReadFile(file[0])
				r.must(err)
				r.must(damages[name](file[0]))
				r.driver.ResetCalls()
				r.checker.COrestarted()
				r.start()
				r.until("the fault is told", func() bool {
					return slices.ContainsFunc(r.manager.Snapshot().Faults, func(f volumemanager.FaultSnapshot) bool {
						return strings.Contains(f.Message, "nothing tells which")
					})
				})
				r.want()
				if v := r.driver.Volumes(); len(v) != 1 || v[0].Staged == nil {
					t.Errorf("the driver has %+v", v)
				}
				r.until("the driver has told what it is", func() bool {
					s := r.drivers.Status()
					return len(s) == 1 && s[0].Node != nil
				})
				r.stop()
				r.must(os.WriteFile(file[0], sound, 0o600))
				r.checker.COrestarted()
				r.start()
				r.until("it is unstaged", func() bool { return slices.Contains(r.calls(), "NodeUnstageVolume handle-"+claim) })
				r.released()
			})
		}
	}
}

// Devices and inline volumes too are found without a journal.
func TestAdoptOtherKindsWithoutAJournal(t *testing.T) {
	for _, kind := range []string{"block", "inline"} {
		for _, wanted := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s,wanted=%v", kind, wanted), func(t *testing.T) {
				t.Parallel()
				s := settings{driver: ofKind(t, kind)}
				if kind == "inline" {
					s.checker = inlineOnly
				}
				r := newRig(t, s)
				r.csiDriver(inlineAllowed)
				pod, handle := inlined("one"), fmt.Sprintf("csi-%x", sha256.Sum256([]byte("uid-onescratch")))
				up, down := []string{"NodePublishVolume " + handle}, []string{"NodeUnpublishVolume " + handle}
				if kind == "block" {
					r.volume("block", block)
					pod = podOf("one", "block")
					up = []string{"NodeStageVolume handle-block", "NodePublishVolume handle-block"}
					down = []string{"NodeUnpublishVolume handle-block", "NodeUnstageVolume handle-block"}
				}
				r.up(pod)
				r.stop()
				r.must(os.RemoveAll(r.host.Layout.StateDir()))
				if !wanted {
					r.pods.Remove(pod.UID)
				}
				r.driver.ResetCalls()
				r.checker.COrestarted()
				r.start()
				if wanted {
					r.ready(pod)
					r.want(up...)
					r.driver.ResetCalls()
					r.down(pod)
				} else {
					r.until("it is undone", func() bool { return len(r.calls()) == len(down) })
				}
				r.released()
				r.want(down...)
			})
		}
	}
}

// What a kubelet of 1.23 has staged, at a path made of the persistent volume's
// name, stays there as long as a pod has it, and is unstaged there.
func TestAdoptTheOldStagingPath(t *testing.T) {
	for _, wanted := range []bool{true, false} {
		for _, inPod := range []bool{true, false} {
			t.Run(fmt.Sprintf("wanted=%v,published=%v", wanted, inPod), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, settings{driver: func(c *csitest.Config) { staged(c); c.Mode = csitest.ModeBind }, checker: func(o *checker.Options) {
					o.MaxCapabilityCalls = 0
				}})
				r.volume("data")
				r.stop()
				old := filepath.Join(r.root, "plugins/kubernetes.io/csi/pv/data/globalmount")
				pod := podOf("one", "data")
				r.kubeletOf123(pod, old, inPod)
				if wanted {
					r.add(pod)
				}
				r.driver.ResetCalls()
				r.checker.COrestarted()
				r.start()
				if wanted {
					r.ready(pod)
					// What no pod had may also have moved to the place of today.
					got := request[*csipb.NodePublishVolumeRequest](r, "NodePublishVolume", "").GetStagingTargetPath()
					if moved := slices.Contains(r.calls(), "NodeUnstageVolume handle-data"); (got == old) == moved || moved && inPod {
						t.Errorf("published from %s after %v", got, r.calls())
					}
					if text, err := os.ReadFile(r.path(pod, "data", "file")); string(text) != "precious" {
						t.Errorf("content %q, %v", text, err)
					}
					r.down(pod)
				}
				r.until("it is unstaged", func() bool { return slices.Contains(r.calls(), "NodeUnstageVolume handle-data") })
				r.released()
				if got := r.firstUnstaged(); got != old {
					t.Errorf("unstaged at %s", got)
				}
				if _, err := os.Lstat(filepath.Dir(old)); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s is left: %v", filepath.Dir(old), err)
				}
			})
		}
	}
}

// firstUnstaged is the path of the first unstage.
func (r *rig) firstUnstaged() string {
	for _, c := range r.driver.Calls() {
		if unstage, ok := c.Request.(*csipb.NodeUnstageVolumeRequest); ok {
			return unstage.GetStagingTargetPath()
		}
	}
	return ""
}

// kubeletOf123 stages and publishes a volume as kubelets of that time did.
func (r *rig) kubeletOf123(pod *v1.Pod, staging string, inPod bool) {
	r.Helper()
	conn, err := grpc.NewClient("unix:"+r.driver.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	r.must(err)
	defer func() { _ = conn.Close() }()
	node := csipb.NewNodeClient(conn)
	_, err = node.NodeGetCapabilities(r.ctx, &csipb.NodeGetCapabilitiesRequest{})
	r.must(err)
	capability := &csipb.VolumeCapability{
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{FsType: "ext4"}},
	}
	file := func(dir string, data map[string]string) {
		r.must(os.MkdirAll(dir, 0o750))
		text, err := json.Marshal(data)
		r.must(err)
		r.must(os.WriteFile(filepath.Join(dir, "vol_data.json"), append(text, '\n'), 0o644))
	}
	r.must(os.MkdirAll(staging, 0o750))
	file(filepath.Dir(staging), map[string]string{"driverName": driverName, "volumeHandle": "handle-data"})
	_, err = node.NodeStageVolume(r.ctx, &csipb.NodeStageVolumeRequest{VolumeId: "handle-data", StagingTargetPath: staging, VolumeCapability: capability})
	r.must(err)
	r.must(os.WriteFile(filepath.Join(staging, "file"), []byte("precious"), 0o600))
	if !inPod {
		return
	}
	target := r.path(pod, "data")
	file(filepath.Dir(target), map[string]string{
		"driverName": driverName, "volumeHandle": "handle-data", "specVolID": "data", "nodeName": "node",
		"attachmentID": csi.AttachmentName(driverName, "handle-data", "node"), "volumeLifecycleMode": string(storagev1.VolumeLifecyclePersistent),
	})
	_, err = node.NodePublishVolume(r.ctx, &csipb.NodePublishVolumeRequest{
		VolumeId: "handle-data", StagingTargetPath: staging, TargetPath: target, VolumeCapability: capability,
	})
	r.must(err)
}
