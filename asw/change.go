package asw

import (
	"fmt"
	"maps"

	"github.com/volumekit/volumekit/plugins"
)

// Attachment is a new state of a volume's attachment.
type Attachment struct {
	// State is what it is now.
	State Presence
	// DevicePath is what attaching gave. Empty keeps the known one; so do the
	// zero values of the fields below.
	DevicePath string
	Identity   plugins.Identity
	Spec       *plugins.Spec
	// Undo replaces the plugin's own part of the record.
	Undo plugins.Undo
}

// Device is a new state of a volume's device mount.
type Device struct {
	// State is what it is now.
	State Presence
	// Path is where it is mounted, Params with which properties. An empty Path
	// keeps both. An absent device has neither.
	Path   string
	Params plugins.Params
	// DevicePath, Identity, Spec and Undo are as in [Attachment].
	DevicePath string
	Identity   plugins.Identity
	Spec       *plugins.Spec
	Undo       plugins.Undo
}

// SetAttachment enters how an attachment is. It refuses, with
// [ErrImpossible], one that is gone while the device or a pod needs it.
func (w *World) SetAttachment(id plugins.VolumeID, a Attachment) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.volumes[id]
	if a.State == Absent {
		if e == nil {
			return nil
		}
		if v := &e.volume; v.Attachment != Absent && (v.Device != Absent || len(v.Pods) > 0) {
			return fmt.Errorf("detach %s: %w: the device is %v and %d pods have it", id, ErrImpossible, v.Device, len(v.Pods))
		}
	}
	e = w.entry(id)
	e.volume.Attachment = a.State
	e.describe(a.DevicePath, a.Identity, a.Spec, a.Undo)
	w.sweep(e)
	return nil
}

// SetDevice enters how a device mount is. It refuses, with [ErrImpossible],
// one that is gone while a pod needs it, and one that is there on a volume
// that is not attached but has to be.
func (w *World) SetDevice(id plugins.VolumeID, d Device) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.volumes[id]
	switch {
	case d.State == Absent && e == nil:
		return nil
	case d.State == Absent && e.volume.Device != Absent && len(e.volume.Pods) > 0:
		return fmt.Errorf("unmount device of %s: %w: %d pods have it", id, ErrImpossible, len(e.volume.Pods))
	case d.State != Absent && e.lacksAttachment(d.Identity):
		return fmt.Errorf("mount device of %s: %w: it is not attached", id, ErrImpossible)
	}
	e = w.entry(id)
	v := &e.volume
	switch v.Device = d.State; {
	case d.State == Absent:
		v.DeviceMountPath, v.DeviceParams = "", plugins.Params{}
	case d.Path != "":
		v.DeviceMountPath, v.DeviceParams = d.Path, d.Params
	}
	e.describe(d.DevicePath, d.Identity, d.Spec, d.Undo)
	w.sweep(e)
	return nil
}

// SetIdentity enters what a volume is, without a change of its state. It does
// nothing for a volume that is not known.
func (w *World) SetIdentity(id plugins.VolumeID, identity plugins.Identity, spec *plugins.Spec) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.volumes[id]; e != nil {
		e.describe("", identity, spec, nil)
	}
}

// SetPodVolume enters a pod volume, in place of what was known of it; an
// absent one is removed. It refuses, with [ErrImpossible], a pod volume that
// belongs to another volume, and a new one whose volume lacks the attachment
// or the device mount that its identity calls for.
func (w *World) SetPodVolume(pv PodVolume) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	owner := w.owner(pv.Volume)
	if owner != nil && owner.volume.ID != pv.ID {
		return otherOwner(pv, owner)
	}
	if pv.State == Absent {
		w.remove(pv.Volume)
		return nil
	}
	e := w.volumes[pv.ID]
	if owner == nil && e != nil && (e.lacksAttachment(plugins.Identity{}) || e.lacksDevice()) {
		return fmt.Errorf("set up %s: %w: the attachment of %s is %v, its device %v", pv.Volume, ErrImpossible, pv.ID, e.volume.Attachment, e.volume.Device)
	}
	w.place(w.entry(pv.ID), pv)
	return nil
}

// RemovePodVolume enters that a pod volume is gone.
func (w *World) RemovePodVolume(v plugins.PodVolume) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remove(v)
}

// describe takes over what is not a zero value.
func (e *entry) describe(devicePath string, identity plugins.Identity, spec *plugins.Spec, undo plugins.Undo) {
	v := &e.volume
	if devicePath != "" {
		v.DevicePath = devicePath
	}
	if !isZero(identity) {
		identity.Undo = maps.Clone(identity.Undo)
		v.Identity = identity
	}
	if spec != nil {
		v.Spec = spec
	}
	if undo != nil {
		v.Undo = maps.Clone(undo)
	}
}

// lacksAttachment reports whether a volume that has to be attached is not. A
// volume that is not known lacks it if the identity calls for it.
func (e *entry) lacksAttachment(identity plugins.Identity) bool {
	if e == nil {
		return identity.Attach
	}
	return (identity.Attach || e.volume.Identity.Attach) && e.volume.Attachment == Absent
}

func (e *entry) lacksDevice() bool { return e.volume.Identity.Device && e.volume.Device == Absent }

func isZero(i plugins.Identity) bool {
	return i.Storage == "" && !i.Attach && !i.Device && !i.MountOptions && !i.SELinuxContext &&
		!i.Durable && !i.Parallel && len(i.Undo) == 0
}
