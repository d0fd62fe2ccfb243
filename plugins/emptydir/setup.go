package emptydir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// SetUp makes the volume. What is there already and fits is kept as it is: a
// folder, or a mount of the right file system. A folder without the mount that
// belongs on it, as a reboot leaves it, gets a new mount. A pod's group that
// this process may not give away is an error of class unsupported, as is a
// file system that cannot be mounted here.
func (p *Plugin) SetUp(ctx context.Context, req plugins.SetUpRequest) (plugins.SetUpResult, error) {
	if ctx.Err() != nil {
		return plugins.SetUpResult{}, plugins.Transient(context.Cause(ctx))
	}
	s, err := p.parse(req.Spec)
	if err != nil {
		return plugins.SetUpResult{}, plugins.Permanent(err)
	}
	if group := req.Params.FSGroup; group != nil {
		if err := plugins.CheckID(*group); err != nil {
			return plugins.SetUpResult{}, plugins.Permanent(fmt.Errorf("the pod's fsGroup: %w", err))
		}
	}
	result := plugins.SetUpResult{Attributes: plugins.Attributes{
		ReadOnly: req.Params.ReadOnly, Managed: true, SELinuxRelabel: true,
	}}
	if s.medium == folder {
		return result, p.makeFolder(ctx, req, s.rights(req.Params))
	}
	result.Mounted = true
	m, err := p.fileSystem(ctx, s, req)
	if err != nil {
		return plugins.SetUpResult{}, err
	}
	if m.size > 0 {
		result.Size = resource.NewQuantity(m.size, resource.BinarySI)
	}
	return result, p.makeMount(ctx, req, m)
}

// makeFolder costs two system calls: the folder is made with mode 0, which no
// umask can cut, and gets its mode when all else is done.
func (p *Plugin) makeFolder(ctx context.Context, req plugins.SetUpRequest, r rights) error {
	switch err := os.Mkdir(req.Path, 0); {
	case errors.Is(err, fs.ErrExist):
		return p.keepFolder(ctx, req, r)
	case err != nil:
		return plugins.Transient(err)
	}
	if err := p.host.Faults.At(FaultFolder); err != nil {
		return plugins.Uncertain(err)
	}
	if err := finish(req.Path, r); err != nil {
		return p.withdraw(ctx, req.Path, err)
	}
	return nil
}

// finish gives a folder its group and its mode, the mode last.
func finish(path string, r rights) error {
	if r.group != nil {
		if err := os.Chown(path, -1, int(*r.group)); err != nil {
			return plugins.Unsupportedf("give the volume to the pod's fsGroup %d: %w", *r.group, err)
		}
	}
	if err := os.Chmod(path, r.mode); err != nil {
		return plugins.Transient(err)
	}
	return nil
}

// keepFolder checks what is at the target and finishes it where an earlier
// call did not.
func (p *Plugin) keepFolder(ctx context.Context, req plugins.SetUpRequest, r rights) error {
	point, err := p.host.Mounter.Inspect(ctx, req.Path)
	switch {
	case err != nil:
		return plugins.Uncertain(err)
	case point.Mounted:
		return plugins.Uncertain(fmt.Errorf("a mount (%s) lies on %s, where a plain folder belongs", describe(point), req.Path))
	case !point.IsDir:
		return plugins.Uncertain(fmt.Errorf("%s is no folder", req.Path))
	}
	info, err := os.Lstat(req.Path)
	if err != nil {
		return plugins.Uncertain(err)
	}
	const all = fs.ModePerm | fs.ModeSticky | fs.ModeSetgid
	if (req.Again && !unfinished(req.Path, info)) || (r.group == nil && info.Mode()&all == r.mode) {
		return nil
	}
	if err := finish(req.Path, r); err != nil {
		return plugins.Uncertain(err)
	}
	return nil
}

// unfinished tells a folder that makeFolder had no time to finish from one
// that its user has closed: that one is not empty.
func unfinished(path string, info fs.FileInfo) bool {
	if info.Mode().Perm() != 0 {
		return false
	}
	list, err := os.ReadDir(path)
	return err != nil || len(list) == 0
}

// system is a file system to be mounted.
type system struct {
	fsType string
	data   []string
	size   int64
	// after is what mount options cannot express.
	after *rights
}

// fileSystem says what has to be mounted for a medium that is none of the
// disk's. tmpfs(5): size, mode and gid are those of the root folder, from the
// first moment; noswap keeps the content out of the swap (mounters drop it
// where the kernel refuses it). Like the kubelet's, the mount takes no nosuid,
// nodev or noexec: what containers may do is for the runtime to say.
func (p *Plugin) fileSystem(ctx context.Context, s source, req plugins.SetUpRequest) (system, error) {
	r := s.rights(req.Params)
	m := system{fsType: "tmpfs", data: []string{"mode=" + strconv.FormatUint(uint64(modeBits(r.mode)), 8)}}
	if r.group != nil {
		m.data = append(m.data, "gid="+strconv.FormatInt(*r.group, 10))
	}
	if s.medium == memory {
		size, err := p.memorySize(ctx, s, req.Object)
		if err != nil {
			return system{}, err
		}
		if m.size = size; size > 0 {
			m.data = append(m.data, "size="+strconv.FormatInt(size, 10))
		}
		m.data = append(m.data, "noswap")
		return m, nil
	}
	page, err := pageSize(s, req.Object)
	if err != nil {
		return system{}, err
	}
	if err := p.checkPages(page); err != nil {
		return system{}, err
	}
	m.fsType = "hugetlbfs"
	m.data = append(m.data, "pagesize="+strconv.FormatInt(page.Value(), 10))
	if r.mode&fs.ModeSetgid != 0 { // hugetlbfs cuts this bit from mode=
		m.after = &r
	}
	return m, nil
}

// makeMount mounts m on the target, unless it is there already.
func (p *Plugin) makeMount(ctx context.Context, req plugins.SetUpRequest, m system) error {
	switch err := os.Mkdir(req.Path, 0o750); {
	case errors.Is(err, fs.ErrExist):
		point, err := p.host.Mounter.Inspect(ctx, req.Path)
		switch {
		case err != nil:
			return plugins.Uncertain(err)
		case point.Mounted && point.FSType == m.fsType && point.Corrupt == nil:
			return nil
		case point.Mounted:
			return plugins.Uncertain(fmt.Errorf("a mount (%s) lies on %s, where %s belongs", describe(point), req.Path, m.fsType))
		case !point.IsDir:
			return plugins.Uncertain(fmt.Errorf("%s is no folder", req.Path))
		}
	case err != nil:
		return plugins.Transient(err)
	}
	if err := p.host.Faults.At(FaultFolder); err != nil {
		return plugins.Uncertain(err)
	}
	err := p.host.Mounter.Mount(ctx, mount.Mount{
		Source: m.fsType, Target: req.Path, FSType: m.fsType, Options: mount.Options{Data: m.data},
	})
	if err != nil {
		return p.withdraw(ctx, req.Path, mountError(m, err))
	}
	if err := p.host.Faults.At(FaultMounted); err != nil {
		return plugins.Uncertain(err)
	}
	if m.after != nil {
		if err := finish(req.Path, *m.after); err != nil {
			return plugins.Uncertain(err)
		}
	}
	return nil
}

// mountError classifies why a file system was not mounted.
func mountError(m system, err error) error {
	err = fmt.Errorf("mount %s: %w", m.fsType, err)
	if errors.Is(err, mount.ErrUnsupported) || errors.Is(err, mount.ErrBadOption) || errors.Is(err, fs.ErrPermission) {
		return plugins.Unsupported(err)
	}
	return plugins.Transient(err)
}

// withdraw takes an empty folder away after a failure, so that nothing is left
// behind. Where that does not work, or the call was cut short, the outcome is
// uncertain.
func (p *Plugin) withdraw(ctx context.Context, path string, cause error) error {
	if ctx.Err() != nil {
		return plugins.Uncertain(cause)
	}
	point, err := p.host.Mounter.Inspect(ctx, path)
	if err != nil || point.Mounted {
		return plugins.Uncertain(cause)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return plugins.Uncertain(cause)
	}
	return cause
}

// describe names a mount for a message.
func describe(p mount.Point) string {
	switch {
	case p.Corrupt != nil:
		return "dead: " + p.Corrupt.Error()
	case p.FSType != "":
		return p.FSType
	}
	return "of another kind"
}
