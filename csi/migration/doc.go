// Package migration turns volumes of the in-tree kinds that CSI drivers have
// replaced into volumes of those drivers: GCE PD, AWS EBS, Cinder, Azure Disk,
// Azure File, vSphere and Portworx, inline in a pod and as PersistentVolumes.
// [Translator] is a [plugins.Translator] over k8s.io/csi-translation-lib (KEP-625);
// it goes into the resolver. Do not use it where no object of these kinds can
// come: volumes of all other kinds (NFS, iSCSI, RBD, CephFS...) pass unchanged,
// at the cost of a look at them.
//
// # What comes out
//
// A translated spec is a PersistentVolume with a CSI source, and Spec.Migrated
// is true. Of a PersistentVolume everything but the source stays: name, claim,
// capacity, mount options, volume mode; the library renames zones in its node
// affinity to the driver's topology key, and GCE PD's ReadWriteMany, which that
// kind never had, becomes ReadWriteOnce.
//
// An inline volume becomes a PersistentVolume that exists nowhere else: mode
// Filesystem, an access mode, no capacity. Its Spec keeps the pod's volume in
// Spec.Volume beside Spec.PV, and this is how to tell it from one behind a
// claim: Spec.Migrated with Spec.Volume set. Methods of [plugins.Spec], and
// plugins that look at Spec.PV first, as all must, see a PersistentVolume. A
// VolumeAttachment for it has Spec.PV.Spec as source.inlineVolumeSpec; one for
// any other volume names the PersistentVolume. Spec.ReadOnly, which for a claim
// is what the pod asks of the claim, is the source's readOnly.
//
// Where the library forgets that a Portworx volume is read-only, the CSI source
// says it nonetheless.
//
// # Names
//
// The PersistentVolume of an inline volume is named after the disk, not after
// the pod's volume, as in the kubelet: two volumes of one pod with the same disk are one
// volume on disk with two names in the pod. They may differ in readOnly; if
// they differ in more (partition, file system), the pod contradicts itself and
// neither is translated, since a driver stages a disk once. Azure File shares
// are named after the pod's volume as well.
//
// The name has to be one folder. The kubelet writes "~" for "/", and so does
// this package, which lets either program find the other's folder. A name that
// cannot become a folder even so (longer than 255 bytes, which an Azure disk
// URI can be, or with control characters) or could be mixed up with another one
// (with "~" or "//") becomes "<driver>~~<SHA-256 of the name in hex>". No two
// names share a folder.
//
// # What is not translated
//
// Names of folders. A kubelet translates those of in-tree plugins that it finds
// on disk ("kubernetes.io~aws-ebs"). Such a folder holds a mount that an in-tree
// plugin made, and to undo it by a driver's NodeUnpublishVolume would be to ask
// the driver about a volume that it never published. A node is drained before
// its volumes are migrated, current kubelets have no in-tree plugin left that
// could make such a mount, and what is found all the same belongs to a plugin
// that is not registered: it stays as it is and the status says so.
package migration
