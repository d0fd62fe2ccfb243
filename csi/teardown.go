package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// TearDown implements [plugins.VolumePlugin].
func (p *Plugin) TearDown(ctx context.Context, req plugins.TearDownRequest) error {
	target := filepath.Join(req.Path, mountDir)
	if err := p.notMounted(ctx, req.Path); err != nil {
		return plugins.Uncertain(err) // a driver would be sent into it
	}
	driver, handle, err := p.publishedVolume(req, req.Path)
	if err != nil {
		return p.forsaken(ctx, req.Path, target, err)
	}
	if err := p.unpublish(ctx, req, driver, handle, target); err != nil {
		return err
	}
	if err := p.clear(ctx, req.Path, target); err != nil {
		return err
	}
	p.drop(req.Volume)
	return nil
}

// publishedVolume says which volume a request to unpublish is about: from the
// record, else from the file in dataDir.
func (p *Plugin) publishedVolume(req plugins.TearDownRequest, dataDir string) (driver, handle string, err error) {
	driver, handle = req.Undo[undoDriver], req.Undo[undoHandle]
	if req.Undo[undoEphemeral] != "" {
		handle = inlineHandle(req.Volume.Pod, req.Volume.Name)
	}
	if driver != "" && handle != "" {
		return driver, handle, nil
	}
	data, err := readVolData(dataDir)
	if err != nil {
		return "", "", err
	}
	if data.ephemeral() {
		return data.Driver, inlineHandle(req.Volume.Pod, req.Volume.Name), nil
	}
	return data.Driver, data.Handle, nil
}

// forsaken handles a volume of which neither record nor file tells what it is.
// It is gone if nothing is mounted and nothing lies there; else only somebody
// who knows can help.
func (p *Plugin) forsaken(ctx context.Context, dir, target string, cause error) error {
	point, err := p.host.Mounter.Inspect(ctx, target)
	switch {
	case err != nil:
		return plugins.Uncertain(err)
	case point.Mounted:
		return plugins.Permanent(fmt.Errorf("nothing tells which driver mounted %s; unmount it, or put its %s right: %w",
			target, filepath.Join(dir, dataFile), cause))
	}
	return p.clear(ctx, dir, target)
}

// unpublish calls the driver. Where the policy allows that, a mount that does
// not go is taken out of sight first, so that a driver which waits for it can
// finish.
func (p *Plugin) unpublish(ctx context.Context, req plugins.TearDownRequest, driver, handle, target string) error {
	d, err := p.drivers.driver(ctx, driver)
	if err != nil {
		return err
	}
	if req.Lazy {
		if err := p.host.Mounter.Unmount(ctx, target, mount.UnmountOptions{Lazy: true}); err != nil && !errors.Is(err, mount.ErrNotMounted) {
			p.host.Log.Info("lazy unmount did not work", "path", target, "reason", err.Error())
		}
	}
	p.leaves(req.Volume)
	_, err = call(ctx, d, nodeUnpublish, handle,
		&csipb.NodeUnpublishVolumeRequest{VolumeId: handle, TargetPath: target}, d.node.NodeUnpublishVolume)
	return p.undone(ctx, p.called(err), target)
}

// clear removes a place at which nothing is mounted, and the folder that holds
// it with its vol_data.json. It removes neither content nor what it does not
// know.
func (p *Plugin) clear(ctx context.Context, dir, place string) error {
	point, err := p.host.Mounter.Inspect(ctx, place)
	switch {
	case err != nil:
		return plugins.Uncertain(fmt.Errorf("look at what is left: %w", err))
	case point.Mounted:
		return plugins.Uncertain(fmt.Errorf("it is still mounted at %s", place))
	}
	if err := p.notMounted(ctx, dir); err != nil {
		return plugins.Uncertain(err)
	}
	if err := removePlace(place, point); err != nil {
		return plugins.Uncertain(fmt.Errorf("remove what the driver left: %w", err))
	}
	if err := removeVolData(dir); err != nil && !errors.Is(err, syscall.ENOTDIR) {
		return plugins.Uncertain(fmt.Errorf("remove the file about the volume: %w", err))
	}
	if err := p.host.Faults.At(FaultCleared); err != nil {
		return plugins.Uncertain(err)
	}
	if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return plugins.Uncertain(fmt.Errorf("remove the folder of the volume: %w", &fs.PathError{Op: "rmdir", Path: dir, Err: err}))
	}
	return nil
}

// notMounted makes sure that a folder of the plugin's is no mount: whoever mounted
// something there would lose what is in it.
func (p *Plugin) notMounted(ctx context.Context, dir string) error {
	point, err := p.host.Mounter.Inspect(ctx, dir)
	switch {
	case err != nil:
		return fmt.Errorf("look at the folder of the volume: %w", err)
	case point.Mounted:
		return fmt.Errorf("something is mounted at %s, which is the folder for the volume: unmount it", dir)
	}
	return nil
}

// removePlace removes an empty folder, or the empty file that stood for a
// device.
func removePlace(place string, point mount.Point) error {
	if !point.Exists {
		return nil
	}
	if point.IsDir {
		if err := syscall.Rmdir(place); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &fs.PathError{Op: "rmdir", Path: place, Err: err}
		}
		return nil
	}
	info, err := os.Lstat(place)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().IsRegular() && info.Size() > 0:
		return fmt.Errorf("%s is a file with content", place)
	}
	return os.Remove(place)
}

// removeEmpty removes a folder if nothing is in it.
func removeEmpty(dir string) { _ = syscall.Rmdir(dir) }
