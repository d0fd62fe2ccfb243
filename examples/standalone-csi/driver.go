//go:build linux

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/csi/csitest/checker"
	"github.com/volumekit/volumekit/plugins"
)

const (
	driverName = "demo.volumekit.example"
	nodeName   = "this-node"
)

// driver is a CSI driver that can be told to hang. Any other driver does as
// well: the agent knows nothing of it but its name.
type driver struct {
	*csitest.Driver
	checker *checker.Checker // says whether it is called as the CSI spec demands
	script  *csitest.Script
}

func newDriver(dir, root string) (*driver, error) {
	capabilities, err := csitest.ParseCapabilities("CONTROLLER_SERVICE", "ONLINE",
		"STAGE_UNSTAGE_VOLUME,EXPAND_VOLUME,SINGLE_NODE_MULTI_WRITER",
		"CREATE_DELETE_VOLUME,PUBLISH_UNPUBLISH_VOLUME,EXPAND_VOLUME,SINGLE_NODE_MULTI_WRITER")
	if err != nil {
		return nil, err
	}
	volumes, err := csitest.ReadState(dir)
	if err != nil {
		return nil, err
	}
	// What was done with these volumes so far, the checker has not seen.
	check := checker.New(checker.Options{Filesystem: true, DriverName: driverName, AttachUnseen: len(volumes) > 0})
	check.Restarted()
	d, err := csitest.New(csitest.Config{
		Dir: dir, Name: driverName, Capabilities: capabilities, Node: csitest.NodeInfo{NodeID: nodeName},
		Sockets:      csitest.Sockets{Registration: filepath.Join(plugins.Layout{Root: root}.RegistryDir(), driverName+"-reg.sock")},
		Interceptors: []grpc.UnaryServerInterceptor{check.UnaryServer()},
	})
	return &driver{Driver: d, checker: check}, err
}

// runDriver is the driver's process. It ends with its input.
func runDriver(dir, root string) error {
	d, err := newDriver(dir, root)
	if err != nil {
		return err
	}
	if err := d.Start(context.Background()); err != nil {
		return err
	}
	if err := serve(d.handle); err != nil {
		return err
	}
	return d.Stop()
}

// handle does what the parent process asks for.
func (d *driver) handle(r request) (out reply, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch r.Do {
	case "hang": // the next call of a method: until it is released, whoever waits for it
		d.script = d.Script(r.Name, csitest.Fault{Times: 1, Hang: true, AfterWork: r.After})
	case "block": // likewise, but the call ends without a deed if nobody waits any more
		d.script = d.Script(r.Name, csitest.Fault{Times: 1, Block: true})
	case "reached":
		err = d.script.Wait(ctx, 1)
	case "release":
		d.script.Release()
	case "agent restarted":
		d.checker.COrestarted()
	case "calls": // since the last time
		out.Calls = d.calls()
		d.ResetCalls()
		if v := d.checker.Violations(); len(v) > 0 {
			err = fmt.Errorf("the CSI spec does not allow this: %v", v)
		}
	default:
		err = fmt.Errorf("unknown request %q", r.Do)
	}
	return out, err
}

// calls are those that concern volumes, without mere questions.
func (d *driver) calls() (list []string) {
	for _, c := range d.Calls() {
		text := c.Method
		switch {
		case !strings.Contains(c.Method, "Volume") || strings.Contains(c.Method, "Get"):
			continue
		case !c.Done:
			text += " (no answer)"
		case c.Code != codes.OK:
			text += " (" + c.Code.String() + ")"
		}
		list = append(list, text)
	}
	return list
}
