// Package emptydir provides the volumes of kind emptyDir: a folder, a tmpfs
// (medium Memory) or a hugetlbfs (medium HugePages) that lives as long as its
// pod. A volume without any source counts as an emptyDir, as it does for the
// API server.
//
// The size limit of a folder is not enforced: that is the work of whoever
// evicts pods. The size of a tmpfs is enforced by the kernel.
//
// A live volume is never touched: where the folder or the mount is there
// already, SetUp leaves content, owner and mode to the containers that use it.
// To make that safe, a new folder has mode 0 until it is finished, so that a
// folder with any other mode is known to be complete.
package emptydir

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/plugins"
)

// Name is the plugin's name, the kubelet's for the same kind.
const Name = "kubernetes.io/empty-dir"

// Fail points that a [plugins.FaultFunc] sees. An error from one of them ends
// SetUp on the spot, with nothing undone, as the death of the process would.
const (
	// FaultFolder comes after the folder was made, before it has its mode.
	FaultFolder = "emptydir/folder"
	// FaultMounted comes after a file system was mounted.
	FaultMounted = "emptydir/mounted"
	// FaultUnmounted comes after each unmount of TearDown.
	FaultUnmounted = "emptydir/unmounted"
)

const (
	folderMode = fs.FileMode(0o777)
	// tmpfsMode is what the kernel gives the root of a tmpfs when nothing is
	// said; containers know it from the kubelet, which says nothing.
	tmpfsMode = fs.FileMode(0o777) | fs.ModeSticky
	maxMode   = 0o1777
)

// sysHugePages is where Linux tells which sizes of huge pages it has.
const sysHugePages = "/sys/kernel/mm/hugepages"

// Plugin provides emptyDir volumes. It keeps no state and is safe for
// concurrent use.
type Plugin struct {
	host      *plugins.VolumeHost
	hugePages string
}

// New returns the plugin. Of host it uses Mounter, Faults and, for the size of
// a tmpfs, Node if that is set.
func New(host *plugins.VolumeHost) *Plugin {
	return &Plugin{host: host, hugePages: sysHugePages}
}

// Name is [Name].
func (*Plugin) Name() string { return Name }

// Supports says yes to inline emptyDir volumes and to inline volumes without
// any source.
func (*Plugin) Supports(spec *plugins.Spec) bool {
	return spec != nil && spec.PV == nil && spec.Volume != nil &&
		(spec.Volume.EmptyDir != nil || spec.Volume.VolumeSource == v1.VolumeSource{})
}

// Identify checks the source: a known medium, a limit that is not negative, a
// mode of at most 01777. Every error is permanent.
func (p *Plugin) Identify(spec *plugins.Spec) (plugins.Identity, error) {
	if _, err := p.parse(spec); err != nil {
		return plugins.Identity{}, plugins.Permanent(err)
	}
	return plugins.Identity{Storage: spec.Name(), Parallel: true}, nil
}

// medium is what a volume is made of.
type medium int

const (
	folder medium = iota
	memory
	hugePages
)

// source is a checked emptyDir source.
type source struct {
	medium medium
	// pageSize is set for a medium that names one.
	pageSize *resource.Quantity
	// limit is zero for none.
	limit int64
	// mode is nil for the medium's own.
	mode *fs.FileMode
}

func (p *Plugin) parse(spec *plugins.Spec) (source, error) {
	if !p.Supports(spec) {
		return source{}, errors.New("the volume is not an emptyDir")
	}
	if err := plugins.CheckName(spec.Volume.Name); err != nil {
		return source{}, err
	}
	given := spec.Volume.EmptyDir
	if given == nil {
		return source{}, nil
	}
	s, err := parseMedium(given.Medium)
	if err != nil {
		return source{}, err
	}
	if given.SizeLimit != nil {
		if given.SizeLimit.Sign() < 0 {
			return source{}, fmt.Errorf("emptyDir.sizeLimit %s is negative", given.SizeLimit)
		}
		s.limit = given.SizeLimit.Value()
	}
	if given.Mode != nil {
		if *given.Mode < 0 || *given.Mode > maxMode {
			return source{}, fmt.Errorf("emptyDir.mode %#o is not within 0 and %#o", *given.Mode, maxMode)
		}
		mode := fileMode(uint32(*given.Mode))
		s.mode = &mode
	}
	return s, nil
}

func parseMedium(m v1.StorageMedium) (source, error) {
	switch m {
	case v1.StorageMediumDefault:
		return source{medium: folder}, nil
	case v1.StorageMediumMemory:
		return source{medium: memory}, nil
	case v1.StorageMediumHugePages:
		return source{medium: hugePages}, nil
	}
	if text, ok := strings.CutPrefix(string(m), string(v1.StorageMediumHugePagesPrefix)); ok {
		size, err := resource.ParseQuantity(text)
		if err != nil || size.Sign() <= 0 {
			return source{}, fmt.Errorf("emptyDir.medium %q names no size of huge pages", m)
		}
		return source{medium: hugePages, pageSize: &size}, nil
	}
	return source{}, fmt.Errorf("emptyDir.medium %q is unknown", m)
}

// fileMode turns the bits of chmod(2) into Go's.
func fileMode(bits uint32) fs.FileMode {
	mode := fs.FileMode(bits) & fs.ModePerm
	if bits&0o1000 != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}

// modeBits is the inverse of fileMode, with the set-group-id bit.
func modeBits(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	if mode&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	if mode&fs.ModeSetgid != 0 {
		bits |= 0o2000
	}
	return bits
}

// rights are the mode and group of the volume's root folder.
type rights struct {
	mode fs.FileMode
	// group is nil to leave it as it is.
	group *int64
}

// rights applies the pod's group the way the kubelet does: group-writable and
// with the set-group-id bit, whatever the mode says.
func (s source) rights(params plugins.Params) rights {
	r := rights{mode: folderMode, group: params.FSGroup}
	switch {
	case s.mode != nil:
		r.mode = *s.mode
	case s.medium == memory:
		r.mode = tmpfsMode
	}
	if r.group != nil {
		r.mode |= 0o070 | fs.ModeSetgid
	}
	return r
}
