package steps

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/plugins"
)

// mapDevice makes a raw block device ready and links it where the pod's
// runtime looks for it.
func (e *Executor) mapDevice(ctx context.Context, j *job, req plugins.SetUpRequest, entry asw.PodVolume) (asw.PodVolume, error) {
	if j.can.BlockMapper == nil {
		return entry, errLacks(j.plugin.Name(), "hand out block devices")
	}
	got, err := j.can.BlockMapper.MapDevice(ctx, req)
	if err != nil {
		return entry, e.believe(ctx, j, err)
	}
	if err := e.Host.Faults.At(FaultDone); err != nil {
		return entry, plugins.Uncertain(err)
	}
	if err := e.checkDevice(ctx, got.DevicePath); err != nil {
		return entry, plugins.Uncertain(err)
	}
	if err := e.link(j.step.Volume, got.DevicePath); err != nil {
		return entry, plugins.Uncertain(fmt.Errorf("link the device: %w", err))
	}
	entry.Path, entry.Mounted, entry.MountID = e.Host.Layout.PodDevice(j.step.Volume), false, 0
	entry.Attributes = got.Attributes
	entry.ContentVersion, entry.RefreshAt = got.Content.Version, got.Content.RefreshAt
	if got.Size != nil {
		entry.Params.Size = got.Size
	}
	return entry, nil
}

func (e *Executor) checkDevice(ctx context.Context, path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("the plugin gave %q, which is no path of a device", path)
	}
	point, err := e.Host.Mounter.Inspect(ctx, path)
	switch {
	case err != nil:
		return fmt.Errorf("check the device: %w", err)
	case !point.Exists:
		return fmt.Errorf("the plugin promised a device, but none is at %s", path)
	}
	return nil
}

// link makes the link to a pod's device, in place of one to another device.
func (e *Executor) link(v plugins.PodVolume, device string) error {
	link, next := e.Host.Layout.PodDevice(v), e.nextLink(v)
	if old, err := os.Readlink(link); err == nil && old == device {
		return nil
	}
	if err := makeParent(link); err != nil {
		return err
	}
	if err := removeFile(next); err != nil {
		return err
	}
	if err := os.Symlink(device, next); err != nil {
		return err
	}
	return os.Rename(next, link)
}

// nextLink is where a link is made before it takes its place: beside the pod's
// folders, where it cannot be taken for another volume's. It is the same for
// every try, so that one that was left is found.
func (e *Executor) nextLink(v plugins.PodVolume) string {
	sum := sha256.Sum256([]byte(v.String()))
	return filepath.Join(e.Host.Layout.PodDir(v.Pod), ".device-"+hex.EncodeToString(sum[:8]))
}

// unmapDevice removes the link first: whoever finds it may open the device.
func (e *Executor) unmapDevice(ctx context.Context, j *job, req plugins.TearDownRequest) error {
	if j.can.BlockMapper == nil {
		return errLacks(j.plugin.Name(), "give back block devices")
	}
	for _, name := range []string{e.nextLink(j.step.Volume), e.Host.Layout.PodDevice(j.step.Volume)} {
		if err := removeFile(name); err != nil {
			return err
		}
	}
	return j.can.BlockMapper.UnmapDevice(ctx, req)
}
