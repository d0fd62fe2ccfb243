package plugins

import (
	"cmp"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// VolumeID names one volume on this node: the unit that is planned, and that
// has one step in flight at a time. It is "<plugin>/<storage>" where pods share
// the storage and "<plugin>/<pod UID>-<name>" where each pod has its own, which
// are also the kubelet's unique volume names. For a pod UID that Kubernetes
// would not give, the latter is "<plugin>/<pod UID>/<name>": with a dash, UIDs
// "a" and "a-b" could not be told apart.
type VolumeID string

// Plugin is the plugin's name, the first two elements of the id.
func (id VolumeID) Plugin() string {
	first := strings.IndexByte(string(id), '/')
	if first < 0 {
		return string(id)
	}
	if second := strings.IndexByte(string(id)[first+1:], '/'); second >= 0 {
		return string(id)[:first+1+second]
	}
	return string(id)
}

// VolumeIDOf derives the id of a volume from what its plugin says of it.
// Storage is shared where pods attach or mount a device together, and where
// only one pod may have it, so that the pods see each other. Where the plugin
// names no storage, the spec's name stands for it.
func VolumeIDOf(plugin string, identity Identity, spec *Spec, pod types.UID) VolumeID {
	if identity.Attach || identity.Device || spec.OnePod() {
		return VolumeID(plugin + "/" + cmp.Or(identity.Storage, spec.Name()))
	}
	separator := "/"
	if fixedLength(pod) {
		separator = "-"
	}
	return VolumeID(plugin + "/" + string(pod) + separator + spec.Name())
}

// fixedLength reports whether uid has one of the two forms that Kubernetes
// gives: a UUID, or the hash of a static pod (32 hexadecimal digits). Neither
// can be the beginning of the other, so what follows them is unambiguous.
func fixedLength(uid types.UID) bool {
	dashes := len(uid) == 36
	if !dashes && len(uid) != 32 {
		return false
	}
	for i, c := range []byte(uid) {
		if dash := dashes && (i == 8 || i == 13 || i == 18 || i == 23); dash {
			if c != '-' {
				return false
			}
		} else if !strings.ContainsRune("0123456789abcdefABCDEF", rune(c)) {
			return false
		}
	}
	return true
}

// PodVolume names one volume of one pod, which is to say one target path. Two
// volumes of a pod that use the same claim are one PodVolume.
type PodVolume struct {
	// Pod is the pod's UID.
	Pod types.UID `json:"pod"`
	// Plugin is the plugin's name.
	Plugin string `json:"plugin"`
	// Name is the spec name: the PersistentVolume's or the inline volume's.
	Name string `json:"name"`
}

// String is "<pod UID>/<plugin>/<name>".
func (v PodVolume) String() string { return string(v.Pod) + "/" + v.Plugin + "/" + v.Name }

// PodRef names a pod for people.
type PodRef struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// String is "<namespace>/<name>".
func (p PodRef) String() string { return p.Namespace + "/" + p.Name }

// Ref names an object outside of the engine that a volume depends on. Its
// change is a reason to plan the volumes that refer to it again.
type Ref struct {
	// Kind is the API kind ("Secret", "PersistentVolumeClaim", "CSIDriver"...),
	// or a word of the plugin's own.
	Kind string `json:"kind"`
	// Namespace is empty for cluster-wide objects.
	Namespace string `json:"namespace,omitempty"`
	// Name is the object's name. Empty in a notice means every object of the
	// kind (in the namespace, if that is set).
	Name string `json:"name,omitempty"`
}

// String is "Kind namespace/name" or "Kind name".
func (r Ref) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.Namespace + "/" + r.Name
}

// Kinds of the objects that the built-in plugins refer to.
const (
	KindSecret           = "Secret"
	KindConfigMap        = "ConfigMap"
	KindClaim            = "PersistentVolumeClaim"
	KindPersistentVolume = "PersistentVolume"
	KindServiceAccount   = "ServiceAccount"
	KindTrustBundle      = "ClusterTrustBundle"
	KindPodCertificate   = "PodCertificateRequest"
	KindCSIDriver        = "CSIDriver"
	KindAttachment       = "VolumeAttachment"
	KindNode             = "Node"
	// KindDriverSocket is the registration of a CSI driver on this node.
	KindDriverSocket = "DriverSocket"
)
