package csitest

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"k8s.io/utils/clock"
)

// Mode is what a volume is made of.
type Mode string

// The modes. The mode of a volume is, first found: the CreateVolume parameter
// "mode" (which comes back in the volume context), the key "mode" of the volume
// context of a volume that was not created before, [Config.Mode].
const (
	// ModeTmpfs is a tmpfs of the volume's size. Its content ends with the last
	// mount of it.
	ModeTmpfs Mode = "tmpfs"
	// ModeBind is a folder of the driver, bind mounted.
	ModeBind Mode = "bind"
	// ModeLoop is an image file behind a loop device: a file system of the
	// capability's fs_type (ext4 or xfs) for mount access, the device for block
	// access.
	ModeLoop Mode = "loop"
	// ModeBlock is ModeLoop for block access only.
	ModeBlock Mode = "block"
	// ModePlain mounts nothing: staging does nothing, and a publish makes a
	// folder with one file, "volume", that holds the volume's ID. The folder's
	// content ends with the publish.
	ModePlain Mode = "plain"
)

// Keys in maps of requests and replies.
const (
	// ModeKey is the volume's mode in CreateVolume parameters and volume context.
	ModeKey = "mode"
	// ContextPrefix begins CreateVolume parameters that become, without it, keys
	// of the volume context.
	ContextPrefix = "context/"
	// kubernetesPrefix begins the keys that Kubernetes adds to maps.
	kubernetesPrefix = "csi.storage.k8s.io/"
	// ephemeralKey is "true" for volumes that live as long as their pod.
	ephemeralKey = kubernetesPrefix + "ephemeral"
	// tokensKey holds a pod's tokens, which change from publish to publish.
	tokensKey = kubernetesPrefix + "serviceAccount.tokens"
	// attachmentKey is the driver's key in publish contexts.
	attachmentKey = "csitest/attachment"
)

// Capability numbers that the specification removed in 1.13 and old drivers
// still answer. With NodeVolumeCondition the driver also answers
// NodeGetVolumeStats as an old one does, with a VolumeCondition in field 2.
const (
	NodeVolumeCondition       csi.NodeServiceCapability_RPC_Type       = 4
	ControllerVolumeCondition csi.ControllerServiceCapability_RPC_Type = 11
)

// Capabilities are what a driver says it can. Its zero value is the smallest
// driver: no controller, no staging. Any number may stand in the lists, known
// or not.
type Capabilities struct {
	// Plugin are the plugin's services. Without CONTROLLER_SERVICE there is no
	// Controller service at all.
	Plugin []csi.PluginCapability_Service_Type
	// Expansion is offered if not UNKNOWN.
	Expansion csi.PluginCapability_VolumeExpansion_Type
	// Node are the Node service's capabilities.
	Node []csi.NodeServiceCapability_RPC_Type
	// Controller are the Controller service's capabilities.
	Controller []csi.ControllerServiceCapability_RPC_Type
}

// AllCapabilities returns every capability that the driver has: all of the
// Node service, and all of the Controller service but snapshots and clones.
func AllCapabilities() Capabilities {
	return Capabilities{
		Plugin: []csi.PluginCapability_Service_Type{
			csi.PluginCapability_Service_CONTROLLER_SERVICE,
			csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
		},
		Expansion: csi.PluginCapability_VolumeExpansion_ONLINE,
		Node: []csi.NodeServiceCapability_RPC_Type{
			csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
			csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
			csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
			csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
			csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
			csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
			csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
		},
		Controller: []csi.ControllerServiceCapability_RPC_Type{
			csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
			csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
			csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
			csi.ControllerServiceCapability_RPC_GET_CAPACITY,
			csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
			csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
			csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
			csi.ControllerServiceCapability_RPC_GET_VOLUME,
			csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
			csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
			csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
			csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH,
		},
	}
}

// NodeCapabilities returns a driver without controller and with these
// capabilities of the Node service.
func NodeCapabilities(node ...csi.NodeServiceCapability_RPC_Type) Capabilities {
	return Capabilities{Node: node}
}

// Clone returns a copy that shares nothing.
func (c Capabilities) Clone() Capabilities {
	return Capabilities{
		Plugin: slices.Clone(c.Plugin), Expansion: c.Expansion,
		Node: slices.Clone(c.Node), Controller: slices.Clone(c.Controller),
	}
}

// ParseCapabilities reads capabilities from lists of names and numbers, as in
// "STAGE_UNSTAGE_VOLUME,EXPAND_VOLUME,200". VOLUME_CONDITION is known too. Of
// expansion the names are ONLINE, OFFLINE and the empty one.
func ParseCapabilities(plugin, expansion, node, controller string) (c Capabilities, err error) {
	if c.Plugin, err = parseNumbers[csi.PluginCapability_Service_Type](plugin, csi.PluginCapability_Service_Type_value, 0); err != nil {
		return c, err
	}
	one, err := parseNumbers[csi.PluginCapability_VolumeExpansion_Type](expansion, csi.PluginCapability_VolumeExpansion_Type_value, 0)
	if err != nil {
		return c, err
	}
	if len(one) > 0 {
		c.Expansion = one[0]
	}
	c.Node, err = parseNumbers[csi.NodeServiceCapability_RPC_Type](node, csi.NodeServiceCapability_RPC_Type_value, int32(NodeVolumeCondition))
	if err != nil {
		return c, err
	}
	c.Controller, err = parseNumbers[csi.ControllerServiceCapability_RPC_Type](controller, csi.ControllerServiceCapability_RPC_Type_value, int32(ControllerVolumeCondition))
	return c, err
}

func parseNumbers[T ~int32](text string, names map[string]int32, condition int32) (list []T, err error) {
	for name := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		number, known := names[name]
		if !known && name == "VOLUME_CONDITION" && condition != 0 {
			number, known = condition, true
		}
		if !known {
			n, err := strconv.ParseInt(name, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("capability %q is neither a name nor a number", name)
			}
			number = int32(n)
		}
		list = append(list, T(number))
	}
	return list, nil
}

// NodeInfo is the answer of NodeGetInfo.
type NodeInfo struct {
	// NodeID defaults to "node".
	NodeID string
	// MaxVolumes is how many volumes may be attached to a node; zero is no limit.
	MaxVolumes int64
	// Topology is answered if VOLUME_ACCESSIBILITY_CONSTRAINTS is offered. It
	// defaults to "topology.csitest/node" with the node's ID.
	Topology map[string]string
}

// Sockets are the paths at which a driver serves. They may be as long as the
// file system allows, if only the last element is short.
type Sockets struct {
	// Endpoint is the socket of the CSI services.
	Endpoint string
	// Registration is the socket of the registration service, usually in a
	// kubelet's plugins_registry folder; it may be Endpoint. Empty is none.
	Registration string
	// Announce is the endpoint that the registration names, for those who see the
	// sockets under another path; empty is Endpoint.
	Announce string
}

// Config is how a driver is made.
type Config struct {
	// Dir is the driver's folder, made if absent: its table, data and images. It
	// is required, and absolute.
	Dir string
	// Name of the driver; empty is "csitest.volumekit.example".
	Name string
	// Version is the vendor's version; empty is "1.0.0".
	Version string
	// Sockets to serve at; an empty Endpoint is "csi.sock" in Dir.
	Sockets Sockets
	// RegistrationVersions are the versions that the registration offers; none
	// means "1.0.0".
	RegistrationVersions []string
	// Capabilities as in the type's comment.
	Capabilities Capabilities
	// Node is this node.
	Node NodeInfo
	// OtherNodes are IDs of nodes, besides this one, to which volumes can be
	// attached.
	OtherNodes []string
	// Mode of volumes that name none; empty is ModeTmpfs.
	Mode Mode
	// FSType is the file system of image volumes whose capability names none;
	// empty is "ext4".
	FSType string
	// DefaultBytes is the size of volumes that name none; zero is 64 MiB.
	DefaultBytes int64
	// TotalBytes is the size of the storage; zero is 1 TiB.
	TotalBytes int64
	// MutableParameters are the keys that ControllerModifyVolume and CreateVolume
	// accept as mutable parameters.
	MutableParameters []string
	// AutoCreate lets volumes come into being when they are first attached,
	// staged or published, as a test with static volumes wants it. Without it
	// such calls are answered NOT_FOUND.
	AutoCreate bool
	// Lenient turns off what a strict driver refuses beyond missing fields.
	Lenient bool
	// AbortBusy answers ABORTED to a call for a volume with another call in
	// flight. Without it the second call waits for the first.
	AbortBusy bool
	// UndoUnknown is the code for undoing something of an unknown volume. Zero is
	// OK; NOT_FOUND is what many drivers answer.
	UndoUnknown codes.Code
	// DeviceNodes makes block publishes by mknod in place of a bind mount of the
	// device node.
	DeviceNodes bool
	// KeepCalls is how many calls are kept; older ones fall out. Zero is 100,000.
	KeepCalls int
	// Interceptors stand before the driver: they see what the orchestrator sends
	// and what it is answered, scripted errors included.
	Interceptors []grpc.UnaryServerInterceptor
	// ServerOptions are given to every gRPC server of the driver.
	ServerOptions []grpc.ServerOption
	// Clock is for delays and the times of calls; nil is the real one.
	Clock clock.Clock
}

// defaults fills in what is empty and says what is wrong.
func (c *Config) defaults() error {
	if !filepath.IsAbs(c.Dir) {
		return fmt.Errorf("csitest: Config.Dir %q is not an absolute path", c.Dir)
	}
	c.Name = or(c.Name, "csitest.volumekit.example")
	if len(c.Name) > 63 || !regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$`).MatchString(c.Name) {
		return fmt.Errorf("csitest: %q is no name for a driver", c.Name)
	}
	c.Version = or(c.Version, "1.0.0")
	c.Sockets.Endpoint = or(c.Sockets.Endpoint, filepath.Join(c.Dir, "csi.sock"))
	c.Mode = or(c.Mode, ModeTmpfs)
	if !c.Mode.known() {
		return fmt.Errorf("csitest: unknown mode %q", c.Mode)
	}
	c.FSType = or(c.FSType, "ext4")
	if c.FSType != "ext4" && c.FSType != "xfs" {
		return fmt.Errorf("csitest: unknown file system %q", c.FSType)
	}
	if c.DefaultBytes < 0 || c.TotalBytes < 0 || c.KeepCalls < 0 || c.Node.MaxVolumes < 0 {
		return errors.New("csitest: a size or count in Config is negative")
	}
	c.DefaultBytes = or(c.DefaultBytes, 64<<20)
	c.TotalBytes = or(c.TotalBytes, 1<<40)
	c.KeepCalls = or(c.KeepCalls, 100_000)
	c.Node.defaults()
	if len(c.RegistrationVersions) == 0 {
		c.RegistrationVersions = []string{"1.0.0"}
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	c.Capabilities = c.Capabilities.Clone()
	return nil
}

func (n *NodeInfo) defaults() {
	n.NodeID = or(n.NodeID, "node")
	if n.Topology == nil {
		n.Topology = map[string]string{"topology.csitest/node": n.NodeID}
	}
}

func (m Mode) known() bool {
	return slices.Contains([]Mode{ModeTmpfs, ModeBind, ModeLoop, ModeBlock, ModePlain}, m)
}

// image reports whether volumes of this mode have an image file.
func (m Mode) image() bool { return m == ModeLoop || m == ModeBlock }

// or is the first of the two that is not zero.
func or[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}
