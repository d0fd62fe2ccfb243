package csinode_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/volumekit/volumekit/csi"
	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/internal/nstest"
)

// says waits until the status of a pod's one volume has an error with a text.
func (r *rig) says(pod *v1.Pod, text string) {
	r.Helper()
	r.until("the pod is told: "+text, func() bool {
		s, _ := r.manager.Status(pod)
		return len(s.Volumes) == 1 && s.Volumes[0].Err != nil && strings.Contains(s.Volumes[0].Err.Error(), text)
	})
}

// told waits until something is said in the snapshot.
func (r *rig) told(text string) {
	r.Helper()
	r.until("the snapshot says: "+text, func() bool {
		all, err := json.Marshal(r.manager.Snapshot())
		r.must(err)
		return strings.Contains(string(all), text)
	})
}

// What somebody mounted where a folder of ours is keeps its files, and says so.
func TestMountedTooHigh(t *testing.T) {
	for _, place := range []string{"volume", "staging"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, settings{driver: staged})
			r.volume("data")
			pod := podOf("one", "data")
			r.up(pod)
			dir := filepath.Dir(r.path(pod, "data"))
			if place == "staging" {
				v, _ := r.driver.Volume("handle-data")
				dir = filepath.Dir(v.Staged.Path)
			}
			r.must(unix.Mount("foreign", dir, "tmpfs", 0, ""))
			r.must(os.WriteFile(filepath.Join(dir, "vol_data.json"), []byte("precious"), 0o600))
			r.must(os.Mkdir(filepath.Join(dir, "mount"), 0o700))
			r.pods.Remove(pod.UID)
			r.told("mount")
			if place == "volume" {
				r.says(pod, "mounted at "+dir)
			}
			if text, err := os.ReadFile(filepath.Join(dir, "vol_data.json")); string(text) != "precious" {
				t.Errorf("it was taken for ours: %q, %v", text, err)
			}
			if _, err := os.Stat(filepath.Join(dir, "mount")); err != nil {
				t.Error(err)
			}
			r.must(unix.Unmount(dir, 0))
			r.down(pod)
			r.released()
		})
	}
}

// A driver that does not announce staging any more keeps what is staged: it is
// not detached before that is undone.
func TestStagingIsNotAnnouncedAnyMore(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: func(c *csitest.Config) {
		c.Capabilities, c.Mode, c.Lenient = capabilitiesFor(true, true), csitest.ModePlain, true
	}, unwatched: true})
	r.volume("data")
	pod := podOf("one", "data")
	r.up(pod)
	r.driver.SetCapabilities(capabilitiesFor(true, false))
	r.must(r.driver.Restart(r.ctx))
	r.until("the driver is known as it is now", func() bool {
		s := r.drivers.Status()
		return len(s) == 1 && len(s[0].NodeCapabilities) == 1
	})
	r.down(pod)
	r.told("STAGE_UNSTAGE_VOLUME any more")
	if slices.Contains(r.calls(), "ControllerUnpublishVolume handle-data") {
		t.Error("it was detached while it is staged")
	}
	r.driver.SetCapabilities(capabilitiesFor(true, true))
	r.must(r.driver.Restart(r.ctx))
	r.released()
}

// An answer that is too large to be read does not mean that nothing happened.
func TestAnswerTooLarge(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: func(c *csitest.Config) { c.Capabilities = capabilitiesFor(true, true) }, unwatched: true})
	r.volume("data")
	pod := podOf("one", "data")
	huge := r.driver.Script("ControllerPublishVolume", csitest.Fault{Alter: func(m proto.Message) {
		m.(*csipb.ControllerPublishVolumeResponse).PublishContext["x"] = strings.Repeat("x", 5<<20)
	}})
	r.add(pod)
	r.says(pod, "larger than")
	r.pods.Remove(pod.UID)
	huge.Remove()
	r.released()
	if v, _ := r.driver.Volume("handle-data"); len(v.Attached) > 0 {
		t.Errorf("it is still attached: %+v", v)
	}
}

// A manager that attaches in another way does not forget what one before it has
// attached.
func TestAttachedInAnotherWay(t *testing.T) {
	t.Parallel()
	direct := true
	r := newRig(t, settings{driver: func(c *csitest.Config) { c.Capabilities = capabilitiesFor(true, true) }, unwatched: true,
		attach: func(r *rig) csi.Attacher {
			if direct {
				return csi.DirectAttach(r.drivers, r.host, csi.DirectOptions{})
			}
			return csi.NoAttach()
		}})
	r.volume("data")
	pod := podOf("one", "data")
	r.up(pod)
	r.stop()
	direct = false
	r.start()
	r.down(pod)
	r.told("only one that attaches them as before")
	r.stop()
	direct = true
	r.start()
	r.until("it is detached", func() bool {
		v, _ := r.driver.Volume("handle-data")
		return len(v.Attached) == 0
	})
	r.released()
}

// A driver that tells secrets, in whatever shape and answer, is not passed on.
func TestSecretsInAnswers(t *testing.T) {
	const canary = "CANARY<\"12345678"
	shapes := map[string]string{
		"plain": canary, "hex": hex.EncodeToString([]byte(canary)), "base64": base64.StdEncoding.EncodeToString([]byte("user:" + canary)),
		"bytes": fmt.Sprintf("%d", []byte(canary)), "quoted": fmt.Sprintf("%q", canary),
	}
	text, _ := json.Marshal(canary)
	shapes["json"] = string(text)
	for name, shape := range shapes {
		for _, method := range []string{"NodeStageVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
			t.Run(name+"/"+method, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, settings{driver: staged, unwatched: true})
				r.apply(secret("s", map[string]string{"key": canary}))
				r.volume("data", func(pv *v1.PersistentVolume) { pv.Spec.CSI.NodeStageSecretRef = ref("s") })
				pod := podOf("one", "data")
				bad := r.driver.Script(method, csitest.Fault{Code: codes.Internal, Message: "mount failed: " + shape + " was refused"})
				r.add(pod)
				if method != "NodeStageVolume" {
					r.ready(pod)
					r.pods.Remove(pod.UID)
				}
				r.told("mount failed")
				all, err := json.Marshal(r.manager.Snapshot())
				r.must(err)
				said := string(all)
				for _, e := range r.events.List() {
					said += e.Message
				}
				if !strings.Contains(said, "mount failed: ") {
					t.Error("nothing of the answer was passed on")
				}
				for _, s := range []string{"12345678", hex.EncodeToString([]byte("12345678")), "49 50 51 52 53 54 55 56", base64.RawStdEncoding.EncodeToString([]byte("345678"))} {
					if strings.Contains(said, s) {
						t.Errorf("the secret was passed on as %q", s)
					}
				}
				bad.Remove()
			})
		}
	}
}

// What a volume was staged with goes with every repetition, whatever objects say
// today.
func TestStagingArgumentsAreKept(t *testing.T) {
	for name, change := range map[string]func(r *rig) (other *v1.Pod){
		"other mount options": func(r *rig) *v1.Pod {
			r.volume("data", func(pv *v1.PersistentVolume) { pv.Spec.MountOptions = []string{"noatime"} })
			return nil
		},
		"another persistent volume": func(r *rig) *v1.Pod {
			r.volume("other", func(pv *v1.PersistentVolume) {
				pv.Spec.CSI.VolumeHandle, pv.Spec.MountOptions = "handle-data", []string{"nodiratime"}
			})
			return podOf("two", "other")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, settings{driver: staged})
			r.volume("data")
			pods := []*v1.Pod{podOf("one", "data")}
			r.up(pods...)
			if other := change(r); other != nil {
				r.up(other)
				r.down(pods...)
				pods = []*v1.Pod{other}
			}
			r.restart()
			r.ready(pods...)
		})
	}
}

// The files of a volume that the driver mounted read-only stay as they are.
func TestGroupOfAReadOnlyMount(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: staged})
	r.csiDriver(func(s *storagev1.CSIDriverSpec) { s.FSGroupPolicy = ptr(storagev1.FileFSGroupPolicy) })
	r.volume("data", modes(v1.ReadOnlyMany))
	pod := podOf("one", "data")
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr(int64(os.Getegid()))}
	r.up(pod)
}

// A driver that denies a call and does not answer what it can do now does not
// hold up its other volumes; nor does a hung question about a volume its end.
func TestQuestionsThatHang(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: func(c *csitest.Config) {
		staged(c)
		c.Capabilities.Node = append(c.Capabilities.Node, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	}, unwatched: true})
	r.volume("data")
	r.volume("bad")
	pod := podOf("one", "data")
	r.up(pod)
	can := r.driver.Script("NodeGetCapabilities", csitest.Fault{Block: true})
	r.driver.Script("NodePublishVolume", csitest.Fault{VolumeID: "handle-bad", Times: 1, Code: codes.Unimplemented})
	r.add(podOf("two", "bad"))
	r.must(can.Wait(r.ctx, 1))
	r.up(podOf("three", "data"))
	can.Remove()

	stats := r.driver.Script("NodeGetVolumeStats", csitest.Fault{Block: true})
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, _ = r.manager.Stats(r.ctx, pod.UID)
	}()
	r.must(stats.Wait(r.ctx, 1))
	r.down(pod)
	<-asked
}

// Links that lie where drivers are sent are not followed.
func TestPlantedLinks(t *testing.T) {
	for name, c := range map[string]struct {
		link  string
		block bool
	}{
		"staging":       {link: driverName},
		"block publish": {link: "volumeDevices/publish/block", block: true},
		"block map":     {link: "volumeDevices/block/dev/uid-one", block: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.block && !nstest.RealRoot() {
				t.Skip("loop devices need the root user")
			}
			r := newRig(t, settings{driver: func(d *csitest.Config) {
				staged(d)
				if c.block {
					d.Mode = csitest.ModeBlock
				}
			}, unwatched: true})
			outside := filepath.Join(r.dir, "outside")
			r.must(os.Mkdir(outside, 0o700))
			link := filepath.Join(r.root, "plugins/kubernetes.io/csi", c.link)
			r.must(os.MkdirAll(filepath.Dir(link), 0o750))
			r.must(os.Symlink(outside, link))
			claim := "data"
			if c.block {
				claim = "block"
				r.volume(claim, block)
			} else {
				r.volume(claim)
			}
			pod := podOf("one", claim)
			r.add(pod)
			r.says(pod, link)
			if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
				t.Errorf("outside: %v, %v", left, err)
			}
			r.must(os.Remove(link))
			r.ready(pod)
		})
	}
}

// Names that would collide with folders of all volumes, and secrets that cannot
// be sent, are refused for good.
func TestRefusedForGood(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(r *rig) *v1.Pod
		text    string
	}{
		"block volume called staging": {func(r *rig) *v1.Pod {
			pv, claim := persistent("block", block)
			pv.Name, claim.Spec.VolumeName = "staging", "staging"
			r.apply(pv, claim)
			return podOf("one", "block")
		}, `called "staging"`},
		"driver called volumeDevices": {func(r *rig) *v1.Pod {
			r.volume("data", func(pv *v1.PersistentVolume) { pv.Spec.CSI.Driver = "volumeDevices" })
			return podOf("one", "data")
		}, `"volumeDevices" cannot be the name`},
		"binary secret": {func(r *rig) *v1.Pod {
			r.apply(secret("s", map[string]string{"key": "\xff\xfe"}))
			r.volume("data", func(pv *v1.PersistentVolume) { pv.Spec.CSI.NodeStageSecretRef = ref("s") })
			return podOf("one", "data")
		}, `"key" is no UTF-8 text`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, settings{driver: staged})
			pod := c.prepare(r)
			r.add(pod)
			r.says(pod, c.text)
			if s, _ := r.manager.Status(pod); s.Volumes[0].Failure != "permanent" {
				t.Errorf("it is %s", s.Volumes[0].Failure)
			}
		})
	}
}
