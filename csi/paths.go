package csi

import (
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

// Name is the plugin's name. It is the kubelet's, and so part of every path.
const Name = "kubernetes.io/csi"

// places names the plugin's places on disk, which are the kubelet's. Parts are
// checked by [CheckDriverName] and [plugins.CheckName] before they come here.
//
//	plugins/kubernetes.io/csi/<driver>/<sha256 of handle>/globalmount          staged file system
//	plugins/kubernetes.io/csi/volumeDevices/staging/<pv>                       staged block device
//	plugins/kubernetes.io/csi/volumeDevices/publish/<pv>/<pod uid>             published block device
//	plugins/kubernetes.io/csi/volumeDevices/<pv>/{data,dev}                    its vol_data.json, its mounts by pod
//	pods/<uid>/volumes/kubernetes.io~csi/<pv or volume>/mount                  published file system
type places struct{ layout plugins.Layout }

// Names of files and folders within the places above.
const (
	dataFile    = "vol_data.json"
	globalMount = "globalmount"
	mountDir    = "mount"
	devicesDir  = "volumeDevices"
	// oldStagingDir is where kubelets up to 1.23 staged, by the name of the
	// persistent volume.
	oldStagingDir = "pv"
)

func (p places) root() string { return p.layout.PluginDir(Name) }

// stagingParent holds the staging path of a volume with a file system, and its
// vol_data.json.
func (p places) stagingParent(driver, handle string) string {
	return filepath.Join(p.root(), driver, hash(handle))
}

func (p places) staging(driver, handle string) string {
	return filepath.Join(p.stagingParent(driver, handle), globalMount)
}

// blockStaging is the staging path of a block volume, by the persistent volume
// that staged first.
func (p places) blockStaging(spec string) string {
	return filepath.Join(p.root(), devicesDir, "staging", spec)
}

// reserved reports whether a persistent volume's name is that of a folder beside
// those of block volumes.
func reserved(spec string) bool { return spec == "staging" || spec == "publish" }

// blockPublish is where the driver puts the pod's device.
func (p places) blockPublish(spec string, pod types.UID) string {
	return filepath.Join(p.root(), devicesDir, "publish", spec, string(pod))
}

func (p places) blockVolume(spec string) string { return filepath.Join(p.root(), devicesDir, spec) }

// blockData holds the vol_data.json of a block volume.
func (p places) blockData(spec string) string { return filepath.Join(p.blockVolume(spec), "data") }

// blockMap is a bind mount of the pod's device.
func (p places) blockMap(spec string, pod types.UID) string {
	return filepath.Join(p.blockVolume(spec), "dev", string(pod))
}

// isBlockStaging reports whether a staging path is that of a block volume.
func (p places) isBlockStaging(path string) bool {
	return filepath.Dir(path) == filepath.Dir(p.blockStaging("x"))
}

// oldStaging is where kubelets up to 1.23 staged a persistent volume.
func (p places) oldStaging(spec string) string {
	return filepath.Join(p.root(), oldStagingDir, spec, globalMount)
}
