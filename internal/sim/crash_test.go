//go:build linux

package sim_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/sim"
)

// long makes the crash tests try every passing of every fail point, instead of
// the first and a random one: VOLUMEKIT_LONG=1 go test ./internal/sim.
var long = os.Getenv("VOLUMEKIT_LONG") != ""

// phases are what the agent is killed in.
var phases = []phase{
	{"set-up", (*crash).setUp},
	{"teardown", (*crash).tearDown},
	{"refresh", (*crash).refresh},
}

type phase struct {
	name string
	run  func(c *crash)
}

// crash is one run: two pods with a volume of every kind, and an agent that
// dies in a phase.
type crash struct {
	t      *testing.T
	n      *sim.Node
	folder string
	stays  *v1.Pod // is wanted when the agent comes back
	goes   *v1.Pod // is deleted while it is down
	// arm is called where the phase begins. ended says what holds when it is
	// over, should the agent not die.
	arm   func()
	ended func(holds func(sim.State) bool)
	value string // of the config map's key "a"
}

func newCrash(t *testing.T) *crash {
	n := sim.New(t)
	c := &crash{t: t, n: n, folder: prepare(t, n), value: "alpha"}
	c.stays, c.goes = everyKind("stays", c.folder), everyKind("goes", c.folder)
	// The one that goes has a disk of its own, so that the device too is undone
	// by an agent that nobody tells of it.
	own := filepath.Join(n.Dir, "own")
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	pv, claim := sim.ClaimedDisk("own", own)
	n.Apply(pv, claim)
	for i := range c.goes.Spec.Volumes {
		if v := &c.goes.Spec.Volumes[i]; v.Name == "disk" {
			v.VolumeSource = sim.Claim("own")
		}
	}
	return c
}

func (c *crash) ready(s sim.State) bool { return s.Ready(c.stays) && s.Ready(c.goes) && s.Steady() }

func (c *crash) setUp() {
	c.arm()
	c.n.Apply(c.stays, c.goes)
	c.n.Start()
	c.ended(c.ready)
}

func (c *crash) up() {
	c.n.Apply(c.stays, c.goes)
	c.n.Start()
	c.n.Await("both pods are ready", c.ready)
}

func (c *crash) tearDown() {
	c.up()
	c.arm()
	c.n.Delete(c.stays, c.goes)
	c.ended(func(s sim.State) bool {
		return s.Snapshot.Ready && len(s.Snapshot.Volumes)+len(s.Snapshot.Pods) == 0
	})
	c.n.Apply(c.stays, c.goes) // one comes back while the agent is down
}

func (c *crash) refresh() {
	c.up()
	c.arm()
	c.change()
	c.ended(func(s sim.State) bool { return len(s.Changes) >= c.told(s) && c.ready(s) })
}

// change gives every projected volume other content.
func (c *crash) change() {
	c.value = "omega"
	c.n.Apply(configMap("config", map[string]string{"a": "omega", "c": "gamma"}),
		secret("secret", map[string][]byte{"user": []byte("u"), "more": []byte("m")}))
}

// told is how many changes the agent has told of when all volumes are new: of
// each pod the first content and the second, of config, secret and access, and
// the first of info.
func (c *crash) told(sim.State) int { return 2 * (3*2 + 1) }

func TestCrashMatrix(t *testing.T) {
	var m matrix
	t.Cleanup(func() { m.check(t) })
	for _, p := range phases {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			passed := count(t, p)
			m.add(passed)
			for _, point := range slices.Sorted(maps.Keys(passed)) {
				for _, k := range passings(passed[point]) {
					t.Run(fmt.Sprintf("%s/%d", strings.ReplaceAll(point, "/", ":"), k), func(t *testing.T) {
						t.Parallel()
						m.ran(crashAt(t, p, point, k))
					})
				}
			}
		})
	}
}

// matrix is what the runs have in common.
type matrix struct {
	mu         sync.Mutex
	phases     int
	passed     map[string]bool
	runs, died int
}

func (m *matrix) add(passed map[string]int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.phases++
	if m.passed == nil {
		m.passed = map[string]bool{}
	}
	for point := range passed {
		m.passed[point] = true
	}
}

func (m *matrix) ran(died bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runs++
	if died {
		m.died++
	}
}

// check fails the test if a fail point is missed, or if the agent came through
// too often for the runs to mean anything.
func (m *matrix) check(t *testing.T) {
	t.Logf("the agent died in %d of %d runs", m.died, m.runs)
	if m.died < m.runs*3/4 {
		t.Errorf("the agent died in %d of %d runs only", m.died, m.runs)
	}
	if m.phases < len(phases) {
		return // not all of it was to be run
	}
	if _, err := os.Stat(filepath.Join("..", "..", "go.mod")); err != nil {
		t.Log("the sources are not here, so nobody knows whether a fail point is missed")
		return
	}
	for _, point := range sourcePoints(t) {
		if !m.passed[point] && notPassed[point] == "" {
			t.Errorf("fail point %s is passed in no phase", point)
		}
	}
}

// count runs a phase to its end and returns which fail points it passes, and
// how often.
func count(t *testing.T, p phase) map[string]int {
	c := newCrash(t)
	c.n.Settings.Count = true
	before := map[string]int{}
	c.arm = func() { maps.Copy(before, c.n.State().Passed) }
	var after sim.State
	c.ended = func(holds func(sim.State) bool) { after = c.n.Await("the phase is over", holds) }
	p.run(c)
	c.n.Kill()
	passed := after.Passed
	maps.DeleteFunc(passed, func(point string, n int) bool {
		passed[point] = n - before[point]
		return passed[point] <= 0
	})
	if passed["step.begun"] == 0 && p.name != "refresh" || len(passed) < 5 {
		t.Fatalf("the phase passes only %v", passed)
	}
	t.Logf("%s passes %v", p.name, passed)
	return passed
}

// passings are the passings of a point at which the agent dies.
func passings(n int) []int {
	switch {
	case n == 1:
		return []int{1}
	case !long:
		return []int{1, 2 + rand.IntN(n-1)}
	}
	list := make([]int, n)
	for i := range list {
		list[i] = i + 1
	}
	return list
}

// crashAt is one run. It reports whether the agent died at the fail point.
func crashAt(t *testing.T, p phase, point string, k int) (died bool) {
	c := newCrash(t)
	n := c.n
	c.arm = func() { n.FailAtPassing(point, k) }
	c.ended = func(holds func(sim.State) bool) {
		if died = n.DiesBefore("the phase is over", holds); !died {
			n.Kill() // it did not come to this passing: runs differ a little
		}
	}
	p.run(c)
	n.Delete(c.goes)
	n.Start()
	n.AwaitGone(c.goes)
	n.Await("the device of the pod that went is unmounted", func(sim.State) bool {
		_, mounted := n.Mounts()[filepath.Join(n.Layout.PluginDir(sim.DiskName), "mounts", "pv-own")]
		return !mounted
	})
	n.Await("the pod that stays is ready", func(s sim.State) bool { return s.Ready(c.stays) && s.Steady() })
	c.checkStays()
	for target := range n.Mounts() {
		if strings.Contains(target, string(c.goes.UID)) {
			t.Errorf("%s is still mounted", target)
		}
	}
	n.Delete(c.stays)
	n.AwaitGone(c.stays)
	n.AwaitClean()
	if got := read(t, filepath.Join(c.folder, "kept")); got != "data" {
		t.Errorf("the disk's data: %q", got)
	}
	return died
}

// checkStays checks that the pod that stays has what it should.
func (c *crash) checkStays() {
	c.t.Helper()
	checkEveryKindWith(c.t, c.n, c.stays, c.value)
	for _, dir := range []string{c.n.Path(c.stays, "kubernetes.io/configmap", "config"), c.n.Path(c.stays, "kubernetes.io/secret", "secret")} {
		names := map[string][]string{"configmap/alpha": {"a", "b"}, "configmap/omega": {"a", "c"},
			"secret/alpha": {"user", "password"}, "secret/omega": {"user", "more"}}
		checkWhole(c.t, dir, names[strings.TrimPrefix(filepath.Base(filepath.Dir(dir)), "kubernetes.io~")+"/"+c.value]...)
	}
	if err := os.WriteFile(c.n.Path(c.stays, sim.DiskName, "pv-disk", "kept"), []byte("data"), 0o600); err != nil {
		c.t.Error(err)
	}
}

// notPassed are the fail points that no phase passes, and why.
var notPassed = map[string]string{
	"journal.compact": "needs a megabyte of old lines; the journal's own tests kill there",
	"journal.renamed": "likewise",
	"journal.damaged": "is the name of a file",
}

// sourcePoints lists the fail points that stand in the sources.
func sourcePoints(t *testing.T) []string {
	point := regexp.MustCompile(`"((?:journal|step|mount|unmount|remove|writer|emptydir|hostpath|reconciler)[./][a-z][a-z-]*)"`)
	found := map[string]bool{}
	for _, dir := range []string{"asw/journal", "reconciler", "reconciler/steps", "mount/hostmount", "projection", "plugins/emptydir", "plugins/hostpath"} {
		files, err := filepath.Glob(filepath.Join("..", "..", dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", dir, files, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, m := range point.FindAllStringSubmatch(read(t, file), -1) {
				found[m[1]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}
