package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// Three processes share the work, so that a killed agent finds its mounts
// again:
//
//	the command ──► keeper, in private namespaces ──► agent
//
// The keeper does nothing but keep the namespaces alive and start the agent
// again when it was killed.

const roleVariable = "VOLUMEKIT_QUICKSTART_ROLE"

// split runs this program again in a private mount namespace, and for an
// ordinary user in a user namespace of its own. done is false in the agent
// itself.
func splitProcess() (code int, done bool) {
	switch os.Getenv(roleVariable) {
	case "agent":
		return 0, false
	case "keeper":
		return keep(), true
	}
	cmd := again("keeper")
	cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	code, err := runChild(cmd)
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart: no private mount namespace:", err)
		if os.Geteuid() != 0 {
			fmt.Fprintln(os.Stderr, "This kernel or its settings (user.max_user_namespaces, AppArmor) forbid user namespaces to ordinary users; try as root.")
		}
		return 1, true
	}
	return code, true
}

// keep starts the agent, and starts it again whenever it was killed.
func keep() int {
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart: keep mounts private:", err)
		return 1
	}
	for {
		began := time.Now()
		code, err := runChild(again("agent"))
		if err != nil {
			fmt.Fprintln(os.Stderr, "quickstart:", err)
			return 1
		}
		if code != killed {
			return code
		}
		fmt.Println("The agent was killed. Its mounts are still there; starting it again.")
		time.Sleep(max(0, 200*time.Millisecond-time.Since(began)))
	}
}

// killed is the exit code that stands for SIGKILL.
const killed = 128 + int(syscall.SIGKILL)

func again(role string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return cmd
}

// runChild runs cmd and hands signals on to it. The terminal sends Ctrl-C to
// all processes of the group by itself.
func runChild(cmd *exec.Cmd) (code int, err error) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			if s != os.Interrupt || !inForeground() {
				_ = cmd.Process.Signal(s)
			}
		case err := <-ended:
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
					return 128 + int(status.Signal()), nil
				}
				return exit.ExitCode(), nil
			}
			return 0, err
		}
	}
}

// inForeground reports whether a terminal sends Ctrl-C to the child as well.
func inForeground() bool {
	f, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	return f.Close() == nil
}
