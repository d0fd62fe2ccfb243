package csitest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// attempts at a free loop device: others take them too.
const attempts = 64

// openLoop gives a file a loop device, which is freed with its last user if
// autoclear is set, even when the driver is killed.
func openLoop(path string, readonly, autoclear bool) (device *os.File, err error) {
	mode := os.O_RDWR
	var flags uint32
	if readonly {
		mode, flags = os.O_RDONLY, flags|unix.LO_FLAGS_READ_ONLY
	}
	if autoclear {
		flags |= unix.LO_FLAGS_AUTOCLEAR
	}
	image, err := os.OpenFile(path, mode, 0)
	if err != nil {
		return nil, err
	}
	defer image.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: flags}} //nolint:gosec // a descriptor
	copy(config.Info.File_name[:len(config.Info.File_name)-1], filepath.Base(path))
	for range attempts {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		name := fmt.Sprintf("/dev/loop%d", n)
		if err := ensureNode(name, n); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(name, mode, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(f.Fd()), &config)
		if err == nil {
			return f, nil
		}
		_ = f.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("configure %s: %w", name, err)
		}
	}
	return nil, errors.New("no loop device is to be had")
}

// ensureNode makes a device node where nobody else does.
func ensureNode(name string, minor int) error {
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := unix.Mknod(name, unix.S_IFBLK|0o660, int(unix.Mkdev(7, uint32(minor)))) //nolint:gosec // small numbers
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// attachDevice gives a file a loop device that stays until it is detached.
func attachDevice(path string, readonly bool) (string, error) {
	f, err := openLoop(path, readonly, false)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return f.Name(), nil
}

// devicesOf are the loop devices of a file, those for reading only last.
func devicesOf(path string) ([]string, error) {
	var image unix.Stat_t
	if err := unix.Stat(path, &image); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	// Only devices with a file have this one.
	bound, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var writable, readonly []string
	for _, b := range bound {
		name := "/dev/" + strings.Split(b, "/")[3]
		info, ok := loopInfo(name)
		if !ok || info.Device != image.Dev || info.Inode != image.Ino {
			continue
		}
		if info.Flags&unix.LO_FLAGS_READ_ONLY != 0 {
			readonly = append(readonly, name)
		} else {
			writable = append(writable, name)
		}
	}
	return append(writable, readonly...), nil
}

// openBound opens the device that a file has, nil if it has none.
func openBound(path string) (*os.File, error) {
	devices, err := devicesOf(path)
	if err != nil || len(devices) == 0 {
		return nil, err
	}
	f, err := os.OpenFile(devices[0], os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if _, err := unix.IoctlLoopGetStatus64(int(f.Fd())); err != nil {
		_ = f.Close()
		return nil, nil // it was freed just now
	}
	return f, nil
}

// loopInfo asks a loop device; ok is false if it has no file any more.
func loopInfo(name string) (info *unix.LoopInfo64, ok bool) {
	f, err := os.Open(name)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	info, err = unix.IoctlLoopGetStatus64(int(f.Fd()))
	return info, err == nil
}

// detachDevice frees a device, if it is still the file's.
func detachDevice(path, device string) error {
	devices, err := devicesOf(path)
	if err != nil || !slices.Contains(devices, device) {
		return err
	}
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := unix.IoctlRetInt(int(f.Fd()), unix.LOOP_CLR_FD); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("detach %s: %w", device, err)
	}
	return nil
}

// growDevice makes a device as big as its file has become.
func growDevice(device string) error {
	f, err := os.Open(device)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("grow %s: %w", device, err)
	}
	return nil
}

// mountDevice mounts the file system in a file by a loop device that goes with
// its last mount. A device that is there is used again: two devices with one
// file would be two file systems that ruin each other.
func mountDevice(path, target, kind string, o mountOptions) error {
	device, err := openBound(path)
	if err == nil && device == nil {
		device, err = openLoop(path, false, true)
	}
	if err != nil {
		return err
	}
	defer device.Close()
	return mountNew(device.Name(), target, kind, o.flags, o.data)
}

// makeNode makes a device node of the same device.
func makeNode(device, path string) error {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: device, Err: err}
	}
	err := unix.Mknod(path, unix.S_IFBLK|0o660, int(st.Rdev)) //nolint:gosec // a device number
	if err != nil {
		return &fs.PathError{Op: "mknod", Path: path, Err: err}
	}
	return nil
}

// lookAt says what is in an image: a file system by its magic number, or
// nothing ever written.
func lookAt(path string) (kind string, empty bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", false, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Blocks == 0 {
		return "", true, nil
	}
	head := make([]byte, 2048)
	if _, err := f.ReadAt(head, 0); err != nil {
		return "", false, err
	}
	switch {
	case string(head[:4]) == "XFSB":
		return "xfs", false, nil
	case head[1080] == 0x53 && head[1081] == 0xEF:
		return "ext4", false, nil
	default:
		return "", false, nil
	}
}

// makeFileSystem runs mkfs on an image, whatever is in it.
func makeFileSystem(kind, path string) error {
	switch kind {
	case "ext4":
		return run("mkfs.ext4", "-F", "-q", "-E", "lazy_itable_init=1,lazy_journal_init=1", path)
	case "xfs":
		return run("mkfs.xfs", "-f", "-q", path)
	default:
		return invalid("fs_type %q is not supported", kind)
	}
}

// growFileSystem makes a mounted file system as big as its device.
func growFileSystem(kind, device, path string) error {
	if kind == "xfs" {
		return run("xfs_growfs", path)
	}
	return run("resize2fs", device)
}

// run runs a program to its end: it is not to be left half done when a caller
// gives up.
func run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput() //nolint:gosec,noctx // fixed names
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
