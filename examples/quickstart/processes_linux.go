package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/term"
)

// Three processes share the work, so that a killed agent finds its mounts
// again:
//
//	the command ──► keeper, in private namespaces ──► agent
//
// The keeper does nothing but keep the namespaces alive and start the agent
// again when it was killed. Each hands signals on to the next, each ends when
// the one before it is gone, and each cleans up when it ends, in case that the
// others have been killed.

// What every process inherits beyond the standard files.
const (
	// leaseFD is the end of a pipe that nobody writes to: the command knows by
	// its other end when all the others are gone.
	leaseFD = 3
	// lockFD holds the root's lock.
	lockFD = 4
)

// keepInherited keeps the programs that mount helpers start from holding them.
func keepInherited() {
	syscall.CloseOnExec(leaseFD)
	syscall.CloseOnExec(lockFD)
}

// killed is the exit code that stands for SIGKILL.
const killed = 128 + int(syscall.SIGKILL)

// command is the outermost process: it makes the folders, starts the keeper,
// and cleans up after it.
func command(o options) (code int, err error) {
	signals := subscribe() // from the start: a folder once made is removed
	syscall.Umask(0o022)   // whatever the user's: folders have to be searched
	place, err := prepare(o)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, place.cleanUp()) }()
	lock, err := lockRoot(place.Root)
	if err != nil {
		return 1, err
	}
	defer lock.Close()
	ours, theirs, err := os.Pipe()
	if err != nil {
		return 1, err
	}
	defer ours.Close()
	select {
	case <-signals:
		return 1, errors.New("interrupted")
	default:
	}
	start := starter{stage: stage{Role: roleKeeper, place: place, UID: os.Geteuid()}, files: []*os.File{theirs, lock}, signals: signals}
	code, err = start.private()
	_ = theirs.Close()
	if code == killed {
		err = errors.New("the keeper of the namespaces was killed; its agent has been told to take everything away")
	}
	return code, errors.Join(err, awaitEnd(ours, o.timeout+5*time.Second))
}

// awaitEnd waits until no other process holds the pipe.
func awaitEnd(lease *os.File, limit time.Duration) error {
	if err := lease.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if _, err := lease.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the agent has not ended within %v", limit)
	} else if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// lockRoot keeps a second quickstart out of the root for as long as any
// process of this one lives.
func lockRoot(root string) (*os.File, error) {
	f, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		_ = f.Close()
		return nil, fmt.Errorf("-root: %s is in use by another quickstart", root)
	}
	return f, nil // a file system without locks is no reason to give up
}

// keep starts the agent, and starts it again whenever it was killed.
func keep(s stage) (code int, err error) {
	parent := os.Getppid()
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		return 1, fmt.Errorf("keep mounts private: %w%s", err, adviceFor(err, s.UID))
	}
	s.Role = roleAgent
	start := starter{
		stage: s, signals: subscribe(),
		files: []*os.File{os.NewFile(leaseFD, "lease"), os.NewFile(lockFD, "lock")},
	}
	for {
		began := time.Now()
		code, err = start.again(0)
		if err != nil || code != killed {
			break
		}
		start.stage.Restarted, start.stage.Ending = true, start.interrupted
		if term.IsTerminal(1) {
			fmt.Print("\r\x1b[K")
		}
		fmt.Println("The agent was killed. Its mounts are still there; starting it again.")
		time.Sleep(max(0, 200*time.Millisecond-time.Since(began)))
	}
	return code, errors.Join(err, cleanUpInside(parent, &s.place))
}

// cleanUpInside cleans up from within the namespaces, should the processes
// outside be gone: one that was killed takes a while to be seen as dead, so
// whoever ends does this. What it leaves is left to them, and is an error only
// if they are gone for sure.
func cleanUpInside(parent int, p *place) error {
	err := removeInside(p)
	if os.Getppid() == parent {
		return nil
	}
	return err
}

// removeInside takes care that no removal reaches through a mount that is left.
func removeInside(p *place) error {
	table, err := mountTable(context.Background())
	if err != nil {
		return err
	}
	if len(table.Below(p.Root)) == 0 {
		// The manager has mounted the root on itself, to make it a shared mount.
		_ = syscall.Unmount(p.Root, syscall.MNT_DETACH)
		if table, err = mountTable(context.Background()); err != nil {
			return err
		}
	}
	if left := append(table.Below(p.Root), table.Below(p.Temporary)...); len(left) > 0 {
		return fmt.Errorf("%s stays: %s is still mounted", p.Temporary, left[0].Target)
	}
	return p.cleanUp()
}

// starter starts this program again.
type starter struct {
	stage       stage
	files       []*os.File
	signals     <-chan os.Signal
	interrupted bool
}

// private starts it in a private mount namespace, and for an ordinary user, or
// a root who may not do that, in a user namespace of its own.
func (s *starter) private() (code int, err error) {
	if os.Geteuid() == 0 {
		code, err = s.again(syscall.CLONE_NEWNS)
		if !errors.Is(err, syscall.EPERM) {
			return code, err
		}
	}
	code, err = s.again(syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER)
	if err != nil {
		err = fmt.Errorf("no private mount namespace: %w%s", err, adviceFor(err, s.stage.UID))
	}
	return code, err
}

// adviceFor says what to do where namespaces are refused.
func adviceFor(err error, uid int) string {
	switch {
	case !errors.Is(err, syscall.EPERM) && !errors.Is(err, syscall.EACCES) && !errors.Is(err, syscall.ENOSPC):
		return ""
	case uid == 0:
		return "\nThis looks like root without CAP_SYS_ADMIN, as in a container. Give the container that capability" +
			"\n(docker run --cap-add SYS_ADMIN --security-opt apparmor=unconfined), or run on the machine itself."
	}
	return "\nThis machine does not let ordinary users have user namespaces. Allow it (sysctl user.max_user_namespaces," +
		"\nkernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns), or run as root."
}

// again runs the program in its next stage and hands signals on to it until it
// has ended.
func (s *starter) again(namespaces uintptr) (code int, err error) {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = s.stage.environment()
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, s.files
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Pdeathsig: syscall.SIGTERM}
	if namespaces&syscall.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	// The death signal comes when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	if s.stage.Role == roleKeeper {
		_ = s.files[0].Close() // the pipe ends with the others
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case sig := <-s.signals:
			s.interrupted = true
			_ = cmd.Process.Signal(sig)
		case err := <-ended:
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				return 0, err
			}
			status, ok := exit.Sys().(syscall.WaitStatus)
			switch {
			case !ok || !status.Signaled():
			case s.stage.Role == roleAgent && s.interrupted:
				return killed, nil // it was handed a signal before it listened: what it left is to be taken away
			default:
				return 128 + int(status.Signal()), nil
			}
			return exit.ExitCode(), nil
		}
	}
}
