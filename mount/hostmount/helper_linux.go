package hostmount

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	mountutils "k8s.io/mount-utils"

	"github.com/volumekit/volumekit/mount"
)

// needsHelper reports whether a file system is mounted by a program: it is one
// of those that always are, or the system has a program for it, or an option
// asks for what only mount(8) does.
func needsHelper(m mount.Mount) bool {
	base, _, sub := strings.Cut(m.FSType, ".") // fuse.sshfs
	switch base {
	case "tmpfs", "hugetlbfs", "proc", "sysfs", "overlay", "ramfs", "devpts", "mqueue", "cgroup2", "bpf":
		return false
	case "nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "fuse", "fuseblk":
		return true
	}
	for _, word := range m.Options.Data {
		if word == "loop" || strings.HasPrefix(word, "loop=") {
			return true
		}
	}
	return sub || hasProgram(m.FSType)
}

func hasProgram(fstype string) bool {
	for _, dir := range []string{"/sbin", "/usr/sbin"} {
		if _, err := os.Stat(filepath.Join(dir, "mount."+fstype)); err == nil {
			return true
		}
	}
	return false
}

// helper mounts by a program.
func (m *Mounter) helper(ctx context.Context, mt mount.Mount) error {
	for _, word := range slices.Concat(mt.Options.Data, mt.Options.Sensitive) {
		if bareComma(word) { // would be two options
			key, _, _ := strings.Cut(word, "=")
			return fmt.Errorf("%w: the value of %s holds a comma", mount.ErrBadOption, key)
		}
	}
	if m.options.Helper != nil {
		err := m.options.Helper.MountSensitive(mt.Source, mt.Target, mt.FSType, mt.Options.Strings(), mt.Options.Sensitive)
		if err != nil {
			return errors.New(scrub(err.Error(), mt.Options))
		}
		return nil
	}
	before, err := m.Inspect(ctx, mt.Target)
	if err != nil {
		return err
	}
	if !before.Exists {
		return fmt.Errorf("target: %w", unix.ENOENT)
	}
	if err := m.runMount(ctx, mt); err != nil {
		return errors.Join(err, m.undoHelper(ctx, mt.Target, before))
	}
	return nil
}

// bareComma reports whether a word holds a comma outside of double quotes.
func bareComma(word string) bool {
	quoted := false
	for _, c := range word {
		if c == '"' {
			quoted = !quoted
		}
		if c == ',' && !quoted {
			return true
		}
	}
	return quoted
}

// undoHelper takes away what a program mounted before it failed or was
// stopped.
func (m *Mounter) undoHelper(ctx context.Context, target string, before mount.Point) error {
	after, err := m.Inspect(context.WithoutCancel(ctx), target)
	if err != nil || !after.Mounted || before.MountID == 0 || after.MountID == before.MountID {
		return err
	}
	return retry(func() error { return unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
}

// runMount runs mount(8) in a process group of its own, and ends the group
// with the context. Where systemd runs, it runs in a scope of its own, so that
// a FUSE daemon outlives the service that started it.
//
// Sensitive options stand on the command line of mount(8), as there is no
// other way to pass them; root can read them there while it runs.
func (m *Mounter) runMount(ctx context.Context, mt mount.Mount) error {
	args := mountutils.MakeMountArgs(mt.Source, mt.Target, mt.FSType, append(mt.Options.Strings(), mt.Options.Sensitive...))
	command := "mount"
	if m.hasSystemd(ctx) {
		command, args = mountutils.AddSystemdScope("systemd-run", mt.Target, command, args)
	}
	out, err := runGroup(ctx, command, args...)
	if err == nil {
		return nil
	}
	out = scrub(strings.TrimSpace(out), mt.Options)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	var exit *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrNotFound), out != "" && errors.As(err, &exit) && strings.Contains(out, "unknown filesystem type"):
		return fmt.Errorf("%w: %s: %w: %s", mount.ErrUnsupported, command, err, out)
	case out == "":
		return fmt.Errorf("%s: %w", command, err)
	}
	return fmt.Errorf("%s: %w: %s", command, err, out)
}

// runGroup runs a program in a process group that ends with ctx and returns
// the beginning of what it wrote.
func runGroup(ctx context.Context, name string, args ...string) (string, error) {
	var out head
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second // a daemon may have kept the pipe
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil {
		err = nil
	}
	return out.String(), err
}

// head keeps the first part of what is written to it.
type head struct{ buf bytes.Buffer }

func (h *head) String() string { return h.buf.String() }

// Write implements io.Writer and never fails.
func (h *head) Write(p []byte) (int, error) {
	if room := 4096 - h.buf.Len(); room > 0 {
		h.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// Answers of systemd-run, kept in host.systemd.
const (
	systemdYes = 1
	systemdNo  = 2
)

// hasSystemd finds out once whether a program can be started in a scope.
func (m *Mounter) hasSystemd(ctx context.Context) bool {
	if known := m.host.systemd.Load(); known != 0 {
		return known == systemdYes
	}
	answer := int32(systemdNo)
	if _, err := os.Stat("/run/systemd/system"); err == nil {
		if _, err := runGroup(ctx, "systemd-run", "--description=volumekit probe", "--scope", "--", "true"); err == nil {
			answer = systemdYes
		} else if ctx.Err() != nil {
			return false
		}
	}
	m.host.systemd.Store(answer)
	return answer == systemdYes
}
