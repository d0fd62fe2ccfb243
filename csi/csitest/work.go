package csitest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"google.golang.org/grpc/status"
)

// minXFS is the least size of which mkfs.xfs makes a file system, with room to
// spare.
const minXFS = 320 << 20

// stage brings a volume to its staging path. What is there already stays.
func (d *Driver) stage(v *VolumeState, use Use) error {
	if old := v.Staged; old != nil {
		there, err := d.there(v, old)
		if err != nil {
			return internal("look at the staging path", err)
		}
		if there && old.Complete {
			return nil
		}
		// A try that was cut short, or a mount that somebody else has undone.
		if err := d.clear(v, old); err != nil {
			return internal("clear the staging path", err)
		}
	}
	v.Staged = &use
	if err := d.save(v); err != nil {
		return internal("write the table", err)
	}
	if err := d.bring(v, &use); err != nil {
		if d.clear(v, &use) == nil {
			v.Staged = nil
			_ = d.save(v) // if not, an incomplete use stays, which can be undone
		}
		return withCode("stage", err)
	}
	use.Complete = true
	return d.done(v)
}

// done writes down that a work has been done.
func (d *Driver) done(v *VolumeState) error {
	if err := d.save(v); err != nil {
		return internal("write the table", err)
	}
	return nil
}

// unstage undoes stage.
func (d *Driver) unstage(v *VolumeState) error {
	if err := d.clear(v, v.Staged); err != nil {
		return internal("unstage", err)
	}
	v.Staged = nil
	if err := d.freeDevices(v); err != nil {
		return internal("detach", err)
	}
	return d.done(v)
}

// publish brings a volume to a target path. What is there already stays.
func (d *Driver) publish(v *VolumeState, use Use) error {
	if old := v.published(use.Path); old != nil {
		there, err := d.there(v, old)
		if err != nil {
			return internal("look at the target path", err)
		}
		if there && old.Complete {
			return nil
		}
		if err := d.withdraw(v, old); err != nil {
			return internal("clear the target path", err)
		}
		v.forget(use.Path)
	}
	v.Published = append(v.Published, use)
	u := v.published(use.Path)
	if err := d.save(v); err != nil {
		return internal("write the table", err)
	}
	if err := d.place(v, u); err != nil {
		if d.withdraw(v, u) == nil {
			v.forget(use.Path)
			_ = d.forgetOrSave(v) // if not, an incomplete use stays, which can be undone
		}
		return withCode("publish", err)
	}
	u.Complete = true
	return d.done(v)
}

// unpublish undoes publish.
func (d *Driver) unpublish(v *VolumeState, path string) error {
	if err := d.withdraw(v, v.published(path)); err != nil {
		return internal("unpublish", err)
	}
	v.forget(path)
	if err := d.freeDevices(v); err != nil {
		return internal("detach", err)
	}
	if err := d.forgetOrSave(v); err != nil {
		return internal("write the table", err)
	}
	return nil
}

// forgetOrSave removes an ephemeral volume that is not published any more, and
// saves any other.
func (d *Driver) forgetOrSave(v *VolumeState) error {
	if v.Ephemeral && len(v.Published) == 0 {
		return d.remove(v.ID)
	}
	return d.save(v)
}

// withCode keeps the code of an error that has one.
func withCode(what string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return internal(what, err)
}

// there reports whether a use is really in place.
func (d *Driver) there(v *VolumeState, use *Use) (bool, error) {
	staged := use == v.Staged
	switch {
	case v.Mode == ModePlain && staged:
		return true, nil
	case v.Mode == ModePlain:
		st, err := os.Stat(use.Path)
		return err == nil && st.IsDir(), nil
	case use.Capability.Block && staged:
		devices, err := devicesOf(d.imagePath(v.ID))
		return len(devices) > 0, err
	case use.Capability.Block && d.config.DeviceNodes:
		st, err := os.Lstat(use.Path)
		return err == nil && st.Mode().Type() == fs.ModeDevice, nil
	default:
		return mounted(use.Path)
	}
}

// bring makes the volume a mount of its own at a path, or attaches its device.
func (d *Driver) bring(v *VolumeState, use *Use) error {
	flags, data, err := mountFlags(use.Capability.MountFlags)
	if err != nil {
		return err
	}
	switch {
	case v.Mode == ModePlain:
		return nil
	case use.Capability.Block:
		return d.attach(v)
	case v.Mode == ModeTmpfs:
		data = append(data, "size="+strconv.FormatInt(v.Bytes, 10), "mode=0777")
		if err := mountNew("csitest", use.Path, "tmpfs", flags, data); err != nil {
			return err
		}
		v.NodeBytes = v.Bytes
	case v.Mode == ModeBind:
		if len(data) > 0 {
			return invalid("mount flag %q means nothing for a bind mount", data[0])
		}
		folder := filepath.Join(d.dataDir(v.ID), "data")
		if err := os.MkdirAll(folder, 0o750); err != nil {
			return err
		}
		if err := bind(folder, use.Path, flags); err != nil {
			return err
		}
		v.NodeBytes = v.Bytes
	default:
		if err := d.mountImage(v, use, mountOptions{flags, data}); err != nil {
			return err
		}
	}
	return setGroup(use.Path, use.Capability.Group)
}

// mountOptions are flags as mount(2) has them, and data for the file system.
type mountOptions struct {
	flags uintptr
	data  []string
}

// image makes the image as big as the volume.
func (d *Driver) image(v *VolumeState) (path string, err error) {
	if err := os.MkdirAll(d.dataDir(v.ID), 0o750); err != nil {
		return "", err
	}
	path = d.imagePath(v.ID)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	if st.Size() < v.Bytes {
		err = f.Truncate(v.Bytes)
	}
	return path, err
}

// attach gives the image a loop device for block access.
func (d *Driver) attach(v *VolumeState) error {
	path, err := d.image(v)
	if err != nil {
		return err
	}
	devices, err := devicesOf(path)
	if err != nil || len(devices) > 0 {
		return err
	}
	_, err = attachDevice(path, false)
	v.NodeBytes = v.Bytes
	return err
}

// mountImage mounts the file system in the image, which is made if there is
// none yet.
func (d *Driver) mountImage(v *VolumeState, use *Use, o mountOptions) error {
	kind := or(use.Capability.FSType, or(v.FSType, d.config.FSType))
	if kind == "xfs" {
		v.Bytes = max(v.Bytes, minXFS)
	}
	path, err := d.image(v)
	if err != nil {
		return err
	}
	if v.FSType == "" {
		if err := d.format(v, path, kind); err != nil {
			return err
		}
	}
	if v.FSType != kind {
		return precondition("the volume holds %s, not %s", v.FSType, kind)
	}
	return mountDevice(path, use.Path, kind, o)
}

// format makes a file system on an image that is empty, or on which a killed
// driver was making one, and looks for one on any other image.
func (d *Driver) format(v *VolumeState, path, kind string) error {
	if !v.Formatting {
		found, empty, err := lookAt(path)
		if err != nil {
			return err
		}
		if !empty {
			if v.FSType = found; found == "" {
				return precondition("the volume holds data, and no file system that is known")
			}
			return nil
		}
	}
	v.Formatting = true
	if err := d.save(v); err != nil {
		return err
	}
	if err := makeFileSystem(kind, path); err != nil {
		return err
	}
	v.FSType, v.Formatting, v.NodeBytes = kind, false, v.Bytes
	return d.save(v)
}

// place publishes a volume at a path.
func (d *Driver) place(v *VolumeState, use *Use) error {
	switch {
	case v.Mode == ModePlain:
		if err := mkdir(use.Path); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(use.Path, "volume"), []byte(v.ID), 0o600)
	case use.Capability.Block:
		return d.placeDevice(v, use)
	}
	flags, _, err := mountFlags(use.Capability.MountFlags)
	if err != nil {
		return err
	}
	if err := mkdir(use.Path); err != nil {
		return err
	}
	if source := v.source(use); source != "" {
		err = bind(source, use.Path, 0)
	} else {
		err = d.bring(v, use)
	}
	if err != nil {
		return err
	}
	if err := setGroup(use.Path, use.Capability.Group); err != nil {
		return err
	}
	return restrict(use.Path, flags, use.Readonly || use.Capability.reader())
}

// source is where a publish finds the volume mounted, empty if nowhere.
func (v *VolumeState) source(use *Use) string {
	if v.Staged != nil && v.Staged.Complete {
		return v.Staged.Path
	}
	for _, other := range v.Published {
		if other.Complete && other.Path != use.Path {
			return other.Path
		}
	}
	return ""
}

// placeDevice puts the volume's device at a path.
func (d *Driver) placeDevice(v *VolumeState, use *Use) error {
	if err := d.attach(v); err != nil {
		return err
	}
	devices, err := devicesOf(d.imagePath(v.ID))
	if err != nil {
		return err
	}
	if len(devices) == 0 {
		return errors.New("the loop device is gone")
	}
	device := devices[0]
	if use.Readonly || use.Capability.reader() {
		// A mount that is read-only does not make a device so.
		if device, err = attachDevice(d.imagePath(v.ID), true); err != nil {
			return err
		}
		use.Device = device
		if err := d.save(v); err != nil {
			return err
		}
	}
	if d.config.DeviceNodes {
		return makeNode(device, use.Path)
	}
	f, err := os.OpenFile(use.Path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return bind(device, use.Path, 0)
}

// vacant refuses a target path that something else has. An empty folder or file
// is taken over: earlier releases of orchestrators made them.
func vacant(path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return internal("look at target_path", err)
	case st.Mode().IsRegular() && st.Size() == 0:
		return nil
	case st.IsDir():
		if entries, err := os.ReadDir(path); err == nil && len(entries) == 0 {
			return nil
		}
	}
	return precondition("something else is at target_path")
}

// mkdir makes a target folder, if it is not there.
func mkdir(path string) error {
	if err := os.Mkdir(path, 0o750); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// clear undoes what is mounted at a use's path. The path itself stays.
func (d *Driver) clear(v *VolumeState, use *Use) error {
	if v.Mode == ModePlain || use.Capability.Block && use == v.Staged {
		return nil // devices are freed when nothing uses them any more
	}
	return unmountAll(use.Path)
}

// withdraw undoes a publish, its path included.
func (d *Driver) withdraw(v *VolumeState, use *Use) error {
	if v.Mode == ModePlain {
		return os.RemoveAll(use.Path)
	}
	if err := d.clear(v, use); err != nil {
		return err
	}
	// What is in a folder in which nothing is mounted any more is somebody else's.
	if err := os.Remove(use.Path); err != nil && !errors.Is(err, fs.ErrNotExist) && !notEmpty(err) {
		return err
	}
	if use.Device != "" {
		return detachDevice(d.imagePath(v.ID), use.Device)
	}
	return nil
}

// freeDevices detaches a volume's devices that no block use needs any more.
// Those of mounts free themselves.
func (d *Driver) freeDevices(v *VolumeState) error {
	if !v.Mode.image() || v.Staged != nil && v.Staged.Capability.Block ||
		slices.ContainsFunc(v.Published, func(u Use) bool { return u.Capability.Block }) {
		return nil
	}
	path := d.imagePath(v.ID)
	devices, err := devicesOf(path)
	if err != nil {
		return err
	}
	errs := make([]error, 0, len(devices))
	for _, device := range devices {
		errs = append(errs, detachDevice(path, device))
	}
	return errors.Join(errs...)
}

// expand makes use of a volume's size on the node.
func (d *Driver) expand(v *VolumeState, use *Use) error {
	if err := d.grow(v, use); err != nil {
		return withCode("expand", err)
	}
	v.NodeBytes = v.Bytes
	return d.done(v)
}

func (d *Driver) grow(v *VolumeState, use *Use) error {
	switch {
	case v.Mode == ModeTmpfs:
		return resizeTmpfs(use.Path, v.Bytes)
	case !v.Mode.image():
		return nil
	}
	path, err := d.image(v)
	if err != nil {
		return err
	}
	devices, err := devicesOf(path)
	if err != nil {
		return err
	}
	for _, device := range devices {
		if err := growDevice(device); err != nil {
			return err
		}
	}
	if use.Capability.Block || len(devices) == 0 {
		return nil
	}
	return growFileSystem(v.FSType, devices[0], use.Path)
}

// UndoAll unpublishes, unstages and detaches all volumes, as a test does at its
// end, and reports what it could not undo. Volumes and their data stay, but for
// ephemeral ones. No call may be in flight.
func (d *Driver) UndoAll() error {
	var errs []error
	for _, s := range d.Volumes() {
		v := s.clone()
		failed := false
		for _, u := range s.Published {
			err := d.unpublish(v, u.Path)
			errs, failed = append(errs, err), failed || err != nil
		}
		if v.Ephemeral || failed {
			continue
		}
		if v.Staged != nil {
			errs = append(errs, d.unstage(v))
		}
		v.Attached = nil
		errs = append(errs, d.save(v))
	}
	return errors.Join(errs...)
}
