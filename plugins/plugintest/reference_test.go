package plugintest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// canary is the secret that the reference plugin writes into its volumes.
const canary = "canary-4f2a"

// reference is a small volume kind that keeps every rule: a folder or a tmpfs
// with one file, which holds a secret. bug breaks one rule.
type reference struct {
	host *plugins.VolumeHost
	bug  string

	mu    sync.Mutex
	known map[string]bool
	calls int
}

func (r *reference) Name() string {
	if r.bug == "nameWithoutSlash" {
		return "volume"
	}
	return "example.com/volume"
}

func (r *reference) source(spec *plugins.Spec) *v1.GlusterfsVolumeSource {
	if spec == nil || spec.Volume == nil {
		if r.bug == "panicsOnSparse" {
			_ = spec.Volume.Glusterfs
		}
		return nil
	}
	return spec.Volume.Glusterfs
}

func (r *reference) Supports(spec *plugins.Spec) bool {
	if r.bug == "supportsAll" {
		return spec != nil
	}
	return r.source(spec) != nil && r.bug != "supportsNothing"
}

func (r *reference) Identify(spec *plugins.Spec) (plugins.Identity, error) {
	s := r.source(spec)
	if s == nil || s.EndpointsName == "" {
		if r.bug == "unclassedRefusal" {
			return plugins.Identity{}, errors.New("no name")
		}
		return plugins.Identity{}, plugins.Permanentf("no name")
	}
	id := plugins.Identity{Storage: s.EndpointsName, Undo: plugins.Undo{"kind": s.Path}}
	switch r.bug {
	case "mutatesSpec":
		s.ReadOnly = true
	case "unsteadyIdentity":
		r.calls++
		id.Storage = fmt.Sprint(r.calls)
	case "promisesDevice":
		id.Device = true
	}
	return id, nil
}

func (r *reference) SetUp(ctx context.Context, req plugins.SetUpRequest) (res plugins.SetUpResult, err error) {
	if err := ctx.Err(); err != nil && r.bug != "ignoresContext" {
		return res, plugins.Transient(err)
	}
	if r.bug == "mutatesPod" {
		req.Object.Labels = map[string]string{"x": "y"}
	}
	s := r.source(req.Spec)
	_, err = os.Lstat(req.Path)
	if r.bug == "destroysOnAgain" && err == nil {
		_ = os.RemoveAll(filepath.Join(req.Path, "plugintest-mark"))
	}
	if err := os.Mkdir(req.Path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return res, plugins.Transient(err)
	} else if err != nil && r.bug == "notIdempotent" {
		return res, err
	}
	r.mu.Lock()
	r.known[req.Path] = true
	pods := len(r.known)
	r.mu.Unlock()
	if r.bug == "onePodOnly" && pods > 1 {
		return res, errors.New("another pod is here")
	}
	if err := os.MkdirAll(req.PrivateDir, 0o755); err != nil {
		return res, err
	}
	if err := r.host.Faults.At("reference"); err != nil {
		if r.bug == "claimsClean" {
			return res, plugins.Transient(err)
		}
		return res, err
	}
	if s.Path == "mount" {
		res.Mounted = true
		if err := r.mount(ctx, req); err != nil {
			return res, err
		}
	}
	res.Content, err = r.write(ctx, req)
	res.Attributes.ReadOnly = r.bug == "" && s.Path == "mount"
	return res, err
}

func (r *reference) mount(ctx context.Context, req plugins.SetUpRequest) error {
	if r.bug == "noMount" {
		return nil
	}
	point, err := r.host.Mounter.Inspect(ctx, req.Path)
	if err != nil || (point.Mounted && r.bug != "stacks") {
		return err
	}
	if r.bug == "takesFolderForMount" && req.Again {
		return nil
	}
	return r.host.Mounter.Mount(ctx, mount.Mount{Source: "tmpfs", Target: req.Path, FSType: "tmpfs"})
}

func (r *reference) write(ctx context.Context, req plugins.SetUpRequest) (plugins.Content, error) {
	secret, err := r.host.Secret(ctx, req.Pod.Namespace, r.source(req.Spec).EndpointsName)
	if err != nil {
		return plugins.Content{}, err
	}
	data := secret.Data["data"]
	sum := sha256.Sum256(data)
	content := plugins.Content{Version: hex.EncodeToString(sum[:4])}
	path := filepath.Join(req.Path, "data")
	if r.bug == "versionIsSecret" {
		content.Version = string(data)
	}
	old, err := os.ReadFile(path)
	if err == nil && string(old) == string(data) && r.bug != "rewrites" {
		return content, nil
	}
	if r.bug != "rewrites" || string(old) != string(data) {
		content.Changed = []string{"data"}
	}
	if r.bug == "tornRefresh" {
		if err := os.Remove(path); err == nil {
			if err := r.host.Faults.At("torn"); err != nil {
				return content, err
			}
		}
	}
	if r.bug == "forgetsChange" {
		content.Changed = nil
	}
	temp := filepath.Join(req.Path, "..new")
	if _, err := os.Lstat(temp); err == nil && r.bug == "staleTemp" {
		return content, os.ErrExist
	}
	if r.bug == "rewrites" {
		data = append(data, 'x')
	}
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return content, err
	}
	if err := r.host.Faults.At("reference written"); err != nil {
		if r.bug == "leaksSecret" {
			return content, fmt.Errorf("write %q: %w", data, err)
		}
		return content, err
	}
	return content, os.Rename(temp, path)
}

func (r *reference) Refresh(ctx context.Context, req plugins.SetUpRequest) (plugins.Content, error) {
	return r.write(ctx, req)
}

func (r *reference) References(spec *plugins.Spec, _ *v1.Pod) []plugins.Ref {
	if r.bug == "unsteadyReferences" {
		r.calls++
		return []plugins.Ref{{Kind: plugins.KindSecret, Name: fmt.Sprint(r.calls)}}
	}
	return []plugins.Ref{{Kind: plugins.KindSecret, Name: r.source(spec).EndpointsName}}
}

func (r *reference) TearDown(ctx context.Context, req plugins.TearDownRequest) error {
	r.mu.Lock()
	known := r.known[req.Path]
	r.mu.Unlock()
	switch r.bug {
	case "memory":
		if !known {
			return nil
		}
	case "removesWholeOnly":
		if _, err := os.Lstat(filepath.Join(req.Path, "data")); err != nil {
			return nil
		}
	case "forgetsPrivate":
		req.PrivateDir = filepath.Join(req.PrivateDir, "nothing")
	case "throughMounts":
		if list, err := os.ReadDir(filepath.Join(req.Path, "inside")); err == nil {
			for _, e := range list {
				_ = os.RemoveAll(filepath.Join(req.Path, "inside", e.Name()))
			}
		}
	case "tearsDownOthers":
		other := filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(req.Path))))
		list, _ := os.ReadDir(other)
		for _, e := range list {
			_ = os.RemoveAll(filepath.Join(other, e.Name(), "volumes", "example.com~volume", "folder", "data"))
		}
	case "failsWhereNothingIs":
		if _, err := os.Lstat(req.Path); err != nil {
			return err
		}
	}
	if err := r.host.Mounter.RemoveAll(ctx, req.PrivateDir); err != nil {
		return err
	}
	for {
		err := r.host.Mounter.Unmount(ctx, req.Path, mount.UnmountOptions{})
		if errors.Is(err, mount.ErrNotMounted) {
			break
		}
		if err != nil && r.bug == "swallows" {
			return nil
		}
		if err != nil {
			return err
		}
	}
	if r.bug == "forgetsTarget" {
		return nil
	}
	return r.host.Mounter.RemoveAll(ctx, req.Path)
}

// secrets is a source of one secret.
type secrets struct {
	mu     sync.Mutex
	data   string
	broken bool
}

func (s *secrets) Secret(context.Context, string, string) (*v1.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken {
		return nil, errors.New("the API does not answer")
	}
	return &v1.Secret{Data: map[string][]byte{"data": []byte(s.data)}}, nil
}

func (s *secrets) set(data string, broken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data, s.broken = data, broken
}

func referenceHarness(bug string) Harness {
	volume := func(name, secret, path string) Volume {
		return Volume{Name: name, Spec: &plugins.Spec{Volume: &v1.Volume{
			Name: name, VolumeSource: v1.VolumeSource{Glusterfs: &v1.GlusterfsVolumeSource{EndpointsName: secret, Path: path}},
		}}, Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod"}}}
	}
	return Harness{
		New: func(_ testing.TB, host *plugins.VolumeHost) plugins.VolumePlugin {
			return &reference{host: host, bug: bug, known: map[string]bool{}}
		},
		Host: func(_ testing.TB, host *plugins.VolumeHost) { host.Secrets = &secrets{data: canary} },
		Good: func(testing.TB, *plugins.VolumeHost) []Volume {
			return []Volume{volume("folder", "secret", ""), volume("tmpfs", "secret", "mount")}
		},
		Bad: func(testing.TB, *plugins.VolumeHost) []Volume { return []Volume{volume("nameless", "", "")} },
		Change: func(_ testing.TB, host *plugins.VolumeHost, _ Volume) {
			host.Secrets.(*secrets).set(canary+" changed", false)
		},
		Break:   func(_ testing.TB, host *plugins.VolumeHost) { host.Secrets.(*secrets).set("", true) },
		Secrets: []string{canary},
	}
}
