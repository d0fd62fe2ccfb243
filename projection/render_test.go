package projection

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/volumekit/volumekit/plugins"
)

func ptr[T any](v T) *T { return &v }

func request(source v1.VolumeSource) plugins.SetUpRequest {
	pod := testPod()
	volume := &v1.Volume{Name: "vol", VolumeSource: source}
	pod.Spec.Volumes = []v1.Volume{*volume}
	return plugins.SetUpRequest{
		Target: plugins.Target{Volume: plugins.PodVolume{Pod: pod.UID, Plugin: "p", Name: "vol"}},
		Spec:   &plugins.Spec{Volume: volume}, Object: pod,
	}
}

// content shows a tree as path -> "mode owner:group data".
func content(tree *Tree) map[string]string {
	got := map[string]string{}
	for _, name := range tree.Paths() {
		f, _ := tree.File(name)
		id := func(p *int64) string {
			if p == nil {
				return "-"
			}
			return fmt.Sprint(*p)
		}
		got[name] = fmt.Sprintf("%o %s:%s %s", f.Mode, id(f.UID), id(f.GID), f.Data)
	}
	return got
}

type renderCase struct {
	name   string
	source v1.VolumeSource
	params plugins.Params
	want   map[string]string
	class  plugins.Class
	text   string // what the error must say
	waits  plugins.Ref
}

func (tc renderCase) run(t *testing.T, r *Renderer) {
	t.Helper()
	req := request(tc.source)
	req.Params = tc.params
	got, err := r.Render(context.Background(), req)
	if plugins.ClassOf(err) != tc.class {
		t.Fatalf("%s: %v of class %s, want %s", tc.name, err, plugins.ClassOf(err), tc.class)
	}
	if err != nil {
		if !strings.Contains(err.Error(), tc.text) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", tc.name, err)
		}
		if tc.waits != (plugins.Ref{}) && !slices.Contains(plugins.WaitsFor(err), tc.waits) {
			t.Errorf("%s: waits for %v", tc.name, plugins.WaitsFor(err))
		}
		return
	}
	if c := content(got.Tree); !maps.Equal(c, tc.want) {
		t.Errorf("%s: %q, want %q", tc.name, c, tc.want)
	}
}

func configMap(s v1.ConfigMapVolumeSource, name string) v1.VolumeSource {
	s.Name = name
	return v1.VolumeSource{ConfigMap: &s}
}

func secret(s v1.SecretVolumeSource, name string) v1.VolumeSource {
	s.SecretName = name
	return v1.VolumeSource{Secret: &s}
}

func TestRenderObjects(t *testing.T) {
	cmRef := plugins.Ref{Kind: plugins.KindConfigMap, Namespace: "ns", Name: "none"}
	all := map[string]string{"a": "644 -:- 1", "b.txt": "644 -:- 2", "bin": "644 -:- \x00\x01\xff"}
	items := func(list ...v1.KeyToPath) []v1.KeyToPath { return list }
	for _, tc := range []renderCase{
		{name: "all keys", source: configMap(v1.ConfigMapVolumeSource{}, "cm"), want: all},
		{name: "default mode and user", source: configMap(v1.ConfigMapVolumeSource{DefaultMode: ptr[int32](0o400), DefaultUser: ptr[int64](7)}, "cm2"),
			want: map[string]string{"a": "400 7:- other"}},
		{name: "items", source: configMap(v1.ConfigMapVolumeSource{DefaultUser: ptr[int64](7), Items: items(
			v1.KeyToPath{Key: "a", Path: "x/y//z/"}, v1.KeyToPath{Key: "bin", Path: "a", Mode: ptr[int32](0o755), User: ptr[int64](8)})}, "cm"),
			want: map[string]string{"x/y/z": "644 7:- 1", "a": "755 8:- \x00\x01\xff"}},
		{name: "one key twice", source: configMap(v1.ConfigMapVolumeSource{Items: items(v1.KeyToPath{Key: "a", Path: "x"}, v1.KeyToPath{Key: "a", Path: "y"})}, "cm"),
			want: map[string]string{"x": "644 -:- 1", "y": "644 -:- 1"}},
		{name: "one path twice", source: configMap(v1.ConfigMapVolumeSource{Items: items(v1.KeyToPath{Key: "a", Path: "x"}, v1.KeyToPath{Key: "bin", Path: "./x"})}, "cm"),
			class: plugins.ClassPermanent, text: `key "bin"`},
		{name: "missing key", source: configMap(v1.ConfigMapVolumeSource{Items: items(v1.KeyToPath{Key: "none", Path: "x"})}, "cm"),
			class: plugins.ClassWaiting, text: `ns/cm key "none" does not exist`, waits: plugins.Ref{Kind: plugins.KindConfigMap, Namespace: "ns", Name: "cm"}},
		{name: "missing optional key", source: configMap(v1.ConfigMapVolumeSource{Optional: ptr(true), Items: items(v1.KeyToPath{Key: "none", Path: "x"}, v1.KeyToPath{Key: "a", Path: "y"})}, "cm"),
			want: map[string]string{"y": "644 -:- 1"}},
		{name: "missing object", source: configMap(v1.ConfigMapVolumeSource{}, "none"), class: plugins.ClassWaiting, text: "not found", waits: cmRef},
		{name: "missing object, not optional", source: configMap(v1.ConfigMapVolumeSource{Optional: ptr(false)}, "none"), class: plugins.ClassWaiting, waits: cmRef},
		{name: "missing optional object", source: configMap(v1.ConfigMapVolumeSource{Optional: ptr(true), Items: items(v1.KeyToPath{Key: "a", Path: "a"})}, "none"), want: map[string]string{}},
		{name: "escaping path", source: configMap(v1.ConfigMapVolumeSource{Items: items(v1.KeyToPath{Key: "a", Path: "../x"})}, "cm"), class: plugins.ClassPermanent, text: "leads upward"},
		{name: "bad default mode", source: configMap(v1.ConfigMapVolumeSource{DefaultMode: ptr[int32](0o1777)}, "cm"), class: plugins.ClassPermanent, text: "defaultMode"},
		{name: "negative mode", source: configMap(v1.ConfigMapVolumeSource{Items: items(v1.KeyToPath{Key: "a", Path: "a", Mode: ptr[int32](-1)})}, "cm"), class: plugins.ClassPermanent, text: "mode of"},
		{name: "fsGroup", source: configMap(v1.ConfigMapVolumeSource{DefaultMode: ptr[int32](0o600), Items: items(
			v1.KeyToPath{Key: "a", Path: "a"}, v1.KeyToPath{Key: "a", Path: "b", Mode: ptr[int32](0o644)}, v1.KeyToPath{Key: "a", Path: "c", Mode: ptr[int32](0)})}, "cm"),
			params: plugins.Params{FSGroup: ptr[int64](5), FSUser: ptr[int64](9)},
			want:   map[string]string{"a": "640 -:5 1", "b": "644 -:5 1", "c": "440 -:5 1"}},
		{name: "secret", source: secret(v1.SecretVolumeSource{}, "s"), want: map[string]string{"key": "644 -:- hunter2"}},
		{name: "secret made by hand", source: secret(v1.SecretVolumeSource{}, "hand"), want: map[string]string{"x": "644 -:- new", "y": "644 -:- y"}},
		{name: "secret with a hostile key", source: secret(v1.SecretVolumeSource{}, "evil"), class: plugins.ClassPermanent, text: "leads upward"},
		{name: "missing secret", source: secret(v1.SecretVolumeSource{}, "none"), class: plugins.ClassWaiting, waits: plugins.Ref{Kind: plugins.KindSecret, Namespace: "ns", Name: "none"}},
		{name: "missing optional secret", source: secret(v1.SecretVolumeSource{Optional: ptr(true)}, "none"), want: map[string]string{}},
		{name: "no rendered kind", source: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, class: plugins.ClassPermanent, text: "emptyDir"},
	} {
		tc.run(t, NewRenderer(newAPI().host()))
	}
	broken := newAPI()
	broken.fail = errors.New("connection refused")
	for _, source := range []v1.VolumeSource{configMap(v1.ConfigMapVolumeSource{Optional: ptr(true)}, "cm"), secret(v1.SecretVolumeSource{Optional: ptr(true)}, "s")} {
		renderCase{name: "broken source", source: source, class: plugins.ClassTransient, text: "refused"}.run(t, NewRenderer(broken.host()))
		renderCase{name: "no source", source: source, class: plugins.ClassUnsupported, text: "is not set"}.run(t, NewRenderer(&plugins.VolumeHost{}))
	}
}

func TestRenderDownwardAPI(t *testing.T) {
	field := func(path string) v1.VolumeSource {
		return v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{{Path: "f", FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}}}}
	}
	one := func(text string) map[string]string { return map[string]string{"f": "644 -:- " + text} }
	cases := []renderCase{
		{name: "both", source: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{DefaultMode: ptr[int32](0o400), DefaultUser: ptr[int64](3), Items: []v1.DownwardAPIVolumeFile{
			{Path: "a//b", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}},
			{Path: "c", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.uid"}, Mode: ptr[int32](0o444), User: ptr[int64](4)},
			{Path: "nothing"},
		}}}, want: map[string]string{"a/b": "400 3:- pod", "c": "444 4:- uid-1", "nothing": "400 3:- "}},
	}
	for path, want := range map[string]string{
		"metadata.name": "pod", "metadata.namespace": "ns", "metadata.uid": "uid-1",
		"metadata.labels":      "a=\"quo\\\"te\\nnl\"\nexample.com/k=\"v\"\nz=\"last\"",
		"metadata.annotations": "Note=\"text\"", "metadata.labels['a']": "quo\"te\nnl", "metadata.labels['example.com/k']": "v",
		"metadata.labels['none']": "", "metadata.annotations['Note']": "text",
	} {
		cases = append(cases, renderCase{name: path, source: field(path), want: one(want)})
	}
	for _, path := range []string{
		"spec.nodeName", "status.podIP", "metadata.labels['bad key']", "metadata.labels['a", "metadata.name['a']", "", "metadata", "metadata.annotations['']",
	} {
		cases = append(cases, renderCase{name: path, source: field(path), class: plugins.ClassPermanent, text: `item "f"`})
	}
	for _, tc := range cases {
		tc.run(t, NewRenderer(&plugins.VolumeHost{})) // needs no source at all
	}
	req := request(field("metadata.labels"))
	req.Object.Labels = nil
	if got, err := NewRenderer(&plugins.VolumeHost{}).Render(context.Background(), req); err != nil || !maps.Equal(content(got.Tree), one("")) {
		t.Errorf("no labels: %v, %v", got, err)
	}
}

func TestRenderResources(t *testing.T) {
	list := func(pairs ...string) v1.ResourceList {
		l := v1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			l[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return l
	}
	source := newAPI()
	source.node = &v1.Node{Status: v1.NodeStatus{Allocatable: list("cpu", "3800m", "memory", "7Gi", "ephemeral-storage", "100G", "hugepages-2Mi", "4Mi")}}
	for _, tc := range []struct {
		container, res, divisor, want string
		host                          *plugins.VolumeHost
		class                         plugins.Class
	}{
		{container: "c", res: "limits.cpu", want: "2"}, {container: "c", res: "limits.cpu", divisor: "1m", want: "1500"},
		{container: "c", res: "requests.cpu", divisor: "1m", want: "251"}, {container: "c", res: "requests.cpu", want: "1"},
		{container: "c", res: "limits.memory", want: "67108865"}, {container: "c", res: "limits.memory", divisor: "1Mi", want: "65"},
		{container: "c", res: "limits.memory", divisor: "1G", want: "1"}, {container: "c", res: "limits.memory", divisor: "0", want: "67108865"},
		{container: "c", res: "limits.hugepages-2Mi", divisor: "1Mi", want: "6"}, {container: "c", res: "limits.hugepages-1Gi", want: "0"},
		{container: "c", res: "limits.ephemeral-storage", want: "100000000000", host: source.host()},
		{container: "init", res: "limits.cpu", want: "4", host: source.host()}, {container: "init", res: "limits.cpu", divisor: "1m", want: "3800", host: source.host()},
		{container: "init", res: "limits.memory", divisor: "1Gi", want: "7", host: source.host()},
		{container: "init", res: "limits.hugepages-2Mi", want: "0", host: source.host()},
		{container: "init", res: "requests.memory", want: "0"}, {container: "init", res: "requests.cpu", want: "0"},
		{container: "c", res: "requests.memory", divisor: "1Mi", want: "65"}, // a request without a value is the limit
		{container: "init", res: "limits.cpu", class: plugins.ClassUnsupported},
		{container: "init", res: "limits.cpu", class: plugins.ClassTransient, host: newAPI().host()},
		{container: "debug", res: "limits.cpu", class: plugins.ClassPermanent}, {container: "", res: "limits.cpu", class: plugins.ClassPermanent},
		{container: "c", res: "limits.gpu", class: plugins.ClassPermanent}, {container: "c", res: "cpu", class: plugins.ClassPermanent},
		{container: "c", res: "wishes.cpu", class: plugins.ClassPermanent}, {container: "c", res: "limits.cpu", divisor: "-1", class: plugins.ClassPermanent},
	} {
		ref := &v1.ResourceFieldSelector{ContainerName: tc.container, Resource: tc.res}
		if tc.divisor != "" {
			ref.Divisor = resource.MustParse(tc.divisor)
		}
		req := request(v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{{Path: "f", ResourceFieldRef: ref}}}})
		req.Object.Spec = v1.PodSpec{
			Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{
				Limits: list("cpu", "1500m", "memory", "67108865", "hugepages-2Mi", "6Mi"), Requests: list("cpu", "251m"),
			}}},
			InitContainers:      []v1.Container{{Name: "init"}},
			EphemeralContainers: []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug"}}},
		}
		host := tc.host
		if host == nil {
			host = &plugins.VolumeHost{} // no node is asked for what it is not needed for
		}
		got, err := NewRenderer(host).Render(context.Background(), req)
		if plugins.ClassOf(err) != tc.class {
			t.Errorf("%s %s: %v of class %s", tc.container, tc.res, err, plugins.ClassOf(err))
		} else if err == nil {
			if f, _ := got.Tree.File("f"); string(f.Data) != tc.want {
				t.Errorf("%s %s / %s: %s, want %s", tc.container, tc.res, tc.divisor, f.Data, tc.want)
			}
			if usesNode := tc.host != nil && strings.HasPrefix(tc.res, "limits") && !strings.Contains(tc.res, "huge"); usesNode == got.RefreshAt.IsZero() {
				t.Errorf("%s %s: refresh at %v", tc.container, tc.res, got.RefreshAt)
			}
		}
	}
}

func projected(sources ...v1.VolumeProjection) v1.VolumeSource {
	return v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: sources}}
}

func named(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }

func TestRenderProjected(t *testing.T) {
	cm := func(name string, items ...v1.KeyToPath) v1.VolumeProjection {
		return v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: named(name), Items: items}}
	}
	sec := v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: named("s")}}
	down := v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "d/ns", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}}
	token := func(s v1.ServiceAccountTokenProjection) v1.VolumeProjection {
		if s.Path == "" {
			s.Path = "token"
		}
		return v1.VolumeProjection{ServiceAccountToken: &s}
	}
	plain := token(v1.ServiceAccountTokenProjection{})
	owned := func(source v1.VolumeProjection, user *int64) v1.VolumeSource {
		v := projected(source)
		v.Projected.DefaultUser, v.Projected.DefaultMode = user, ptr[int32](0o444)
		return v
	}
	fsUser := plugins.Params{FSUser: ptr[int64](1)}
	for _, tc := range []renderCase{
		{name: "side by side", source: projected(cm("cm"), sec, down, plain), want: map[string]string{
			"a": "644 -:- 1", "b.txt": "644 -:- 2", "bin": "644 -:- \x00\x01\xff", "key": "644 -:- hunter2", "d/ns": "644 -:- ns", "token": "644 -:- the-token"}},
		{name: "no sources", source: projected(), want: map[string]string{}},
		{name: "same key twice", source: projected(cm("cm"), cm("cm2")), class: plugins.ClassPermanent, text: "source 1: configMap ns/cm2"},
		{name: "file and folder", source: projected(cm("cm2"), cm("cm", v1.KeyToPath{Key: "a", Path: "a/b"})), class: plugins.ClassPermanent, text: "configMap ns/cm2"},
		{name: "token on a key", source: projected(cm("cm2"), token(v1.ServiceAccountTokenProjection{Path: "./a"})), class: plugins.ClassPermanent, text: "token of serviceAccount ns/default"},
		{name: "unknown kind", source: projected(sec, v1.VolumeProjection{}), class: plugins.ClassUnsupported, text: "source 1"},
		{name: "two kinds in one", source: projected(v1.VolumeProjection{Secret: sec.Secret, DownwardAPI: down.DownwardAPI}), class: plugins.ClassPermanent},
		{name: "pod certificate", source: projected(v1.VolumeProjection{PodCertificate: &v1.PodCertificateProjection{}}), class: plugins.ClassUnsupported, text: "podCertificate"},
		{name: "all faults at once", source: projected(cm("none"), cm("gone")), class: plugins.ClassWaiting, text: "ns/none", waits: plugins.Ref{Kind: plugins.KindConfigMap, Namespace: "ns", Name: "gone"}},
		{name: "optional", source: projected(v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: named("none"), Optional: ptr(true)}}), want: map[string]string{}},
		{name: "token too short", source: projected(token(v1.ServiceAccountTokenProjection{ExpirationSeconds: ptr[int64](599)})), class: plugins.ClassPermanent, text: "599"},
		{name: "token without a path", source: projected(token(v1.ServiceAccountTokenProjection{Path: "/"})), class: plugins.ClassPermanent},
		{name: "token for a user", source: owned(plain, nil), params: fsUser, want: map[string]string{"token": "600 1:- the-token"}},
		{name: "default user over the pod's", source: owned(plain, ptr[int64](2)), params: fsUser, want: map[string]string{"token": "600 2:- the-token"}},
		{name: "token's user over all", source: owned(token(v1.ServiceAccountTokenProjection{User: ptr[int64](3)}), ptr[int64](2)), params: fsUser, want: map[string]string{"token": "600 3:- the-token"}},
		{name: "token for a group", source: owned(plain, nil), params: plugins.Params{FSGroup: ptr[int64](5)}, want: map[string]string{"token": "640 -:5 the-token"}},
		{name: "token for both", source: owned(plain, nil), params: plugins.Params{FSGroup: ptr[int64](5), FSUser: ptr[int64](1)}, want: map[string]string{"token": "640 1:5 the-token"}},
		{name: "token for nobody", source: owned(plain, nil), want: map[string]string{"token": "444 -:- the-token"}},
		{name: "the pod's user owns no config", source: projected(cm("cm2")), params: fsUser, want: map[string]string{"a": "644 -:- other"}},
	} {
		tc.run(t, NewRenderer(newAPI().host()))
	}
	renderCase{name: "downwardAPI alone needs no client", source: projected(down), want: map[string]string{"d/ns": "644 -:- ns"}}.run(t, NewRenderer(&plugins.VolumeHost{}))
	renderCase{name: "no token source", source: projected(plain), class: plugins.ClassUnsupported, text: "Tokens"}.run(t, NewRenderer(&plugins.VolumeHost{}))
}

func TestRenderRefreshAt(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	source := newAPI()
	source.issue = func(r plugins.TokenRequest) (plugins.Token, error) {
		return plugins.Token{Value: "t", Issued: now, Expires: now.Add(r.Lifetime)}, nil
	}
	token := v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "t", ExpirationSeconds: ptr[int64](1000)}}
	sec := v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: named("s")}}
	polled := source.host()
	notified := source.host()
	notified.Secrets, notified.ConfigMaps = notifying{source}, notifying{source}
	for _, tc := range []struct {
		name   string
		host   *plugins.VolumeHost
		source v1.VolumeSource
		want   time.Time
	}{
		{"polled", polled, secret(v1.SecretVolumeSource{}, "s"), now.Add(time.Minute)},
		{"notified", notified, secret(v1.SecretVolumeSource{}, "s"), time.Time{}},
		{"token alone", notified, projected(token, sec), now.Add(800 * time.Second)},
		{"the earlier one", polled, projected(token, sec), now.Add(time.Minute)},
	} {
		tc.host.Clock = clocktesting.NewFakeClock(now)
		got, err := NewRenderer(tc.host).Render(context.Background(), request(tc.source))
		if err != nil || !got.RefreshAt.Equal(tc.want) {
			t.Errorf("%s: %v, %v", tc.name, got.RefreshAt, err)
		}
	}
	if a := source.asked[0]; a.ServiceAccount != "default" || a.Audiences != nil || a.Pod != (plugins.PodRef{Namespace: "ns", Name: "pod", UID: "uid-1"}) {
		t.Errorf("asked %+v", a)
	}
}

func TestReferences(t *testing.T) {
	limit := func(container string) v1.VolumeProjection {
		return v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{
			{Path: "f", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: container, Resource: "limits.cpu"}}}}}
	}
	r := NewRenderer(newAPI().host())
	req := request(projected(
		v1.VolumeProjection{Secret: &v1.SecretProjection{LocalObjectReference: named("s")}},
		v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: named("cm")}},
		limit("none"), limit("c"),
		v1.VolumeProjection{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Name: ptr("b")}},
		v1.VolumeProjection{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{SignerName: ptr("x/y")}},
		v1.VolumeProjection{},
	))
	req.Object.Spec.Containers = []v1.Container{{Name: "c"}}
	want := []plugins.Ref{
		{Kind: plugins.KindSecret, Namespace: "ns", Name: "s"}, {Kind: plugins.KindConfigMap, Namespace: "ns", Name: "cm"},
		{Kind: plugins.KindNode, Name: "node"}, {Kind: plugins.KindTrustBundle, Name: "b"}, {Kind: plugins.KindTrustBundle},
	}
	if got := r.References(req.Spec, req.Object); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	for _, spec := range []*plugins.Spec{nil, {}, {PV: &v1.PersistentVolume{}}} {
		if got := r.References(spec, req.Object); got != nil {
			t.Errorf("%v: %v", spec, got)
		}
	}
}

func TestMountPoints(t *testing.T) {
	mounts := func(paths ...string) []v1.VolumeMount { // the first is the volume's own
		list := []v1.VolumeMount{{Name: "vol", MountPath: paths[0]}}
		for _, p := range paths[1:] {
			list = append(list, v1.VolumeMount{Name: "other", MountPath: p})
		}
		return list
	}
	for name, tc := range map[string]struct {
		mounts []v1.VolumeMount
		want   []string
		bad    bool
	}{
		"none":             {mounts: mounts("/a", "/b", "/ab", "/")},
		"one":              {mounts: mounts("/a", "/a/b/c"), want: []string{"b/c"}},
		"outermost":        {mounts: mounts("/a", "/a/b/c/d", "/a/b-x", "/a/b.y/z", "/a/b", "/a/b/"), want: []string{"b", "b-x", "b.y/z"}},
		"root":             {mounts: mounts("/", "/x", "/x/y", "/z"), want: []string{"x", "z"}},
		"unclean":          {mounts: mounts("a//", "/a/./b/../c/"), want: []string{"c"}},
		"escaping":         {mounts: mounts("/a", "../x"), bad: true},
		"on a file":        {mounts: mounts("/a", "/a/key"), bad: true},
		"in a file":        {mounts: mounts("/a", "/a/key/x"), bad: true},
		"in writer's name": {mounts: mounts("/a", "/a/..data/x"), bad: true},
		"twice":            {mounts: append(mounts("/a", "/b/x"), v1.VolumeMount{Name: "vol", MountPath: "/b"}), want: []string{"x"}},
		"subPath":          {mounts: []v1.VolumeMount{{Name: "vol", MountPath: "/a", SubPath: "d"}, {Name: "other", MountPath: "/a/x"}}},
	} {
		req := request(secret(v1.SecretVolumeSource{}, "s"))
		req.Object.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "c", VolumeMounts: tc.mounts}}}
		got, err := NewRenderer(newAPI().host()).Render(context.Background(), req)
		if (err != nil) != tc.bad || tc.bad && plugins.ClassOf(err) != plugins.ClassPermanent {
			t.Errorf("%s: %v", name, err)
		} else if err == nil && !slices.Equal(got.Tree.MountPoints(), tc.want) {
			t.Errorf("%s: %q", name, got.Tree.MountPoints())
		}
	}
}

func TestRequestsAreNotChanged(t *testing.T) {
	source := newAPI()
	req := request(secret(v1.SecretVolumeSource{}, "hand"))
	before := source.secrets["ns/hand"].DeepCopy()
	if _, err := NewRenderer(source.host()).Render(context.Background(), req); err != nil {
		t.Fatal(err)
	}
	if after := source.secrets["ns/hand"]; string(after.Data["x"]) != string(before.Data["x"]) || len(after.Data) != len(before.Data) {
		t.Errorf("the source's object was changed: %d keys", len(after.Data))
	}
}
