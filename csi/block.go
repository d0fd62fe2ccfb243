package csi

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

const blockMode = v1.PersistentVolumeBlock

// MapDevice implements [plugins.BlockMapper]. The pod's device is where the
// driver publishes it, and bound once more, as the kubelet has it, so that its
// node stays while the pod may use it. There is no loop device for that.
func (p *Plugin) MapDevice(ctx context.Context, req plugins.SetUpRequest) (plugins.MapResult, error) {
	pub, err := p.prepare(ctx, req, true)
	if err != nil {
		return plugins.MapResult{}, err
	}
	if err := p.onTheWay(ctx, p.blockPlaces(req.Volume)...); err != nil {
		return plugins.MapResult{}, err
	}
	if err = os.MkdirAll(pub.dataDir, 0o750); err == nil {
		err = p.volData(pub).write(pub.dataDir)
	}
	if err != nil {
		err = plugins.Transient(fmt.Errorf("prepare the folders of the device: %w", err))
	} else {
		err = p.publish(ctx, pub)
	}
	if err != nil {
		if !req.Again && plugins.ClassOf(err) != plugins.ClassUncertain {
			err = errors.Join(err, p.clearMap(ctx, req.Volume, req.DeviceMountPath))
		}
		return plugins.MapResult{}, err
	}
	p.remember(req.Volume, pub.published())
	device := pub.request.TargetPath
	if _, err := p.seen(ctx, device); err != nil {
		return plugins.MapResult{}, err
	}
	if err := isBlockDevice(device); err != nil {
		return plugins.MapResult{}, err
	}
	if err := p.bindDevice(ctx, device, p.places().blockMap(req.Volume.Name, req.Volume.Pod)); err != nil {
		return plugins.MapResult{}, err
	}
	return plugins.MapResult{
		DevicePath: device, Attributes: plugins.Attributes{ReadOnly: pub.source.readOnly},
		Content: plugins.Content{RefreshAt: p.nextPublish(pub)}, Size: sizeNow(req),
	}, nil
}

// blockPlaces are the plugin's places for a pod's device.
func (p *Plugin) blockPlaces(v plugins.PodVolume) []string {
	at := p.places()
	return []string{at.blockPublish(v.Name, v.Pod), at.blockMap(v.Name, v.Pod), filepath.Join(at.blockData(v.Name), dataFile)}
}

func isBlockDevice(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return plugins.Uncertain(fmt.Errorf("look at the device: %w", err))
	}
	if mode := info.Mode(); mode&fs.ModeDevice == 0 || mode&fs.ModeCharDevice != 0 {
		return plugins.Uncertain(fmt.Errorf("the driver published %s, which is no block device", path))
	}
	return nil
}

// bindDevice binds the device at a file of ours, once.
func (p *Plugin) bindDevice(ctx context.Context, device, at string) error {
	if err := makeParents(at); err != nil {
		return err
	}
	f, err := os.OpenFile(at, os.O_RDONLY|os.O_CREATE|os.O_EXCL|noFollow, 0o640)
	switch {
	case err == nil:
		err = f.Close()
	case errors.Is(err, fs.ErrExist):
		var there fs.FileInfo
		if there, err = os.Lstat(at); err == nil && there.Mode()&fs.ModeSymlink != 0 {
			err = fmt.Errorf("%s is a symbolic link", at)
		}
	}
	if err != nil {
		return plugins.Uncertain(fmt.Errorf("make the file for the device: %w", err))
	}
	if same(device, at) {
		return nil
	}
	if err := p.unbind(ctx, at); err != nil { // of a device that is no longer the volume's
		return err
	}
	if err := p.host.Mounter.Mount(ctx, mount.Mount{Source: device, Target: at, Options: mount.Options{Bind: true}}); err != nil {
		return plugins.Uncertain(fmt.Errorf("bind the device: %w", err))
	}
	return nil
}

// same reports whether two paths lead to one file.
func same(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// unbind takes every mount off a file of ours.
func (p *Plugin) unbind(ctx context.Context, at string) error {
	for {
		switch err := p.host.Mounter.Unmount(ctx, at, mount.UnmountOptions{}); {
		case errors.Is(err, mount.ErrNotMounted), errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return plugins.Uncertain(fmt.Errorf("take away the binding of the device: %w", err))
		}
	}
}

// UnmapDevice implements [plugins.BlockMapper].
func (p *Plugin) UnmapDevice(ctx context.Context, req plugins.TearDownRequest) error {
	v := req.Volume
	if err := p.onTheWay(ctx, p.blockPlaces(v)...); err != nil {
		return plugins.Uncertain(err)
	}
	target := p.places().blockPublish(v.Name, v.Pod)
	driver, handle, err := p.publishedVolume(req, p.places().blockData(v.Name))
	if err != nil {
		return p.forsakenDevice(ctx, v, req.DeviceMountPath, target, err)
	}
	p.tellLost(req, target)
	if err := p.unbind(ctx, p.places().blockMap(v.Name, v.Pod)); err != nil {
		return err
	}
	if err := p.unpublish(ctx, req, driver, handle, target); err != nil {
		return err
	}
	if err := p.clearMap(ctx, v, req.DeviceMountPath); err != nil {
		return err
	}
	p.drop(v)
	return nil
}

func (p *Plugin) forsakenDevice(ctx context.Context, v plugins.PodVolume, staging, target string, cause error) error {
	point, err := p.host.Mounter.Inspect(ctx, target)
	switch {
	case err != nil:
		return plugins.Uncertain(err)
	case point.Exists:
		return plugins.Permanent(fmt.Errorf("nothing tells which driver made %s: %w", target, cause))
	}
	if err := p.unbind(ctx, p.places().blockMap(v.Name, v.Pod)); err != nil {
		return err
	}
	return p.clearMap(ctx, v, staging)
}

// tellLost says when a pod's device has vanished under it.
func (p *Plugin) tellLost(req plugins.TearDownRequest, target string) {
	if _, err := os.Stat(target); err == nil {
		return
	}
	if what, ok := p.recall(req.Volume); ok && what.pod.Name != "" {
		p.host.Event(&v1.ObjectReference{
			Kind: "Pod", APIVersion: "v1", Namespace: what.pod.Namespace, Name: what.pod.Name, UID: what.pod.UID,
		}, v1.EventTypeWarning, reasonDeviceLost, fmt.Sprintf("block device %s of volume %s is no longer there", target, req.Volume.Name))
	}
}

const reasonDeviceLost = "VolumeDeviceLost"

// clearMap removes the places of one pod's device, and when it was the last of
// the persistent volume's the folders for those. The file about what is staged
// stays as long as that does.
func (p *Plugin) clearMap(ctx context.Context, v plugins.PodVolume, staging string) error {
	for _, place := range []string{p.places().blockMap(v.Name, v.Pod), p.places().blockPublish(v.Name, v.Pod)} {
		point, err := p.host.Mounter.Inspect(ctx, place)
		switch {
		case err != nil:
			return plugins.Uncertain(fmt.Errorf("look at what is left of the device: %w", err))
		case point.Mounted:
			return plugins.Uncertain(fmt.Errorf("the device is still mounted at %s", place))
		}
		if err := removePlace(place, point); err != nil {
			return plugins.Uncertain(fmt.Errorf("remove what is left of the device: %w", err))
		}
	}
	if staging == p.places().blockStaging(v.Name) {
		return nil // what is there serves others, and goes when the volume is unstaged
	}
	return p.clearBlockFolders(v.Name)
}

// clearBlockFolders removes what block volumes of a persistent volume leave,
// unless a pod has one.
func (p *Plugin) clearBlockFolders(spec string) error {
	volume := p.places().blockVolume(spec)
	removeEmpty(filepath.Dir(p.places().blockPublish(spec, "x")))
	removeEmpty(filepath.Join(volume, "dev"))
	if _, err := os.Lstat(filepath.Join(volume, "dev")); err == nil {
		return nil // another pod's
	}
	if err := removeVolData(p.places().blockData(spec)); err != nil {
		return plugins.Uncertain(fmt.Errorf("remove the file about the device: %w", err))
	}
	removeEmpty(p.places().blockData(spec))
	removeEmpty(volume)
	return nil
}
