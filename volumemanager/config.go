package volumemanager

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/reconciler/steps"
)

// Propagation says what Run demands of the root folder's mount. Containers see
// mounts that are made after their start, and a manager that is restarted in
// another mount namespace finds its mounts, only where mounts under the root
// spread (mount_namespaces(7)).
type Propagation int

const (
	// RequireShared makes Run fail unless the root lies on a shared mount.
	RequireShared Propagation = iota
	// MakeShared makes the root a shared mount if it is none, by a bind mount of
	// the root on itself. That stays when Run ends: unmount it before you delete
	// the root.
	MakeShared
	// AnyPropagation takes the root as it is. Status says so for volumes that
	// a container may not see.
	AnyPropagation
)

// Observer sees every step: the seam for metrics and traces.
type Observer = steps.Observer

// Config is what a [Manager] needs. Host, Plugins and Pods are required.
type Config struct {
	// Host is what the embedder supplies to volumes. Layout.Root and Mounter
	// must be set. Run replaces Layout.Root by the path that it resolves to.
	Host *plugins.VolumeHost
	// Plugins are the volume kinds.
	Plugins *plugins.Registry
	// Pods is where pods come from.
	Pods plugins.PodSource
	// Translator turns in-tree specs into those of their drivers. Optional.
	Translator plugins.Translator
	// Reconciler runs the steps. Nil means the default one with Steps.
	Reconciler reconciler.Reconciler
	// Steps are the options of the default reconciler: limits, deadlines,
	// backoff. Clock, Log and Faults are taken from Host where they are not
	// set.
	Steps reconciler.Options
	// Resolving are the limits and deadlines for reading claims and persistent
	// volumes, with the same defaults.
	Resolving reconciler.Options
	// Observer sees every step. Optional.
	Observer Observer
	// ContentChanged is called after the files of a volume with content
	// (configMap, secret, downwardAPI, projected) changed, with their paths relative to the volume, and for its first content too.
	// It is called from many goroutines and must not block. Optional.
	ContentChanged func(ContentChange)
	// Root says what is demanded of the root folder's mount.
	Root Propagation
	// AllVolumes sets up also those volumes of a pod that none of its
	// containers uses.
	AllVolumes bool
	// QuietMounts leaves out the event SuccessfulMountVolume.
	QuietMounts bool
	// SourcePause is how long the manager waits before it watches a pod source
	// again, or runs a [plugins.Runner] again, that returned an error. Zero
	// means one second.
	SourcePause time.Duration
}

// ContentChange tells which files of a volume changed.
type ContentChange struct {
	Pod plugins.PodRef
	// Names are the volume's names in the pod's spec.
	Names []string
	// Path is the volume's path on the host.
	Path string
	// Files are clean paths relative to it.
	Files []string
	// Version identifies the new content.
	Version string
}

// validate returns everything that is wrong.
func (c *Config) validate() error {
	var faults []error
	missing := func(absent bool, field, what string) {
		if absent {
			faults = append(faults, fmt.Errorf("field Config.%s is not set: %s", field, what))
		}
	}
	missing(c.Plugins == nil, "Plugins", "a registry of volume kinds, such as builtin.Registry gives")
	missing(c.Pods == nil, "Pods", "where pods come from, such as memory.Pods")
	missing(c.Host == nil, "Host", "what volumes need of the program around them")
	if c.Host != nil {
		missing(c.Host.Mounter == nil, "Host.Mounter", "the way to the kernel, such as hostmount.New gives")
		missing(c.Host.Layout.Root == "", "Host.Layout.Root", "the folder for volumes and records")
		if root := c.Host.Layout.Root; root != "" && !filepath.IsAbs(root) {
			faults = append(faults, fmt.Errorf("field Config.Host.Layout.Root is not absolute: %q", root))
		}
	}
	if c.Root < RequireShared || c.Root > AnyPropagation {
		faults = append(faults, fmt.Errorf("field Config.Root has no meaning: %d", c.Root))
	}
	return errors.Join(faults...)
}

func (c *Config) pause() time.Duration {
	if c.SourcePause <= 0 {
		return time.Second
	}
	return c.SourcePause
}

// stepOptions fills what the embedder left open from the host.
func (c *Config) stepOptions(o reconciler.Options) reconciler.Options {
	if o.Clock == nil {
		o.Clock = c.Host.Time()
	}
	if o.Log.IsZero() {
		o.Log = c.Host.Log
	}
	if o.Faults == nil {
		o.Faults = c.Host.Faults
	}
	return o
}
