package plugins

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// VolumePlugin is one kind of volume. These methods are required; what a kind
// can do beyond them it says by the optional interfaces of this package.
type VolumePlugin interface {
	// Name is a qualified name with exactly one slash, "example.com/volume",
	// unique in a [Registry]. It becomes a folder's name ("/" as "~").
	Name() string

	// Supports reports whether this plugin provides the volume. It looks at
	// the source's type alone, is cheap, and does no I/O. Of the plugins in a
	// registry exactly one may say yes to a spec.
	Supports(spec *Spec) bool

	// Identify says which storage the spec means and what handling it needs.
	// It is a pure function of spec, with no I/O; it checks the spec's text,
	// and refuses what is malformed with a [Permanent] error.
	Identify(spec *Spec) (Identity, error)

	// SetUp makes the volume ready for the pod. It may block. It is repeated
	// when its outcome is unknown, when a process finds the volume of an
	// earlier one (Request.Again), and when what is there no longer fits. With
	// Again a container may be looking at the volume: what is live is kept,
	// whatever fails.
	SetUp(ctx context.Context, req SetUpRequest) (SetUpResult, error)

	// TearDown undoes SetUp, from the request alone: the spec and the API
	// objects may be gone, and SetUp may have run in another process, failed
	// halfway, or never have run. It may block. Success means that nothing of
	// the pod's volume is left, the target path included.
	TearDown(ctx context.Context, req TearDownRequest) error
}

// Identity is what a plugin says about a spec without touching anything.
type Identity struct {
	// Storage names the backing storage within the plugin, the same for all
	// pods that use it. It becomes part of a [VolumeID] and has to be
	// non-empty for volumes that are attached or have a device mount, and should
	// be for those whose PersistentVolume may belong to one pod at a time.
	Storage string
	// Attach is true if [Attacher] may have work for this spec. Where only a
	// driver or an API object can tell, say true and let the step do nothing.
	Attach bool
	// Device is true if [DeviceMounter] may have work for this spec.
	Device bool
	// MountOptions is true if a PersistentVolume's mount options are honoured.
	// If it is false, a volume that has some is refused.
	MountOptions bool
	// SELinuxContext is true if the volume can be mounted with a context=
	// option.
	SELinuxContext bool
	// Durable is true if undoing needs what is recorded even after a power
	// cut: the record is then on the disk before the first side effect. Kinds
	// whose traces end with the machine's boot, or lie in their own folder,
	// leave it false and save the wait for the disk.
	Durable bool
	// Parallel is true if steps for different pods on this volume may run at
	// the same time.
	Parallel bool
	// Lane names those volumes of the plugin that fail together: its steps have
	// limits, and a budget of stuck ones, of their own. A CSI volume names its
	// driver here. Empty means the plugin as a whole.
	Lane string
	// Size, if it is more than the persistent volume's capacity, is how large
	// the volume has to be: a plugin that enlarges storage itself takes it from
	// the claim.
	Size *resource.Quantity
	// Undo is what TearDown, UnmountDevice and Detach will need and cannot
	// get from names and paths. It is recorded before the first side effect
	// and must hold no secret.
	Undo Undo
}

// Undo is a plugin's own part of the record of a volume: small, textual, free
// of secrets.
type Undo map[string]string

// Target says which volume of which pod a request is about, and where.
type Target struct {
	// Volume names it.
	Volume PodVolume
	// Pod names the pod for messages; it may lack all but the UID.
	Pod PodRef
	// Path is the place for the volume: pods/<uid>/volumes/<plugin>/<name>. Its
	// parent exists when SetUp is called.
	Path string
	// PrivateDir is a folder for the plugin's own files about this pod volume,
	// pods/<uid>/plugins/<plugin>/<name>. It is never inside a volume. It is not
	// created by the engine. TearDown removes it.
	PrivateDir string
}

// SetUpRequest asks for one volume of one pod.
type SetUpRequest struct {
	Target
	// Spec describes the volume.
	Spec *Spec
	// Object is the pod, as the pod source gave it last.
	Object *v1.Pod
	// Again is true if the volume may be in use at the target already.
	Again bool
	// DevicePath and DeviceMountPath come from attach and device mount.
	DevicePath, DeviceMountPath string
	// Params are the wishes that a plugin must honour or refuse.
	Params Params
	// Undo is what is recorded: that of Identity, and what attach and device
	// mount added.
	Undo Undo
}

// Params are properties of a volume on which wish and fact can differ.
type Params struct {
	// ReadOnly is true if the volume itself must be read-only for the pod.
	ReadOnly bool
	// FSGroup is the group that owns the files, if the pod names one.
	FSGroup *int64
	// FSGroupOnRootMismatch is true for the policy OnRootMismatch.
	FSGroupOnRootMismatch bool
	// FSUser is the user id that all containers of the pod run with, if they
	// agree on one.
	FSUser *int64
	// SELinuxLabel is the file label for the whole volume, if it has one.
	SELinuxLabel string
	// Size is how large the volume has to be (a PersistentVolume's capacity)
	// or may become (the limit of an ephemeral one). Nil means no wish.
	Size *resource.Quantity
}

// SetUpResult says what SetUp made.
type SetUpResult struct {
	// Path is where the pod finds the volume; empty means the target's path.
	Path string
	// Mounted promises that a mount is at Path. The engine checks it.
	Mounted bool
	// Attributes for whoever hands the volume to a container.
	Attributes Attributes
	// Content is set by kinds whose content is refreshed.
	Content Content
	// Size is how large the volume is, where the plugin knows.
	Size *resource.Quantity
}

// Attributes say how a container may treat a volume.
type Attributes struct {
	// ReadOnly volumes are given to containers read-only in any case.
	ReadOnly bool `json:"readOnly,omitempty"`
	// Managed volumes may be re-owned and relabelled.
	Managed bool `json:"managed,omitempty"`
	// SELinuxRelabel is true if files must be relabelled for the container.
	SELinuxRelabel bool `json:"seLinuxRelabel,omitempty"`
}

// Content describes the content of a volume that is refreshed.
type Content struct {
	// Version identifies the content: equal versions are equal files, modes
	// and owners. It reveals nothing of a secret content.
	Version string
	// Changed lists the files that this call added, changed or removed, as
	// clean paths relative to the target. It is empty where nothing changed.
	Changed []string
	// RefreshAt is when the content must be made again although no source
	// said that it changed. The zero time means never.
	RefreshAt time.Time
}

// TearDownRequest asks to take a pod's volume away.
type TearDownRequest struct {
	Target
	// Undo is what was recorded. It is nil where no record exists: the plugin
	// then does what the path alone allows.
	Undo Undo
	// Block is true for a volume in block mode.
	Block bool
	// DeviceMountPath is where the device mount is, if there is one.
	DeviceMountPath string
	// Lazy allows to detach what hangs or is busy instead of waiting for it.
	Lazy bool
}

// Referrer is implemented by plugins whose volumes depend on objects.
type Referrer interface {
	// References lists the objects on which the volume's content depends. A
	// notice about one of them makes the engine refresh the volume. Pure, no
	// I/O.
	References(spec *Spec, pod *v1.Pod) []Ref
}

// Refresher is implemented by plugins that can renew a live volume's content.
type Refresher interface {
	// Refresh brings the content up to date. A failed refresh leaves the old
	// content whole and readable. It may block. It is repeated with backoff.
	Refresh(ctx context.Context, req SetUpRequest) (Content, error)
}

// Attacher is implemented by plugins whose storage is attached to the node
// first. Whether a spec needs it says [Identity].
type Attacher interface {
	// Attach makes the storage reachable from this node, or waits until
	// somebody else did ([WaitFor] names the object).
	Attach(ctx context.Context, req DeviceRequest) (DeviceResult, error)
	// Detach undoes it. The engine calls it only when the device mount is
	// known to be gone.
	Detach(ctx context.Context, req DeviceRequest) error
}

// DeviceMounter is implemented by plugins that mount a device or stage a
// volume once per node, before the pods' own mounts.
type DeviceMounter interface {
	// DeviceMountPath says where. Pure, no I/O.
	DeviceMountPath(spec *Spec) (string, error)
	// MountDevice mounts or stages. On success the place is what the result
	// promises; the engine checks it.
	MountDevice(ctx context.Context, req DeviceRequest) (DeviceResult, error)
	// UnmountDevice undoes it, from the request alone. The engine calls it
	// only when no pod uses the volume any more.
	UnmountDevice(ctx context.Context, req DeviceRequest) error
}

// DeviceRequest is about the node-wide part of a volume.
type DeviceRequest struct {
	// ID names the volume.
	ID VolumeID
	// Spec is nil where a volume of an earlier process is undone.
	Spec *Spec
	// Pods name the pods for which it is done, for messages and events.
	Pods []PodRef
	// DevicePath is what attaching gave, if anything.
	DevicePath string
	// Path is where the device is mounted.
	Path string
	// Block is true if the pods use it as a raw device. It is not known where
	// Spec is nil.
	Block bool
	// Used is true if a pod has or may have the volume.
	Used bool
	// Params as in [SetUpRequest].
	Params Params
	// Undo is what is recorded.
	Undo Undo
	// Lazy as in [TearDownRequest].
	Lazy bool
}

// DeviceResult is what a step of the node-wide part found out.
type DeviceResult struct {
	// DevicePath replaces the known one if it is not empty.
	DevicePath string
	// Mounted promises that a mount is at the request's path.
	Mounted bool
	// Undo is added to the record before the next step starts. A crash may come
	// earlier: undoing must be possible without it.
	Undo Undo
	// Size as in [SetUpResult].
	Size *resource.Quantity
}

// BlockMapper is implemented by plugins that can hand out a raw block device
// instead of a file system.
type BlockMapper interface {
	// MapDevice makes the device ready for the pod and returns the device or
	// file that stands for it.
	MapDevice(ctx context.Context, req SetUpRequest) (MapResult, error)
	// UnmapDevice undoes it, from the request alone.
	UnmapDevice(ctx context.Context, req TearDownRequest) error
}

// MapResult says which device a pod gets.
type MapResult struct {
	// DevicePath is the device node or the file bound to it.
	DevicePath string
	// Attributes, Content and Size as in [SetUpResult].
	Attributes Attributes
	Content    Content
	Size       *resource.Quantity
}

// Expander is implemented by plugins that can enlarge a volume in place.
type Expander interface {
	// Expand makes the volume at least as large as Params.Size says and
	// returns the size that it has now. Zero means that there was nothing to
	// do here, and that the volume counts as being as large as it should.
	Expand(ctx context.Context, req SetUpRequest) (resource.Quantity, error)
}

// Reconstructor is implemented by plugins that can tell from what lies on disk
// more about a volume without a record than its names do.
type Reconstructor interface {
	// Reconstruct examines a found volume. It changes nothing.
	Reconstruct(ctx context.Context, found Target, block bool) (Reconstructed, error)
}

// Reconstructed is what a plugin could tell about a found volume.
type Reconstructed struct {
	// Identity as [VolumePlugin] Identify would have given it.
	Identity Identity
	// DeviceMountPath is set if a device mount may exist.
	DeviceMountPath string
}

// DeviceFinder is implemented by plugins whose device mounts can be there
// without a pod that has the volume, and tell what they are.
type DeviceFinder interface {
	// FindDevices lists the node-wide parts of volumes that lie on disk, with
	// what could not be understood. It changes nothing.
	FindDevices(ctx context.Context) ([]FoundDevice, []FoundFault)
}

// FoundDevice is the node-wide part of a volume that was found.
type FoundDevice struct {
	// Reconstructed names the volume and its place.
	Reconstructed
}

// FoundFault is something that was found and not understood.
type FoundFault struct {
	// Path names it.
	Path string
	// Err says what is wrong with it.
	Err error
}

// StatsReader is implemented by plugins that can measure a volume.
type StatsReader interface {
	// Stats measures the volume at path. It may be slow.
	Stats(ctx context.Context, target Target) (Stats, error)
}

// Stats are figures of one volume. A nil figure is unknown.
type Stats struct {
	CapacityBytes  *int64 `json:"capacityBytes,omitempty"`
	UsedBytes      *int64 `json:"usedBytes,omitempty"`
	AvailableBytes *int64 `json:"availableBytes,omitempty"`
	Inodes         *int64 `json:"inodes,omitempty"`
	InodesUsed     *int64 `json:"inodesUsed,omitempty"`
	InodesFree     *int64 `json:"inodesFree,omitempty"`
	// Time is when they were taken.
	Time time.Time `json:"time,omitzero"`
}

// HealthChecker is implemented by plugins that can say whether a volume works.
type HealthChecker interface {
	// Health returns the faults that are known; none means healthy. It is asked
	// for each status query: it answers from memory, without I/O.
	Health(ctx context.Context, target Target) ([]Fault, error)
}

// Fault is one thing that is wrong with a volume.
type Fault struct {
	// Status and Reason are short CamelCase words, Message is for people.
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Translator turns an in-tree spec into the one of the driver that replaced
// it. It returns the spec itself if there is nothing to translate. It must not
// change its argument.
type Translator interface {
	Translate(ctx context.Context, spec *Spec, pod *v1.Pod) (*Spec, error)
}

// Capabilities are the optional parts of one plugin. A nil field is a part
// that it lacks.
type Capabilities struct {
	Referrer      Referrer
	Refresher     Refresher
	Attacher      Attacher
	DeviceMounter DeviceMounter
	BlockMapper   BlockMapper
	Expander      Expander
	Reconstructor Reconstructor
	DeviceFinder  DeviceFinder
	StatsReader   StatsReader
	HealthChecker HealthChecker
	Notifier      Notifier
	Runner        Runner
}

// CapabilitiesOf is the one place where optional parts are looked for.
func CapabilitiesOf(p any) Capabilities {
	var c Capabilities
	c.Referrer, _ = p.(Referrer)
	c.Refresher, _ = p.(Refresher)
	c.Attacher, _ = p.(Attacher)
	c.DeviceMounter, _ = p.(DeviceMounter)
	c.BlockMapper, _ = p.(BlockMapper)
	c.Expander, _ = p.(Expander)
	c.Reconstructor, _ = p.(Reconstructor)
	c.DeviceFinder, _ = p.(DeviceFinder)
	c.StatsReader, _ = p.(StatsReader)
	c.HealthChecker, _ = p.(HealthChecker)
	c.Notifier, _ = p.(Notifier)
	c.Runner, _ = p.(Runner)
	return c
}
