package plugins

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Spec is one volume as a plugin sees it: either the inline source of a pod's
// volume, or the PersistentVolume behind a claim. It is read-only. Where both
// Volume and PV are set, PV is what the volume is: look at PV first.
type Spec struct {
	// Volume is the pod's volume when it is inline, else nil.
	Volume *v1.Volume
	// PV is the persistent volume when there is one, else nil. A [Translator]
	// makes one out of an inline volume, which stays in Volume: no object of
	// the API stands for it then, and a VolumeAttachment holds PV.Spec itself.
	PV *v1.PersistentVolume
	// Claim is the claim that is bound to PV, if it is known.
	Claim *v1.PersistentVolumeClaim
	// ReadOnly is true if the pod asks for the claim read-only
	// (persistentVolumeClaim.readOnly), or in its inline volume for a translated
	// one.
	ReadOnly bool
	// Migrated is true if a [Translator] made this spec out of an in-tree one.
	Migrated bool
}

// Name is the name of the volume on disk: the PersistentVolume's, or for an
// inline volume the one in the pod.
func (s *Spec) Name() string {
	switch {
	case s == nil:
		return ""
	case s.PV != nil:
		return s.PV.Name
	case s.Volume != nil:
		return s.Volume.Name
	}
	return ""
}

// Mode is the volume mode with the API's default, Filesystem.
func (s *Spec) Mode() v1.PersistentVolumeMode {
	if s != nil && s.PV != nil && s.PV.Spec.VolumeMode != nil && *s.PV.Spec.VolumeMode != "" {
		return *s.PV.Spec.VolumeMode
	}
	return v1.PersistentVolumeFilesystem
}

// AccessModes are those of the PersistentVolume; none for an inline volume.
func (s *Spec) AccessModes() []v1.PersistentVolumeAccessMode {
	if s == nil || s.PV == nil {
		return nil
	}
	return s.PV.Spec.AccessModes
}

// OnePod reports whether the volume may be used by a single pod at a time:
// ReadWriteOncePod is its only access mode (KEP-2485).
func (s *Spec) OnePod() bool {
	modes := s.AccessModes()
	return len(modes) > 0 && !slices.ContainsFunc(modes, func(m v1.PersistentVolumeAccessMode) bool {
		return m != v1.ReadWriteOncePod
	})
}

// MountOptions are those of the PersistentVolume. The old annotation
// volume.beta.kubernetes.io/mount-options wins over the field, as it does in
// the kubelet. Empty elements are left out.
func (s *Spec) MountOptions() []string {
	if s == nil || s.PV == nil {
		return nil
	}
	options := s.PV.Spec.MountOptions
	if list, ok := s.PV.Annotations[v1.MountOptionAnnotation]; ok {
		options = strings.Split(list, ",")
	}
	if !slices.Contains(options, "") {
		return options
	}
	return slices.DeleteFunc(slices.Clone(options), func(o string) bool { return o == "" })
}

// Kind names the source in the API's words ("configMap", "csi"...), or
// "nothing" for a volume without a source.
func (s *Spec) Kind() string {
	var source any
	switch {
	case s == nil:
		return "nothing"
	case s.PV != nil:
		source = s.PV.Spec.PersistentVolumeSource
	case s.Volume != nil:
		source = s.Volume.VolumeSource
	default:
		return "nothing"
	}
	if kinds := sources(source); len(kinds) > 0 {
		return kinds[0]
	}
	return "nothing"
}
