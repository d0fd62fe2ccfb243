// Package csi mounts the volumes of Container Storage Interface drivers: it
// keeps connections to the drivers of a node, and is the volume plugin for
// PersistentVolumes and inline volumes with a csi source, with or without a
// Kubernetes control plane.
//
// [Drivers] is the directory of drivers. They come to it by the kubelet's
// plugin registration (package csi/registration), or by an endpoint that the
// embedder names. [Plugin] is the volume plugin; register it beside those of
// package plugins/builtin. How volumes are attached says an [Attacher]: not at
// all, by a control plane that is waited for, by VolumeAttachments of our own,
// or by direct calls to the driver's controller.
//
// The package speaks CSI 1.0 to 1.13 (the spec's field numbers are stable over
// 1.x). It makes no call that a driver did not announce, and for one volume one
// call at a time.
package csi
