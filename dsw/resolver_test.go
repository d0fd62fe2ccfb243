package dsw

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/plugins"
)

func ptr[T any](v T) *T { return &v }

// scene is what one case of a table changes before it resolves volume "a".
type scene struct {
	api   *api
	pod   *v1.Pod
	claim *v1.PersistentVolumeClaim
	pv    *v1.PersistentVolume
	r     *Resolver
}

func newScene(t *testing.T) *scene {
	s := &scene{api: newAPI(), pod: podOf("u1", claim("a", "c1"))}
	s.claim, s.pv = s.api.bind("c1", "pv1", "h")
	s.r = s.api.resolver(t)
	return s
}

// asDevice makes the container use volume a as a device.
func (s *scene) asDevice() {
	s.pod.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "a"}}
	s.pod.Spec.Containers[0].VolumeMounts = nil
}

func (s *scene) ephemeral() {
	s.pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}
	s.claim, s.pv = s.api.bind("pod-u1-a", "pv1", "h")
}

func affinity(terms ...v1.NodeSelectorTerm) *v1.VolumeNodeAffinity {
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: terms}}
}

func zone(values ...string) v1.NodeSelectorTerm {
	return v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "zone", Operator: v1.NodeSelectorOpIn, Values: values}}}
}

func TestResolveRefuses(t *testing.T) {
	claimAndPV := []plugins.Ref{claimRef("c1"), pvRef("pv1")}
	for _, tt := range []struct {
		name   string
		change func(*scene)
		class  plugins.Class
		text   string
		refs   []plugins.Ref // nil means none
	}{
		{"no such volume", func(s *scene) { s.pod.Spec.Volumes = nil }, plugins.ClassPermanent, `no volume "a"`, nil},
		{"given twice", func(s *scene) { s.pod.Spec.Volumes = append(s.pod.Spec.Volumes, emptyDir("a")) }, plugins.ClassPermanent, "several", nil},
		{"mount and device", func(s *scene) {
			s.pod.Spec.InitContainers = []v1.Container{{VolumeDevices: []v1.VolumeDevice{{Name: "a"}}}}
		}, plugins.ClassPermanent, "both", nil},
		{"inline as device", func(s *scene) { s.asDevice(); s.pod.Spec.Volumes[0] = emptyDir("a") }, plugins.ClassPermanent, "device", nil},
		{"no claim named", func(s *scene) { s.pod.Spec.Volumes[0] = claim("a", "") }, plugins.ClassPermanent, "names no claim", nil},
		{"claim not found", func(s *scene) { delete(s.api.claims, "ns/c1") }, plugins.ClassWaiting, "PersistentVolumeClaim ns/c1", claimAndPV[:1]},
		{"claim not readable", func(s *scene) { s.api.fail["claim"] = errors.New("down") }, plugins.ClassTransient, "down", claimAndPV[:1]},
		{"claim source hangs", func(s *scene) { s.api.fail["claim"] = context.DeadlineExceeded }, plugins.ClassTransient, "deadline", claimAndPV[:1]},
		{"no claim source", func(s *scene) { s.r.Host.Claims = nil }, plugins.ClassUnsupported, "VolumeHost.Claims is not set", claimAndPV[:1]},
		{"claim being deleted", func(s *scene) { s.claim.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, plugins.ClassPermanent, "being deleted", claimAndPV[:1]},
		{"claim pending", func(s *scene) { s.claim.Status.Phase = v1.ClaimPending }, plugins.ClassWaiting, "Pending", claimAndPV[:1]},
		{"claim lost", func(s *scene) { s.claim.Status.Phase = v1.ClaimLost }, plugins.ClassWaiting, "Lost", claimAndPV[:1]},
		{"claim without volume", func(s *scene) { s.claim.Spec.VolumeName = "" }, plugins.ClassWaiting, "names no volume", claimAndPV[:1]},
		{"PV not found", func(s *scene) { delete(s.api.pvs, "pv1") }, plugins.ClassWaiting, "PersistentVolume pv1", claimAndPV},
		{"PV not readable", func(s *scene) { s.api.fail["pv"] = errors.New("down") }, plugins.ClassTransient, "down", claimAndPV},
		{"no PV source", func(s *scene) { s.r.Host.PersistentVolumes = nil }, plugins.ClassUnsupported, "VolumeHost.PersistentVolumes", claimAndPV},
		{"PV without claimRef", func(s *scene) { s.pv.Spec.ClaimRef = nil }, plugins.ClassWaiting, "not bound", claimAndPV},
		{"PV reserved, not bound", func(s *scene) { s.pv.Spec.ClaimRef.UID = "" }, plugins.ClassWaiting, "not bound", claimAndPV},
		{"PV of an earlier claim", func(s *scene) { s.pv.Spec.ClaimRef.UID = "earlier" }, plugins.ClassPermanent, "earlier", claimAndPV},
		{"PV of another claim", func(s *scene) { s.pv.Spec.ClaimRef.Name = "c2" }, plugins.ClassPermanent, "ns/c2", claimAndPV},
		{"PV released", func(s *scene) { s.pv.Status.Phase = v1.VolumeReleased }, plugins.ClassWaiting, "Released", claimAndPV},
		{"filesystem as device", func(s *scene) { s.asDevice() }, plugins.ClassPermanent, "Filesystem", claimAndPV},
		{"block as mount", func(s *scene) { s.pv.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock) }, plugins.ClassPermanent, "Block", claimAndPV},
		{"ephemeral claim not found", func(s *scene) { s.ephemeral(); delete(s.api.claims, "ns/pod-u1-a") }, plugins.ClassWaiting, "pod-u1-a", []plugins.Ref{claimRef("pod-u1-a")}},
		{"ephemeral claim of nobody", func(s *scene) { s.ephemeral() }, plugins.ClassPermanent, "PersistentVolumeClaim ns/pod-u1-a was not made for pod ns/pod-u1", []plugins.Ref{claimRef("pod-u1-a")}},
		{"ephemeral claim of another pod", func(s *scene) {
			s.ephemeral()
			s.claim.OwnerReferences = []metav1.OwnerReference{{UID: "u2", Controller: ptr(true)}}
		}, plugins.ClassPermanent, "was not made for", []plugins.Ref{claimRef("pod-u1-a")}},
		{"no plugin", func(s *scene) { s.pv.Spec.CSI, s.pv.Spec.ISCSI = nil, &v1.ISCSIPersistentVolumeSource{} }, plugins.ClassUnsupported, "no plugin", claimAndPV},
		{"PV without source", func(s *scene) { s.pv.Spec.CSI = nil }, plugins.ClassUnsupported, "nothing", claimAndPV},
		{"no storage", func(s *scene) { s.pv.Spec.CSI.VolumeHandle = "" }, plugins.ClassPermanent, "names no storage", claimAndPV},
		{"PV name with a slash", func(s *scene) { s.pv.Name = "../x" }, plugins.ClassPermanent, "folder", claimAndPV},
		{"inline name with a slash", func(s *scene) {
			s.pod.Spec.Volumes[0] = emptyDir("..")
			s.pod.Spec.Containers[0].VolumeMounts[0].Name = ".."
		}, plugins.ClassPermanent, "folder", nil},
		{"pod UID with a slash", func(s *scene) { s.pod.UID = "a/b" }, plugins.ClassPermanent, "folder", claimAndPV},
		{"malformed inline", func(s *scene) {
			s.pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "malformed"}}
		}, plugins.ClassPermanent, "malformed", nil},
		{"mount options", func(s *scene) {
			s.pv.Spec.CSI, s.pv.Spec.NFS = nil, &v1.NFSVolumeSource{Server: "s", Path: "/p"}
			s.pv.Spec.MountOptions = []string{"hard"}
		}, plugins.ClassPermanent, "mount options", claimAndPV},
		{"no block devices", func(s *scene) {
			s.pv.Spec.CSI, s.pv.Spec.NFS = nil, &v1.NFSVolumeSource{Server: "s", Path: "/p"}
			s.pv.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock)
			s.asDevice()
		}, plugins.ClassUnsupported, "block", claimAndPV},
		{"another zone", func(s *scene) { s.pv.Spec.NodeAffinity = affinity(zone("b", "c"), zone("d")) },
			plugins.ClassWaiting, "(zone In [b c]) or (zone In [d])", append(slices.Clone(claimAndPV), plugins.Ref{Kind: plugins.KindNode, Name: "n1"})},
		{"node not readable", func(s *scene) { s.pv.Spec.NodeAffinity = affinity(zone("a")); s.api.fail["node"] = errors.New("down") },
			plugins.ClassTransient, "down", append(slices.Clone(claimAndPV), plugins.Ref{Kind: plugins.KindNode, Name: "n1"})},
		{"no node source", func(s *scene) { s.pv.Spec.NodeAffinity = affinity(zone("a")); s.r.Host.Node = nil },
			plugins.ClassUnsupported, "VolumeHost.Node is", append(slices.Clone(claimAndPV), plugins.Ref{Kind: plugins.KindNode, Name: "n1"})},
		{"translation fails", func(s *scene) { s.r.Translator = translator{err: errors.New("odd id")} }, plugins.ClassTransient, "odd id", claimAndPV},
		{"translation refuses", func(s *scene) { s.r.Translator = translator{err: plugins.Permanentf("odd id")} }, plugins.ClassPermanent, "odd id", claimAndPV},
		{"translation to nothing", func(s *scene) { s.r.Translator = translator{} }, plugins.ClassPermanent, "nothing came out", claimAndPV},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(t)
			tt.change(s)
			name := "a"
			if len(s.pod.Spec.Volumes) == 1 {
				name = s.pod.Spec.Volumes[0].Name
			}
			res, err := s.r.Resolve(t.Context(), s.pod, name)
			if plugins.ClassOf(err) != tt.class || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("error: %v (%s), want %s with %q", err, plugins.ClassOf(err), tt.class, tt.text)
			}
			if !reflect.DeepEqual(res, Resolution{SpecRefs: tt.refs}) {
				t.Errorf("resolution: %+v, want only the refs %v", res, tt.refs)
			}
		})
	}
}

// translator returns a spec or an error, and counts.
type translator struct {
	spec  *plugins.Spec
	err   error
	calls *int
}

func (t translator) Translate(context.Context, *plugins.Spec, *v1.Pod) (*plugins.Spec, error) {
	if t.calls != nil {
		*t.calls++
	}
	return t.spec, t.err
}

func TestResolveAccepts(t *testing.T) {
	size := resource.MustParse("1Gi")
	base := Resolution{
		Volume: stagedVolume("u1", "pv1"), ID: stagedID("h"), Params: plugins.Params{Size: &size},
		Identity: plugins.Identity{Storage: "h", Device: true, MountOptions: true},
		SpecRefs: []plugins.Ref{claimRef("c1"), pvRef("pv1")},
	}
	for _, tt := range []struct {
		name   string
		change func(*scene)
		want   func(*Resolution)
	}{
		{"claim", func(*scene) {}, func(*Resolution) {}},
		{"explicit filesystem", func(s *scene) { s.pv.Spec.VolumeMode = ptr(v1.PersistentVolumeFilesystem) }, func(*Resolution) {}},
		{"no mode", func(s *scene) { s.pv.Spec.VolumeMode = nil }, func(*Resolution) {}},
		{"block", func(s *scene) { s.pv.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock); s.asDevice() }, func(r *Resolution) { r.Block = true }},
		{"block, unused", func(s *scene) { s.pv.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock); s.pod.Spec.Containers = nil }, func(r *Resolution) { r.Block = true }},
		{"read-only", func(s *scene) { s.pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true }, func(r *Resolution) { r.Params.ReadOnly = true }},
		{"deleted but protected", func(s *scene) {
			s.claim.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
			s.claim.Finalizers = []string{"x", protection}
		}, func(*Resolution) {}},
		{"objects without UID", func(s *scene) { s.claim.UID, s.pv.Spec.ClaimRef.UID = "", "" }, func(*Resolution) {}},
		{"ephemeral", func(s *scene) {
			s.ephemeral()
			s.claim.OwnerReferences = []metav1.OwnerReference{{UID: "u1", Controller: ptr(true)}}
		}, func(r *Resolution) { r.SpecRefs[0] = claimRef("pod-u1-a") }},
		{"mount options", func(s *scene) { s.pv.Spec.MountOptions = []string{"ro"} }, func(*Resolution) {}},
		{"affinity", func(s *scene) { s.pv.Spec.NodeAffinity = affinity(zone("x"), zone("b", "a")) }, func(*Resolution) {}},
		{"affinity without terms wanted", func(s *scene) { s.pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{} }, func(*Resolution) {}},
		{"no capacity", func(s *scene) { s.pv.Spec.Capacity = nil }, func(r *Resolution) { r.Params.Size = nil }},
		{"groups", func(s *scene) {
			s.pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr(int64(5)), FSGroupChangePolicy: ptr(v1.FSGroupChangeOnRootMismatch), RunAsUser: ptr(int64(0))}
		}, func(r *Resolution) {
			r.Params.FSGroup, r.Params.FSGroupOnRootMismatch, r.Params.FSUser = ptr(int64(5)), true, ptr(int64(0))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newScene(t)
			tt.change(s)
			pod := s.pod.DeepCopy()
			res, err := s.r.Resolve(t.Context(), s.pod, "a")
			if err != nil {
				t.Fatal(err)
			}
			if res.Spec == nil || res.Spec.PV == nil || res.Spec.Claim == nil || res.Spec.Mode() == v1.PersistentVolumeBlock != res.Block {
				t.Errorf("spec: %+v", res.Spec)
			}
			want := base
			want.Spec, want.SpecRefs = res.Spec, slices.Clone(base.SpecRefs)
			tt.want(&want)
			if !reflect.DeepEqual(res, want) {
				t.Errorf("resolution:\n%+v, want\n%+v", res, want)
			}
			if !reflect.DeepEqual(pod, s.pod) {
				t.Error("the pod was changed")
			}
		})
	}
}

func TestResolveInline(t *testing.T) {
	s := newScene(t)
	s.pod = podOf("u1", configMap("a", "one"), emptyDir("b"))
	s.r.Host = &plugins.VolumeHost{}
	res, err := s.r.Resolve(t.Context(), s.pod, "a")
	if err != nil {
		t.Fatal(err)
	}
	want := Resolution{
		Volume: plainVolume("u1", "a"), ID: plainID("u1", "a"), Spec: &plugins.Spec{Volume: &s.pod.Spec.Volumes[0]},
		ContentRefs: []plugins.Ref{configMapRef("ns", "one")},
	}
	if !reflect.DeepEqual(res, want) {
		t.Errorf("resolution: %+v, want %+v", res, want)
	}
	if res.Spec.Volume == &s.pod.Spec.Volumes[0] {
		t.Error("the spec keeps the pod alive")
	}
	if _, err := s.r.Resolve(t.Context(), nil, "a"); plugins.ClassOf(err) != plugins.ClassPermanent {
		t.Errorf("no pod: %v", err)
	}
}

func TestOnePodVolumeIsShared(t *testing.T) {
	s := newScene(t)
	s.pv.Spec.CSI, s.pv.Spec.NFS = nil, &v1.NFSVolumeSource{Server: "s", Path: "/p"}
	private, err := s.r.Resolve(t.Context(), s.pod, "a")
	if err != nil || private.ID != plainID("u1", "pv1") {
		t.Errorf("%v, %v", private.ID, err)
	}
	s.pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	one, err := s.r.Resolve(t.Context(), s.pod, "a")
	if err != nil || one.ID != "test.io/plain/s/p" || !one.Spec.OnePod() {
		t.Errorf("%v, %v", one.ID, err)
	}
}

func TestTranslation(t *testing.T) {
	s := newScene(t)
	ebs := v1.Volume{Name: "a", VolumeSource: v1.VolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "v"}}}
	s.pod = podOf("u1", ebs, emptyDir("b"), claim("c", "c1"))
	calls := 0
	s.r.Translator = translator{spec: &plugins.Spec{PV: s.pv, Migrated: true}, calls: &calls}
	for name, immediate := range map[string]bool{"a": false, "b": true, "c": false, "absent": true} {
		if got := s.r.Immediate(s.pod, name); got != immediate {
			t.Errorf("%s: immediate is %v", name, got)
		}
	}
	if res, err := s.r.Resolve(t.Context(), s.pod, "a"); err != nil || !res.Spec.Migrated || res.Volume != stagedVolume("u1", "pv1") {
		t.Errorf("%+v, %v", res, err)
	}
	if res, err := s.r.Resolve(t.Context(), s.pod, "b"); err != nil || res.Spec.Migrated || calls != 1 {
		t.Errorf("%+v, %v, %d calls", res, err, calls)
	}
	if res, err := s.r.Resolve(t.Context(), s.pod, "c"); err != nil || !res.Spec.Migrated || calls != 2 {
		t.Errorf("%+v, %v, %d calls", res, err, calls)
	}
	s.r.Translator = nil
	if !s.r.Immediate(s.pod, "a") || !s.r.Immediate(nil, "a") {
		t.Error("not immediate without a translator")
	}
}

// Immediate must not promise too much: the engine resolves such volumes where
// nothing may wait.
func TestImmediateReadsNothing(t *testing.T) {
	s := newScene(t)
	s.pod = podOf("u1", configMap("a", "x"), emptyDir("b"), downward("c", "metadata.name"), claim("d", "c1"))
	for _, v := range s.pod.Spec.Volumes {
		s.api.reads = 0
		if _, err := s.r.Resolve(t.Context(), s.pod, v.Name); err != nil {
			t.Fatal(err)
		}
		if immediate := s.r.Immediate(s.pod, v.Name); immediate != (s.api.reads == 0) {
			t.Errorf("%s: immediate is %v, and there were %d reads", v.Name, immediate, s.api.reads)
		}
	}
}

func TestCommonUser(t *testing.T) {
	container := func(user *int64) v1.Container {
		return v1.Container{SecurityContext: &v1.SecurityContext{RunAsUser: user}}
	}
	for _, tt := range []struct {
		name                string
		pod                 *int64
		init, main, special []*int64
		want                *int64
	}{
		{"nobody says", nil, nil, []*int64{nil}, nil, nil},
		{"no containers", ptr(int64(1)), nil, nil, nil, nil},
		{"pod", ptr(int64(1)), []*int64{nil}, []*int64{nil, nil}, nil, ptr(int64(1))},
		{"root counts", ptr(int64(0)), nil, []*int64{nil}, nil, ptr(int64(0))},
		{"container wins", ptr(int64(1)), nil, []*int64{ptr(int64(2))}, nil, ptr(int64(2))},
		{"containers agree", nil, []*int64{ptr(int64(2))}, []*int64{ptr(int64(2))}, nil, ptr(int64(2))},
		{"containers differ", nil, nil, []*int64{ptr(int64(2)), ptr(int64(3))}, nil, nil},
		{"one says nothing", nil, []*int64{nil}, []*int64{ptr(int64(2))}, nil, nil},
		{"ephemeral differs", ptr(int64(1)), nil, []*int64{nil}, []*int64{ptr(int64(2))}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := &v1.Pod{}
			pod.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: tt.pod}
			for _, u := range tt.init {
				pod.Spec.InitContainers = append(pod.Spec.InitContainers, container(u))
			}
			for _, u := range tt.main {
				pod.Spec.Containers = append(pod.Spec.Containers, container(u))
			}
			for _, u := range tt.special {
				pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers,
					v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon(container(u))})
			}
			if got := commonUser(pod); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestNodeMatches(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a", "cpus": "8", "empty": ""}}}
	req := func(key string, op v1.NodeSelectorOperator, values ...string) v1.NodeSelectorRequirement {
		return v1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
	}
	labels := func(list ...v1.NodeSelectorRequirement) v1.NodeSelectorTerm {
		return v1.NodeSelectorTerm{MatchExpressions: list}
	}
	fields := func(list ...v1.NodeSelectorRequirement) v1.NodeSelectorTerm {
		return v1.NodeSelectorTerm{MatchFields: list}
	}
	both := fields(req("metadata.name", "In", "n1"))
	both.MatchExpressions = []v1.NodeSelectorRequirement{req("zone", "In", "b")}
	for _, tt := range []struct {
		name  string
		terms []v1.NodeSelectorTerm
		want  bool
	}{
		{"no term", nil, false},
		{"empty term", []v1.NodeSelectorTerm{{}}, false},
		{"empty term beside a good one", []v1.NodeSelectorTerm{{}, labels(req("zone", "Exists"))}, true},
		{"in", []v1.NodeSelectorTerm{labels(req("zone", "In", "b", "a"))}, true},
		{"not in list", []v1.NodeSelectorTerm{labels(req("zone", "In", "b"))}, false},
		{"in nothing", []v1.NodeSelectorTerm{labels(req("zone", "In"))}, false},
		{"absent in", []v1.NodeSelectorTerm{labels(req("rack", "In", ""))}, false},
		{"empty value in", []v1.NodeSelectorTerm{labels(req("empty", "In", ""))}, true},
		{"notIn", []v1.NodeSelectorTerm{labels(req("zone", "NotIn", "b"))}, true},
		{"notIn fails", []v1.NodeSelectorTerm{labels(req("zone", "NotIn", "a"))}, false},
		{"notIn absent", []v1.NodeSelectorTerm{labels(req("rack", "NotIn", "a"))}, true},
		{"notIn nothing", []v1.NodeSelectorTerm{labels(req("rack", "NotIn"))}, false},
		{"exists", []v1.NodeSelectorTerm{labels(req("empty", "Exists"))}, true},
		{"exists fails", []v1.NodeSelectorTerm{labels(req("rack", "Exists"))}, false},
		{"exists with values", []v1.NodeSelectorTerm{labels(req("zone", "Exists", "a"))}, false},
		{"doesNotExist", []v1.NodeSelectorTerm{labels(req("rack", "DoesNotExist"))}, true},
		{"doesNotExist fails", []v1.NodeSelectorTerm{labels(req("zone", "DoesNotExist"))}, false},
		{"gt", []v1.NodeSelectorTerm{labels(req("cpus", "Gt", "7"))}, true},
		{"gt equal", []v1.NodeSelectorTerm{labels(req("cpus", "Gt", "8"))}, false},
		{"lt", []v1.NodeSelectorTerm{labels(req("cpus", "Lt", "9"))}, true},
		{"lt equal", []v1.NodeSelectorTerm{labels(req("cpus", "Lt", "8"))}, false},
		{"lt absent", []v1.NodeSelectorTerm{labels(req("rack", "Lt", "8"))}, false},
		{"gt of text", []v1.NodeSelectorTerm{labels(req("zone", "Gt", "1"))}, false},
		{"gt than text", []v1.NodeSelectorTerm{labels(req("cpus", "Gt", "x"))}, false},
		{"gt two", []v1.NodeSelectorTerm{labels(req("cpus", "Gt", "1", "2"))}, false},
		{"unknown operator", []v1.NodeSelectorTerm{labels(req("zone", "Like", "a"))}, false},
		{"all of a term", []v1.NodeSelectorTerm{labels(req("zone", "In", "a"), req("cpus", "Gt", "9"))}, false},
		{"any term", []v1.NodeSelectorTerm{labels(req("zone", "In", "b")), labels(req("cpus", "Gt", "1"))}, true},
		{"name", []v1.NodeSelectorTerm{fields(req("metadata.name", "In", "n1"))}, true},
		{"another name", []v1.NodeSelectorTerm{fields(req("metadata.name", "In", "n2"))}, false},
		{"not a name", []v1.NodeSelectorTerm{fields(req("metadata.name", "NotIn", "n2"))}, true},
		{"another field", []v1.NodeSelectorTerm{fields(req("metadata.uid", "NotIn", "n2"))}, false},
		{"name and label", []v1.NodeSelectorTerm{both}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			selector := &v1.NodeSelector{NodeSelectorTerms: tt.terms}
			if got := nodeMatches(selector, node); got != tt.want {
				t.Errorf("%s: %v", selectorText(selector), got)
			}
		})
	}
	if got := selectorText(&v1.NodeSelector{}); got == "" {
		t.Error("a selector without terms has no text")
	}
}

func TestUsedVolumes(t *testing.T) {
	pod := podOf("u1", emptyDir("main"), emptyDir("init"), emptyDir("special"), emptyDir("device"), emptyDir("unused"))
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "main"}, {Name: "main"}, {Name: "absent"}}
	pod.Spec.InitContainers = []v1.Container{{VolumeMounts: []v1.VolumeMount{{Name: "init"}}}}
	pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{
		VolumeMounts: []v1.VolumeMount{{Name: "special"}}, VolumeDevices: []v1.VolumeDevice{{Name: "device"}},
	}}}
	used := []Use{{"main", true, false}, {"init", true, false}, {"special", true, false}, {"device", false, true}}
	if got := UsedVolumes(pod, false); !slices.Equal(got, append(slices.Clone(used), Use{"absent", true, false})) {
		t.Errorf("used: %v", got)
	}
	if got := UsedVolumes(pod, true); !slices.Equal(got, append(used, Use{"unused", false, false}, Use{"absent", true, false})) {
		t.Errorf("all: %v", got)
	}
	if got := UsedVolumes(nil, true); got != nil {
		t.Errorf("of nothing: %v", got)
	}
	for _, u := range usesOf(pod, true) {
		if got := useNamed(pod, u.Name); got != u {
			t.Errorf("%+v, and by name %+v", u, got)
		}
	}
}
