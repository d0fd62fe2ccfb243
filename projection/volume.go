package projection

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// lingerTime is how long a replaced version can still be read by those that
// opened it: enough to read a few dozen files, and short enough for a step.
const lingerTime = 5 * time.Millisecond

// Config says which kind of volume a [Volume] is.
type Config struct {
	// Name is the plugin's name.
	Name string
	// Host has the layout, the mounter and the sources.
	Host *plugins.VolumeHost
	// Memory is true for content that must not reach a disk: the volume is
	// then a tmpfs of its own, kept out of swap where the kernel can do that.
	Memory bool
	// Storage names the storage of an inline volume within the plugin. The
	// answer is false where the volume is of another kind.
	Storage func(*v1.Volume) (string, bool)
}

// Volume is a volume plugin whose content is rendered from API objects. It is
// safe for concurrent use.
type Volume struct {
	cfg      Config
	host     *plugins.VolumeHost
	renderer *Renderer
	noSwap   atomic.Bool // true once the kernel has refused the option
}

// NewVolume returns the plugin that cfg describes.
func NewVolume(cfg Config) *Volume {
	return &Volume{cfg: cfg, host: cfg.Host, renderer: NewRenderer(cfg.Host)}
}

var (
	_ plugins.VolumePlugin = (*Volume)(nil)
	_ plugins.Referrer     = (*Volume)(nil)
	_ plugins.Refresher    = (*Volume)(nil)
	_ plugins.StatsReader  = (*Volume)(nil)
)

// Name is the plugin's name.
func (v *Volume) Name() string { return v.cfg.Name }

// Supports accepts inline volumes of its kind.
func (v *Volume) Supports(spec *plugins.Spec) bool {
	_, ok := v.storage(spec)
	return ok
}

func (v *Volume) storage(spec *plugins.Spec) (string, bool) {
	if spec == nil || spec.PV != nil || spec.Volume == nil {
		return "", false
	}
	return v.cfg.Storage(spec.Volume)
}

// Identify names the storage. Nothing is shared between pods, nothing needs
// attaching, and undoing needs no record.
func (v *Volume) Identify(spec *plugins.Spec) (plugins.Identity, error) {
	storage, ok := v.storage(spec)
	if !ok {
		return plugins.Identity{}, plugins.Permanentf("%s cannot provide %s", v.cfg.Name, spec.Kind())
	}
	return plugins.Identity{Storage: storage}, nil
}

// References lists the objects whose change calls for a refresh.
func (v *Volume) References(spec *plugins.Spec, pod *v1.Pod) []plugins.Ref {
	return v.renderer.References(spec, pod)
}

// SetUp renders the content before it touches the disk, so that an error of a
// source leaves everything as it was. A first set-up that fails later takes
// back what it made; one over a volume that is there leaves the old content.
func (v *Volume) SetUp(ctx context.Context, req plugins.SetUpRequest) (plugins.SetUpResult, error) {
	content, err := v.renderer.Render(ctx, req)
	if err != nil {
		return plugins.SetUpResult{}, err
	}
	if err := ctx.Err(); err != nil {
		return plugins.SetUpResult{}, plugins.Transient(err)
	}
	wrote, err := v.place(ctx, req.Target, req.Again, content.Tree)
	if err != nil {
		return plugins.SetUpResult{}, err
	}
	return plugins.SetUpResult{
		Mounted:    v.cfg.Memory,
		Attributes: plugins.Attributes{ReadOnly: true, Managed: true, SELinuxRelabel: true},
		Content:    contentOf(wrote, content.RefreshAt),
	}, nil
}

func contentOf(wrote WriteResult, at time.Time) plugins.Content {
	return plugins.Content{Version: wrote.Version, Changed: wrote.Changed, RefreshAt: at}
}

// place brings the content to the target, where again says whether it is likely
// to be there already.
func (v *Volume) place(ctx context.Context, at plugins.Target, again bool, tree *Tree) (WriteResult, error) {
	target := at.Path
	var point mount.Point
	var err error
	if again { // to look costs less than to try to make what exists
		point, err = v.host.Mounter.Inspect(ctx, target)
	}
	if err == nil && !point.Exists {
		if err = os.Mkdir(target, dirMode); err == nil {
			return v.first(ctx, target, tree)
		}
		if !errors.Is(err, fs.ErrExist) {
			return WriteResult{}, plugins.Transient(err)
		}
		point, err = v.host.Mounter.Inspect(ctx, target)
	}
	// From here on something may be in use: whatever fails, it has to be
	// looked at again and in the end torn down.
	if err == nil {
		err = v.fits(point, target)
	}
	var wrote WriteResult
	if err == nil && v.cfg.Memory && !point.Mounted {
		wrote, err = v.mountNew(ctx, target, tree)
	} else if err == nil {
		wrote, err = v.write(ctx, target, tree)
	}
	if err != nil {
		err = plugins.Uncertain(err)
	}
	return wrote, err
}

// fits refuses what cannot be this volume: writing there, or mounting over it,
// would harm somebody's data.
func (v *Volume) fits(p mount.Point, target string) error {
	switch {
	case p.Corrupt != nil:
		return fmt.Errorf("%s is a dead mount: %w", target, p.Corrupt)
	case !p.IsDir:
		return fmt.Errorf("%s is not a folder", target)
	case p.Mounted && !v.cfg.Memory:
		return fmt.Errorf("%s is a mount point, where a plain folder was expected", target)
	case p.Mounted && p.FSType != "tmpfs":
		return fmt.Errorf("a file system %q is mounted on %s, where a tmpfs was expected", p.FSType, target)
	}
	return nil
}

// first fills a target that this call has created. It fails without a trace.
func (v *Volume) first(ctx context.Context, target string, tree *Tree) (WriteResult, error) {
	var wrote WriteResult
	var err error
	if v.cfg.Memory {
		wrote, err = v.mountNew(ctx, target, tree)
	} else {
		wrote, err = v.fill(ctx, target, tree)
	}
	if err == nil {
		return wrote, nil
	}
	undo := v.remove(context.WithoutCancel(ctx), target, false)
	if undo != nil {
		return WriteResult{}, plugins.Uncertain(errors.Join(err, fmt.Errorf("and undoing it: %w", undo)))
	}
	return WriteResult{}, failing(err)
}

// fill writes into a plain folder that is new.
func (v *Volume) fill(ctx context.Context, target string, tree *Tree) (WriteResult, error) {
	top, err := openFolder(target)
	if err != nil {
		return WriteResult{}, err
	}
	defer func() { _ = top.close() }()
	info, err := top.stat()
	if err == nil && info.perm != dirMode { // the umask took some
		err = top.chmod(info.withMode(dirMode))
	}
	if err != nil {
		return WriteResult{}, err
	}
	return v.writer(&top, true).Write(ctx, tree)
}

// write brings a folder that is there up to date.
func (v *Volume) write(ctx context.Context, target string, tree *Tree) (WriteResult, error) {
	top, err := openFolder(target)
	if err != nil {
		return WriteResult{}, plugins.Transient(err)
	}
	defer func() { _ = top.close() }()
	wrote, err := v.writer(&top, false).Write(ctx, tree)
	if v.cfg.Memory && errors.Is(err, syscall.ENOSPC) {
		if err := v.makeRoom(ctx, target, tree, err); err != nil {
			return WriteResult{}, err
		}
		wrote, err = v.writer(&top, false).Write(ctx, tree)
	}
	return wrote, err
}

func (v *Volume) writer(at *folder, empty bool) *Writer {
	return &Writer{at: at, Clock: v.host.Time(), Faults: v.host.Faults, Empty: empty, Linger: lingerTime}
}

// Refresh renders again and writes what changed. It neither makes nor mounts
// anything: a volume that is gone is an uncertain one, for SetUp to mend.
func (v *Volume) Refresh(ctx context.Context, req plugins.SetUpRequest) (plugins.Content, error) {
	content, err := v.renderer.Render(ctx, req)
	if err != nil {
		return plugins.Content{}, err
	}
	point, err := v.host.Mounter.Inspect(ctx, req.Path)
	if err != nil {
		return plugins.Content{}, plugins.Transient(err)
	}
	err = v.fits(point, req.Path)
	switch {
	case !point.Exists:
		err = fmt.Errorf("%s is gone", req.Path)
	case err == nil && v.cfg.Memory && !point.Mounted:
		err = fmt.Errorf("the mount at %s is gone", req.Path)
	}
	if err != nil {
		return plugins.Content{}, plugins.Uncertain(err)
	}
	wrote, err := v.write(ctx, req.Path, content.Tree)
	if err != nil {
		return plugins.Content{}, err
	}
	return contentOf(wrote, content.RefreshAt), nil
}
