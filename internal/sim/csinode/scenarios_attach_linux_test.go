package csinode_test

import (
	"fmt"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/csi"
	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/csi/csitest/checker"
	"github.com/volumekit/volumekit/internal/nstest"
)

// elsewhere tells the checker that the attach step does not pass by it.
func elsewhere(o *checker.Options) { o.AttachUnseen = true }

// failure is the text of what keeps the pod's only volume, empty if there is
// none.
func (r *rig) failure(pod *v1.Pod) string {
	s, _ := r.manager.Status(pod)
	if len(s.Volumes) != 1 || s.Volumes[0].Err == nil {
		return ""
	}
	return s.Volumes[0].Failure + ": " + s.Volumes[0].Err.Error()
}

// fails waits until the pod's only volume fails with a text.
func (r *rig) fails(pod *v1.Pod, text string) {
	r.Helper()
	r.until("the pod is told of "+text, func() bool { return strings.Contains(r.failure(pod), text) })
}

// attachment is the volume's VolumeAttachment, nil if there is none.
func (r *rig) attachment(pv string) *storagev1.VolumeAttachment {
	r.Helper()
	o, err := r.store.Attachment(r.ctx, csi.AttachmentName(driverName, "handle-"+pv, "node"))
	if apierrors.IsNotFound(err) {
		return nil
	}
	r.must(err)
	return o
}

// What the CSIDriver object says of attaching decides whether there has to be a
// VolumeAttachment: without an object there has to be one.
func TestAttachRequired(t *testing.T) {
	for object, says := range map[string]*bool{"none": nil, "unset": nil, "true": ptr(true), "false": ptr(false)} {
		for _, policy := range []string{"wait", "own"} {
			for _, claim := range []string{"data", "block"} {
				t.Run(fmt.Sprintf("%s,%s,%s", object, policy, claim), func(t *testing.T) {
					t.Parallel()
					if claim == "block" && !nstest.RealRoot() {
						t.Skip("loop devices need the root user")
					}
					r := newRig(t, settings{checker: elsewhere, driver: func(c *csitest.Config) {
						// The attacher's part of the driver does not pass by here.
						c.Capabilities, c.Lenient = capabilitiesFor(false, true), true
						if claim == "block" {
							c.Mode = csitest.ModeBlock
						}
					}, attach: func(r *rig) csi.Attacher {
						if policy == "own" {
							return csi.OwnAttach(r.host, r.store)
						}
						return csi.WaitAttach(r.host, csi.WaitOptions{})
					}})
					if object != "none" {
						r.csiDriver(func(s *storagev1.CSIDriverSpec) { s.AttachRequired = says })
					}
					r.attachRequired(claim, object != "false", policy == "own")
				})
			}
		}
	}
}

func (r *rig) attachRequired(claim string, required, own bool) {
	r.Helper()
	change := func(*v1.PersistentVolume) {}
	if claim == "block" {
		change = block
	}
	r.volume(claim, change)
	pod := podOf("one", claim)
	r.add(pod)
	metadata := map[string]string{}
	if required {
		text := "not found"
		if own {
			text = "is not attached yet"
		}
		r.fails(pod, text)
		r.want() // nothing is staged before it is attached
		if own != (r.attachment(claim) != nil) {
			r.Errorf("policy own %v, object %+v", own, r.attachment(claim))
		}
		metadata["lun"] = "7" // and no path of a device
		r.controlPlaneAttaches(claim, metadata)
	}
	r.ready(pod)
	if !required && r.attachment(claim) != nil {
		r.Errorf("a VolumeAttachment: %+v", r.attachment(claim))
	}
	stage := request[*csipb.NodeStageVolumeRequest](r, "NodeStageVolume", "")
	publish := request[*csipb.NodePublishVolumeRequest](r, "NodePublishVolume", "")
	if got := stage.GetPublishContext(); len(got) != len(metadata) || got["lun"] != metadata["lun"] {
		r.Errorf("staged with publish context %v", got)
	}
	if got := publish.GetPublishContext(); len(got) != len(metadata) || got["lun"] != metadata["lun"] {
		r.Errorf("published with publish context %v", got)
	}
	// The second pod, and the next process, still have the context.
	r.restart()
	r.driver.ResetCalls()
	two := podOf("two", claim)
	r.up(pod, two)
	publish = request[*csipb.NodePublishVolumeRequest](r, "NodePublishVolume", "")
	if got := publish.GetPublishContext(); len(got) != len(metadata) {
		r.Errorf("published for the second pod with publish context %v", got)
	}
	r.down(two)
	r.down(pod)
	if required && !own {
		r.must(r.store.DeleteAttachment(r.ctx, r.attachment(claim).Name))
	}
	r.released()
	if r.attachment(claim) != nil {
		r.Errorf("left: %+v", r.attachment(claim))
	}
}

// controlPlaneAttaches does what the attach/detach controller and the
// external-attacher do.
func (r *rig) controlPlaneAttaches(pv string, metadata map[string]string) {
	r.Helper()
	name := csi.AttachmentName(driverName, "handle-"+pv, "node")
	if r.attachment(pv) == nil {
		r.apply(&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driverName, NodeName: "node", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		}})
	}
	r.must(r.store.SetAttachmentStatus(name, func(s *storagev1.VolumeAttachmentStatus) {
		s.Attached, s.AttachmentMetadata, s.AttachError = true, metadata, nil
	}))
}

// An error in the VolumeAttachment is told at once, and ends with it.
func TestAttachErrorIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{checker: elsewhere, driver: staged, attach: func(r *rig) csi.Attacher { return csi.WaitAttach(r.host, csi.WaitOptions{}) }})
	r.volume("data")
	pod := podOf("one", "data")
	r.add(pod)
	r.controlPlaneAttaches("data", nil)
	r.ready(pod)
	r.down(pod)
	r.released()
	r.must(r.store.SetAttachmentStatus(r.attachment("data").Name, func(s *storagev1.VolumeAttachmentStatus) {
		s.Attached, s.AttachError = false, &storagev1.VolumeError{Message: "the cable is cut"}
	}))
	r.driver.ResetCalls()
	r.add(pod)
	r.fails(pod, "the cable is cut")
	r.want()
	r.controlPlaneAttaches("data", nil)
	r.ready(pod)
	r.down(pod)
	r.released()
	r.must(r.store.DeleteAttachment(r.ctx, r.attachment("data").Name))
}
