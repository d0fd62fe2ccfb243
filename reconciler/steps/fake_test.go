package steps_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// fakePlugin has every part that a plugin can have. Its volumes are tmpfs
// mounts. A hook is called at the beginning of a call, whose effect it keeps
// from happening by an error; with a name that ends in " done", at its end.
type fakePlugin struct {
	host *plugins.VolumeHost
	name string

	mu       sync.Mutex
	hooks    map[string]func(context.Context) error
	calls    []string
	setUps   []plugins.SetUpRequest
	tearDown []plugins.TearDownRequest
	devices  []plugins.DeviceRequest
	// What the calls answer, in place of the usual.
	result  func(plugins.SetUpRequest, *plugins.SetUpResult)
	device  plugins.DeviceResult
	path    string
	mapped  string
	content plugins.Content
	size    resource.Quantity
}

func (p *fakePlugin) hook(name string, f func(context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hooks[name] = f
}

func (p *fakePlugin) fail(name string, err error) {
	p.hook(name, func(context.Context) error { return err })
}

// call runs one call: what keeps the requests, and the effect.
func (p *fakePlugin) call(ctx context.Context, name string, keep func(), effect func() error) error {
	p.mu.Lock()
	p.calls = append(p.calls, name)
	keep()
	before, after := p.hooks[name], p.hooks[name+" done"]
	p.mu.Unlock()
	if before != nil {
		if err := before(ctx); err != nil {
			return err
		}
	}
	if err := effect(); err != nil {
		return err
	}
	if after != nil {
		return after(ctx)
	}
	return nil
}

func (p *fakePlugin) count(name string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		if c == name {
			n++
		}
	}
	return n
}

func (p *fakePlugin) Name() string                { return p.name }
func (p *fakePlugin) Supports(*plugins.Spec) bool { return true }
func (p *fakePlugin) Identify(*plugins.Spec) (plugins.Identity, error) {
	return plugins.Identity{}, nil
}

func (p *fakePlugin) SetUp(ctx context.Context, req plugins.SetUpRequest) (plugins.SetUpResult, error) {
	got := plugins.SetUpResult{Mounted: true}
	err := p.call(ctx, "setUp", func() { p.setUps = append(p.setUps, req) }, func() error { return p.mount(req.Path) })
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.result != nil {
		p.result(req, &got)
	}
	return got, err
}

func (p *fakePlugin) TearDown(ctx context.Context, req plugins.TearDownRequest) error {
	return p.call(ctx, "tearDown", func() { p.tearDown = append(p.tearDown, req) }, func() error { return p.unmount(req.Path) })
}

// mount and unmount ignore the end of the call's context: the kernel does too.
func (p *fakePlugin) mount(target string) error {
	if err := os.MkdirAll(target, 0o750); err != nil {
		return err
	}
	point, err := p.host.Mounter.Inspect(context.Background(), target)
	if err != nil || point.Mounted {
		return err
	}
	return p.host.Mounter.Mount(context.Background(), mount.Mount{Source: "fake", Target: target, FSType: "tmpfs"})
}

func (p *fakePlugin) unmount(target string) error {
	if err := mount.UnmountAll(context.Background(), p.host.Mounter, target, mount.UnmountOptions{}); err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (p *fakePlugin) Attach(ctx context.Context, req plugins.DeviceRequest) (plugins.DeviceResult, error) {
	err := p.call(ctx, "attach", func() { p.devices = append(p.devices, req) }, func() error { return nil })
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.device, err
}

func (p *fakePlugin) Detach(ctx context.Context, req plugins.DeviceRequest) error {
	return p.call(ctx, "detach", func() { p.devices = append(p.devices, req) }, func() error { return nil })
}

func (p *fakePlugin) DeviceMountPath(spec *plugins.Spec) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.path != "" {
		return p.path, nil
	}
	if hook := p.hooks["deviceMountPath"]; hook != nil {
		return "", hook(context.Background())
	}
	return filepath.Join(p.host.Layout.PluginDir(p.name), "mounts", spec.Name()), nil
}

func (p *fakePlugin) MountDevice(ctx context.Context, req plugins.DeviceRequest) (plugins.DeviceResult, error) {
	err := p.call(ctx, "mountDevice", func() { p.devices = append(p.devices, req) }, func() error { return p.mount(req.Path) })
	p.mu.Lock()
	defer p.mu.Unlock()
	got := p.device
	got.Mounted = true
	return got, err
}

func (p *fakePlugin) UnmountDevice(ctx context.Context, req plugins.DeviceRequest) error {
	return p.call(ctx, "unmountDevice", func() { p.devices = append(p.devices, req) }, func() error { return p.unmount(req.Path) })
}

func (p *fakePlugin) MapDevice(ctx context.Context, req plugins.SetUpRequest) (plugins.MapResult, error) {
	err := p.call(ctx, "mapDevice", func() { p.setUps = append(p.setUps, req) }, func() error { return nil })
	p.mu.Lock()
	defer p.mu.Unlock()
	return plugins.MapResult{DevicePath: p.mapped, Attributes: plugins.Attributes{Managed: true}}, err
}

func (p *fakePlugin) UnmapDevice(ctx context.Context, req plugins.TearDownRequest) error {
	return p.call(ctx, "unmapDevice", func() { p.tearDown = append(p.tearDown, req) }, func() error { return nil })
}

func (p *fakePlugin) Refresh(ctx context.Context, req plugins.SetUpRequest) (plugins.Content, error) {
	err := p.call(ctx, "refresh", func() { p.setUps = append(p.setUps, req) }, func() error { return nil })
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.content, err
}

func (p *fakePlugin) Expand(ctx context.Context, req plugins.SetUpRequest) (resource.Quantity, error) {
	err := p.call(ctx, "expand", func() { p.setUps = append(p.setUps, req) }, func() error { return nil })
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size, err
}
