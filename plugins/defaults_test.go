package plugins

import (
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

func parse[T any](t *testing.T, text string) *T {
	t.Helper()
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatal(err)
	}
	return object
}

const sparsePod = `
metadata: {name: p, uid: u}
spec:
  containers:
  - name: c
    resources: {limits: {memory: 1Gi, cpu: "2"}, requests: {cpu: "1"}}
  initContainers:
  - name: i
    resources: {limits: {memory: 1Mi}}
  volumes:
  - {name: none}
  - {name: secret, secret: {secretName: s}}
  - {name: configmap, configMap: {name: c}}
  - {name: downward, downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.name}}, {path: b, resourceFieldRef: {resource: limits.cpu}}]}}
  - {name: host, hostPath: {path: /x}}
  - {name: iscsi, iscsi: {targetPortal: p, iqn: q, lun: 0}}
  - {name: latest, image: {reference: registry:5000/a/b}}
  - {name: pinned, image: {reference: "registry:5000/a/b:1"}}
  - {name: ephemeral, ephemeral: {volumeClaimTemplate: {spec: {}}}}
  - {name: template, ephemeral: {}}
  - name: projected
    projected:
      sources:
      - serviceAccountToken: {path: t}
      - podCertificate: {signerName: s, keyType: ED25519}
      - downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.uid}}]}
      - secret: {name: s}
      - {}
`

const fullPod = `
metadata: {name: p, uid: u, namespace: default}
spec:
  serviceAccountName: default
  containers:
  - name: c
    resources: {limits: {memory: 1Gi, cpu: "2"}, requests: {cpu: "1", memory: 1Gi}}
  initContainers:
  - name: i
    resources: {limits: {memory: 1Mi}, requests: {memory: 1Mi}}
  volumes:
  - {name: none, emptyDir: {}}
  - {name: secret, secret: {secretName: s, defaultMode: 0644}}
  - {name: configmap, configMap: {name: c, defaultMode: 0644}}
  - {name: downward, downwardAPI: {defaultMode: 0644, items: [{path: a, fieldRef: {apiVersion: v1, fieldPath: metadata.name}}, {path: b, resourceFieldRef: {resource: limits.cpu}}]}}
  - {name: host, hostPath: {path: /x, type: ""}}
  - {name: iscsi, iscsi: {targetPortal: p, iqn: q, lun: 0, iscsiInterface: default}}
  - {name: latest, image: {reference: registry:5000/a/b, pullPolicy: Always}}
  - {name: pinned, image: {reference: "registry:5000/a/b:1", pullPolicy: IfNotPresent}}
  - {name: ephemeral, ephemeral: {volumeClaimTemplate: {spec: {volumeMode: Filesystem}}}}
  - {name: template, ephemeral: {}}
  - name: projected
    projected:
      defaultMode: 0644
      sources:
      - serviceAccountToken: {path: t, expirationSeconds: 3600}
      - podCertificate: {signerName: s, keyType: ED25519, maxExpirationSeconds: 86400}
      - downwardAPI: {items: [{path: a, fieldRef: {apiVersion: v1, fieldPath: metadata.uid}}]}
      - secret: {name: s}
      - {}
`

func TestDefaultPod(t *testing.T) {
	t.Parallel()
	sparse, full := parse[v1.Pod](t, sparsePod), parse[v1.Pod](t, fullPod)
	before := sparse.DeepCopy()
	got := DefaultPod(sparse)
	if !equality.Semantic.DeepEqual(got, full) {
		a, _ := yaml.Marshal(got)
		t.Errorf("got\n%s", a)
	}
	if !equality.Semantic.DeepEqual(sparse, before) {
		t.Error("the argument was changed")
	}
	if again := DefaultPod(got); again != got {
		t.Error("a complete pod was copied")
	}
	if DefaultPod(nil) != nil {
		t.Error("nil did not stay nil")
	}
}

func TestDefaultsKeepWhatIsThere(t *testing.T) {
	t.Parallel()
	pod := parse[v1.Pod](t, `
metadata: {name: p, uid: u, namespace: n}
spec:
  serviceAccount: old
  volumes:
  - {name: a, secret: {secretName: s, defaultMode: 0}}
  - {name: b, hostPath: {path: /x, type: File}}
  - {name: c, image: {reference: "x", pullPolicy: Never}}
  - {name: d, ephemeral: {volumeClaimTemplate: {spec: {volumeMode: Block}}}}
  - {name: e, nfs: {server: s, path: p}}
`)
	want := pod.DeepCopy()
	want.Spec.ServiceAccountName = "old"
	if got := DefaultPod(pod); !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestDefaultedPodsShareNothing(t *testing.T) {
	t.Parallel()
	pod := parse[v1.Pod](t, "metadata: {name: p}\nspec: {volumes: [{name: a, secret: {}}, {name: b, secret: {}}]}")
	one := DefaultPod(pod)
	*one.Spec.Volumes[0].Secret.DefaultMode = 0
	if *one.Spec.Volumes[1].Secret.DefaultMode != DefaultFileMode || *DefaultPod(pod).Spec.Volumes[0].Secret.DefaultMode != DefaultFileMode {
		t.Error("two defaults are one variable")
	}
}

func TestDefaultPVAndPVC(t *testing.T) {
	t.Parallel()
	pv := DefaultPV(parse[v1.PersistentVolume](t, "spec: {hostPath: {path: /x}, iscsi: {iqn: q}, volumeMode: ''}"))
	want := parse[v1.PersistentVolume](t,
		"spec: {hostPath: {path: /x, type: ''}, iscsi: {iqn: q, iscsiInterface: default}, volumeMode: Filesystem, persistentVolumeReclaimPolicy: Retain}")
	if !equality.Semantic.DeepEqual(pv, want) {
		t.Errorf("%+v", pv.Spec)
	}
	claim := DefaultPVC(&v1.PersistentVolumeClaim{})
	if claim.Namespace != "default" || claim.Spec.VolumeMode == nil || *claim.Spec.VolumeMode != v1.PersistentVolumeFilesystem {
		t.Errorf("%+v", claim)
	}
	if DefaultPVC(claim) != claim || DefaultPV(pv) != pv || DefaultPV(nil) != nil || DefaultPVC(nil) != nil {
		t.Error("complete objects were copied")
	}
	block := v1.PersistentVolumeBlock
	if c := DefaultPVC(&v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{VolumeMode: &block}}); *c.Spec.VolumeMode != block {
		t.Errorf("%+v", c)
	}
}

func TestPullPolicy(t *testing.T) {
	t.Parallel()
	const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for reference, want := range map[string]v1.PullPolicy{
		"": v1.PullAlways, "a": v1.PullAlways, "a:latest": v1.PullAlways, "h:80/a": v1.PullAlways, "a:latest" + digest: v1.PullAlways,
		"a:1": v1.PullIfNotPresent, "h:80/a:1": v1.PullIfNotPresent, "a" + digest: v1.PullIfNotPresent, "h:80/a:1" + digest: v1.PullIfNotPresent,
	} {
		if got := pullPolicy(reference); got != want {
			t.Errorf("%q: %s, want %s", reference, got, want)
		}
	}
}

func TestValidatePod(t *testing.T) {
	t.Parallel()
	pod := func(uid types.UID, name string, volumes ...v1.Volume) *v1.Pod {
		return &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{UID: uid, Name: name, Namespace: "ns"},
			Spec:       v1.PodSpec{Volumes: volumes},
		}
	}
	vol := func(name string) v1.Volume { return v1.Volume{Name: name} }
	two := v1.Volume{Name: "two", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}, NFS: &v1.NFSVolumeSource{}}}
	for name, p := range map[string]*v1.Pod{
		"plain": pod("u", "p"), "volumes": pod("u", "p", vol("a"), vol("b")), "sparse pod": parse[v1.Pod](t, sparsePod),
	} {
		if err := ValidatePod(p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	spaces := pod("u", "p")
	spaces.Namespace = "a/b"
	for name, c := range map[string]struct {
		pod  *v1.Pod
		says []string
	}{
		"nil":       {nil, []string{"nil"}},
		"empty":     {&v1.Pod{}, []string{"metadata.uid", "metadata.name"}},
		"uid":       {pod("../x", "p"), []string{`metadata.uid: name cannot be used as a folder: "../x"`}},
		"namespace": {spaces, []string{"metadata.namespace"}},
		"volumes": {
			pod("u", "p", vol("a"), vol(".."), vol("a"), vol(""), two),
			[]string{"spec.volumes[1].name", `spec.volumes[2]: the name "a" is that of volume 0`, "spec.volumes[3].name", "spec.volumes[4]: more than one source: emptyDir, nfs"},
		},
	} {
		err := ValidatePod(c.pod)
		if ClassOf(err) != ClassPermanent {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if name == "uid" && !errors.Is(err, ErrBadName) {
			t.Errorf("%s: %v does not wrap ErrBadName", name, err)
		}
		for _, part := range c.says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q is missing in %v", name, part, err)
			}
		}
	}
}

func TestDefaultRequestsAreCopies(t *testing.T) {
	t.Parallel()
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{
		Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"cpu": resource.MustParse("2")}},
	}}}}
	got := DefaultPod(pod)
	if len(pod.Spec.Containers[0].Resources.Requests) != 0 {
		t.Error("the argument was changed")
	}
	if q := got.Spec.Containers[0].Resources.Requests["cpu"]; q.String() != "2" {
		t.Errorf("request %s", q.String())
	}
}
