package csinode_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/csi"
	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/internal/nstest"
)

// staged is a driver with staging alone, so that the sequences are short.
func staged(c *csitest.Config) { c.Capabilities = capabilitiesFor(false, true) }

// shortly gives drivers a second for each call.
func shortly(c *csi.DriversConfig) {
	c.Timeout = func(string, string) time.Duration { return time.Second }
}

// A stage whose answer came too late is undone when its pod goes
// (kubernetes/kubernetes#82190).
func TestTimedOutStageIsUndone(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: staged, drivers: shortly})
	r.volume("data")
	pod := podOf("one", "data")
	late := r.driver.Script("NodeStageVolume", csitest.Fault{Block: true, AfterWork: true})
	r.add(pod)
	r.until("the stage timed out", func() bool {
		return slices.ContainsFunc(r.driver.Calls(), func(c csitest.Call) bool { return c.Done && c.Method == "NodeStageVolume" && c.Code != 0 })
	})
	late.Remove()
	r.down(pod)
	r.released()
	if n := r.driver.CallCounts()["NodeUnstageVolume"]; n == 0 {
		t.Errorf("nothing was unstaged: %v", r.calls())
	}
	if v := r.driver.Volumes(); len(v) > 0 && v[0].Staged != nil {
		t.Errorf("the driver still has %+v", v)
	}
}

// A volume whose unstaging has an unknown result is staged and published anew
// when its pod comes back (kubernetes/kubernetes#86360).
func TestPodComesBackDuringUnstage(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: func(c *csitest.Config) { staged(c); c.Mode = csitest.ModeBind }, drivers: shortly})
	r.volume("data")
	pod := podOf("one", "data")
	r.up(pod)
	r.must(os.WriteFile(r.path(pod, "data", "file"), []byte("precious"), 0o600))
	late := r.driver.Script("NodeUnstageVolume", csitest.Fault{Block: true, AfterWork: true})
	r.pods.Remove(pod.UID)
	r.must(late.Wait(r.ctx, 1))
	r.driver.ResetCalls()
	r.add(podOf("one", "data"))
	late.Remove()
	r.ready(pod)
	var made []string
	for _, c := range r.driver.Calls() {
		if c.Method == "NodeStageVolume" || c.Method == "NodePublishVolume" {
			made = append(made, c.Method)
		}
	}
	if !slices.Equal(made, []string{"NodeStageVolume", "NodePublishVolume"}) {
		t.Errorf("calls %v", r.calls())
	}
	if text, err := os.ReadFile(r.path(pod, "data", "file")); string(text) != "precious" {
		t.Errorf("content %q, %v", text, err)
	}
}

// One claim twice in a pod, and another persistent volume with the same handle:
// staged once, published once for each target, unstaged at the very end, in
// whatever order the pods go (kubernetes/kubernetes#127004, #105899).
func TestSharedVolume(t *testing.T) {
	for _, mode := range []v1.PersistentVolumeMode{v1.PersistentVolumeFilesystem, v1.PersistentVolumeBlock} {
		for _, first := range []int{0, 1} {
			t.Run(string(mode), func(t *testing.T) {
				t.Parallel()
				sharedVolume(t, mode, first)
			})
		}
	}
}

func sharedVolume(t *testing.T, mode v1.PersistentVolumeMode, first int) {
	a, b := "data", "other"
	if mode == v1.PersistentVolumeBlock {
		if a, b = "block", "blockother"; !nstest.RealRoot() {
			t.Skip("loop devices need the root user")
		}
	}
	same := func(pv *v1.PersistentVolume) {
		pv.Spec.CSI.VolumeHandle = "handle"
		if mode == v1.PersistentVolumeBlock {
			block(pv)
		}
	}
	r := newRig(t, settings{driver: func(c *csitest.Config) {
		staged(c)
		if mode == v1.PersistentVolumeBlock {
			c.Mode = csitest.ModeBlock
		}
	}})
	r.volume(a, same)
	r.volume(b, same)
	one, two := podOf("one", a), podOf("two", b)
	again := one.Spec.Volumes[0]
	again.Name = "again"
	one.Spec.Volumes = append(one.Spec.Volumes, again)
	if mode == v1.PersistentVolumeBlock {
		one.Spec.Containers[0].VolumeDevices = append(one.Spec.Containers[0].VolumeDevices, v1.VolumeDevice{Name: "again", DevicePath: "/dev/again"})
	} else {
		one.Spec.Containers[0].VolumeMounts = append(one.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: "again", MountPath: "/again"})
	}
	r.up(one)
	r.up(two)
	r.want("NodeStageVolume handle", "NodePublishVolume handle", "NodePublishVolume handle")
	r.driver.ResetCalls()
	order := []*v1.Pod{one, two}
	r.down(order[first])
	r.want("NodeUnpublishVolume handle")
	r.down(order[1-first])
	r.released()
	r.want("NodeUnpublishVolume handle", "NodeUnpublishVolume handle", "NodeUnstageVolume handle")
}

// A driver that denies that a volume is staged gets it staged again, once.
func TestPublishOfWhatTheDriverForgotToStage(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: staged})
	r.volume("data")
	one, two := podOf("one", "data"), podOf("two", "data")
	r.up(one)
	r.driver.ResetCalls()
	deny := r.driver.Script("NodePublishVolume", csitest.Fault{Times: 1, Code: codes.FailedPrecondition, Message: "it is not staged"})
	r.up(two)
	r.want("NodePublishVolume handle-data FailedPrecondition", "NodeStageVolume handle-data", "NodePublishVolume handle-data")
	deny.Remove()
	r.driver.ResetCalls()
	r.driver.Script("NodePublishVolume", csitest.Fault{Code: codes.FailedPrecondition, Message: "single writer"})
	three := podOf("three", "data")
	r.add(three)
	r.until("the third pod's publish failed", func() bool { return len(r.calls()) > 0 })
	r.until("its failure is told", func() bool {
		s, _ := r.manager.Status(three)
		return len(s.Volumes) == 1 && s.Volumes[0].Err != nil
	})
	r.want("NodePublishVolume handle-data FailedPrecondition")
}

// What the driver staged with other arguments, and nobody has, is taken back and
// staged anew.
func TestStageWithOtherArguments(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: staged})
	r.volume("data")
	r.driver.Script("NodeStageVolume", csitest.Fault{Times: 1, Code: codes.AlreadyExists})
	r.up(podOf("one", "data"))
	r.want("NodeStageVolume handle-data AlreadyExists", "NodeUnstageVolume handle-data", "NodeStageVolume handle-data", "NodePublishVolume handle-data")
}

// For each code with which a driver can answer a call that makes something: the
// volume becomes ready as soon as the driver lets it, and comes apart again.
func TestEveryCodeOnTheWayUp(t *testing.T) {
	for _, method := range []string{"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"} {
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			for _, worked := range []bool{false, true} {
				t.Run(method+"/"+code.String(), func(t *testing.T) {
					t.Parallel()
					r := newRig(t, settings{driver: func(c *csitest.Config) { c.Capabilities = capabilitiesFor(true, true) }})
					r.volume("data")
					pod := podOf("one", "data")
					r.driver.Script(method, csitest.Fault{Times: 1, Code: code, AfterWork: worked})
					r.add(pod)
					if code == codes.Unimplemented {
						// Nothing but a change brings the next try.
						r.until("the failure is told", func() bool {
							s, _ := r.manager.Status(pod)
							return len(s.Volumes) == 1 && (s.Volumes[0].Err != nil || s.Volumes[0].Ready)
						})
						r.manager.Retry(pod)
					}
					r.ready(pod)
					r.down(pod)
					r.released()
				})
			}
		}
	}
}

// The same for the calls that undo something.
func TestEveryCodeOnTheWayDown(t *testing.T) {
	for _, method := range []string{"NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"} {
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			for _, worked := range []bool{false, true} {
				if worked && code == codes.Unimplemented || !worked && code == codes.NotFound {
					continue // a lie that nobody could see through
				}
				t.Run(method+"/"+code.String(), func(t *testing.T) {
					t.Parallel()
					r := newRig(t, settings{driver: func(c *csitest.Config) { c.Capabilities = capabilitiesFor(true, true) }})
					r.volume("data")
					pod := podOf("one", "data")
					r.up(pod)
					r.driver.Script(method, csitest.Fault{Times: 1, Code: code, AfterWork: worked})
					r.down(pod)
					r.released()
				})
			}
		}
	}
}

// A volume that fails, and whose pod goes before it works, leaves nothing.
func TestEveryCodeWithoutEnd(t *testing.T) {
	for _, method := range []string{"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"} {
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			t.Run(method+"/"+code.String(), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, settings{driver: func(c *csitest.Config) { c.Capabilities = capabilitiesFor(true, true) }})
				r.volume("data")
				pod := podOf("one", "data")
				script := r.driver.Script(method, csitest.Fault{Code: code, AfterWork: !refuses(code)})
				r.add(pod)
				r.must(script.Wait(r.ctx, 1))
				r.down(pod)
				r.released()
			})
		}
	}
}

// refuses reports whether a code says that a request was refused.
func refuses(code codes.Code) bool {
	switch code {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.ResourceExhausted, codes.FailedPrecondition,
		codes.OutOfRange, codes.Unimplemented, codes.Unauthenticated:
		return true
	}
	return false
}

// A full node is an error of its own.
func TestNodeIsFull(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: func(c *csitest.Config) {
		c.Capabilities, c.Node.MaxVolumes = capabilitiesFor(true, true), 1
	}})
	r.volume("data")
	r.volume("more")
	r.up(podOf("one", "data"))
	pod := podOf("two", "more")
	r.add(pod)
	r.until("the pod is told that the node is full", func() bool {
		s, _ := r.manager.Status(pod)
		return len(s.Volumes) == 1 && errors.Is(s.Volumes[0].Err, csi.ErrNodeFull)
	})
	if n := r.driver.CallCounts()["NodeGetInfo"]; n < 2 {
		t.Errorf("the node's limit was asked for %d times", n)
	}
	r.down(podOf("one", "data"))
	r.manager.Retry(pod)
	r.ready(pod)
}

// The file beside a staging path is there before the driver is asked and goes
// after it has undone its work.
func TestFilesBesideTheVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: staged})
	r.volume("data")
	pod := podOf("one", "data")
	stage := r.driver.Script("NodeStageVolume", csitest.Fault{Times: 1, Block: true})
	publish := r.driver.Script("NodePublishVolume", csitest.Fault{Times: 1, Block: true})
	r.add(pod)
	r.must(stage.Wait(r.ctx, 1))
	staging := request[*csipb.NodeStageVolumeRequest](r, "NodeStageVolume", "").GetStagingTargetPath()
	stagedFile := filepath.Join(filepath.Dir(staging), "vol_data.json")
	if text, err := os.ReadFile(stagedFile); string(text) != `{"driverName":"rig.volumekit.example","fsType":"ext4","mountFlags":"[]","volumeHandle":"handle-data"}`+"\n" {
		t.Errorf("%s: %q, %v", stagedFile, text, err)
	}
	stage.Release()
	r.must(publish.Wait(r.ctx, 1))
	file := filepath.Join(filepath.Dir(r.path(pod, "data")), "vol_data.json")
	want := `{"attachmentID":"` + csi.AttachmentName(driverName, "handle-data", "node") + `","driverName":"rig.volumekit.example","fsType":"ext4",` +
		`"nodeName":"node","specVolID":"data","volumeHandle":"handle-data","volumeLifecycleMode":"Persistent"}` + "\n"
	if text, err := os.ReadFile(file); string(text) != want {
		t.Errorf("%s: %q, %v", file, text, err)
	}
	publish.Release()
	r.ready(pod)
}
