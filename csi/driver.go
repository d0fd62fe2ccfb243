package csi

import (
	"context"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volumekit/volumekit/plugins"
)

// NodeInfo is what a driver says of this node (NodeGetInfo).
type NodeInfo struct {
	// Driver is the driver's name.
	Driver string `json:"driver"`
	// ID is the driver's name for this node.
	ID string `json:"id"`
	// MaxVolumes is how many of the driver's volumes the node can have; zero
	// means that the driver does not say.
	MaxVolumes int64 `json:"maxVolumes,omitempty"`
	// Topology are the segments that the node lies in.
	Topology map[string]string `json:"topology,omitempty"`
}

// driver is a registered driver that has answered since the present connection
// to it was made: what it can do and says of the node is what it said then. It
// is never changed.
type driver struct {
	name string
	// endpoint is the address, for people.
	endpoint string
	// generation grows with each new connection to a driver of this name.
	generation uint64
	node       csipb.NodeClient
	// controller is nil if the driver has no controller service here, and
	// elsewhere is true if it says that it has one nonetheless.
	controller csipb.ControllerClient
	elsewhere  bool

	nodeCan       capabilities[csipb.NodeServiceCapability_RPC_Type]
	controllerCan capabilities[csipb.ControllerServiceCapability_RPC_Type]
	info          NodeInfo
	// expansion is what the plugin says of expanding volumes, noController that
	// it says that it has no controller service.
	expansion    capabilities[csipb.PluginCapability_VolumeExpansion_Type]
	noController bool

	calls *calls
	// outdated says that an answer contradicts what the driver announced: it
	// is asked again.
	outdated func()
}

// directory is where drivers are found. [Drivers] is one.
type directory interface {
	// driver returns a driver that answers, or an error that waits for it.
	driver(ctx context.Context, name string) (*driver, error)
	// controllerOf is driver for the controller service, which may have an
	// endpoint of its own.
	controllerOf(ctx context.Context, name string) (*driver, error)
}

// capabilities are those that a service announced.
type capabilities[T ~int32] map[T]struct{}

func (c capabilities[T]) has(one T) bool {
	_, ok := c[one]
	return ok
}

// Short names for what decides about calls.
const (
	canStage       = csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
	canStats       = csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS
	canExpand      = csipb.NodeServiceCapability_RPC_EXPAND_VOLUME
	canMultiWriter = csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER
	canMountGroup  = csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP
)

// maxDriverName is the longest name of a driver (CSI spec, GetPluginInfo).
const maxDriverName = 63

// CheckDriverName accepts the name of a driver: letters, digits, dashes, dots
// and, as some have it, underscores, beginning and ending with a letter or
// digit, at most 63 bytes (CSI spec, GetPluginInfo). It becomes a folder's name.
func CheckDriverName(name string) error {
	alnum := func(r byte) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
	}
	good := name != "" && len(name) <= maxDriverName && alnum(name[0]) && alnum(name[len(name)-1])
	for i := 0; good && i < len(name); i++ {
		good = alnum(name[i]) || strings.IndexByte("-._", name[i]) >= 0
	}
	if good && (name == devicesDir || name == oldStagingDir) {
		return plugins.Permanentf("%q cannot be the name of a CSI driver: its folder would be one of all drivers", name)
	}
	if !good {
		return plugins.Permanentf("%q is not the name of a CSI driver: letters, digits, dashes and dots, at most 63", shorten(name, maxDriverName+20))
	}
	return nil
}

// socketRef is what a volume waits for whose driver is not there.
func socketRef(driver string) plugins.Ref {
	return plugins.Ref{Kind: plugins.KindDriverSocket, Name: driver}
}

// shorten cuts text that somebody else wrote to a length that fits a message.
func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(s[:limit], ""), len(s))
}

// printable reports whether text is valid UTF-8 without control characters.
func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
