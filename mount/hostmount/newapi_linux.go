package hostmount

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/mount"
)

// errNoNewAPI says that the kernel, or a system call filter, keeps the new
// mount API from us: mount(2) has to do.
var errNoNewAPI = errors.New("no fsopen")

// maxParam is the longest value that fsconfig(2) takes.
const maxParam = 255

// mountFS mounts a file system at its target.
func (m *Mounter) mountFS(r request) error {
	if m.options.Classic || m.host.noFsopen.Load() || !r.fits() {
		return m.classicFS(r)
	}
	fd, err := m.fsmount(r)
	if errors.Is(err, errNoNewAPI) {
		return m.classicFS(r)
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return moveMount(fd, r.Target)
}

// fits reports whether every option can be said by fsconfig(2).
func (r *request) fits() bool {
	for _, p := range r.params {
		if len(p.value) > maxParam || len(p.key) > maxParam || (!p.flag && p.value == "") {
			return false
		}
	}
	return len(r.Source) <= maxParam
}

// fsmount makes a mount that is attached nowhere.
func (m *Mounter) fsmount(r request) (fd int, err error) {
	fs, err := unix.Fsopen(r.FSType, unix.FSOPEN_CLOEXEC)
	switch {
	case err == nil:
	case errors.Is(err, unix.ENOSYS):
		m.host.noFsopen.Store(true)
		return -1, errNoNewAPI
	case errors.Is(err, unix.EPERM): // a filter may say so too, and mount(2) will tell
		return -1, errNoNewAPI
	case errors.Is(err, unix.ENODEV):
		return -1, fmt.Errorf("%w: fsopen: unknown file system: %w", mount.ErrUnsupported, err)
	default:
		return -1, step("fsopen", err)
	}
	defer func() { _ = unix.Close(fs) }()
	if err := m.configure(fs, r); err != nil {
		return -1, withMessage(fs, err, r.Options)
	}
	fd, err = unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, int(r.attrs)) //nolint:gosec // small flags
	if err != nil {
		return -1, withMessage(fs, step("fsmount", err), r.Options)
	}
	return fd, nil
}

// configure gives a file system context its options and makes the superblock.
func (m *Mounter) configure(fs int, r request) error {
	if err := unix.FsconfigSetString(fs, "source", r.Source); err != nil {
		return step("set source", err)
	}
	for _, word := range r.superWords() {
		if err := unix.FsconfigSetFlag(fs, word); err != nil {
			return badOption(word, err)
		}
	}
	for _, p := range r.params {
		if p.wished && m.host.noSwapRefused.Load() {
			continue
		}
		err := p.apply(fs)
		if p.wished && errors.Is(err, unix.EINVAL) {
			m.host.noSwapRefused.Store(true)
			continue
		}
		if err != nil {
			return badOption(p.key, err)
		}
	}
	if err := retry(func() error { return unix.FsconfigCreate(fs) }); err != nil {
		return step("create superblock", err)
	}
	return nil
}

func (r *request) superWords() []string {
	if r.attrs&unix.MOUNT_ATTR_RDONLY != 0 {
		return append([]string{"ro"}, r.words...)
	}
	return r.words
}

func (p param) apply(fs int) error {
	if p.flag {
		return unix.FsconfigSetFlag(fs, p.key)
	}
	return unix.FsconfigSetString(fs, p.key, p.value)
}

func badOption(key string, err error) error {
	if errors.Is(err, unix.EPERM) {
		return step("option "+key, err)
	}
	return fmt.Errorf("%w: %s: %w", mount.ErrBadOption, key, err)
}

// withMessage adds what the kernel wrote about the failure (fsopen(2)).
func withMessage(fs int, err error, o mount.Options) error {
	var said []string
	buf := make([]byte, 1024)
	for range 16 {
		n, readErr := unix.Read(fs, buf)
		if readErr != nil || n <= 0 {
			break
		}
		line := strings.TrimSpace(string(buf[:n]))
		if len(line) > 2 && line[1] == ' ' {
			line = line[2:] // the letter tells error, warning and info apart
		}
		said = append(said, scrub(line, o))
	}
	if len(said) == 0 {
		return err
	}
	return fmt.Errorf("%w (%s)", err, strings.Join(said, "; "))
}

// bind makes a tree visible a second time. Without flags mount(2) does it in
// one step, and in half the time.
func (m *Mounter) bind(r request) error {
	if m.options.Classic || m.host.noFsopen.Load() || r.attrs|r.clear == 0 {
		return m.classicBind(r)
	}
	err := m.cloneTree(r)
	if errors.Is(err, errNoNewAPI) {
		return m.classicBind(r)
	}
	return err
}

func (m *Mounter) cloneTree(r request) error {
	if m.host.noSetattr.Load() {
		return errNoNewAPI
	}
	var deep uint
	if r.Options.Recursive {
		deep = unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, r.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|deep)
	switch {
	case err == nil:
	case errors.Is(err, unix.ENOSYS):
		m.host.noFsopen.Store(true)
		return errNoNewAPI
	case errors.Is(err, unix.EPERM):
		return errNoNewAPI
	default:
		return fmt.Errorf("source: %w", step("open_tree", err))
	}
	defer func() { _ = unix.Close(fd) }()
	attr := unix.MountAttr{Attr_set: r.attrs, Attr_clr: r.clear}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|deep, &attr)
	switch {
	case err == nil:
		return moveMount(fd, r.Target)
	case errors.Is(err, unix.ENOSYS):
		m.host.noSetattr.Store(true)
		return errNoNewAPI
	case errors.Is(err, unix.EINVAL): // a flag that this kernel knows in mount(2) alone
		return errNoNewAPI
	}
	return step("mount_setattr", err)
}

// moveMount attaches a detached mount. The target is not followed if it is a
// symbolic link.
func moveMount(fd int, target string) error {
	flags := unix.MOVE_MOUNT_F_EMPTY_PATH
	if byDescriptor(target) {
		flags |= unix.MOVE_MOUNT_T_SYMLINKS
	}
	if err := retry(func() error { return unix.MoveMount(fd, "", unix.AT_FDCWD, target, flags) }); err != nil {
		return step("move_mount", err)
	}
	return nil
}
