package memory

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/plugins"
)

var errFault = errors.New("a fault")

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func apply(t *testing.T, s *Store, list ...runtime.Object) {
	t.Helper()
	for _, obj := range list {
		if err := s.Apply(obj); err != nil {
			t.Fatal(err)
		}
	}
}

// access is one kind of object and how it is read.
type access struct {
	ref  plugins.Ref
	obj  object
	read func(context.Context, *plugins.VolumeHost) (metav1.Object, error)
}

func accesses() []access {
	type ctx = context.Context
	type host = plugins.VolumeHost
	return []access{
		{plugins.Ref{Kind: "Secret", Namespace: "ns", Name: "x"}, &v1.Secret{ObjectMeta: named("ns", "x")},
			func(c ctx, h *host) (metav1.Object, error) { return h.Secret(c, "ns", "x") }},
		{plugins.Ref{Kind: "ConfigMap", Namespace: "ns", Name: "x"}, &v1.ConfigMap{ObjectMeta: named("ns", "x")},
			func(c ctx, h *host) (metav1.Object, error) { return h.ConfigMap(c, "ns", "x") }},
		{plugins.Ref{Kind: "PersistentVolumeClaim", Namespace: "ns", Name: "x"}, &v1.PersistentVolumeClaim{ObjectMeta: named("ns", "x")},
			func(c ctx, h *host) (metav1.Object, error) { return h.Claim(c, "ns", "x") }},
		{plugins.Ref{Kind: "PersistentVolume", Name: "x"}, &v1.PersistentVolume{ObjectMeta: named("", "x")},
			func(c ctx, h *host) (metav1.Object, error) { return h.PersistentVolume(c, "x") }},
		{plugins.Ref{Kind: "Node", Name: "x"}, &v1.Node{ObjectMeta: named("", "x")},
			func(c ctx, h *host) (metav1.Object, error) { return h.NodeObject(c) }},
		{plugins.Ref{Kind: "ClusterTrustBundle", Name: "x"}, &certificatesv1.ClusterTrustBundle{ObjectMeta: named("", "x")},
			func(c ctx, h *host) (metav1.Object, error) { return h.TrustBundle(c, "x") }},
		{plugins.Ref{Kind: "CSIDriver", Name: "x"}, &storagev1.CSIDriver{ObjectMeta: named("", "x")},
			func(c ctx, h *host) (metav1.Object, error) { return h.CSIDriver(c, "x") }},
		{plugins.Ref{Kind: "VolumeAttachment", Name: "x"}, &storagev1.VolumeAttachment{ObjectMeta: named("", "x")},
			func(c ctx, h *host) (metav1.Object, error) { return h.Attachment(c, "x") }},
	}
}

func TestEveryKind(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, a := range accesses() {
		t.Run(a.ref.Kind, func(t *testing.T) {
			t.Parallel()
			s := NewStore()
			h := s.Host(plugins.Layout{Root: "/x"}, nil)
			var told []plugins.Ref
			defer s.Subscribe(func(r plugins.Ref) { told = append(told, r) })()

			if _, err := a.read(ctx, h); !apierrors.IsNotFound(err) {
				t.Errorf("before: %v", err)
			}
			apply(t, s, a.obj)
			first, err := a.read(ctx, h)
			if err != nil {
				t.Fatal(err)
			}
			if first.GetName() != "x" || first.GetUID() == "" || first.GetResourceVersion() != "1" || first.GetCreationTimestamp().Time.IsZero() {
				t.Errorf("%+v", first)
			}
			if a.obj.GetUID() != "" || a.obj.GetResourceVersion() != "" {
				t.Error("the argument was changed")
			}
			apply(t, s, a.obj) // no change
			a.obj.SetLabels(map[string]string{"a": "b"})
			if first.GetLabels() != nil {
				t.Error("the store kept the caller's object")
			}
			apply(t, s, a.obj)
			second, err := a.read(ctx, h)
			if err != nil || second.GetLabels()["a"] != "b" || second.GetResourceVersion() != "2" || second.GetUID() != first.GetUID() {
				t.Errorf("%+v, %v", second, err)
			}
			if !second.GetCreationTimestamp().Time.Equal(first.GetCreationTimestamp().Time) || first.GetLabels() != nil {
				t.Errorf("an update changed what stays: %+v", second)
			}
			if err := s.Delete(a.obj); err != nil {
				t.Error(err)
			}
			if err := s.Delete(a.obj); !apierrors.IsNotFound(err) {
				t.Errorf("deleted twice: %v", err)
			}
			if _, err := a.read(ctx, h); !apierrors.IsNotFound(err) {
				t.Errorf("after: %v", err)
			}
			if want := []plugins.Ref{a.ref, a.ref, a.ref}; !slices.Equal(told, want) {
				t.Errorf("told %v, want %v", told, want)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for _, a := range accesses() {
		s := New(Config{NodeName: "x"})
		h := s.Host(plugins.Layout{Root: "/x"}, nil)
		apply(t, s, a.obj)
		s.SetFault(func(_ context.Context, verb string, ref plugins.Ref) error {
			if verb == "get" && ref == a.ref {
				return errFault
			}
			return nil
		})
		if _, err := a.read(t.Context(), h); !errors.Is(err, errFault) {
			t.Errorf("%s: %v", a.ref, err)
		}
		s.SetFault(nil)
		if _, err := a.read(t.Context(), h); err != nil {
			t.Errorf("%s: %v", a.ref, err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := a.read(ended, h); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", a.ref, err)
		}
	}
}

func TestBlockedReadEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := NewStore()
	apply(t, s, &v1.Secret{ObjectMeta: named("ns", "x")})
	began := make(chan struct{})
	s.SetFault(func(ctx context.Context, _ string, _ plugins.Ref) error {
		close(began)
		<-ctx.Done()
		return ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.Secret(ctx, "ns", "x")
		done <- err
	}()
	<-began
	s.SetFault(nil)
	apply(t, s, &v1.Secret{ObjectMeta: named("ns", "y")}) // a blocked read holds nothing up
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	s := NewStore()
	defer s.Subscribe(func(r plugins.Ref) { t.Errorf("told %v", r) })()
	for name, obj := range map[string]runtime.Object{
		"nil":        nil,
		"typed nil":  (*v1.Secret)(nil),
		"nil pod":    (*v1.Pod)(nil),
		"no name":    &v1.Secret{},
		"other kind": &v1.Service{ObjectMeta: named("ns", "x")},
		"empty pod":  &v1.Pod{},
	} {
		if err := s.Apply(obj); plugins.ClassOf(err) != plugins.ClassPermanent {
			t.Errorf("apply %s: %v", name, err)
		}
		if err := s.Delete(obj); err == nil {
			t.Errorf("delete %s: no error", name)
		}
	}
}

func TestImmutable(t *testing.T) {
	t.Parallel()
	yes := true
	secret := &v1.Secret{ObjectMeta: named("ns", "x"), Data: map[string][]byte{"a": []byte("1")}, Immutable: &yes}
	config := &v1.ConfigMap{ObjectMeta: named("ns", "x"), Data: map[string]string{"a": "1"}, Immutable: &yes}
	changes := map[string]runtime.Object{}
	add := func(name string, s func(*v1.Secret), c func(*v1.ConfigMap)) {
		if s != nil {
			o := secret.DeepCopy()
			s(o)
			changes["secret "+name] = o
		}
		if c != nil {
			o := config.DeepCopy()
			c(o)
			changes["configMap "+name] = o
		}
	}
	add("data", func(s *v1.Secret) { s.Data["a"] = []byte("2") }, func(c *v1.ConfigMap) { c.Data["a"] = "2" })
	add("key gone", func(s *v1.Secret) { s.Data = nil }, func(c *v1.ConfigMap) { c.Data = nil })
	add("stringData", func(s *v1.Secret) { s.StringData = map[string]string{"b": "2"} }, nil)
	add("binaryData", nil, func(c *v1.ConfigMap) { c.BinaryData = map[string][]byte{"b": nil} })
	add("flag", func(s *v1.Secret) { s.Immutable = nil }, func(c *v1.ConfigMap) { c.Immutable = new(bool) })

	store := NewStore()
	apply(t, store, secret, config)
	told := 0
	defer store.Subscribe(func(plugins.Ref) { told++ })()
	for name, obj := range changes {
		if err := store.Apply(obj); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if told != 0 {
		t.Errorf("%d notices of refused changes", told)
	}
	labelled := secret.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	another := config.DeepCopy()
	another.UID, another.Data["a"] = "another", "2"
	apply(t, store, labelled, another) // metadata may change, and a new object is a new one
	if got, err := store.ConfigMap(t.Context(), "ns", "x"); err != nil || got.Data["a"] != "2" || got.UID != "another" {
		t.Errorf("%+v, %v", got, err)
	}
	if told != 2 {
		t.Errorf("%d notices, want 2", told)
	}
}

func TestObjectsAreCompleted(t *testing.T) {
	t.Parallel()
	s, ctx := NewStore(), t.Context()
	apply(t, s,
		&v1.Secret{ObjectMeta: named("", "x"), Data: map[string][]byte{"a": []byte("1"), "b": []byte("2")}, StringData: map[string]string{"b": "3"}},
		&v1.PersistentVolume{ObjectMeta: named("wrong", "pv")},
		&v1.PersistentVolumeClaim{ObjectMeta: named("", "c")},
	)
	secret, err := s.Secret(ctx, "default", "x")
	if err != nil || string(secret.Data["a"]) != "1" || string(secret.Data["b"]) != "3" || secret.StringData != nil || secret.Type != v1.SecretTypeOpaque {
		t.Errorf("%+v, %v", secret, err)
	}
	if pv, err := s.PersistentVolume(ctx, "pv"); err != nil || pv.Namespace != "" || *pv.Spec.VolumeMode != v1.PersistentVolumeFilesystem {
		t.Errorf("%+v, %v", pv, err)
	}
	if c, err := s.Claim(ctx, "default", "c"); err != nil || *c.Spec.VolumeMode != v1.PersistentVolumeFilesystem {
		t.Errorf("%+v, %v", c, err)
	}
	other := NewStore()
	apply(t, other, &v1.Secret{ObjectMeta: named("", "x")})
	if again, err := other.Secret(ctx, "default", "x"); err != nil || again.UID != secret.UID {
		t.Errorf("another process gives another UID: %v, %v", again, err)
	}
}

func TestTrustBundlesOfASigner(t *testing.T) {
	t.Parallel()
	s := NewStore()
	bundle := func(name, signer, env string) *certificatesv1.ClusterTrustBundle {
		b := &certificatesv1.ClusterTrustBundle{ObjectMeta: named("", name)}
		b.Labels, b.Spec.SignerName = map[string]string{"env": env}, signer
		return b
	}
	apply(t, s, bundle("c", "s", "live"), bundle("a", "s", "live"), bundle("b", "s", "test"), bundle("d", "other", "live"))
	for name, c := range map[string]struct {
		signer   string
		selector labels.Selector
		want     []string
	}{
		"labels":     {"s", labels.SelectorFromSet(labels.Set{"env": "live"}), []string{"a", "c"}},
		"all":        {"s", labels.Everything(), []string{"a", "b", "c"}},
		"nil":        {"s", nil, []string{"a", "b", "c"}},
		"nothing":    {"s", labels.Nothing(), nil},
		"no bundles": {"none", labels.Everything(), nil},
	} {
		list, err := s.TrustBundles(t.Context(), c.signer, c.selector)
		var got []string
		for _, b := range list {
			got = append(got, b.Name)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, c.want)
		}
	}
	s.SetFault(func(_ context.Context, verb string, _ plugins.Ref) error {
		if verb == "list" {
			return errFault
		}
		return nil
	})
	if _, err := s.TrustBundles(t.Context(), "s", nil); !errors.Is(err, errFault) {
		t.Error(err)
	}
}

func TestWhichNode(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	node := func(name string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"applied": "yes"}}}
	}
	s := NewStore()
	if _, err := s.Node(ctx); !apierrors.IsNotFound(err) {
		t.Errorf("no node: %v", err)
	}
	apply(t, s, node("a"))
	if n, err := s.Node(ctx); err != nil || n.Name != "a" {
		t.Errorf("one node: %v, %v", n, err)
	}
	apply(t, s, node("b"))
	if _, err := s.Node(ctx); !apierrors.IsNotFound(err) {
		t.Errorf("two nodes: %v", err)
	}

	s = New(Config{NodeName: "b"})
	apply(t, s, node("a"))
	if n, err := s.Node(ctx); err != nil || n.Name != "b" || n.Labels[v1.LabelHostname] != "b" || n.Labels["applied"] != "" {
		t.Errorf("a bare node: %v, %v", n, err)
	}
	s.SetFault(func(context.Context, string, plugins.Ref) error { return errFault })
	if _, err := s.Node(ctx); !errors.Is(err, errFault) {
		t.Errorf("a fault: %v", err)
	}
	s.SetFault(nil)
	apply(t, s, node("b"))
	if n, err := s.Node(ctx); err != nil || n.Labels["applied"] != "yes" {
		t.Errorf("the node applied: %v, %v", n, err)
	}
	if h := s.Host(plugins.Layout{}, nil); h.NodeName != "b" {
		t.Errorf("the host's node is %q", h.NodeName)
	}
}

func TestHostIsWhole(t *testing.T) {
	t.Parallel()
	s := NewStore()
	h := s.Host(plugins.Layout{Root: "/x"}, nil)
	if list := h.Sources(); len(list) != 1 || list[0] != any(s) {
		t.Errorf("sources %v", list)
	}
	if at := h.RefreshAfter(time.Now(), h.Secrets); !at.IsZero() {
		t.Error("a store that notifies is read by interval")
	}
	if h.Layout.Root != "/x" {
		t.Error("the layout is lost")
	}
}
