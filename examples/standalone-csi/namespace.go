//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// command is the outermost process. It makes a folder, has the show run in
// private namespaces, and removes the folder, which is empty for those outside.
func command(mode string) (err error) {
	ctx, stop := interruptible()
	defer stop()
	dir, err := os.MkdirTemp("", "standalone-csi-")
	if err == nil {
		defer func() { _ = os.Remove(dir) }()
		if dir, err = filepath.EvalSymlinks(dir); err == nil {
			dir, err = filepath.Abs(dir)
		}
	}
	if err != nil {
		return fmt.Errorf("make a temporary folder (TMPDIR names where): %w", err)
	}
	runtime.LockOSThread() // a child's death signal comes when the thread ends that started it
	defer runtime.UnlockOSThread()
	err = syscall.EPERM
	if os.Geteuid() == 0 {
		err = private(ctx, dir, mode, syscall.CLONE_NEWNS)
	}
	if errors.Is(err, syscall.EPERM) {
		err = private(ctx, dir, mode, syscall.CLONE_NEWNS|syscall.CLONE_NEWUSER)
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case errors.As(err, &exit) && !exit.Exited():
		return fmt.Errorf("the process in the private namespace: %w", err)
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EACCES):
		return fmt.Errorf("no private mount namespace: %w\nRun this as root, or let ordinary users have user namespaces (sysctl user.max_user_namespaces,"+
			"\nkernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns); a container needs CAP_SYS_ADMIN", err)
	}
	return err
}

// private runs the show in namespaces of its own. Should this process die, the
// show ends as with Ctrl-C.
func private(ctx context.Context, dir, mode string, namespaces uintptr) error {
	cmd := again(ctx, roleShow, dir, mode)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
	cmd.SysProcAttr.Cloneflags = namespaces
	if namespaces&syscall.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	return cmd.Run()
}

// inside is the show's process: the stage is a tmpfs in dir that is a shared
// mount, as a node's folder of pods is.
func inside(dir, mode string) (err error) {
	interrupted, stop := interruptible()
	defer stop()
	limited, end := context.WithTimeoutCause(interrupted, limit, fmt.Errorf("not done within %v", limit))
	defer end()
	ctx, cancel := context.WithCancelCause(limited)
	defer cancel(nil)
	runtime.LockOSThread()
	defer func() { _ = os.Remove(dir) }() // the command does it, unless it is gone
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	if err := syscall.Mount("standalone-csi", dir, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	// It goes with all that may be mounted below, if it is not gone already.
	defer func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }()
	if err := syscall.Mount("", dir, "", syscall.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make it a shared mount: %w", err)
	}
	if mode, err = choose(mode); err != nil {
		return err
	}
	s := newShow(dir, mode, cancel)
	err = s.run(ctx)
	s.end()
	switch {
	case interrupted.Err() != nil:
		err = errors.New("interrupted")
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err == nil:
		// The kernel refuses this while anything is mounted or open there.
		if err = syscall.Unmount(dir, 0); err != nil {
			err = fmt.Errorf("something still uses %s: %w", dir, err)
		}
	}
	return err
}

// choose returns the first mode that is possible, or checks the one that is
// wanted.
func choose(wanted string) (mode string, err error) {
	for _, mode = range []string{"ext4", "xfs", "tmpfs", "bind"} {
		if wanted != "" && wanted != mode {
			continue
		}
		if err = possible(mode); err == nil || wanted != "" {
			break
		}
	}
	return mode, err
}

// possible says why a mode does not work for this user or on this machine.
func possible(mode string) error {
	tools, device := map[string][]string{"ext4": {"mkfs.ext4", "resize2fs"}, "xfs": {"mkfs.xfs", "xfs_growfs"}}[mode]
	if !device {
		return nil
	}
	if ids, _ := os.ReadFile("/proc/self/uid_map"); !bytes.Contains(ids, []byte(" 4294967295")) {
		return fmt.Errorf("mode %s: loop devices are for the machine's root", mode)
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return fmt.Errorf("mode %s: no loop devices: %w", mode, err)
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("mode %s: %w", mode, err)
		}
	}
	var has [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &has[0])
	if err == nil && mode == "ext4" && has[0].Effective&(1<<unix.CAP_SYS_RESOURCE) == 0 {
		err = errors.New("mode ext4: without CAP_SYS_RESOURCE it cannot grow while it is mounted; xfs can")
	}
	return err
}
