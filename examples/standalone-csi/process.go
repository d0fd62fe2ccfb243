//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
)

// The processes:
//
//	command ──► show, in private namespaces ──► driver
//	                                        └─► agent
//
// Those to the right end with the one to the left, and the mounts with the last
// of them: they are in the namespace alone, on a tmpfs. What is outside is one
// empty folder.
const (
	roleVariable = "VOLUMEKIT_STANDALONE_CSI_ROLE"
	roleShow     = "show"
	roleDriver   = "driver"
	roleAgent    = "agent"
)

// play is the life of a process that another one of the program has started.
func play(role string) error {
	if len(os.Args) != 3 {
		return fmt.Errorf("%s is for the program's own use", roleVariable)
	}
	dir, mode := os.Args[1], os.Args[2]
	if role == roleShow {
		return inside(dir, mode)
	}
	// Ctrl-C at a terminal reaches all; the show ends these.
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	if role == roleDriver {
		return runDriver(driverDir(dir), rootDir(dir))
	}
	return runAgent(rootDir(dir))
}

func driverDir(dir string) string { return filepath.Join(dir, "driver") }
func rootDir(dir string) string   { return filepath.Join(dir, "root") }

// interruptible returns a context that ends when the program is asked to end.
func interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
}

// again prepares to run this program in another role.
func again(ctx context.Context, role, dir, mode string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", dir, mode)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// request is what a child is asked to do, reply what it answers. Each is a line
// of JSON.
type request struct {
	Do           string
	Name, Size   string
	Mode, FSType string
	After        bool
	PV           *v1.PersistentVolume
	Claim        *v1.PersistentVolumeClaim
	Pod          *v1.Pod
}

type reply struct {
	Error, Path, Text string
	Calls             []string
	PV                *v1.PersistentVolume
	Claim             *v1.PersistentVolumeClaim
}

// serve answers requests until there are no more.
func serve(handle func(request) (reply, error)) error {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var r request
		if err := in.Decode(&r); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}
		answer, err := handle(r)
		if err != nil {
			answer.Error = err.Error()
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
}

// child is a process that is asked by its input and answers by its output.
type child struct {
	role  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *json.Decoder
	asked atomic.Bool   // to end
	ended chan struct{} // closed when it has ended, err is how then
	err   error
}

// startChild starts a child, which is killed when ctx ends. died is told of an
// end that nobody has asked for.
func startChild(ctx context.Context, died context.CancelCauseFunc, role, dir, mode string) (*child, error) {
	c := &child{role: role, cmd: again(ctx, role, dir, mode), ended: make(chan struct{})}
	c.cmd.Stdout = nil
	in, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.in, c.out = in, json.NewDecoder(out)
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(c.ended)
		if c.err = c.cmd.Wait(); !c.asked.Load() {
			died(c.unexpected())
		}
	}()
	return c, nil
}

func (c *child) ask(r request) (answer reply, err error) {
	if err = json.NewEncoder(c.in).Encode(r); err == nil {
		err = c.out.Decode(&answer)
	}
	switch {
	case err != nil:
		c.kill() // if it is not dead already
		err = c.unexpected()
	case answer.Error != "":
		err = fmt.Errorf("%s, asked for %q: %s", c.role, r.Do, answer.Error)
	}
	return answer, err
}

func (c *child) unexpected() error {
	return fmt.Errorf("the %s has ended unexpectedly: %s", c.role, c.cmd.ProcessState)
}

// kill ends it as kill -9 does.
func (c *child) kill() {
	c.asked.Store(true)
	_ = c.cmd.Process.Kill()
	<-c.ended
}

// stop ends it in good order.
func (c *child) stop() error {
	c.asked.Store(true)
	late := time.AfterFunc(patience, func() { _ = c.cmd.Process.Kill() })
	defer late.Stop()
	err := c.in.Close()
	<-c.ended
	if err = errors.Join(err, c.err); err != nil {
		return fmt.Errorf("the end of the %s: %w", c.role, err)
	}
	return nil
}
