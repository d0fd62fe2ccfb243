package sim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// Disk is an in-house plugin for tests: local persistent volumes whose storage
// is a folder, mounted once per node by a bind mount (the device mount) and
// from there into each pod. In block mode each pod gets a device of its own,
// for which a file stands in.
type Disk struct{ Host *plugins.VolumeHost }

// DiskName is its name.
const DiskName = "sim.test/disk"

// Name implements plugins.VolumePlugin.
func (d *Disk) Name() string { return DiskName }

// Supports implements plugins.VolumePlugin.
func (d *Disk) Supports(spec *plugins.Spec) bool { return spec.PV != nil && spec.PV.Spec.Local != nil }

// Identify implements plugins.VolumePlugin.
func (d *Disk) Identify(spec *plugins.Spec) (plugins.Identity, error) {
	if err := plugins.CheckName(spec.PV.Name); err != nil {
		return plugins.Identity{}, plugins.Permanent(err)
	}
	return plugins.Identity{Storage: spec.PV.Name, Device: spec.Mode() != v1.PersistentVolumeBlock, Durable: true}, nil
}

// DeviceMountPath implements plugins.DeviceMounter.
func (d *Disk) DeviceMountPath(spec *plugins.Spec) (string, error) {
	return d.deviceMountPath(spec.PV.Name), nil
}

func (d *Disk) deviceMountPath(name string) string {
	return filepath.Join(d.Host.Layout.PluginDir(DiskName), "mounts", name)
}

// MountDevice implements plugins.DeviceMounter.
func (d *Disk) MountDevice(ctx context.Context, req plugins.DeviceRequest) (plugins.DeviceResult, error) {
	err := d.bind(ctx, req.Spec.PV.Spec.Local.Path, req.Path, false)
	return plugins.DeviceResult{Mounted: true}, err
}

// UnmountDevice implements plugins.DeviceMounter.
func (d *Disk) UnmountDevice(ctx context.Context, req plugins.DeviceRequest) error {
	return d.release(ctx, req.Path, req.Lazy)
}

// SetUp implements plugins.VolumePlugin.
func (d *Disk) SetUp(ctx context.Context, req plugins.SetUpRequest) (plugins.SetUpResult, error) {
	err := d.bind(ctx, req.DeviceMountPath, req.Path, req.Params.ReadOnly)
	return plugins.SetUpResult{Mounted: true}, err
}

// TearDown implements plugins.VolumePlugin.
func (d *Disk) TearDown(ctx context.Context, req plugins.TearDownRequest) error {
	return d.release(ctx, req.Path, req.Lazy)
}

func (d *Disk) bind(ctx context.Context, source, target string, readOnly bool) error {
	if err := os.MkdirAll(target, 0o750); err != nil {
		return fmt.Errorf("make the target: %w", err)
	}
	point, err := d.Host.Mounter.Inspect(ctx, target)
	if err != nil || point.Mounted {
		return err
	}
	return d.Host.Mounter.Mount(ctx, mount.Mount{Source: source, Target: target, Options: mount.Options{Bind: true, ReadOnly: readOnly}})
}

func (d *Disk) release(ctx context.Context, target string, lazy bool) error {
	if err := mount.UnmountAll(ctx, d.Host.Mounter, target, mount.UnmountOptions{Lazy: lazy}); err != nil {
		return err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Reconstruct implements plugins.Reconstructor: the names tell it all.
func (d *Disk) Reconstruct(_ context.Context, found plugins.Target, block bool) (plugins.Reconstructed, error) {
	r := plugins.Reconstructed{Identity: plugins.Identity{Storage: found.Volume.Name, Device: !block, Durable: true}}
	if !block {
		r.DeviceMountPath = d.deviceMountPath(found.Volume.Name)
	}
	return r, nil
}

// MapDevice implements plugins.BlockMapper.
func (d *Disk) MapDevice(_ context.Context, req plugins.SetUpRequest) (plugins.MapResult, error) {
	path := d.device(req.Volume)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return plugins.MapResult{}, err
	}
	return plugins.MapResult{DevicePath: path}, os.WriteFile(path, nil, 0o600)
}

// UnmapDevice implements plugins.BlockMapper.
func (d *Disk) UnmapDevice(_ context.Context, req plugins.TearDownRequest) error {
	if err := os.Remove(d.device(req.Volume)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d *Disk) device(v plugins.PodVolume) string {
	return filepath.Join(DevicesDir(d.Host.Layout), string(v.Pod)+"~"+v.Name)
}

// DevicesDir is where the files are that stand in for block devices.
func DevicesDir(l plugins.Layout) string { return filepath.Join(l.PluginDir(DiskName), "devices") }
