package nstest

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"syscall"
)

// reexec runs the binary again in private namespaces and returns its exit
// code. done is false if this process has to run the tests itself.
func reexec() (code int, done bool) {
	// A fuzz worker is driven over inherited descriptors.
	if slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.fuzz") }) {
		_ = os.Setenv(inside, "fuzzing runs without a namespace of its own")
		return 0, false
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...) //nolint:gosec,noctx // ourselves, ended by its own time-out
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=yes")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	signal.Ignore(os.Interrupt) // the child gets it too, and ends
	defer signal.Reset(os.Interrupt)
	err := cmd.Start()
	if err != nil {
		_ = os.Setenv(inside, "no private namespace: "+err.Error())
		return 0, false
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), true
	}
	if err != nil {
		return 1, true
	}
	return 0, true
}

// Dir returns a fresh folder on a tmpfs of its own whose mounts are shared
// within the test's namespace, as a kubelet's root is. When the test ends
// everything below is unmounted; a test that must leave nothing mounted checks
// that itself.
func Dir(t testing.TB) string {
	t.Helper()
	Require(t)
	dir := t.TempDir()
	if err := unix.Mount("nstest", dir, "tmpfs", 0, "mode=0755"); err != nil {
		t.Fatalf("mount tmpfs: %v", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		t.Fatalf("make shared: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// private keeps the namespace's mounts from spreading.
func private() error { return unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, "") }

func realRoot() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && os.Geteuid() == 0 && strings.Join(strings.Fields(string(text)), " ") == "0 0 4294967295"
}
