// Package asw is the actual state of the world: which volumes are attached,
// staged and set up on this node, as far as that is known. [World] is a pure
// cache that only finished steps and the findings at start change;
// subpackage journal keeps what a later process needs.
//
// Every state has three values. Uncertain means that a step ran and nobody can
// say how it ended, or that an earlier process left it: uncertain things are
// undone like present ones and made again like absent ones.
package asw

import (
	"time"

	"github.com/volumekit/volumekit/plugins"
)

// Presence says whether something is there.
type Presence uint8

const (
	// Absent: certainly not there.
	Absent Presence = iota
	// Present: certainly there.
	Present
	// Uncertain: maybe there, maybe in part.
	Uncertain
)

// String is the presence in one word.
func (p Presence) String() string {
	switch p {
	case Absent:
		return "absent"
	case Present:
		return "present"
	default:
		return "uncertain"
	}
}

// Volume is what is known about one volume on this node. It is a value: a copy
// out of [World] that nobody changes.
type Volume struct {
	// ID names the volume.
	ID plugins.VolumeID
	// Identity is what the plugin said of it, or what the record kept of that.
	Identity plugins.Identity
	// Spec is the spec of the last step, nil for a volume that was found.
	Spec *plugins.Spec
	// Attachment is the state of the attachment.
	Attachment Presence
	// Device is the state of the device mount or staging.
	Device Presence
	// DevicePath is what attaching gave.
	DevicePath string
	// DeviceMountPath is where the device is mounted or staged.
	DeviceMountPath string
	// DeviceParams are the properties the device was mounted with.
	DeviceParams plugins.Params
	// Undo is the plugin's own part of the record.
	Undo plugins.Undo
	// Pods are the pod volumes, sorted by Volume.String(). An absent one is
	// not listed.
	Pods []PodVolume
}

// PodVolume is what is known about one volume of one pod.
type PodVolume struct {
	// Volume names it and ID the volume that it belongs to.
	Volume plugins.PodVolume
	ID     plugins.VolumeID
	// Pod names the pod for people.
	Pod plugins.PodRef
	// Names are the names in the pod's spec that lead to it, sorted.
	Names []string
	// State is Present or Uncertain.
	State Presence
	// Found is true for what an earlier process left, until a step of this one
	// has confirmed it.
	Found bool
	// Block is true for a raw device.
	Block bool
	// Spec is the spec of the last set-up, nil for a found one.
	Spec *plugins.Spec
	// Params are the properties it was set up with.
	Params plugins.Params
	// Path is where the pod finds it.
	Path string
	// Mounted is true if a mount was promised and seen at the target.
	Mounted bool
	// MountID is the id of that mount, zero if unknown.
	MountID uint64
	// Attributes for whoever hands the volume to a container.
	Attributes plugins.Attributes
	// ContentVersion, Generation and RefreshAt describe refreshed content: what
	// it is, the wish's generation when it was begun to be made, and when it
	// has to be made again whatever happens.
	ContentVersion string
	Generation     uint64
	RefreshAt      time.Time
	// Undo is the plugin's own part of the record.
	Undo plugins.Undo
	// Since is when State was entered.
	Since time.Time
}
