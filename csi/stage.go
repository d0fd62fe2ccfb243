package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/volumekit/volumekit/plugins"
)

// DeviceMountPath implements [plugins.DeviceMounter].
func (p *Plugin) DeviceMountPath(spec *plugins.Spec) (string, error) {
	s, err := stageable(spec)
	if err != nil {
		return "", err
	}
	if isBlock(spec) {
		if err := plugins.CheckName(spec.Name()); err != nil {
			return "", plugins.Permanent(err)
		}
		return p.places().blockStaging(spec.Name()), nil
	}
	return p.places().staging(s.driver, s.handle), nil
}

// stageable is the source of a volume that can be staged: a persistent one, with
// names that can be part of a path.
func stageable(spec *plugins.Spec) (source, error) {
	s, err := sourceOf(spec, "")
	switch {
	case err != nil:
		return s, err
	case s.ephemeral:
		return s, plugins.Permanentf("inline volume %s of CSI driver %s is not staged: it comes into being when it is published", spec.Name(), s.driver)
	}
	if err := CheckDriverName(s.driver); err != nil {
		return s, err
	}
	return s, checkHandle(s.handle)
}

// staging is one NodeStageVolume with all that goes with it.
type staging struct {
	source
	driver  *driver
	request *csipb.NodeStageVolumeRequest
	// dataDir is where vol_data.json goes.
	dataDir string
	data    volData
}

// MountDevice implements [plugins.DeviceMounter]: it stages the volume, if its
// driver has that step. A driver without it leaves nothing on the node.
func (p *Plugin) MountDevice(ctx context.Context, req plugins.DeviceRequest) (plugins.DeviceResult, error) {
	s, err := stageable(req.Spec)
	if err != nil {
		return plugins.DeviceResult{}, err
	}
	if p.places().isBlockStaging(req.Path) != req.Block {
		return plugins.DeviceResult{}, plugins.Permanentf("volume %s of driver %s is staged at %s for pods that use it in another volume mode",
			s.handle, s.driver, req.Path)
	}
	d, err := p.drivers.driver(ctx, s.driver)
	if err != nil {
		return plugins.DeviceResult{}, err
	}
	if !d.nodeCan.has(canStage) {
		return plugins.DeviceResult{Undo: plugins.Undo{undoStaged: "false"}}, nil
	}
	info, err := driverInfo(ctx, p.host, s.driver)
	if err != nil {
		return plugins.DeviceResult{}, err
	}
	st, err := p.prepareStage(ctx, d, info, req.Spec, req.Path, req.Params, req.Undo)
	if err != nil {
		return plugins.DeviceResult{}, err
	}
	if err := p.stage(ctx, st, req.Used); err != nil {
		return plugins.DeviceResult{}, err
	}
	point, err := p.host.Mounter.Inspect(ctx, req.Path)
	if err != nil {
		return plugins.DeviceResult{}, plugins.Uncertain(fmt.Errorf("look at what the driver staged: %w", err))
	}
	return plugins.DeviceResult{Mounted: point.Mounted}, nil
}

// prepareStage finds out all that a stage needs. Nothing on the node changes.
func (p *Plugin) prepareStage(
	ctx context.Context, d *driver, info DriverInfo, spec *plugins.Spec, path string, params plugins.Params, undo plugins.Undo,
) (*staging, error) {
	s, err := sourceOf(spec, "")
	if err != nil {
		return nil, err
	}
	st := &staging{source: s, driver: d, dataDir: filepath.Dir(path)}
	if isBlock(spec) {
		st.dataDir = p.places().blockData(filepath.Base(path))
	}
	label := p.label(info, params)
	capability, err := p.capability(d, s, spec, params.FSGroup, label)
	if err != nil {
		return nil, err
	}
	if m, known := capability.GetMount(), p.stagedAs(s, path); m != nil && known.Flags != "" {
		// What went with an earlier staging goes with every repetition, whichever
		// pod and persistent volume is the first one now.
		m.FsType, m.MountFlags, m.VolumeMountGroup = known.FSType, known.flags(), known.Group
	}
	st.request = &csipb.NodeStageVolumeRequest{
		VolumeId: s.handle, StagingTargetPath: path, VolumeCapability: capability,
	}
	if st.request.PublishContext, err = publishContext(undo); err != nil {
		return nil, err
	}
	if st.request.VolumeContext, err = volumeAttributes(spec); err != nil {
		return nil, err
	}
	if st.request.Secrets, err = readSecret(ctx, p.host, refOf(spec.PV.Spec.CSI.NodeStageSecretRef)); err != nil {
		return nil, err
	}
	st.data = volData{Driver: s.driver, Handle: s.handle, FSType: s.fsType, DevicePath: st.request.PublishContext["devicePath"]}
	if isBlock(spec) {
		st.data.SpecName, st.data.Node = filepath.Base(path), string(p.host.NodeName)
		st.data.Attachment = AttachmentName(s.driver, s.handle, p.host.NodeName)
	} else {
		m := capability.GetMount()
		st.data.SELinux, st.data.Group, st.data.FSType = label, m.GetVolumeMountGroup(), m.GetFsType()
		st.data.setFlags(m.GetMountFlags())
	}
	return st, nil
}

// stagedAs reads with what a volume was staged at a path, the zero value if that
// is not known.
func (p *Plugin) stagedAs(s source, path string) volData {
	if path == "" {
		return volData{}
	}
	known, err := readVolData(p.stagingData(path))
	if err != nil || known.Handle != s.handle || known.Driver != s.driver {
		return volData{}
	}
	return known
}

// stage prepares the places and calls the driver. used says that a pod may have
// the volume.
func (p *Plugin) stage(ctx context.Context, st *staging, used bool) error {
	path := st.request.StagingTargetPath
	if err := p.onTheWay(ctx, path, filepath.Join(st.dataDir, dataFile)); err != nil {
		return err
	}
	dead := p.dead(ctx, path)
	if dead != nil && !used {
		if err := p.callUnstage(ctx, st.driver, st.handle, path); err != nil {
			return fmt.Errorf("take back a staging whose file system is dead (%w): %w", dead, err)
		}
	}
	made, err := p.makeStagingPlace(st, dead)
	if err != nil {
		return p.tidyStage(ctx, st, made && !used, err)
	}
	if err := p.host.Faults.At(FaultPrepared); err != nil {
		return p.tidyStage(ctx, st, made && !used, plugins.Transient(err))
	}
	_, err = call(ctx, st.driver, nodeStage, st.handle, st.request, st.driver.node.NodeStageVolume)
	if answered(err) == codes.AlreadyExists && !used {
		// It is staged with other arguments, and nobody has it.
		if err := p.callUnstage(ctx, st.driver, st.handle, path); err != nil {
			return fmt.Errorf("take back a staging with other arguments: %w", err)
		}
		_, err = call(ctx, st.driver, nodeStage, st.handle, st.request, st.driver.node.NodeStageVolume)
	}
	if answered(err) == codes.AlreadyExists && used {
		// It is staged, as somebody has staged it who left no record of how: what
		// pods have is not taken away for that.
		p.host.Log.Info("volume is staged with other arguments than today's, and in use", "driver", st.source.driver, "volume", shorten(st.handle, 128))
		err = nil
	}
	if err != nil && dead != nil && used {
		err = fmt.Errorf("%w (the staged file system is dead, %w, and pods have it: it can be mounted anew when they are gone)", err, dead)
	}
	return p.tidyStage(ctx, st, made && !used, p.called(err))
}

// dead returns the error with which a mounted file system at path answers whose
// server or daemon is gone.
func (p *Plugin) dead(ctx context.Context, path string) error {
	if point, err := p.host.Mounter.Inspect(ctx, path); err == nil {
		return point.Corrupt
	}
	return nil
}

// makeStagingPlace makes the staging path and the file beside it, and says
// whether the path had to be made. dead says that a mount there does not answer.
func (p *Plugin) makeStagingPlace(st *staging, dead error) (made bool, err error) {
	path := st.request.StagingTargetPath
	if err := makeParents(path); err != nil {
		return false, err
	}
	if err := os.MkdirAll(st.dataDir, 0o750); err != nil {
		return false, plugins.Transient(err)
	}
	if made, err = makeFolder(path); err != nil && dead != nil {
		err = nil // the driver may know how to mount it anew
	}
	if err == nil {
		err = st.data.write(st.dataDir)
	}
	if err != nil {
		return made, plugins.Transient(fmt.Errorf("prepare the staging path: %w", err))
	}
	return made, nil
}

// tidyStage takes away what was prepared for a stage that certainly left
// nothing behind.
func (p *Plugin) tidyStage(ctx context.Context, st *staging, fresh bool, err error) error {
	if err == nil || !fresh || plugins.ClassOf(err) == plugins.ClassUncertain {
		return err
	}
	if left := p.clearStaging(ctx, st.request.StagingTargetPath); left != nil {
		return errors.Join(err, left)
	}
	return err
}

// restage stages a volume again for a publish that its driver refused because
// it was not staged.
func (p *Plugin) restage(ctx context.Context, pub *publication) error {
	st, err := p.prepareStage(ctx, pub.driver, pub.info, pub.req.Spec, pub.request.StagingTargetPath, pub.req.Params, pub.req.Undo)
	if err != nil {
		return err
	}
	if err := p.stage(ctx, st, true); err != nil {
		return fmt.Errorf("stage the volume again, which the driver took for not staged: %w", err)
	}
	return nil
}

// UnmountDevice implements [plugins.DeviceMounter].
func (p *Plugin) UnmountDevice(ctx context.Context, req plugins.DeviceRequest) error {
	driver, handle, err := p.stagedVolume(req)
	if err != nil {
		return err
	}
	path := req.Path
	if path == "" {
		path = p.places().staging(driver, handle)
	}
	if err := p.onTheWay(ctx, path, filepath.Join(p.stagingData(path), dataFile)); err != nil {
		return plugins.Uncertain(err)
	}
	if _, err := os.Lstat(path); req.Undo[undoStaged] == "false" && errors.Is(err, fs.ErrNotExist) {
		return p.clearStaging(ctx, path)
	}
	d, err := p.drivers.driver(ctx, driver)
	if err != nil {
		return err
	}
	switch {
	case d.nodeCan.has(canStage):
		if err := p.callUnstage(ctx, d, handle, path); err != nil {
			return err
		}
	case p.maybeStaged(path):
		return plugins.Paced(slow, plugins.Uncertain(fmt.Errorf(
			"driver %s has staged the volume at %s and does not announce STAGE_UNSTAGE_VOLUME any more: start one that does, or remove %s if nothing is staged",
			driver, path, filepath.Join(p.stagingData(path), dataFile))))
	}
	p.mu.Lock()
	delete(p.restaged, storageName(driver, handle))
	p.mu.Unlock()
	for _, other := range p.alsoStaged(req.Undo) {
		if err := p.unstageAlso(ctx, d, handle, other); err != nil {
			return err
		}
	}
	return p.clearStaging(ctx, path)
}

// unstageAlso undoes a staging at a further place, such as a kubelet of another
// version leaves.
func (p *Plugin) unstageAlso(ctx context.Context, d *driver, handle, path string) error {
	if err := p.onTheWay(ctx, path, filepath.Join(p.stagingData(path), dataFile)); err != nil {
		return plugins.Uncertain(err)
	}
	if d.nodeCan.has(canStage) {
		if err := p.callUnstage(ctx, d, handle, path); err != nil {
			return err
		}
	}
	return p.clearStaging(ctx, path)
}

// maybeStaged reports whether a stage at a path has been begun and not undone.
func (p *Plugin) maybeStaged(path string) bool {
	_, err := os.Lstat(filepath.Join(p.stagingData(path), dataFile))
	return err == nil
}

// stagedVolume says which volume a request to unstage is about: from the
// record, else from the file beside the staging path.
func (p *Plugin) stagedVolume(req plugins.DeviceRequest) (driver, handle string, err error) {
	driver, handle = req.Undo[undoDriver], req.Undo[undoHandle]
	if driver != "" && handle != "" {
		return driver, handle, nil
	}
	if req.Spec != nil {
		s, err := sourceOf(req.Spec, "")
		return s.driver, s.handle, err
	}
	data, err := readVolData(p.stagingData(req.Path))
	if err != nil {
		return "", "", plugins.Permanent(fmt.Errorf("nothing tells which volume is staged at %s: %w", req.Path, err))
	}
	return data.Driver, data.Handle, nil
}

// stagingData is the folder with the vol_data.json of a staging path.
func (p *Plugin) stagingData(path string) string {
	if p.places().isBlockStaging(path) {
		return p.places().blockData(filepath.Base(path))
	}
	return filepath.Dir(path)
}

// callUnstage undoes a stage. A volume that the driver does not know is gone, if
// nothing is mounted.
func (p *Plugin) callUnstage(ctx context.Context, d *driver, handle, path string) error {
	_, err := call(ctx, d, nodeUnstage, handle,
		&csipb.NodeUnstageVolumeRequest{VolumeId: handle, StagingTargetPath: path}, d.node.NodeUnstageVolume)
	return p.undone(ctx, p.called(err), path)
}

// undone decides what the answer to an undoing call means: what the driver does
// not know is undone where nothing is mounted.
func (p *Plugin) undone(ctx context.Context, err error, path string) error {
	switch answered(err) {
	case codes.OK, codes.NotFound:
	default:
		return err
	}
	point, seen := p.host.Mounter.Inspect(ctx, path)
	switch {
	case seen != nil:
		return plugins.Uncertain(errors.Join(err, fmt.Errorf("look at what the driver left: %w", seen)))
	case !point.Mounted:
		return nil
	case err != nil:
		return err
	}
	return plugins.Uncertain(fmt.Errorf("the driver reported the volume gone, but it is still mounted at %s", path))
}

// clearStaging removes a staging path at which nothing is mounted, and what
// lies beside it.
func (p *Plugin) clearStaging(ctx context.Context, path string) error {
	if err := p.clear(ctx, p.stagingData(path), path); err != nil {
		return err
	}
	if p.places().isBlockStaging(path) {
		return p.clearBlockFolders(filepath.Base(path))
	}
	removeEmpty(filepath.Dir(filepath.Dir(path))) // the driver's, when it was its last
	return nil
}

func isBlock(spec *plugins.Spec) bool { return spec.Mode() == blockMode }
