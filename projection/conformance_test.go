package projection_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/configmap"
	"github.com/volumekit/volumekit/plugins/downwardapi"
	"github.com/volumekit/volumekit/plugins/plugintest"
	"github.com/volumekit/volumekit/plugins/projected"
	"github.com/volumekit/volumekit/plugins/secret"
	"github.com/volumekit/volumekit/projection"
)

// conformance is what the suite needs to know of one kind.
type conformance struct {
	new    func(*plugins.VolumeHost) *projection.Volume
	source v1.VolumeSource
	bad    v1.VolumeSource
}

// sources are the stores of the suite's worlds.
type sources struct {
	mu   sync.Mutex
	list map[*plugins.VolumeHost]*store
}

func (s *sources) of(host *plugins.VolumeHost) *store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list[host]
}

func (s *sources) add(host *plugins.VolumeHost) {
	s.mu.Lock()
	defer s.mu.Unlock()
	made := &store{data: map[string]string{"a": "1", "b": hidden}}
	s.list[host] = made
	host.ConfigMaps, host.Secrets, host.Tokens = made, made, made
}

func (s *store) Token(_ context.Context, r plugins.TokenRequest) (plugins.Token, error) {
	_, err := s.get()
	return plugins.Token{Value: hidden, Expires: time.Now().Add(r.Lifetime)}, err
}

func TestConformance(t *testing.T) {
	object := v1.LocalObjectReference{Name: "obj"}
	escaping := []v1.KeyToPath{{Key: "a", Path: "../a"}}
	field := func(path string) []v1.DownwardAPIVolumeFile {
		return []v1.DownwardAPIVolumeFile{{Path: "d/labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}}
	}
	for name, kind := range map[string]conformance{
		configmap.Name: {configmap.New, v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: object}},
			v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: object, Items: escaping}}},
		secret.Name: {secret.New, v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "obj"}},
			v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "obj", Items: escaping}}},
		downwardapi.Name: {downwardapi.New, v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: field("metadata.labels")}},
			v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: field("status.podIP")}}},
		projected.Name: {projected.New, v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{Secret: &v1.SecretProjection{LocalObjectReference: object}},
			{DownwardAPI: &v1.DownwardAPIProjection{Items: field("metadata.labels")}},
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}},
		}}}, v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := kind.harness()
			h.Root = shm
			plugintest.TestPlugin(t, h)
		})
		if kind.source.Secret == nil && kind.source.ConfigMap == nil {
			continue // with real mounts one kind of each sort is enough
		}
		t.Run(name+"/real", func(t *testing.T) {
			t.Parallel()
			h := kind.harness()
			h.Root = nstest.Dir
			h.Mounter = func(testing.TB, string) mount.Mounter { return hostmount.New(hostmount.Options{}) }
			plugintest.TestPlugin(t, h)
		})
	}
}

func (kind conformance) harness() plugintest.Harness {
	made := &sources{list: map[*plugins.VolumeHost]*store{}}
	volume := func(source v1.VolumeSource) []plugintest.Volume {
		return []plugintest.Volume{{
			Name: "plain", Spec: &plugins.Spec{Volume: &v1.Volume{Name: "vol", VolumeSource: source}},
			Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", Labels: map[string]string{"l": "1"}}},
		}}
	}
	h := plugintest.Harness{
		New:     func(_ testing.TB, host *plugins.VolumeHost) plugins.VolumePlugin { return kind.new(host) },
		Good:    func(testing.TB, *plugins.VolumeHost) []plugintest.Volume { return volume(kind.source) },
		Bad:     func(testing.TB, *plugins.VolumeHost) []plugintest.Volume { return volume(kind.bad) },
		Host:    func(_ testing.TB, host *plugins.VolumeHost) { made.add(host) },
		Secrets: []string{hidden},
	}
	if kind.source.DownwardAPI == nil {
		h.Change = func(_ testing.TB, host *plugins.VolumeHost, _ plugintest.Volume) {
			data, _ := made.of(host).get()
			next := maps.Clone(data)
			delete(next, "b")
			next["a"], next["c"] = "2", hidden
			made.of(host).set(next, nil)
		}
		h.Break = func(_ testing.TB, host *plugins.VolumeHost) { made.of(host).set(nil, errors.New("refused")) }
	} else {
		h.Change = func(_ testing.TB, _ *plugins.VolumeHost, v plugintest.Volume) { v.Pod.Labels["l"] = "2" }
	}
	return h
}
