package csinode_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
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
	"github.com/volumekit/volumekit/plugins/memory"
)

const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// inlined is a pod with an inline volume of the driver.
func inlined(name string, change ...func(*v1.CSIVolumeSource)) *v1.Pod {
	pod := podOf(name)
	source := &v1.CSIVolumeSource{Driver: driverName}
	for _, f := range change {
		f(source)
	}
	pod.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{CSI: source}}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}}
	return pod
}

// inlineOnly tells the checker that publishes come without an attach and a stage.
func inlineOnly(o *checker.Options) {
	o.AttachUnseen, o.Disable = true, []checker.Rule{checker.StageBeforePublish}
}

// inlineAllowed is a driver that takes volumes of both kinds, and learns from the
// pod info which is which.
func inlineAllowed(s *storagev1.CSIDriverSpec) { s.PodInfoOnMount = ptr(true) }

// The volume context is what the persistent volume says, and what the driver
// asks for; nothing else, and nothing of it at a stage.
func TestVolumeContext(t *testing.T) {
	podKeys := map[string]string{
		"csi.storage.k8s.io/pod.name": "one", "csi.storage.k8s.io/pod.namespace": "default", "csi.storage.k8s.io/pod.uid": "uid-one",
		"csi.storage.k8s.io/serviceAccount.name": "sa", "csi.storage.k8s.io/ephemeral": "false",
	}
	some := map[string]string{"share": "a", "csi.storage.k8s.io/pod.name": "of the admin"}
	for name, c := range map[string]struct {
		object     bool
		says       *bool
		attributes map[string]string
		info       bool
	}{
		"no object":             {},
		"no object, attributes": {attributes: some},
		"unset":                 {object: true},
		"unset, attributes":     {object: true, attributes: some},
		"false":                 {object: true, says: ptr(false), attributes: some},
		"true":                  {object: true, says: ptr(true), info: true},
		"true, attributes":      {object: true, says: ptr(true), attributes: some, info: true},
	} {
		for _, claim := range []string{"data", "block"} {
			t.Run(name+","+claim, func(t *testing.T) {
				t.Parallel()
				if claim == "block" && !nstest.RealRoot() {
					t.Skip("loop devices need the root user")
				}
				change := func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeAttributes = maps.Clone(c.attributes) }
				s := settings{driver: staged}
				if claim == "block" {
					s.driver = func(c *csitest.Config) { staged(c); c.Mode = csitest.ModeBlock }
				}
				r := newRig(t, s)
				r.volume(claim, change, func(pv *v1.PersistentVolume) {
					if claim == "block" {
						block(pv)
					}
				})
				if c.object {
					r.csiDriver(func(s *storagev1.CSIDriverSpec) { s.PodInfoOnMount = c.says })
				}
				r.up(podOf("one", claim))
				want := maps.Clone(c.attributes)
				if c.info {
					want = maps.Clone(podKeys)
					for key, value := range c.attributes {
						if _, ours := want[key]; !ours {
							want[key] = value
						}
					}
				}
				if got := request[*csipb.NodePublishVolumeRequest](r, "NodePublishVolume", "").GetVolumeContext(); !maps.Equal(got, want) {
					t.Errorf("published with %v, want %v", got, want)
				}
				if got := request[*csipb.NodeStageVolumeRequest](r, "NodeStageVolume", "").GetVolumeContext(); !maps.Equal(got, c.attributes) {
					t.Errorf("staged with %v, want %v", got, c.attributes)
				}
			})
		}
	}
}

// The pod's group goes to drivers that can mount with one, and to no other.
func TestMountGroup(t *testing.T) {
	for name, c := range map[string]struct {
		can   bool
		group *int64
		want  string
	}{
		"group": {true, ptr(int64(1234)), "1234"}, "group 0": {true, ptr(int64(0)), "0"},
		"no group": {true, nil, ""}, "no capability": {false, ptr(int64(1234)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.can && c.want == "1234" && !nstest.RealRoot() {
				t.Skip("mounting for another group needs the root user")
			}
			owner := &fakeOwner{}
			r := newRig(t, settings{csi: owner.stand, driver: func(d *csitest.Config) {
				staged(d)
				if c.can {
					d.Capabilities.Node = append(d.Capabilities.Node, csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
				}
			}})
			r.volume("data")
			pod := podOf("one", "data")
			pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: c.group}
			r.up(pod)
			stage := request[*csipb.NodeStageVolumeRequest](r, "NodeStageVolume", "").GetVolumeCapability().GetMount().GetVolumeMountGroup()
			publish := request[*csipb.NodePublishVolumeRequest](r, "NodePublishVolume", "").GetVolumeCapability().GetMount().GetVolumeMountGroup()
			if stage != c.want || publish != c.want {
				t.Errorf("staged with group %q, published with %q, want %q", stage, publish, c.want)
			}
			if n := len(owner.told()); (n == 1) != (!c.can && c.group != nil) {
				t.Errorf("the node gave the files away %d times", n)
			}
		})
	}
}

// A volume that says as little as it can gets the driver's choice of a file
// system and no flags.
func TestLeastFields(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: staged})
	r.volume("data", func(pv *v1.PersistentVolume) { pv.Spec.CSI.FSType = "" })
	r.up(podOf("one", "data"))
	stage := request[*csipb.NodeStageVolumeRequest](r, "NodeStageVolume", "")
	publish := request[*csipb.NodePublishVolumeRequest](r, "NodePublishVolume", "")
	for what, c := range map[string]*csipb.VolumeCapability{"stage": stage.GetVolumeCapability(), "publish": publish.GetVolumeCapability()} {
		if m := c.GetMount(); m == nil || m.GetFsType() != "" || len(m.GetMountFlags()) > 0 || m.GetVolumeMountGroup() != "" {
			t.Errorf("%s: %v", what, c)
		}
	}
	if len(stage.GetSecrets())+len(publish.GetSecrets())+len(stage.GetVolumeContext())+len(publish.GetVolumeContext()) > 0 || publish.GetReadonly() {
		t.Errorf("stage %v, publish %v", stage, publish)
	}
}

// A driver gets only volumes of the kinds that it has opted into: with a
// CSIDriver object those that it lists, persistent ones if it lists none.
func TestLifecycleModes(t *testing.T) {
	const persistentMode, ephemeralMode = storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral
	for name, c := range map[string]struct {
		object             bool
		modes              []storagev1.VolumeLifecycleMode
		persistent, inline bool
	}{
		"no object":  {persistent: true},
		"none":       {object: true, persistent: true},
		"persistent": {true, []storagev1.VolumeLifecycleMode{persistentMode}, true, false},
		"ephemeral":  {true, []storagev1.VolumeLifecycleMode{ephemeralMode}, false, true},
		"both":       {true, []storagev1.VolumeLifecycleMode{ephemeralMode, persistentMode}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, settings{checker: inlineOnly, driver: staged})
			if c.object {
				r.csiDriver(func(s *storagev1.CSIDriverSpec) { s.VolumeLifecycleModes, s.PodInfoOnMount = c.modes, ptr(true) })
			}
			r.volume("data")
			for mode, pod := range map[string]*v1.Pod{"Persistent": podOf("one", "data"), "Ephemeral": inlined("two")} {
				r.driver.ResetCalls()
				r.add(pod)
				if c.persistent && mode == "Persistent" || c.inline && mode == "Ephemeral" {
					r.ready(pod)
					continue
				}
				r.fails(pod, "has to list "+mode+" in volumeLifecycleModes")
				if n := r.count("NodePublishVolume"); n > 0 {
					t.Errorf("%s: published %d times", mode, n)
				}
				r.csiDriver(inlineAllowed)
				r.ready(pod)
			}
		})
	}
}

// The handle of an inline volume is made of the pod's UID and the volume's name.
func TestInlineHandle(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{checker: inlineOnly, driver: staged})
	r.csiDriver(inlineAllowed)
	pod, other := inlined("one"), inlined("two", func(s *v1.CSIVolumeSource) { s.ReadOnly, s.FSType = ptr(true), ptr("xfs") })
	r.up(pod, other)
	for _, p := range []*v1.Pod{pod, other} {
		handle := fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(p.UID)+"scratch")))
		publish := request[*csipb.NodePublishVolumeRequest](r, "NodePublishVolume", handle)
		access := publish.GetVolumeCapability().GetAccessMode().GetMode()
		if publish.GetReadonly() != (p == other) || (publish.GetVolumeCapability().GetMount().GetFsType() == "xfs") != (p == other) ||
			access != csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER || publish.GetStagingTargetPath() != "" ||
			publish.GetTargetPath() != r.path(p, "scratch") {
			t.Errorf("%s: %v", p.Name, publish)
		}
	}
	r.driver.ResetCalls()
	r.down(pod, other)
	if n := r.count("NodeUnpublishVolume"); n != 2 || len(r.calls()) != 2 {
		t.Errorf("calls %v", r.calls())
	}
}

// A secret that is missing is waited for, before anything is asked of the
// driver, and its coming is enough.
func TestMissingSecrets(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(*v1.CSIPersistentVolumeSource, *v1.SecretReference)
		calls []string
	}{
		"attach":  {func(s *v1.CSIPersistentVolumeSource, r *v1.SecretReference) { s.ControllerPublishSecretRef = r }, nil},
		"stage":   {func(s *v1.CSIPersistentVolumeSource, r *v1.SecretReference) { s.NodeStageSecretRef = r }, []string{"ControllerPublishVolume"}},
		"publish": {func(s *v1.CSIPersistentVolumeSource, r *v1.SecretReference) { s.NodePublishSecretRef = r }, []string{"ControllerPublishVolume", "NodeStageVolume"}},
	} {
		for _, claim := range []string{"data", "block"} {
			t.Run(name+","+claim, func(t *testing.T) {
				t.Parallel()
				if claim == "block" && !nstest.RealRoot() {
					t.Skip("loop devices need the root user")
				}
				r := newRig(t, settings{driver: func(d *csitest.Config) {
					if d.Capabilities = capabilitiesFor(true, true); claim == "block" {
						d.Mode = csitest.ModeBlock
					}
				}})
				r.volume(claim, func(pv *v1.PersistentVolume) {
					if claim == "block" {
						block(pv)
					}
					c.set(pv.Spec.CSI, ref("login"))
				})
				pod := podOf("one", claim)
				r.add(pod)
				r.fails(pod, "default/login")
				if got := r.failure(pod); !strings.HasPrefix(got, "waiting: ") {
					t.Error(got)
				}
				got := slices.DeleteFunc(r.calls(), func(call string) bool { return strings.HasPrefix(call, "Validate") })
				for i := range got {
					got[i] = strings.Fields(got[i])[0]
				}
				if !slices.Equal(got, c.calls) {
					t.Errorf("calls %v, want %v", got, c.calls)
				}
				r.apply(secret("login", map[string]string{"key": "canary"}))
				r.ready(pod)
			})
		}
	}
	t.Run("inline", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, settings{checker: inlineOnly, driver: staged})
		r.csiDriver(inlineAllowed)
		pod := inlined("one", func(s *v1.CSIVolumeSource) { s.NodePublishSecretRef = &v1.LocalObjectReference{Name: "login"} })
		r.add(pod)
		r.fails(pod, "default/login")
		r.want()
		other := secret("login", map[string]string{"key": "of another namespace"})
		other.Namespace = "other"
		r.apply(other, secret("login", map[string]string{"key": "canary"}))
		r.ready(pod)
		if got := request[*csipb.NodePublishVolumeRequest](r, "NodePublishVolume", "").GetSecrets()["key"]; got != "canary" {
			t.Errorf("secret %q", got)
		}
	})
}

// Tokens are those that the driver asks for, by audience, beside what is in the
// map already, for file systems and devices alike; without a wish there are none.
func TestTokens(t *testing.T) {
	for name, c := range map[string]struct {
		wishes  []storagev1.TokenRequest
		secrets bool
	}{
		"none":                    {},
		"none, among secrets":     {nil, true},
		"the API's own":           {[]storagev1.TokenRequest{{}}, false},
		"an audience":             {[]storagev1.TokenRequest{{Audience: "gcp"}}, false},
		"two":                     {[]storagev1.TokenRequest{{Audience: "gcp"}, {Audience: "aws", ExpirationSeconds: ptr(int64(600))}}, false},
		"an audience, in secrets": {[]storagev1.TokenRequest{{Audience: "gcp"}}, true},
		"two, in secrets":         {[]storagev1.TokenRequest{{}, {Audience: "aws", ExpirationSeconds: ptr(int64(600))}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, settings{driver: staged})
			r.csiDriver(func(s *storagev1.CSIDriverSpec) {
				s.TokenRequests, s.ServiceAccountTokenInSecrets = c.wishes, &c.secrets
			})
			r.apply(secret("login", map[string]string{"key": "canary"}))
			r.volume("data", func(pv *v1.PersistentVolume) {
				pv.Spec.CSI.NodePublishSecretRef, pv.Spec.CSI.VolumeAttributes = ref("login"), map[string]string{"share": "a"}
			})
			r.up(podOf("one", "data"))
			publish := request[*csipb.NodePublishVolumeRequest](r, "NodePublishVolume", "")
			wantSecrets, wantContext := map[string]string{"key": "canary"}, map[string]string{"share": "a"}
			text, wanted := "", wantContext
			if c.secrets {
				wanted = wantSecrets
			}
			if len(c.wishes) > 0 {
				text = publish.GetVolumeContext()[tokensKey] + publish.GetSecrets()[tokensKey]
				wanted[tokensKey] = text
			}
			if !maps.Equal(publish.GetVolumeContext(), wantContext) || !maps.Equal(publish.GetSecrets(), wantSecrets) {
				t.Errorf("context with %v, secrets with %v", slices.Sorted(maps.Keys(publish.GetVolumeContext())), slices.Sorted(maps.Keys(publish.GetSecrets())))
			}
			if text != "" {
				checkTokens(t, text, c.wishes)
			}
		})
	}
}

func checkTokens(t *testing.T, text string, wishes []storagev1.TokenRequest) {
	t.Helper()
	var tokens map[string]struct{ Token, ExpirationTimestamp string }
	if err := json.Unmarshal([]byte(text), &tokens); err != nil {
		t.Fatal(err)
	}
	if len(tokens) != len(wishes) {
		t.Errorf("%d tokens", len(tokens))
	}
	for _, wish := range wishes {
		lifetime := time.Hour
		if wish.ExpirationSeconds != nil {
			lifetime = time.Duration(*wish.ExpirationSeconds) * time.Second
		}
		got := tokens[wish.Audience]
		expires, err := time.Parse(time.RFC3339, got.ExpirationTimestamp)
		if left := time.Until(expires); err != nil || left > lifetime || left < lifetime-5*time.Minute || got.Token == "" {
			t.Errorf("audience %q: a token of %d bytes that lives %v, %v", wish.Audience, len(got.Token), left, err)
		}
		checkClaims(t, got.Token, wish.Audience)
	}
}

// checkClaims looks at what a token of the store says.
func checkClaims(t *testing.T, token, audience string) {
	t.Helper()
	var claims struct {
		Audience []string `json:"aud"`
		Subject  string   `json:"sub"`
		Bound    struct {
			Pod struct{ Name, UID string }
		} `json:"kubernetes.io"`
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("%d parts", len(parts))
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(text, &claims)
	}
	if audience == "" {
		audience = memory.Issuer
	}
	if err != nil || !slices.Equal(claims.Audience, []string{audience}) || claims.Subject != "system:serviceaccount:default:sa" ||
		claims.Bound.Pod.Name != "one" || claims.Bound.Pod.UID != "uid-one" {
		t.Errorf("a token for %q says %+v, %v", audience, claims, err)
	}
}

// Names with dots stand as they are in every path of file systems and devices.
func TestDottedNames(t *testing.T) {
	for _, name := range []string{"plain", "with.dots-and.more"} {
		for _, kind := range []string{"data.", "block."} {
			t.Run(kind+name, func(t *testing.T) {
				t.Parallel()
				dev := kind == "block."
				if dev && !nstest.RealRoot() {
					t.Skip("loop devices need the root user")
				}
				pv := kind + name
				r := newRig(t, settings{driver: func(c *csitest.Config) {
					if staged(c); dev {
						c.Mode = csitest.ModeBlock
					}
				}})
				r.volume(pv, func(pv *v1.PersistentVolume) {
					if dev {
						block(pv)
					}
				})
				pod := podOf("one", pv)
				r.up(pod)
				base := filepath.Join(r.root, "plugins/kubernetes.io/csi")
				staging := filepath.Join(base, driverName, fmt.Sprintf("%x", sha256.Sum256([]byte("handle-"+pv))), "globalmount")
				target := filepath.Join(r.root, "pods/uid-one/volumes/kubernetes.io~csi", pv, "mount")
				if dev {
					staging, target = filepath.Join(base, "volumeDevices/staging", pv), filepath.Join(base, "volumeDevices/publish", pv, "uid-one")
					if link := filepath.Join(r.root, "pods/uid-one/volumeDevices/kubernetes.io~csi", pv); link != r.device(pod, pv) {
						t.Errorf("the pod's device is at %s", r.device(pod, pv))
					}
				}
				publish := request[*csipb.NodePublishVolumeRequest](r, "NodePublishVolume", "")
				if publish.GetStagingTargetPath() != staging || publish.GetTargetPath() != target {
					t.Errorf("published %v", publish)
				}
				if got := request[*csipb.NodeStageVolumeRequest](r, "NodeStageVolume", "").GetStagingTargetPath(); got != staging {
					t.Errorf("staged at %s", got)
				}
				r.restart()
				r.ready(pod)
			})
		}
	}
}

// A node without any source of objects beyond claims and their volumes mounts
// what asks for no more, and says what is missing to what does.
func TestWithoutAnAPIServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{checker: inlineOnly, csi: func(c *csi.Config) {
		h := c.Host
		h.CSIDrivers, h.Secrets, h.Attachments, h.Tokens, h.Node, h.Events = nil, nil, nil, nil, nil, nil
	}})
	r.volume("data")
	r.volume("locked", func(pv *v1.PersistentVolume) { pv.Spec.CSI.NodeStageSecretRef = ref("login") })
	pod, locked, inline := podOf("one", "data"), podOf("two", "locked"), inlined("three")
	r.up(pod)
	r.add(locked, inline)
	r.fails(locked, "VolumeHost.Secrets")
	r.fails(inline, "VolumeHost.CSIDrivers")
	r.apply(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}}) // nobody sees it
	r.restart()
	r.ready(pod)
}

// A file system that the driver does not know is the driver's to refuse: the pod
// is told its words, and nothing is left.
func TestFileSystemThatTheDriverRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: func(c *csitest.Config) { staged(c); c.Mode = csitest.ModeLoop }})
	r.volume("data", func(pv *v1.PersistentVolume) { pv.Spec.CSI.FSType = "papyrus" })
	pod := podOf("one", "data")
	r.add(pod)
	r.fails(pod, `fs_type "papyrus" is not supported`)
	if files := r.dataFiles(); len(files) > 0 {
		t.Errorf("left: %v", files)
	}
	r.down(pod)
	r.released()
}
