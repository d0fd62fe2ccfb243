package csi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/volumekit/volumekit/plugins"
)

// Reconstruct implements [plugins.Reconstructor]: what a volume without a
// record is says its vol_data.json.
func (p *Plugin) Reconstruct(ctx context.Context, found plugins.Target, block bool) (plugins.Reconstructed, error) {
	dir := found.Path
	if block {
		dir = p.places().blockData(found.Volume.Name)
	}
	data, err := readVolData(dir)
	if err != nil {
		point, seen := p.host.Mounter.Inspect(ctx, filepath.Join(found.Path, mountDir))
		if !block && seen == nil && !point.Mounted {
			// Left halfway between the removal of the file and that of its folder:
			// there is nothing to call a driver for.
			return plugins.Reconstructed{Identity: plugins.Identity{Durable: true}}, nil
		}
		return plugins.Reconstructed{}, fmt.Errorf("find out what the volume is: %w", err)
	}
	if data.ephemeral() {
		return plugins.Reconstructed{Identity: plugins.Identity{
			Lane: data.Driver, Durable: true, Undo: plugins.Undo{undoDriver: data.Driver, undoEphemeral: "true"},
		}}, nil
	}
	r := plugins.Reconstructed{Identity: identityOf(data, block)}
	if r.DeviceMountPath, err = p.findStaging(ctx, data, found.Volume.Name, block); err != nil {
		return plugins.Reconstructed{}, err
	}
	return r, nil
}

// identityOf is what [Plugin] Identify would have said.
func identityOf(data volData, block bool) plugins.Identity {
	return plugins.Identity{
		Storage: storageName(data.Driver, data.Handle), Lane: data.Driver, Attach: true, Device: true, Durable: true,
		Undo: plugins.Undo{undoDriver: data.Driver, undoHandle: data.Handle, undoBlock: strconv.FormatBool(block)},
	}
}

// findStaging says where the volume is staged, if it is: at a place of today,
// or that of an older kubelet.
func (p *Plugin) findStaging(ctx context.Context, data volData, spec string, block bool) (string, error) {
	candidates := []string{p.places().staging(data.Driver, data.Handle), p.places().oldStaging(spec)}
	if block {
		candidates = []string{p.places().blockStaging(spec)}
	}
	found := ""
	for _, path := range candidates {
		point, err := p.host.Mounter.Inspect(ctx, path)
		switch {
		case err != nil:
			return "", err
		case point.Mounted:
			return path, nil
		case point.Exists && found == "":
			found = path
		}
	}
	// Nothing is mounted: a driver that stages without a mount, or not at all.
	return cmp.Or(found, candidates[0]), nil
}

// FindDevices implements [plugins.DeviceFinder]: it finds what is staged in the
// kubelet's places, in those of kubelets up to 1.23 too, and for block volumes.
func (p *Plugin) FindDevices(ctx context.Context) ([]plugins.FoundDevice, []plugins.FoundFault) {
	f := deviceFinder{places: p.places()}
	drivers, _ := f.folders(f.places.root())
	for _, name := range drivers {
		dir := filepath.Join(f.places.root(), name)
		if name == devicesDir {
			f.blockDevices(ctx)
			continue
		}
		f.each(ctx, dir, func(sub string) { f.device(sub, filepath.Join(sub, globalMount), sub, false) })
	}
	return p.oneOfEach(ctx, &f), f.faults
}

// oneOfEach leaves of several places at which one volume seems to be staged the
// one where something is mounted. It is to be unstaged at the others too.
func (p *Plugin) oneOfEach(ctx context.Context, f *deviceFinder) []plugins.FoundDevice {
	mounted := func(d plugins.FoundDevice) int {
		if point, err := p.host.Mounter.Inspect(ctx, d.DeviceMountPath); err == nil && !point.Mounted {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(f.found, func(a, b plugins.FoundDevice) int { return mounted(a) - mounted(b) })
	also := map[string][]string{}
	found := slices.DeleteFunc(f.found, func(d plugins.FoundDevice) bool {
		places, twice := also[d.Identity.Storage]
		if !twice {
			also[d.Identity.Storage] = []string{}
			return false
		}
		also[d.Identity.Storage] = append(places, d.DeviceMountPath)
		return true
	})
	for i := range found {
		if list := also[found[i].Identity.Storage]; len(list) > 0 {
			text, _ := json.Marshal(list) // strings always can be
			found[i].Identity.Undo[undoAlso] = string(text)
		}
	}
	return found
}

// alsoStaged are the places that oneOfEach noted.
func (p *Plugin) alsoStaged(undo plugins.Undo) []string {
	var list []string
	_ = json.Unmarshal([]byte(undo[undoAlso]), &list)
	return slices.DeleteFunc(list, func(path string) bool {
		rel, err := filepath.Rel(p.places().root(), path)
		return err != nil || !filepath.IsLocal(rel)
	})
}

// deviceFinder looks for staged volumes. It lists folders above staging paths
// and never looks into one, where a dead file system may be mounted.
type deviceFinder struct {
	places places
	found  []plugins.FoundDevice
	faults []plugins.FoundFault
}

func (f *deviceFinder) fault(path string, err error) {
	f.faults = append(f.faults, plugins.FoundFault{Path: path, Err: err})
}

// folders lists the folders in a folder.
func (f *deviceFinder) folders(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.fault(dir, err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

func (f *deviceFinder) each(ctx context.Context, dir string, look func(sub string)) {
	names, _ := f.folders(dir)
	for _, name := range names {
		if ctx.Err() != nil {
			f.fault(dir, context.Cause(ctx))
			return
		}
		look(filepath.Join(dir, name))
	}
}

// blockDevices looks at staged block volumes.
func (f *deviceFinder) blockDevices(ctx context.Context) {
	f.each(ctx, filepath.Dir(f.places.blockStaging("x")), func(staging string) {
		f.device(staging, staging, f.places.blockData(filepath.Base(staging)), true)
	})
}

// device takes in one staging path. Without a file that tells what is staged
// there it is a fault, unless nothing is left but empty folders.
func (f *deviceFinder) device(path, staging, dataDir string, block bool) {
	data, err := readVolData(dataDir)
	if err != nil {
		if _, gone := os.Lstat(staging); errors.Is(gone, fs.ErrNotExist) && errors.Is(err, fs.ErrNotExist) {
			return // other folders of a driver's own, or what an interrupted removal left
		}
		f.fault(path, fmt.Errorf("it may be a staged volume, but nothing tells which: %w", err))
		return
	}
	f.found = append(f.found, plugins.FoundDevice{
		Reconstructed: plugins.Reconstructed{Identity: identityOf(data, block), DeviceMountPath: staging},
	})
}
