package csi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

// Attacher attaches volumes to this node, or waits until somebody else has.
// [NoAttach], [WaitAttach], [OwnAttach] and [DirectAttach] are the four there
// are; an embedder may bring another, or choose one for each driver.
//
// It is called for drivers whose CSIDriver object requires attaching, or that
// have none. Its methods are idempotent, may block until ctx ends, and are
// called for one volume one at a time. Errors have the classes of package
// plugins.
type Attacher interface {
	// Attach makes the volume reachable from this node.
	Attach(ctx context.Context, v Attachable) (Attached, error)
	// Detach undoes it, from what is recorded alone. It is called only when the
	// volume is certainly no longer staged. That it is not attached is success.
	Detach(ctx context.Context, v Attachable) error
}

// Attachable is a volume to be attached or detached.
type Attachable struct {
	// Driver and Handle name it.
	Driver, Handle string
	// Node is this node.
	Node types.NodeName
	// Spec is what the volume is; nil in Detach for a volume of an earlier
	// process.
	Spec *plugins.Spec
	// Info is what the CSIDriver object says.
	Info DriverInfo
	// Undo is what is recorded, Attached.Undo of an earlier call included.
	Undo plugins.Undo
	// Pods name the pods for which it is done.
	Pods []plugins.PodRef
}

// Attached is the outcome of an attach.
type Attached struct {
	// PublishContext goes with every stage and publish. It is recorded, and no
	// secret (CSI spec, ControllerPublishVolume).
	PublishContext map[string]string
	// Undo is what Detach will need beyond driver, handle and node; free of
	// secrets.
	Undo plugins.Undo
}

// AttachmentName is the name of the VolumeAttachment object of a volume on a
// node, the same for every program that makes or looks for one.
func AttachmentName(driver, handle string, node types.NodeName) string {
	return "csi-" + hash(handle+driver+string(node))
}

// hash is the digest that the kubelet's names are made of.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
