package projection

import (
	"context"
	"errors"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/plugins"
)

// api is every source at once. It cannot notify.
type api struct {
	mu         sync.Mutex
	configMaps map[string]*v1.ConfigMap
	secrets    map[string]*v1.Secret
	bundles    map[string]*certificatesv1.ClusterTrustBundle
	node       *v1.Node
	fail       error // what every source answers, if set
	issue      func(plugins.TokenRequest) (plugins.Token, error)
	asked      []plugins.TokenRequest
}

func notFound(kind, name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, name)
}

func lookup[T any](a *api, m map[string]*T, kind, name string) (*T, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fail != nil {
		return nil, a.fail
	}
	if found := m[name]; found != nil {
		return found, nil
	}
	return nil, notFound(kind, name)
}

func (a *api) ConfigMap(_ context.Context, ns, name string) (*v1.ConfigMap, error) {
	return lookup(a, a.configMaps, "configmaps", ns+"/"+name)
}

func (a *api) Secret(_ context.Context, ns, name string) (*v1.Secret, error) {
	return lookup(a, a.secrets, "secrets", ns+"/"+name)
}

func (a *api) TrustBundle(_ context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	return lookup(a, a.bundles, "clustertrustbundles", name)
}

func (a *api) TrustBundles(_ context.Context, signer string, s labels.Selector) ([]*certificatesv1.ClusterTrustBundle, error) {
	var found []*certificatesv1.ClusterTrustBundle
	for _, b := range a.bundles { // in random order, on purpose
		if b.Spec.SignerName == signer && s.Matches(labels.Set(b.Labels)) {
			found = append(found, b)
		}
	}
	return found, a.fail
}

func (a *api) Node(context.Context) (*v1.Node, error) {
	if a.node == nil {
		return nil, errors.Join(errors.New("node"), a.fail)
	}
	return a.node, a.fail
}

func (a *api) Token(_ context.Context, req plugins.TokenRequest) (plugins.Token, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, req)
	if a.fail != nil {
		return plugins.Token{}, a.fail
	}
	if a.issue != nil {
		return a.issue(req)
	}
	return plugins.Token{Value: "the-token", Expires: time.Now().Add(req.Lifetime)}, nil
}

func (a *api) calls() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.asked)
}

// notifying makes a source one that can notify.
type notifying struct{ *api }

func (notifying) Subscribe(func(plugins.Ref)) func() { return func() {} }

func (a *api) host() *plugins.VolumeHost {
	return &plugins.VolumeHost{NodeName: "node", ConfigMaps: a, Secrets: a, TrustBundles: a, Node: a, Tokens: a}
}

func testPod() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "pod", UID: "uid-1",
		Labels:      map[string]string{"z": "last", "a": "quo\"te\nnl", "example.com/k": "v"},
		Annotations: map[string]string{"Note": "text"},
	}}
}

func newAPI() *api {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }
	return &api{
		configMaps: map[string]*v1.ConfigMap{
			"ns/cm":  {ObjectMeta: meta("cm"), Data: map[string]string{"a": "1", "b.txt": "2"}, BinaryData: map[string][]byte{"bin": {0, 1, 255}}},
			"ns/cm2": {ObjectMeta: meta("cm2"), Data: map[string]string{"a": "other"}},
		},
		secrets: map[string]*v1.Secret{
			"ns/s":    {ObjectMeta: meta("s"), Data: map[string][]byte{"key": []byte("hunter2")}},
			"ns/hand": {ObjectMeta: meta("hand"), Data: map[string][]byte{"x": []byte("old"), "y": []byte("y")}, StringData: map[string]string{"x": "new"}},
			"ns/evil": {ObjectMeta: meta("evil"), Data: map[string][]byte{"../../etc/cron": []byte("hunter2")}},
		},
	}
}
