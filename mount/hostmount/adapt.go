package hostmount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	mountutils "k8s.io/mount-utils"

	"github.com/volumekit/volumekit/mount"
)

var (
	_ mount.Mounter        = (*Adapted)(nil)
	_ mountutils.Interface = (*MountUtils)(nil)
)

// forceTimeout is how long mount-utils waits for a normal unmount before it
// forces one.
const forceTimeout = 10 * time.Second

// Adapted makes a mounter of k8s.io/mount-utils one of package mount. What
// such a mounter cannot do is lost:
//
//   - A call is waited for, whatever its context; only the time before it
//     starts is cut short.
//   - Flags of a bind mount hold a moment after it became visible, and those of
//     a recursive one for its top alone.
//   - There is no lazy unmount: it gives [mount.ErrUnsupported].
//   - Errors have no class: "not mounted" is found out by looking before, and
//     a busy mount cannot be told from another failure.
//   - Inspect reads the whole mount table and gives no ids and no propagation.
//
// RemoveAll looks into the table of the adapted mounter, and then removes as
// the mounter of this machine does.
type Adapted struct {
	inner mountutils.Interface
	host  *Mounter
}

// FromMountUtils adapts a mounter of mount-utils, for example one that enters
// another mount namespace.
func FromMountUtils(inner mountutils.Interface) *Adapted {
	return &Adapted{inner: inner, host: New(Options{})}
}

// Unwrap returns the adapted mounter.
func (a *Adapted) Unwrap() mountutils.Interface { return a.inner }

// Mount implements [mount.Mounter].
func (a *Adapted) Mount(ctx context.Context, m mount.Mount) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	options := m.Options.Strings()
	var err error
	if !m.Options.Bind || !m.Options.Recursive {
		err = a.inner.MountSensitive(m.Source, m.Target, m.FSType, options, m.Options.Sensitive)
	} else {
		err = a.inner.Mount(m.Source, m.Target, "", []string{"rbind"})
		flags := slices.DeleteFunc(options, func(o string) bool { return o == "rbind" })
		if err == nil && len(flags) > 0 {
			if err = a.inner.Mount("", m.Target, "", append([]string{"remount", "rbind"}, flags...)); err != nil {
				err = errors.Join(err, a.inner.Unmount(m.Target))
			}
		}
	}
	if err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.Source, m.Target, hide(err, m.Options))
	}
	return nil
}

// hide takes sensitive options out of an error's text if they are in it.
func hide(err error, o mount.Options) error {
	if text := scrub(err.Error(), o); text != err.Error() {
		return errors.New(text)
	}
	return err
}

// Unmount implements [mount.Mounter].
func (a *Adapted) Unmount(ctx context.Context, target string, how mount.UnmountOptions) error {
	p, err := a.Inspect(ctx, target)
	switch {
	case err != nil:
		return err
	case !p.Mounted:
		return fmt.Errorf("unmount %s: %w", target, mount.ErrNotMounted)
	case how.Lazy:
		return fmt.Errorf("unmount %s lazily by mount-utils: %w", target, mount.ErrUnsupported)
	}
	if forcer, ok := a.inner.(mountutils.MounterForceUnmounter); ok && how.Force {
		return forcer.UnmountWithForce(target, forceTimeout)
	}
	return a.inner.Unmount(target)
}

// Inspect implements [mount.Mounter].
func (a *Adapted) Inspect(ctx context.Context, path string) (mount.Point, error) {
	table, err := a.Table(ctx)
	if err != nil {
		return mount.Point{}, err
	}
	e, mounted := table.At(filepath.Clean(path))
	p := mount.Point{Mounted: mounted, FSType: e.FSType, ReadOnly: e.ReadOnly}
	info, err := os.Lstat(path)
	switch {
	case err == nil:
		p.Exists, p.IsDir = true, info.IsDir()
	case errors.Is(err, fs.ErrNotExist):
		p.Exists = mounted
	case mounted && mountutils.IsCorruptedMnt(err):
		p.Exists, p.Corrupt = true, err
	default:
		return mount.Point{}, fmt.Errorf("inspect: %w", err)
	}
	return p, nil
}

// Table implements [mount.Mounter]. It is read anew each time.
func (a *Adapted) Table(ctx context.Context) (mount.Table, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	points, err := a.inner.List()
	if err != nil {
		return nil, fmt.Errorf("mount table: %w", err)
	}
	table := make(mount.Table, 0, len(points))
	for _, p := range points {
		table = append(table, mount.Entry{
			Target: p.Path, Source: p.Device, FSType: p.Type, ReadOnly: slices.Contains(p.Opts, "ro"),
		})
	}
	return table, nil
}

// RemoveAll implements [mount.Mounter].
func (a *Adapted) RemoveAll(ctx context.Context, path string) error {
	table, err := a.Table(ctx)
	if err != nil {
		return err
	}
	for _, e := range table {
		if mount.Inside(path, e.Target) {
			return fmt.Errorf("remove %s: %w: %s: %w", path, mount.ErrCrossesMount, e.Target, mount.ErrBusy)
		}
	}
	return a.host.RemoveAll(ctx, path)
}

// MountUtils makes a [mount.Mounter] a mounter of k8s.io/mount-utils, for
// libraries that want one. What that interface cannot say is lost: it has no
// contexts, so that all calls take theirs from the function given to
// [ToMountUtils]; a remount, and flags for mount(8) itself, give
// [mount.ErrUnsupported], since flags are given with the mount.
type MountUtils struct {
	ctx   func() context.Context
	inner mount.Mounter
}

// ToMountUtils adapts a mounter. ctx is asked at the start of each call.
func ToMountUtils(ctx func() context.Context, inner mount.Mounter) *MountUtils {
	return &MountUtils{ctx: ctx, inner: inner}
}

// Unwrap returns the adapted mounter.
func (u *MountUtils) Unwrap() mount.Mounter { return u.inner }

// Mount implements mount-utils' Interface.
func (u *MountUtils) Mount(source, target, fstype string, options []string) error {
	return u.MountSensitive(source, target, fstype, options, nil)
}

// MountSensitive implements mount-utils' Interface.
func (u *MountUtils) MountSensitive(source, target, fstype string, options, sensitive []string) error {
	o, err := mount.ParseOptions(options)
	if err != nil {
		return err
	}
	if slices.Contains(o.Data, "remount") {
		return fmt.Errorf("remount of %s: %w", target, mount.ErrUnsupported)
	}
	o.Sensitive = sensitive
	if o.Bind { // mount(8) ignores the type then
		fstype = ""
	}
	return u.inner.Mount(u.ctx(), mount.Mount{Source: source, Target: target, FSType: fstype, Options: o})
}

// MountSensitiveWithoutSystemd implements mount-utils' Interface, as
// MountSensitive.
func (u *MountUtils) MountSensitiveWithoutSystemd(source, target, fstype string, options, sensitive []string) error {
	return u.MountSensitive(source, target, fstype, options, sensitive)
}

// MountSensitiveWithoutSystemdWithMountFlags implements mount-utils' Interface.
// Of the flags it knows none.
func (u *MountUtils) MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype string, options, sensitive, flags []string) error {
	if len(flags) > 0 {
		return fmt.Errorf("flags for mount(8): %w", mount.ErrUnsupported)
	}
	return u.MountSensitive(source, target, fstype, options, sensitive)
}

// Unmount implements mount-utils' Interface.
func (u *MountUtils) Unmount(target string) error {
	return u.inner.Unmount(u.ctx(), target, mount.UnmountOptions{})
}

// List implements mount-utils' Interface.
func (u *MountUtils) List() ([]mountutils.MountPoint, error) {
	table, err := u.inner.Table(u.ctx())
	if err != nil {
		return nil, err
	}
	list := make([]mountutils.MountPoint, 0, len(table))
	for _, e := range table {
		opts := []string{"rw"}
		if e.ReadOnly {
			opts[0] = "ro"
		}
		list = append(list, mountutils.MountPoint{Device: e.Source, Path: e.Target, Type: e.FSType, Opts: opts})
	}
	return list, nil
}

// IsLikelyNotMountPoint implements mount-utils' Interface. It is never wrong.
func (u *MountUtils) IsLikelyNotMountPoint(file string) (bool, error) {
	mounted, err := u.IsMountPoint(file)
	return !mounted, err
}

// CanSafelySkipMountPointCheck implements mount-utils' Interface: an unmount of
// what is no mount is an error here.
func (u *MountUtils) CanSafelySkipMountPointCheck() bool { return false }

// IsMountPoint implements mount-utils' Interface. Symbolic links are followed,
// as it wants.
func (u *MountUtils) IsMountPoint(file string) (bool, error) {
	if resolved, err := filepath.EvalSymlinks(file); err == nil {
		file = resolved
	}
	p, err := u.inner.Inspect(u.ctx(), file)
	switch {
	case err != nil:
		return false, err
	case !p.Exists:
		return false, &fs.PathError{Op: "stat", Path: file, Err: fs.ErrNotExist}
	case p.Corrupt != nil:
		return true, &fs.PathError{Op: "stat", Path: file, Err: p.Corrupt}
	}
	return p.Mounted, nil
}

// GetMountRefs implements mount-utils' Interface: the other mounts of what is
// mounted at a path.
func (u *MountUtils) GetMountRefs(pathname string) ([]string, error) {
	if resolved, err := filepath.EvalSymlinks(pathname); err == nil {
		pathname = resolved
	}
	table, err := u.inner.Table(u.ctx())
	if err != nil {
		return nil, err
	}
	e, ok := table.At(pathname)
	if !ok {
		return nil, nil
	}
	var refs []string
	for _, other := range table {
		if other.Device == e.Device && other.Root == e.Root && other.Target != e.Target {
			refs = append(refs, other.Target)
		}
	}
	return refs, nil
}
