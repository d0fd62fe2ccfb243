// Package hostmount implements the seam of package mount for the machine that
// the process runs on: on Linux with mount system calls of its own for all that
// the kernel mounts without help, and with mount(8) and k8s.io/mount-utils for
// file systems that need a program of their own (nfs, cifs, fuse...).
//
// It is also the only door to k8s.io/mount-utils: [FromMountUtils] makes a
// mounter of that kind usable here, [ToMountUtils] does the reverse, and
// [Mounter.FormatAndMount] makes file systems on block devices.
//
// Use package mount/mounttest where no real mount is wanted. On platforms
// other than Linux every method of [Mounter] returns an error that wraps
// [mount.ErrUnsupported].
package hostmount

import (
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	utilexec "k8s.io/utils/exec"

	mountutils "k8s.io/mount-utils"
)

// DefaultTableInterval is the shortest time between two calls of a watcher.
const DefaultTableInterval = time.Second

// Options configure a [Mounter]. The zero value works.
type Options struct {
	// TableInterval is the shortest time between two notices of Watch, and
	// between two complete readings of the mount table that have no other
	// reason than a change of existing mounts by somebody else. Zero means
	// DefaultTableInterval.
	TableInterval time.Duration
	// Classic keeps the mounter from using what newer kernels have: fsopen(2)
	// and its family, openat2(2), statmount(2). It is for tests and for
	// kernels on which those misbehave.
	Classic bool
	// Faults is called at named points ("mount.before", "mount.after",
	// "unmount.before", "unmount.after", "remove.entry", "own.entry",
	// "own.change"; the last two from several goroutines); its error is
	// returned in place of going on. Nil in production.
	Faults func(point string) error
	// Helper mounts the file systems that need a program. Nil runs mount(8),
	// which is stopped when the context of the call ends; a mounter given here
	// is waited for.
	Helper mountutils.Interface
	// Exec runs the programs of FormatAndMount; nil means the real ones.
	Exec utilexec.Interface
	// Log takes what the mounter has to say; the zero value discards it. It
	// never shows options.
	Log logr.Logger
	// Clock tells the time; nil means the real one.
	Clock clock.WithTicker
}

func (o Options) withDefaults() Options {
	if o.TableInterval <= 0 {
		o.TableInterval = DefaultTableInterval
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Exec == nil {
		o.Exec = utilexec.New()
	}
	return o
}

// Mounter is the mounter of this machine. It implements [mount.Mounter],
// [mount.Builder], [mount.Watcher], [mount.Propagator], [mount.Identifier],
// [mount.Confiner], [mount.Resizer] and [mount.Owner].
// All methods are safe for concurrent use.
type Mounter struct {
	options Options
	host    host
}

// New returns a mounter. It does no I/O and starts nothing; what the mounter
// opens later is closed when it is garbage-collected.
func New(o Options) *Mounter { return &Mounter{options: o.withDefaults()} }

// fault calls the hook for tests.
func (m *Mounter) fault(point string) error {
	if m.options.Faults == nil {
		return nil
	}
	return m.options.Faults(point)
}
