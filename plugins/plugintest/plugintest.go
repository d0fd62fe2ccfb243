// Package plugintest holds the conformance suite for [plugins.VolumePlugin]:
// the rules that the engine relies on, each as a named check that says which
// rule was broken. An author of a volume kind runs it in a test:
//
//	func TestConformance(t *testing.T) {
//		plugintest.TestPlugin(t, plugintest.Harness{
//			New:  func(_ testing.TB, host *plugins.VolumeHost) plugins.VolumePlugin { return mykind.New(host) },
//			Good: func(testing.TB, *plugins.VolumeHost) []plugintest.Volume { ... },
//		})
//	}
//
// The suite plays the engine: it makes the folders that the engine makes, runs
// the steps in the engine's order, kills and restarts the "process" between
// them, lets mounts vanish as in a reboot, and makes each call to the mounter
// and each fail point fail in turn. By default mounts are imitated
// ([mounttest.Mounter]), so the suite needs no privileges; give Harness.Mounter
// and Harness.Root to run it with real ones.
//
// It tests what every kind has in common. What a kind's volumes contain, which
// options it mounts with, and raw block devices are for the kind's own tests.
package plugintest

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// Harness says what is tested and with what.
type Harness struct {
	// New makes the plugin. It is called often, each time for what stands for
	// a new process. Required.
	New func(t testing.TB, host *plugins.VolumeHost) plugins.VolumePlugin
	// Good lists volumes that must work, at least one. Host is the one of the
	// present check, after the hook Host. Required.
	Good func(t testing.TB, host *plugins.VolumeHost) []Volume
	// Bad lists volumes of the kind that must be refused, by Identify or at
	// the latest by SetUp.
	Bad func(t testing.TB, host *plugins.VolumeHost) []Volume
	// Host adds sources to the host of a check. Nil adds none.
	Host func(t testing.TB, host *plugins.VolumeHost)
	// Root returns a folder for a check's files; nil means T.TempDir.
	Root func(t testing.TB) string
	// Mounter returns a mounter for everything below root; nil means a
	// mounttest.Mounter.
	Mounter func(t testing.TB, root string) mount.Mounter
	// Change makes the content of a volume out of date, by changing a source or
	// the volume's pod. Break makes the sources of all volumes fail until the
	// check ends. Both matter for plugins with [plugins.Refresher] alone;
	// without them less is tested.
	Change func(t testing.TB, host *plugins.VolumeHost, v Volume)
	Break  func(t testing.TB, host *plugins.VolumeHost)
	// Secrets are texts in the sources that no error, log line, event or
	// record may show.
	Secrets []string
}

// Volume is one volume to be tried.
type Volume struct {
	// Name tells it apart in messages.
	Name string
	// Spec is what the plugin gets.
	Spec *plugins.Spec
	// Pod is the pod; nil stands for one with a name and a UID alone. The
	// suite makes copies with other UIDs where it needs several pods.
	Pod *v1.Pod
	// Params as in [plugins.SetUpRequest].
	Params plugins.Params
}

// TestPlugin runs every check over the plugin, each as a subtest.
func TestPlugin(t *testing.T, h Harness) {
	t.Helper()
	if h.New == nil || h.Good == nil {
		t.Fatal("plugintest: Harness.New and Harness.Good are required")
	}
	for _, c := range checks() {
		t.Run(c.name, func(t *testing.T) {
			for _, f := range c.run(t, h) {
				t.Error(f)
			}
		})
	}
}

// failure is one broken rule.
type failure struct {
	check, rule, volume, detail string
}

func (f failure) String() string {
	where := ""
	if f.volume != "" {
		where = "volume " + f.volume + ": "
	}
	return fmt.Sprintf("%s%s\n\trule: %s", where, f.detail, f.rule)
}

// check is one rule and how to try it.
type check struct {
	// name is the check's name, rule the sentence that it tests.
	name, rule string
	// once is called with a world of its own; good and bad are called once for
	// each good or bad volume, each time with a world of its own.
	once func(w *world)
	good func(w *world, v Volume)
	bad  func(w *world, v Volume)
}

// checks lists all of them.
func checks() []check {
	var list []check
	list = append(list, pureChecks()...)
	list = append(list, setUpChecks()...)
	list = append(list, tearDownChecks()...)
	list = append(list, faultChecks()...)
	list = append(list, sharingChecks()...)
	return append(list, refreshChecks()...)
}

// run runs one check and returns what it found.
func (c check) run(t testing.TB, h Harness) (found []failure) {
	base := h.root(t)
	worlds := 0
	next := func(volume string) *world {
		worlds++
		return newWorld(t, h, c, base, fmt.Sprintf("w%d", worlds), volume)
	}
	in := func(w *world, f func(w *world)) {
		defer func() { found = append(found, w.close()...) }()
		defer w.recovered()
		f(w)
	}
	if c.once != nil {
		in(next(""), c.once)
	}
	each := func(list func(testing.TB, *plugins.VolumeHost) []Volume, f func(*world, Volume)) {
		if list == nil || f == nil {
			return
		}
		for i := 0; ; i++ {
			w := next("")
			volumes := list(t, w.host)
			if i >= len(volumes) {
				found = append(found, w.close()...)
				return
			}
			w.volume = volumes[i].Name
			w.next = func() (*world, Volume) {
				other := next(w.volume)
				return other, list(t, other.host)[i]
			}
			in(w, func(w *world) { f(w, volumes[i]) })
		}
	}
	each(h.Good, c.good)
	each(h.Bad, c.bad)
	return found
}

func (h Harness) root(t testing.TB) string {
	if h.Root != nil {
		return h.Root(t)
	}
	return t.TempDir()
}
