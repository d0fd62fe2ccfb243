// Package journal keeps, on disk and ahead of every side effect, what undoing
// a volume needs, so that a later process need not guess from folders' names.
//
// It is one append-only file of lines under the layout's state folder, each
// line a checksum and a JSON record. An append is one write(2), which survives
// the death of the process; whoever needs it to survive a power cut asks for
// that and shares an fdatasync(2) with all others that wait. A damaged line is
// reported and costs only its own record. [Read] shows the records while no
// agent runs; a running one holds a lock.
package journal

import (
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// Key names a record: a volume of a pod, or the node-wide part of a volume,
// whose Volume is the zero value.
type Key struct {
	ID     plugins.VolumeID  `json:"id"`
	Volume plugins.PodVolume `json:"volume,omitzero"`
}

// Record is what undoing needs. It holds no secrets.
type Record struct {
	Key
	// Pod and Names are for people, and for the status after a restart.
	Pod   plugins.PodRef `json:"pod,omitzero"`
	Names []string       `json:"names,omitempty"`
	// Block is true for a raw device.
	Block bool `json:"block,omitempty"`
	// Attach and Device say which node-wide steps may have been done and have
	// to be undone, Durable and Parallel are as in [plugins.Identity].
	Attach   bool `json:"attach,omitempty"`
	Device   bool `json:"device,omitempty"`
	Durable  bool `json:"durable,omitempty"`
	Parallel bool `json:"parallel,omitempty"`
	// Storage is the plugin's name for the backing storage, Lane as in
	// [plugins.Identity].
	Storage string `json:"storage,omitempty"`
	Lane    string `json:"lane,omitempty"`
	// DevicePath and DeviceMountPath belong to the node-wide part.
	DevicePath      string `json:"devicePath,omitempty"`
	DeviceMountPath string `json:"deviceMountPath,omitempty"`
	// Undo is the plugin's own part.
	Undo plugins.Undo `json:"undo,omitempty"`
}

// Contents is what a journal holds.
type Contents struct {
	// Namespace is the world in which the records were written: where it
	// differs from now, nothing counts as mounted until it is seen.
	Namespace mount.Namespace
	// Records are the live records, in the order of their first appearance.
	Records []Record
	// Damaged lists what could not be read.
	Damaged []Damage
}

// Damage is a part of the file that could not be read.
type Damage struct {
	// File and Line say where.
	File string
	Line int
	// Key is set if the damaged record's key could still be told.
	Key *Key
	// Reason says what is wrong.
	Reason string
}
