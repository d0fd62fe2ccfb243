// Package mount holds what every part of volumekit says about mounts: the
// values ([Mount], [Options], [Point], [Table]) and the seam ([Mounter])
// through which plugins and the manager make, check and remove them.
//
// The package makes no system call and imports nothing of the module, so it
// builds on every platform. Package mount/hostmount implements the seam for
// Linux; package mount/mounttest implements it in memory and holds the suite
// that both pass.
//
// Do not parse the mount table to ask whether one path is a mount: [Mounter]'s
// Inspect answers that in constant time. [Mounter]'s Table is for the rare
// question about everything below a path.
package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Errors that a [Mounter] returns, to be tested with errors.Is. The cause that
// the system gave is wrapped beside them.
var (
	// ErrNotMounted says that the target of an unmount is not a mount point.
	ErrNotMounted = errors.New("not mounted")
	// ErrBusy says that something still uses the mount, or that a mount lies
	// where a folder was to be removed.
	ErrBusy = errors.New("mount is busy")
	// ErrUnsupported says that this platform, kernel or user cannot do it.
	ErrUnsupported = errors.New("not supported here")
	// ErrCrossesMount says that a removal met a mount below its path and
	// stopped: nothing is ever deleted through a mount.
	ErrCrossesMount = errors.New("a mount lies inside")
	// ErrBadOption says that an option is unknown, contradicts another, or may
	// not be given.
	ErrBadOption = errors.New("bad mount option")
)

// Mounter is the seam to the kernel's mount table.
//
// Every method may block for as long as the storage behind its path is dead;
// none returns later than soon after its context ends, except that a system
// call which the kernel does not let go of (a dead NFS server, a silent FUSE
// daemon) may hold its caller beyond that. Callers therefore run each call in
// a goroutine of its own and hold no lock across it. All methods are safe for
// concurrent use.
type Mounter interface {
	// Mount makes m visible at m.Target, which must exist. It mounts on top of
	// what is mounted there already; whoever must not stack inspects first.
	// With a failed Mount nothing new is visible at the target.
	Mount(ctx context.Context, m Mount) error

	// Unmount takes the topmost mount off target. A target that is no mount
	// point gives [ErrNotMounted], one in use gives [ErrBusy].
	Unmount(ctx context.Context, target string, how UnmountOptions) error

	// Inspect says what is at path, in constant time and without reading the
	// mount table. A path that does not exist is no error: Point.Exists is
	// false. A dead mount (ENOTCONN, ESTALE, EIO and the like) is no error
	// either: Point.Corrupt says so. The last component of path is not
	// followed when it is a symbolic link.
	Inspect(ctx context.Context, path string) (Point, error)

	// Table returns all mounts of this mount namespace, in mount order. It may
	// come from a cache which is dropped as soon as the kernel reports a
	// change; treat it as read-only.
	Table(ctx context.Context) (Table, error)

	// RemoveAll removes path and all below it, by descriptors, following no
	// symbolic link and crossing no mount. If path is a mount point or one
	// lies below it, RemoveAll removes nothing that lies behind a mount and
	// returns an error that wraps [ErrCrossesMount] and names the mount. A
	// path that does not exist is no error. If a folder on the way to path is a
	// symbolic link, RemoveAll removes nothing and returns an error that wraps
	// [ErrNotConfined] and names the link; path itself may be one, which is
	// removed.
	RemoveAll(ctx context.Context, path string) error
}

// UnmountOptions says how to unmount.
type UnmountOptions struct {
	// Lazy detaches the mount from the tree at once, even where it is busy or
	// its storage is dead, and lets the kernel clean up when the last user is
	// gone (MNT_DETACH, umount2(2)).
	Lazy bool
	// Force asks the file system to give up its pending requests (MNT_FORCE);
	// file systems that cannot ignore it.
	Force bool
}

// Mount describes a mount to be made, or one that is there.
type Mount struct {
	// Source is the device, the remote export, the folder or file of a bind
	// mount, or a mere name for file systems without a device.
	Source string
	// Target is the absolute path at which it appears.
	Target string
	// FSType is the file system's type. It is empty for a bind mount.
	FSType string
	// Options are the mount's flags and the file system's own options.
	Options Options
}

// Builder is implemented by mounters that can fill a file system before anyone
// can see it (fsopen(2), fsmount(2), move_mount(2)).
type Builder interface {
	// Build makes the file system of m, attached nowhere. m.Target is not
	// used. Where the kernel cannot, the error wraps [ErrUnsupported] and the
	// caller mounts first and fills afterwards.
	Build(ctx context.Context, m Mount) (Detached, error)
}

// Detached is a file system that is mounted nowhere yet. It is for one
// goroutine. Close must be called in every case; after Attach it releases the
// descriptors alone.
type Detached interface {
	// Root opens its files. It is the same at each call, and closed by Close.
	Root() (*os.Root, error)
	// Attach makes it visible at target, which must exist.
	Attach(ctx context.Context, target string) error
	// Close gives the descriptors back. What was never attached is gone then.
	Close() error
}

// Opened is implemented by a [Detached] whose top folder is open already, for
// those who work relative to a descriptor.
type Opened interface {
	// Fd is the descriptor, opened with O_PATH at least (open(2)). It belongs to
	// the Detached and is good until Close.
	Fd() int
}

// Watcher is implemented by mounters that learn from the kernel when the mount
// table changes (poll(2) on /proc/self/mountinfo).
type Watcher interface {
	// Watch calls changed, at most once per interval that the implementation
	// states, whenever mounts came or went other than through this mounter.
	// It blocks until ctx ends and returns ctx.Err, or the fault that keeps it
	// from watching. changed must not block.
	Watch(ctx context.Context, changed func()) error
}

// Resizer is implemented by mounters that can change how much a mounted file
// system holds.
type Resizer interface {
	// Resize sets the limit of the tmpfs that is mounted on target to bytes;
	// its other options stay. One that is in use below keeps its limit, with
	// an error. A target that is no mount point gives [ErrNotMounted], another
	// file system [ErrUnsupported].
	Resize(ctx context.Context, target string, bytes int64) error
}

// Propagator is implemented by mounters that can read and set the propagation
// of the mount that a path lies on (mount_namespaces(7)).
type Propagator interface {
	// Propagation says how mounts made below path spread.
	Propagation(ctx context.Context, path string) (Propagation, error)
	// MakeShared makes path a mount of its own, if it is none, and its
	// propagation shared, recursively.
	MakeShared(ctx context.Context, path string) error
}

// Propagation is how mount events under a mount spread to others.
type Propagation string

// The propagation types of mount_namespaces(7).
const (
	Private    Propagation = "private"
	Shared     Propagation = "shared"
	Slave      Propagation = "slave"
	Unbindable Propagation = "unbindable"
)

// Identifier is implemented by mounters that can tell which kernel boot and
// which mount namespace their answers are about.
type Identifier interface {
	// Namespace returns the identity that is in force now.
	Namespace(ctx context.Context) (Namespace, error)
}

// Namespace names the world in which a mount was seen. Where one of its fields
// differs from what a record says, the record's mounts count as unseen.
type Namespace struct {
	// BootID is the kernel's random id of this boot
	// (/proc/sys/kernel/random/boot_id).
	BootID string `json:"bootID"`
	// MountNS names the mount namespace (the link text of /proc/self/ns/mnt).
	// The kernel may give a number to a later namespace again, so equality is
	// a hint and never a proof.
	MountNS string `json:"mountNS"`
}

// Point says what is at one path.
type Point struct {
	// Exists is true if there is anything at the path.
	Exists bool
	// Mounted is true if the path is the root of a mount.
	Mounted bool
	// IsDir is true for a folder.
	IsDir bool
	// MountID identifies the mount that the path lies on. It is unique until
	// the next boot where the kernel has unique ids (since 6.8), else it may
	// be given again after an unmount. Zero means unknown.
	MountID uint64
	// FSType is the type of the file system there, if it is one of those that
	// volumekit makes itself (tmpfs, hugetlbfs), else empty or as the kernel
	// names it.
	FSType string
	// ReadOnly is true if the mount there is read-only.
	ReadOnly bool
	// Corrupt is the error with which the file system there answers although a
	// mount is present: its server or daemon is gone. Mounted is true then.
	Corrupt error
}

// Owner is implemented by mounters that can give the files of a volume to a
// group (the pod's fsGroup).
type Owner interface {
	// SetGroup gives root, an absolute path, and everything below it to a
	// group. Folders get the group, all rights for it and for their owner, and
	// set-group-ID; other files get the group and the right to read and write
	// for both; symbolic links get the group. No right is taken away.
	// Device nodes stay as they are: they stand for devices of the machine,
	// not for content of the volume.
	//
	// It follows no symbolic link, be it root itself or on the way to it
	// (an error that wraps [ErrNotConfined]), and enters no mount below root;
	// the files that such a mount covers may be changed or not.
	// What comes or goes meanwhile may be missed. Entries that fail do not keep
	// it from the others; they are told by an [OwnershipError]. What was done
	// before it fails stays done.
	//
	// The folder root is changed last, and before a change of its group it
	// loses set-group-ID. A walk that was interrupted, or on which an entry
	// failed, thus never looks to OnRootMismatch like one that was completed.
	SetGroup(ctx context.Context, root string, o Ownership) error
}

// Ownership says whose the files of a volume are to be.
type Ownership struct {
	// Group is the group's number, from 0 to 4294967294.
	Group int64
	// ReadOnly gives no right to write.
	ReadOnly bool
	// OnRootMismatch looks at root alone first, and changes nothing if that has
	// the group and at least the rights that it would be given, as the policy
	// of this name does.
	OnRootMismatch bool
	// Parallel is how many threads may walk at once. Zero stands for one for
	// each processor that Go uses.
	Parallel int
	// Progress is called about once a second, and at the end, with how many
	// entries were looked at so far. It is called by one goroutine at a time,
	// and not at all where OnRootMismatch finds nothing to do. SetGroup returns
	// after its last call. Nil is allowed.
	Progress func(entries int64)
}

// OwnershipError says that a walk of [Owner] came to its end and that some
// entries could not be given to the group.
type OwnershipError struct {
	// Entries is how many were looked at, and Failed how many of them failed.
	Entries, Failed int64
	// First are the failures that came first, each with its path.
	First []error
}

// Error names the first failures and counts all.
func (e *OwnershipError) Error() string {
	text := fmt.Sprintf("%d of %d entries stay as they were", e.Failed, e.Entries)
	for _, one := range e.First {
		text += "; " + one.Error()
	}
	if more := e.Failed - int64(len(e.First)); more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// Unwrap returns the first failures.
func (e *OwnershipError) Unwrap() []error { return e.First }
