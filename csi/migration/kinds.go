package migration

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	intree "k8s.io/csi-translation-lib/plugins"
)

// kind is one of the in-tree kinds. Its functions are called with volumes of
// that kind alone; an id is empty where the source lacks what the API requires
// of it.
type kind struct {
	lib      intree.InTreePlugin
	inlineID func(*v1.Volume) string
	pvID     func(*v1.PersistentVolume) string
	// Whether the source says readOnly; nil where the library passes it on, or
	// there is no such field.
	inlineReadOnly func(*v1.Volume) bool
	pvReadOnly     func(*v1.PersistentVolume) bool
}

func (k *kind) plugin() string { return k.lib.GetInTreePluginName() }
func (k *kind) driver() string { return k.lib.GetCSIPluginName() }

// allKinds lists the kinds, sorted by their in-tree plugins.
func allKinds() []kind {
	kinds := []kind{
		{
			lib:      intree.NewGCEPersistentDiskCSITranslator(),
			inlineID: func(v *v1.Volume) string { return v.GCEPersistentDisk.PDName },
			pvID:     func(pv *v1.PersistentVolume) string { return pv.Spec.GCEPersistentDisk.PDName },
		}, {
			lib:      intree.NewAWSElasticBlockStoreCSITranslator(),
			inlineID: func(v *v1.Volume) string { return v.AWSElasticBlockStore.VolumeID },
			pvID:     func(pv *v1.PersistentVolume) string { return pv.Spec.AWSElasticBlockStore.VolumeID },
		}, {
			lib:      intree.NewOpenStackCinderCSITranslator(),
			inlineID: func(v *v1.Volume) string { return v.Cinder.VolumeID },
			pvID:     func(pv *v1.PersistentVolume) string { return pv.Spec.Cinder.VolumeID },
		}, {
			lib:      intree.NewAzureDiskCSITranslator(),
			inlineID: func(v *v1.Volume) string { return v.AzureDisk.DataDiskURI },
			pvID:     func(pv *v1.PersistentVolume) string { return pv.Spec.AzureDisk.DataDiskURI },
		}, {
			lib:      intree.NewAzureFileCSITranslator(),
			inlineID: func(v *v1.Volume) string { return both(v.AzureFile.ShareName, v.AzureFile.SecretName) },
			pvID: func(pv *v1.PersistentVolume) string {
				return both(pv.Spec.AzureFile.ShareName, pv.Spec.AzureFile.SecretName)
			},
		}, {
			lib:      intree.NewvSphereCSITranslator(),
			inlineID: func(v *v1.Volume) string { return v.VsphereVolume.VolumePath },
			pvID:     func(pv *v1.PersistentVolume) string { return pv.Spec.VsphereVolume.VolumePath },
		}, {
			lib:            intree.NewPortworxCSITranslator(),
			inlineID:       func(v *v1.Volume) string { return v.PortworxVolume.VolumeID },
			pvID:           func(pv *v1.PersistentVolume) string { return pv.Spec.PortworxVolume.VolumeID },
			inlineReadOnly: func(v *v1.Volume) bool { return v.PortworxVolume.ReadOnly },
			pvReadOnly:     func(pv *v1.PersistentVolume) bool { return pv.Spec.PortworxVolume.ReadOnly },
		},
	}
	slices.SortFunc(kinds, func(a, b kind) int { return cmp.Compare(a.plugin(), b.plugin()) })
	return kinds
}

// both is empty if one of them is.
func both(a, b string) string {
	if a == "" || b == "" {
		return ""
	}
	return a + " " + b
}

// Kinds lists the in-tree plugins that have a CSI driver, sorted, in their full
// names: "kubernetes.io/aws-ebs"...
func Kinds() []string {
	kinds := allKinds()
	names := make([]string, len(kinds))
	for i := range kinds {
		names[i] = kinds[i].plugin()
	}
	return names
}

// DriverOf returns the CSI driver that replaced an in-tree plugin, if one did.
func DriverOf(plugin string) (driver string, ok bool) {
	for _, k := range allKinds() {
		if k.plugin() == plugin {
			return k.driver(), true
		}
	}
	return "", false
}

// InTreeName returns the in-tree plugin that a CSI driver replaced, if it
// replaced one.
func InTreeName(driver string) (plugin string, ok bool) {
	for _, k := range allKinds() {
		if k.driver() == driver {
			return k.plugin(), true
		}
	}
	return "", false
}
