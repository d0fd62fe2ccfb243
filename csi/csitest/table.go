package csitest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// VolumeState is what a driver knows of a volume.
type VolumeState struct {
	// ID of the volume, and the Name that CreateVolume was given.
	ID, Name string
	Mode     Mode
	// Bytes is the volume's size, NodeBytes the size that the node has made use
	// of: they differ between a controller's and a node's expansion.
	Bytes, NodeBytes int64
	// Context is the volume context, without what Kubernetes adds to it.
	Context map[string]string `json:",omitempty"`
	// Parameters are those of CreateVolume, Mutable the mutable ones in force.
	Parameters, Mutable map[string]string `json:",omitempty"`
	// Capabilities are those of CreateVolume.
	Capabilities []Capability `json:",omitempty"`
	// FSType is the file system on the image; empty is none that the driver knows
	// of. Formatting is true while one is being made.
	FSType     string `json:",omitempty"`
	Formatting bool   `json:",omitempty"`
	// Ephemeral is true of a volume that came with its publish and goes with it.
	Ephemeral bool `json:",omitempty"`
	// Attached has an entry for every node to which the volume is attached.
	Attached []Attachment `json:",omitempty"`
	// Staged is nil if the volume is not staged.
	Staged *Use `json:",omitempty"`
	// Published has an entry for every target path, in the order of the calls.
	Published []Use `json:",omitempty"`
}

// Capability is a volume capability of a request.
type Capability struct {
	Block      bool     `json:",omitempty"`
	FSType     string   `json:",omitempty"`
	MountFlags []string `json:",omitempty"`
	Group      string   `json:",omitempty"`
	// AccessMode by its name in the specification.
	AccessMode string
}

// Attachment is a volume on a node.
type Attachment struct {
	NodeID     string
	Capability Capability
	Readonly   bool
	// Context is the publish context.
	Context map[string]string
}

// Use is a volume at a staging or a target path, with the arguments of the call
// that brought it there. Secrets and tokens are not kept.
type Use struct {
	Path           string
	StagingPath    string `json:",omitempty"`
	Capability     Capability
	Readonly       bool              `json:",omitempty"`
	Context        map[string]string `json:",omitempty"`
	PublishContext map[string]string `json:",omitempty"`
	// Device is the loop device behind a block publish that has its own.
	Device string `json:",omitempty"`
	// Complete is false from before the work begins until it is done, and of a
	// use whose mount is gone: such a use is there to be repeated or undone.
	Complete bool
}

// clone returns a copy that shares nothing.
func (v *VolumeState) clone() *VolumeState {
	c := *v
	c.Context, c.Parameters, c.Mutable = maps.Clone(v.Context), maps.Clone(v.Parameters), maps.Clone(v.Mutable)
	c.Capabilities, c.Attached, c.Published = slices.Clone(v.Capabilities), slices.Clone(v.Attached), slices.Clone(v.Published)
	for i := range c.Attached {
		c.Attached[i].Context = maps.Clone(c.Attached[i].Context)
	}
	if v.Staged != nil {
		s := v.Staged.clone()
		c.Staged = &s
	}
	for i := range c.Published {
		c.Published[i] = c.Published[i].clone()
	}
	return &c
}

func (u Use) clone() Use {
	u.Capability.MountFlags = slices.Clone(u.Capability.MountFlags)
	u.Context, u.PublishContext = maps.Clone(u.Context), maps.Clone(u.PublishContext)
	return u
}

// same reports whether a repeated call has the arguments of the first.
func (u Use) same(o Use) bool {
	return u.Path == o.Path && u.StagingPath == o.StagingPath && u.Capability.same(o.Capability) && u.Readonly == o.Readonly &&
		maps.Equal(u.Context, o.Context) && maps.Equal(u.PublishContext, o.PublishContext)
}

func (c Capability) same(o Capability) bool {
	return c.Block == o.Block && c.FSType == o.FSType && c.Group == o.Group && c.AccessMode == o.AccessMode && slices.Equal(c.MountFlags, o.MountFlags)
}

// reader reports whether the access mode is for reading only.
func (c Capability) reader() bool { return strings.HasSuffix(c.AccessMode, "READER_ONLY") }

func capabilityOf(c *csi.VolumeCapability) Capability {
	return Capability{
		Block:      c.GetBlock() != nil,
		FSType:     c.GetMount().GetFsType(),
		MountFlags: slices.Clone(c.GetMount().GetMountFlags()),
		Group:      c.GetMount().GetVolumeMountGroup(),
		AccessMode: c.GetAccessMode().GetMode().String(),
	}
}

// attachment finds a node.
func (v *VolumeState) attachment(node string) *Attachment {
	for i := range v.Attached {
		if v.Attached[i].NodeID == node {
			return &v.Attached[i]
		}
	}
	return nil
}

// published finds a target path.
func (v *VolumeState) published(path string) *Use {
	for i := range v.Published {
		if v.Published[i].Path == path {
			return &v.Published[i]
		}
	}
	return nil
}

// anyUse is a use of the volume on this node, nil if there is none.
func (v *VolumeState) anyUse() *Use {
	switch {
	case v.Staged != nil && v.Staged.Complete:
		return v.Staged
	case len(v.Published) > 0 && v.Published[0].Complete:
		return &v.Published[0]
	}
	return nil
}

func (v *VolumeState) forget(path string) {
	v.Published = slices.DeleteFunc(v.Published, func(u Use) bool { return u.Path == path })
}

// inUse reports whether anything holds the volume.
func (v *VolumeState) inUse() bool {
	return len(v.Attached) > 0 || v.Staged != nil || len(v.Published) > 0
}

// nodeBytes is the size that the node has made use of.
func (v *VolumeState) nodeBytes() int64 { return or(v.NodeBytes, v.Bytes) }

// fileName of a volume in the driver's folders: its ID may be any string.
func fileName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:])
}

func tableDir(dir string) string { return filepath.Join(dir, "volumes") }

// dataDir is where a volume's data folder or image is.
func (d *Driver) dataDir(id string) string { return filepath.Join(d.config.Dir, "data", fileName(id)) }

func (d *Driver) imagePath(id string) string { return filepath.Join(d.dataDir(id), "image") }

// ReadState reads the table of the driver in a folder, running or not, ordered
// by ID. It is for drivers that run as a program.
func ReadState(dir string) ([]VolumeState, error) {
	entries, err := os.ReadDir(tableDir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	volumes := make([]VolumeState, 0, len(entries))
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue // a new version that was not renamed yet
		}
		text, err := os.ReadFile(filepath.Join(tableDir(dir), e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since
		}
		if err != nil {
			return nil, err
		}
		var v VolumeState
		if err := json.Unmarshal(text, &v); err != nil {
			return nil, fmt.Errorf("read table entry %s: %w", e.Name(), err)
		}
		volumes = append(volumes, v)
	}
	slices.SortFunc(volumes, func(a, b VolumeState) int { return strings.Compare(a.ID, b.ID) })
	return volumes, nil
}

// load makes the table what the folder says and what is really there.
func (d *Driver) load() error {
	for _, dir := range []string{tableDir(d.config.Dir), filepath.Join(d.config.Dir, "data")} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	}
	list, err := ReadState(d.config.Dir)
	if err != nil {
		return err
	}
	table := make(map[string]*VolumeState, len(list))
	for i := range list {
		v := &list[i]
		if err := d.reconcile(v); err != nil {
			return fmt.Errorf("look after volume %s: %w", v.ID, err)
		}
		table[v.ID] = v
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.volumes = table
	return nil
}

// reconcile marks the uses whose mounts are gone, and frees devices that a
// killed driver left attached for nobody.
func (d *Driver) reconcile(v *VolumeState) error {
	if v.Staged != nil && v.Staged.Complete {
		there, err := d.there(v, v.Staged)
		if err != nil {
			return err
		}
		v.Staged.Complete = there
	}
	for i := range v.Published {
		if !v.Published[i].Complete {
			continue
		}
		there, err := d.there(v, &v.Published[i])
		if err != nil {
			return err
		}
		v.Published[i].Complete = there
	}
	if v.Mode.image() && v.Staged == nil && len(v.Published) == 0 {
		return d.freeDevices(v)
	}
	return nil
}

// volume returns a copy of a volume's state, nil if there is none.
func (d *Driver) volume(id string) *VolumeState {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v := d.volumes[id]; v != nil {
		return v.clone()
	}
	return nil
}

// save writes a volume's state to the folder, and then to the table. The caller
// holds the volume's lock.
func (d *Driver) save(v *VolumeState) error {
	v = v.clone()
	text, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return err
	}
	path := filepath.Join(tableDir(d.config.Dir), fileName(v.ID))
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o600); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path+".json"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.volumes[v.ID] = v
	return nil
}

// remove forgets a volume and its data. The caller holds the volume's lock.
func (d *Driver) remove(id string) error {
	if err := os.RemoveAll(d.dataDir(id)); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(tableDir(d.config.Dir), fileName(id)+".json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.volumes, id)
	delete(d.usage, id)
	delete(d.health, id)
	return nil
}

// Volumes returns the driver's table, ordered by ID.
func (d *Driver) Volumes() []VolumeState {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]VolumeState, 0, len(d.volumes))
	for _, id := range slices.Sorted(maps.Keys(d.volumes)) {
		list = append(list, *d.volumes[id].clone())
	}
	return list
}

// Volume returns one volume of the table.
func (d *Driver) Volume(id string) (VolumeState, bool) {
	if v := d.volume(id); v != nil {
		return *v, true
	}
	return VolumeState{}, false
}
