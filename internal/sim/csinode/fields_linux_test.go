package csinode_test

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/csi"
	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/csi/csitest/checker"
	"github.com/volumekit/volumekit/internal/nstest"
)

// csiDriver stores the CSIDriver object of the rig's driver.
func (r *rig) csiDriver(change func(*storagev1.CSIDriverSpec)) {
	r.Helper()
	object := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}}
	object.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}
	change(&object.Spec)
	r.apply(object)
}

func secret(name string, data map[string]string) *v1.Secret {
	s := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string][]byte{}}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	return s
}

func ref(name string) *v1.SecretReference {
	return &v1.SecretReference{Namespace: "default", Name: name}
}

// What a persistent volume says goes where the spec and the kubelet put it.
func TestFieldsOfStageAndPublish(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{})
	r.csiDriver(func(s *storagev1.CSIDriverSpec) {
		s.PodInfoOnMount = ptr(true)
		s.TokenRequests = []storagev1.TokenRequest{{Audience: ""}, {Audience: "vault", ExpirationSeconds: ptr(int64(900))}}
	})
	for _, name := range []string{"publish", "stage", "attach"} {
		r.apply(secret(name, map[string]string{"key": "canary-" + name}))
	}
	r.volume("data", func(pv *v1.PersistentVolume) {
		pv.Spec.MountOptions = []string{"noatime", "rw"}
		s := pv.Spec.CSI
		s.VolumeAttributes = map[string]string{"share": "a"}
		s.NodePublishSecretRef, s.NodeStageSecretRef, s.ControllerPublishSecretRef = ref("publish"), ref("stage"), ref("attach")
	})
	group := int64(1234)
	if !nstest.RealRoot() { // the only one that there is in a namespace of one's own
		group = int64(os.Getegid())
	}
	pod := podOf("one", "data")
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	r.up(pod)

	text := strconv.FormatInt(group, 10)
	attach := request[*csipb.ControllerPublishVolumeRequest](r, "ControllerPublishVolume", "")
	if attach.GetNodeId() != "node-1" || attach.GetSecrets()["key"] != "canary-attach" || attach.GetReadonly() || attach.GetVolumeContext()["share"] != "a" {
		t.Errorf("ControllerPublishVolume %+v", attach)
	}
	stage := request[*csipb.NodeStageVolumeRequest](r, "NodeStageVolume", "")
	mount := stage.GetVolumeCapability().GetMount()
	if mount.GetFsType() != "ext4" || !slices.Equal(mount.GetMountFlags(), []string{"noatime", "rw"}) || mount.GetVolumeMountGroup() != text ||
		stage.GetSecrets()["key"] != "canary-stage" || !maps.Equal(stage.GetVolumeContext(), map[string]string{"share": "a"}) || len(stage.GetPublishContext()) == 0 {
		t.Errorf("NodeStageVolume %+v", stage)
	}
	publish := request[*csipb.NodePublishVolumeRequest](r, "NodePublishVolume", "")
	if publish.GetTargetPath() != r.path(pod, "data") || publish.GetStagingTargetPath() != stage.GetStagingTargetPath() ||
		publish.GetVolumeCapability().GetMount().GetVolumeMountGroup() != text || publish.GetReadonly() ||
		!maps.Equal(publish.GetPublishContext(), stage.GetPublishContext()) || publish.GetSecrets()["key"] != "canary-publish" ||
		publish.GetVolumeCapability().GetAccessMode().GetMode() != csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER {
		t.Errorf("NodePublishVolume %+v", publish)
	}
	context := maps.Clone(publish.GetVolumeContext())
	var tokens map[string]struct{ Token, ExpirationTimestamp string }
	r.must(json.Unmarshal([]byte(context["csi.storage.k8s.io/serviceAccount.tokens"]), &tokens))
	if len(tokens) != 2 || tokens[""].Token == "" || tokens["vault"].Token == "" {
		t.Errorf("tokens for %d audiences", len(tokens))
	}
	if expires, err := time.Parse(time.RFC3339, tokens["vault"].ExpirationTimestamp); err != nil || time.Until(expires) > 16*time.Minute {
		t.Errorf("the token for vault expires at %q", tokens["vault"].ExpirationTimestamp)
	}
	delete(context, "csi.storage.k8s.io/serviceAccount.tokens")
	want := map[string]string{
		"share": "a", "csi.storage.k8s.io/pod.name": "one", "csi.storage.k8s.io/pod.namespace": "default",
		"csi.storage.k8s.io/pod.uid": "uid-one", "csi.storage.k8s.io/serviceAccount.name": "sa", "csi.storage.k8s.io/ephemeral": "false",
	}
	if !maps.Equal(context, want) {
		t.Errorf("volume context %v, want %v", context, want)
	}
}

// Tokens go among the secrets where the driver says so.
func TestTokensAmongTheSecrets(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: staged})
	r.csiDriver(func(s *storagev1.CSIDriverSpec) {
		s.ServiceAccountTokenInSecrets, s.TokenRequests = ptr(true), []storagev1.TokenRequest{{Audience: "vault"}}
	})
	r.volume("data")
	r.up(podOf("one", "data"))
	publish := request[*csipb.NodePublishVolumeRequest](r, "NodePublishVolume", "")
	const key = "csi.storage.k8s.io/serviceAccount.tokens"
	if publish.GetSecrets()[key] == "" || publish.GetVolumeContext()[key] != "" {
		t.Error("the tokens are not among the secrets alone")
	}
}

// Read-only is what the pod's claim or the persistent volume says; of the flags
// that say so the last is ro.
func TestReadOnly(t *testing.T) {
	for name, c := range map[string]struct {
		claim, pv bool
		flags     []string
		want      bool
		wantFlags []string
	}{
		"neither":         {wantFlags: nil},
		"claim":           {claim: true, want: true},
		"pv":              {pv: true, want: true},
		"flags":           {pv: true, flags: []string{"ro", "noatime", "rw"}, want: true, wantFlags: []string{"noatime", "ro"}},
		"flags, claim":    {claim: true, flags: []string{"noatime", "rw"}, want: true, wantFlags: []string{"noatime", "rw"}},
		"flags, writable": {flags: []string{"rw", "noatime"}, wantFlags: []string{"rw", "noatime"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, settings{})
			r.volume("data", func(pv *v1.PersistentVolume) { pv.Spec.CSI.ReadOnly, pv.Spec.MountOptions = c.pv, c.flags })
			pod := podOf("one", "data")
			pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = c.claim
			r.up(pod)
			publish := request[*csipb.NodePublishVolumeRequest](r, "NodePublishVolume", "")
			stage := request[*csipb.NodeStageVolumeRequest](r, "NodeStageVolume", "")
			if got := stage.GetVolumeCapability().GetMount().GetMountFlags(); !slices.Equal(got, c.wantFlags) {
				t.Errorf("staged with flags %v, want %v", got, c.wantFlags)
			}
			if got := publish.GetVolumeCapability().GetMount().GetMountFlags(); publish.GetReadonly() != c.want || !slices.Equal(got, c.wantFlags) {
				t.Errorf("readonly %v with flags %v, want %v with %v", publish.GetReadonly(), got, c.want, c.wantFlags)
			}
			if attach := request[*csipb.ControllerPublishVolumeRequest](r, "ControllerPublishVolume", ""); attach.GetReadonly() != c.pv {
				t.Errorf("attached with readonly %v, want %v", attach.GetReadonly(), c.pv)
			}
		})
	}
}

// Inline volumes: published alone, with a handle of the pod's own, once the
// driver has opted in.
func TestInlineVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{checker: func(o *checker.Options) {
		o.AttachUnseen = true
		o.Disable = []checker.Rule{checker.StageBeforePublish}
	}})
	r.apply(secret("inline", map[string]string{"key": "canary-inline"}))
	pod := podOf("one")
	pod.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
		Driver: driverName, FSType: ptr("ext4"), ReadOnly: ptr(false), VolumeAttributes: map[string]string{"size": "1Mi"},
		NodePublishSecretRef: &v1.LocalObjectReference{Name: "inline"},
	}}}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}}
	r.add(pod)
	r.until("the pod waits for the driver's consent", func() bool {
		s, _ := r.manager.Status(pod)
		return len(s.Volumes) == 1 && s.Volumes[0].Err != nil && strings.Contains(s.Volumes[0].Err.Error(), "volumeLifecycleModes")
	})
	r.want()
	r.csiDriver(func(s *storagev1.CSIDriverSpec) { s.PodInfoOnMount = ptr(true) })
	r.ready(pod)
	const handle = "csi-51cfc4e1db3bd0ca37ed6bb4d2bcba3b0b7d4e2fc5a0a3b8c0a51e09b6cbbb9d"
	publish := request[*csipb.NodePublishVolumeRequest](r, "NodePublishVolume", "")
	if len(publish.GetVolumeId()) != len(handle) || publish.GetStagingTargetPath() != "" || len(publish.GetPublishContext()) > 0 ||
		publish.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] != "true" || publish.GetVolumeContext()["size"] != "1Mi" ||
		publish.GetSecrets()["key"] != "canary-inline" || publish.GetVolumeCapability().GetMount().GetFsType() != "ext4" {
		t.Errorf("NodePublishVolume %+v", publish)
	}
	r.want("NodePublishVolume " + publish.GetVolumeId())
	r.restart()
	r.ready(pod)
	r.driver.ResetCalls()
	r.down(pod)
	r.want("NodeUnpublishVolume " + publish.GetVolumeId())
}

// A volume of a driver that requires it is published again and again, with
// fresh tokens; what goes wrong then leaves the mount alone.
func TestRepublish(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: staged, csi: func(c *csi.Config) { c.RepublishPeriod = 50 * time.Millisecond }})
	r.csiDriver(func(s *storagev1.CSIDriverSpec) {
		s.RequiresRepublish, s.TokenRequests = ptr(true), []storagev1.TokenRequest{{Audience: "vault"}}
	})
	r.volume("data")
	pod := podOf("one", "data")
	r.up(pod)
	r.must(os.WriteFile(r.path(pod, "data", "file"), []byte("there"), 0o600))
	publishes := func() int { return r.driver.CallCounts()["NodePublishVolume"] }
	r.until("it was published three times", func() bool { return publishes() >= 3 })
	bad := r.driver.Script("NodePublishVolume", csitest.Fault{Code: 13, Message: "no"})
	r.must(bad.Wait(r.ctx, 2))
	if text, err := os.ReadFile(r.path(pod, "data", "file")); string(text) != "there" {
		t.Errorf("a failed publish took the content: %q, %v", text, err)
	}
	if s, _ := r.manager.Status(pod); !s.Volumes[0].Ready {
		t.Errorf("the volume is not ready while its renewal fails: %+v", s.Volumes[0])
	}
	bad.Remove()
	n := publishes()
	r.until("it is published again", func() bool { return publishes() > n+1 })
	for _, method := range []string{"NodeStageVolume", "NodeUnpublishVolume"} {
		if got := r.driver.CallCounts()[method]; got > 1 || method == "NodeUnpublishVolume" && got > 0 {
			t.Errorf("%d calls of %s", got, method)
		}
	}
}

// Attributes in an annotation, as persistent volumes of 2018 have them.
func TestAttributesInAnAnnotation(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: staged})
	r.volume("data", func(pv *v1.PersistentVolume) {
		pv.Annotations = map[string]string{"csi.kubernetes.io/volume-attributes": `{"share":"old"}`}
	})
	r.up(podOf("one", "data"))
	if got := request[*csipb.NodeStageVolumeRequest](r, "NodeStageVolume", "").GetVolumeContext(); got["share"] != "old" {
		t.Errorf("volume context %v", got)
	}
	r.volume("bad", func(pv *v1.PersistentVolume) {
		pv.Annotations = map[string]string{"csi.volume.kubernetes.io/volume-attributes": `{"share":`}
	})
	pod := podOf("two", "bad")
	r.add(pod)
	r.until("the pod is told", func() bool {
		s, _ := r.manager.Status(pod)
		return len(s.Volumes) == 1 && s.Volumes[0].Err != nil && s.Volumes[0].Failure == "permanent" &&
			strings.Contains(s.Volumes[0].Err.Error(), "csi.volume.kubernetes.io/volume-attributes")
	})
}

func ptr[T any](v T) *T { return &v }
