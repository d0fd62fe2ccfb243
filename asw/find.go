package asw

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/plugins"
)

// DefaultPodTimeout is how long looking at one pod's folders may take.
const DefaultPodTimeout = 10 * time.Second

// Plugins are the plugins by which found folders are understood. A
// [plugins.Registry] is one.
type Plugins interface {
	Names() []string
	ByName(name string) (plugins.VolumePlugin, error)
}

// Finder finds out, when a process starts, what earlier ones have left: from
// the journal, and for what it does not tell from the folders of the pods. It
// changes nothing.
type Finder struct {
	// Layout says where the folders are. Required.
	Layout plugins.Layout
	// Registry names the plugins. Required.
	Registry Plugins
	// PodTimeout is how long looking at one pod may take; it is given up then,
	// and is a fault. Zero means [DefaultPodTimeout].
	PodTimeout time.Duration
	// Parallel is how many pods are looked at at the same time. Zero means a
	// few.
	Parallel int
	// Log takes what was found, in numbers.
	Log logr.Logger
}

// Findings are what earlier processes have left.
type Findings struct {
	// Volumes are fit for [World.Load]: every state in them is Uncertain or
	// Absent, every pod volume Found. They are sorted by id.
	Volumes []Volume
	// Faults are what could not be understood, sorted by path. What lies there
	// is kept, and may belong to a volume.
	Faults []Fault
	// EmptyPods are the pods of which nothing is left but empty folders for
	// volumes, sorted. Other things may lie in their folders.
	EmptyPods []types.UID
}

// Fault is something that was found and not understood.
type Fault struct {
	// Path names the file or folder.
	Path string
	// ID and Volume say which volume it is about, as far as that is known.
	ID     plugins.VolumeID
	Volume *plugins.PodVolume
	// Err says what is wrong with it.
	Err error
}

// String is the fault for people.
func (f Fault) String() string { return fmt.Sprintf("%q: %v", f.Path, f.Err) }

// Find puts together what the journal holds and what the pods' folders show.
//
// What has a record is taken from there, whether its folder exists or not.
// What has only a folder is asked of its plugin, if that is a
// [plugins.Reconstructor], and else counts as a volume of its own. A folder
// that no plugin owns, or that cannot be read, is a fault and stops nothing.
//
// A pod whose folders do not answer in time is given up; the goroutine that
// looks at it is left to end when the kernel, or the plugin, lets it go.
// Find fails only when ctx ends; the findings are not complete then.
func (f *Finder) Find(ctx context.Context, contents journal.Contents, now time.Time) (Findings, error) {
	m := merge{layout: f.Layout, now: now, volumes: map[plugins.VolumeID]*Volume{}, owner: map[plugins.PodVolume]plugins.VolumeID{}}
	for i := range contents.Damaged {
		m.damage(&contents.Damaged[i])
	}
	for i := range contents.Records {
		m.record(&contents.Records[i])
	}
	scans, err := f.scan(ctx, m.recorded())
	for i := range scans {
		m.scan(&scans[i])
	}
	f.devices(ctx, &m)
	found := m.findings()
	f.Log.V(1).Info("Looked for what was left", "records", len(contents.Records), "pods", len(scans)-1,
		"volumes", len(found.Volumes), "faults", len(found.Faults))
	return found, err
}

// scan looks at all pods, a few at a time.
func (f *Finder) scan(ctx context.Context, recorded map[plugins.PodVolume]bool) ([]podScan, error) {
	names := make(map[string]string)
	for _, name := range f.Registry.Names() {
		names[plugins.EscapePlugin(name)] = name
	}
	limit := cmp.Or(f.PodTimeout, DefaultPodTimeout)
	s := scanner{layout: f.Layout, registry: f.Registry, names: names, recorded: recorded}
	top, err := within(ctx, limit, s.pods)
	if err != nil {
		top.faults = []Fault{{Path: f.Layout.PodsDir(), Err: err}}
	}
	scans := make([]podScan, len(top.uids)+1)
	scans[len(top.uids)].faults = top.faults
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(cmp.Or(f.Parallel, max(4, 2*runtime.GOMAXPROCS(0))), len(top.uids)) {
		workers.Go(func() {
			for i := range next {
				uid := top.uids[i]
				scan, err := within(ctx, limit, func(ctx context.Context) podScan { return s.pod(ctx, uid) })
				if err != nil {
					scan.faults = []Fault{{Path: f.Layout.PodDir(uid), Err: err}}
				}
				scans[i] = scan
			}
		})
	}
	for i := 0; i < len(top.uids) && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	workers.Wait()
	if ctx.Err() != nil {
		return scans, fmt.Errorf("look for volumes in %s: %w", f.Layout.PodsDir(), context.Cause(ctx))
	}
	return scans, nil
}

// devices asks plugins for device mounts that no pod and no record tells of.
func (f *Finder) devices(ctx context.Context, m *merge) {
	limit := cmp.Or(f.PodTimeout, DefaultPodTimeout)
	for _, name := range f.Registry.Names() {
		plugin, err := f.Registry.ByName(name)
		if err != nil {
			continue
		}
		finder := plugins.CapabilitiesOf(plugin).DeviceFinder
		if finder == nil {
			continue
		}
		type answer struct {
			found  []plugins.FoundDevice
			faults []plugins.FoundFault
		}
		got, err := within(ctx, limit, func(ctx context.Context) answer {
			found, faults := finder.FindDevices(ctx)
			return answer{found, faults}
		})
		if err != nil {
			got.faults = append(got.faults, plugins.FoundFault{Path: f.Layout.PluginDir(name), Err: err})
		}
		for i := range got.found {
			m.device(name, &got.found[i])
		}
		for _, fault := range got.faults {
			m.faults = append(m.faults, Fault{Path: fault.Path, Err: fault.Err})
		}
	}
}

// within runs look in a goroutine of its own and gives it up after limit, or
// when ctx ends.
func within[T any](ctx context.Context, limit time.Duration, look func(context.Context) T) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	result := make(chan T, 1)
	go func() { result <- look(ctx) }()
	select {
	case r := <-result:
		return r, nil
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("it did not answer: %w", context.Cause(ctx))
	}
}

// merge puts the findings together.
type merge struct {
	layout  plugins.Layout
	now     time.Time
	volumes map[plugins.VolumeID]*Volume
	owner   map[plugins.PodVolume]plugins.VolumeID
	pods    map[types.UID]bool // that have a volume
	faults  []Fault
	empty   []types.UID
}

func (m *merge) damage(d *journal.Damage) {
	fault := Fault{Path: d.File, Err: plugins.Permanentf("line %d is damaged: %s", d.Line, d.Reason)}
	if d.Key != nil {
		fault.ID = d.Key.ID
		if v := d.Key.Volume; v != (plugins.PodVolume{}) {
			fault.Volume = &v
		}
	}
	m.faults = append(m.faults, fault)
}

// volume returns the volume, made if it is missing, with what is known of its
// handling: where two say different things the more careful one holds.
func (m *merge) volume(id plugins.VolumeID, identity plugins.Identity) *Volume {
	v := m.volumes[id]
	if v == nil {
		v = &Volume{ID: id, Identity: identity}
		v.Identity.Undo = nil
		m.volumes[id] = v
	}
	i := &v.Identity
	i.Storage = cmp.Or(i.Storage, identity.Storage)
	i.Lane = cmp.Or(i.Lane, identity.Lane)
	i.Attach = i.Attach || identity.Attach
	i.Device = i.Device || identity.Device
	i.Durable = i.Durable || identity.Durable
	i.Parallel = i.Parallel && identity.Parallel
	if i.Attach {
		v.Attachment = Uncertain
	}
	if i.Device {
		v.Device = Uncertain
	}
	return v
}

// record takes in a record.
func (m *merge) record(r *journal.Record) {
	v := m.volume(r.ID, plugins.Identity{
		Storage: r.Storage, Lane: r.Lane, Attach: r.Attach, Device: r.Device, Durable: r.Durable, Parallel: r.Parallel,
	})
	v.DevicePath = cmp.Or(r.DevicePath, v.DevicePath)
	v.DeviceMountPath = cmp.Or(r.DeviceMountPath, v.DeviceMountPath)
	if r.Volume == (plugins.PodVolume{}) {
		v.Undo, v.Identity.Undo = r.Undo, r.Undo
		return
	}
	if other, ok := m.owner[r.Volume]; ok {
		m.faults = append(m.faults, Fault{
			Path: m.layout.PodVolume(r.Volume), ID: other, Volume: &r.Volume,
			Err: fmt.Errorf("there are records of it as part of %s and of %s; the later one holds", other, r.ID),
		})
		m.volumes[other].Pods = slices.DeleteFunc(m.volumes[other].Pods, func(pv PodVolume) bool { return pv.Volume == r.Volume })
	}
	m.add(v, PodVolume{Volume: r.Volume, Pod: r.Pod, Names: r.Names, Block: r.Block, Undo: r.Undo})
}

// add completes a pod volume and adds it.
func (m *merge) add(v *Volume, pv PodVolume) {
	pv.ID, pv.State, pv.Found, pv.Since = v.ID, Uncertain, true, m.now
	pv.Pod.UID = pv.Volume.Pod
	pv.Path = m.layout.PodVolume(pv.Volume)
	if pv.Block {
		pv.Path = m.layout.PodDevice(pv.Volume)
	}
	v.Pods = append(v.Pods, pv)
	m.owner[pv.Volume] = v.ID
}

// recorded lists the pod volumes that have a record, and whether they are
// block devices.
func (m *merge) recorded() map[plugins.PodVolume]bool {
	m.pods = make(map[types.UID]bool)
	recorded := make(map[plugins.PodVolume]bool, len(m.owner))
	for _, v := range m.volumes {
		for _, pv := range v.Pods {
			recorded[pv.Volume] = pv.Block
			m.pods[pv.Volume.Pod] = true
		}
	}
	return recorded
}

// scan takes in what lies in a pod's folders.
func (m *merge) scan(s *podScan) {
	m.faults = append(m.faults, s.faults...)
	if s.empty && !m.pods[s.uid] {
		m.empty = append(m.empty, s.uid)
	}
	for _, found := range s.found {
		if _, ok := m.owner[found.volume]; ok {
			path := m.layout.PodDevice(found.volume)
			m.faults = append(m.faults, Fault{Path: path, Volume: &found.volume, Err: errors.New("the volume is there as a folder too")})
			continue
		}
		v := m.volume(found.id, found.Identity)
		v.DeviceMountPath = cmp.Or(v.DeviceMountPath, found.DeviceMountPath)
		if v.Undo == nil {
			v.Undo, v.Identity.Undo = found.Identity.Undo, found.Identity.Undo
		}
		m.add(v, PodVolume{Volume: found.volume, Block: found.block, Undo: found.Identity.Undo})
	}
}

// device takes in a device mount that lies on disk. What is known of the volume
// already outweighs it.
func (m *merge) device(plugin string, found *plugins.FoundDevice) {
	identity := found.Identity
	if identity.Storage == "" {
		m.faults = append(m.faults, Fault{Path: found.DeviceMountPath, Err: errors.New("it was found, but not what storage it is")})
		return
	}
	identity.Device = true
	v := m.volume(plugins.VolumeID(plugin+"/"+identity.Storage), identity)
	if v.DeviceMountPath != "" && found.DeviceMountPath != "" && v.DeviceMountPath != found.DeviceMountPath {
		m.faults = append(m.faults, Fault{
			Path: found.DeviceMountPath, ID: v.ID,
			Err: fmt.Errorf("the device of the volume is taken to be mounted at %q", v.DeviceMountPath),
		})
		return
	}
	v.DeviceMountPath = cmp.Or(v.DeviceMountPath, found.DeviceMountPath)
	undo := maps.Clone(identity.Undo) // what is recorded outweighs what is found
	if undo == nil {
		undo = plugins.Undo{}
	}
	maps.Copy(undo, v.Undo)
	v.Undo, v.Identity.Undo = undo, undo
}

func (m *merge) findings() Findings {
	f := Findings{Faults: m.faults, EmptyPods: m.empty}
	for _, v := range m.volumes {
		slices.SortFunc(v.Pods, func(a, b PodVolume) int { return comparePodVolumes(a.Volume, b.Volume) })
		if v.Attachment != Absent || v.Device != Absent || len(v.Pods) > 0 {
			f.Volumes = append(f.Volumes, *v)
		}
	}
	slices.SortFunc(f.Volumes, func(a, b Volume) int { return strings.Compare(string(a.ID), string(b.ID)) })
	slices.SortStableFunc(f.Faults, func(a, b Fault) int { return strings.Compare(a.Path, b.Path) })
	slices.Sort(f.EmptyPods)
	return f
}
