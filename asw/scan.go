package asw

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

// errStray says that something lies where only volumes should.
var errStray = errors.New("neither a volume nor a folder of volumes")

// scanner looks at the folders of pods. It reads the folders above the
// volumes, and never looks into one, where a dead file system may be mounted.
// It is not changed, so that many pods can be looked at at the same time.
type scanner struct {
	layout   plugins.Layout
	registry Plugins
	names    map[string]string // plugins' names by folder
	recorded map[plugins.PodVolume]bool
}

// podList is what lies in the folder of the pods.
type podList struct {
	uids   []types.UID
	faults []Fault
}

// podScan is what lies in the folders of one pod.
type podScan struct {
	uid    types.UID
	found  []foundVolume
	faults []Fault
	empty  bool
}

// foundVolume is a volume without a record.
type foundVolume struct {
	volume plugins.PodVolume
	block  bool
	id     plugins.VolumeID
	plugins.Reconstructed
}

// pods lists the pods that have a folder.
func (s *scanner) pods(context.Context) podList {
	var list podList
	dir := s.layout.PodsDir()
	entries, err := readFolder(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		list.faults = append(list.faults, Fault{Path: dir, Err: err})
	}
	for _, e := range entries {
		switch err := plugins.CheckName(e.Name()); {
		case !e.IsDir():
		case err != nil:
			list.faults = append(list.faults, Fault{Path: filepath.Join(dir, e.Name()), Err: err})
		default:
			list.uids = append(list.uids, types.UID(e.Name()))
		}
	}
	slices.Sort(list.uids)
	return list
}

// pod looks at one pod.
func (s *scanner) pod(ctx context.Context, uid types.UID) podScan {
	p := podScan{uid: uid, empty: true}
	dir := s.layout.PodDir(uid)
	entries, err := readFolder(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.empty = false // it has gone since it was listed
	case err != nil:
		p.fault(dir, err)
	}
	for _, e := range entries {
		switch path := filepath.Join(dir, e.Name()); {
		case path == s.layout.PodVolumesDir(uid):
			s.folders(ctx, &p, e, false)
		case path == s.layout.PodDevicesDir(uid):
			s.folders(ctx, &p, e, true)
		}
	}
	return p
}

// fault notes what keeps a pod from being understood as a whole.
func (p *podScan) fault(path string, err error) {
	p.faults = append(p.faults, Fault{Path: path, Err: err})
	p.empty = false
}

// folders looks at the plugins' folders in one of a pod's folders of volumes.
func (s *scanner) folders(ctx context.Context, p *podScan, e fs.DirEntry, block bool) {
	dir := filepath.Join(s.layout.PodDir(p.uid), e.Name())
	if !e.IsDir() {
		p.fault(dir, errStray)
		return
	}
	entries, err := readFolder(dir)
	if err != nil {
		p.fault(dir, err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !e.IsDir() {
			p.fault(path, errStray)
			continue
		}
		volumes, err := readFolder(path)
		if err != nil {
			p.fault(path, err)
		}
		for _, v := range volumes {
			if ctx.Err() != nil {
				return
			}
			s.volume(ctx, p, found{path: filepath.Join(path, v.Name()), folder: e.Name(), entry: v, block: block})
		}
	}
}

// found is what lies where a volume should.
type found struct {
	path   string
	folder string // of its plugin
	entry  fs.DirEntry
	block  bool
}

// volume looks at one volume: a folder, or for a block device anything else.
func (s *scanner) volume(ctx context.Context, p *podScan, f found) {
	p.empty = false
	if f.entry.IsDir() == f.block {
		p.fault(f.path, errStray)
		return
	}
	name, known := s.names[f.folder]
	if !known {
		name = plugins.UnescapePlugin(f.folder)
	}
	v := plugins.PodVolume{Pod: p.uid, Plugin: name, Name: f.entry.Name()}
	if err := v.Check(); err != nil {
		p.fault(f.path, err)
		return
	}
	if block, ok := s.recorded[v]; ok {
		if block != f.block {
			p.faults = append(p.faults, Fault{Path: f.path, Volume: &v, Err: fmt.Errorf("%w: its record says otherwise", errStray)})
		}
		return
	}
	got, err := s.reconstruct(ctx, v, f.block)
	if err != nil {
		p.faults = append(p.faults, Fault{Path: f.path, Volume: &v, Err: err})
		return
	}
	p.found = append(p.found, got)
}

// reconstruct says what a volume without a record is.
func (s *scanner) reconstruct(ctx context.Context, v plugins.PodVolume, block bool) (foundVolume, error) {
	got := foundVolume{volume: v, block: block}
	plugin, err := s.registry.ByName(v.Plugin)
	if err != nil {
		return got, err
	}
	if r := plugins.CapabilitiesOf(plugin).Reconstructor; r != nil {
		got.Reconstructed, err = r.Reconstruct(ctx, s.layout.Target(v, plugins.PodRef{}), block)
		if err != nil {
			return got, fmt.Errorf("reconstruct: %w", err)
		}
	}
	spec := &plugins.Spec{Volume: &v1.Volume{Name: v.Name}} // all that a folder tells
	got.id = plugins.VolumeIDOf(v.Plugin, got.Identity, spec, v.Pod)
	return got, nil
}

// readFolder lists a folder that is no symbolic link. It returns what it could
// read also with an error.
func readFolder(path string) ([]fs.DirEntry, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|onlyFolder, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	entries, err := f.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}
