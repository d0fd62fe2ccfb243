// Command csitest-driver is package csitest as a program, for tests that need a
// driver to kill, and for trying an orchestrator by hand.
//
//	csitest-driver -dir /tmp/driver -registration /var/lib/kubelet/plugins_registry/csitest-reg.sock -all
//
// It prints one line, "ready" and the endpoint, when it serves. SIGTERM and
// SIGINT end it cleanly. However it ends, mounts and table stay; started again
// with the same -dir it goes on where it was. With -calls every call is
// appended to a file as a line of JSON, without secrets.
//
// A -fault may be given more than once:
//
//	-fault NodeStageVolume,times=1,after,code=DEADLINE_EXCEEDED
//	-fault '*,delay=50ms'
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/csi/csitest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // where contexts begin
	err := run(ctx, os.Args[1:])
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "csitest-driver:", err)
		os.Exit(1) //nolint:forbidigo // a program's end
	}
}

// options are what the flags say.
type options struct {
	config csitest.Config
	faults []fault
	calls  string
}

type fault struct {
	method string
	fault  csitest.Fault
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args, os.Stderr)
	if err != nil {
		return err
	}
	if o.calls != "" {
		f, err := os.OpenFile(o.calls, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		r := &recorder{file: f}
		o.config.Interceptors = append(o.config.Interceptors, r.intercept)
	}
	d, err := csitest.New(o.config)
	if err != nil {
		return err
	}
	for _, f := range o.faults {
		d.Script(f.method, f.fault)
	}
	if err := d.Start(ctx); err != nil {
		return err
	}
	fmt.Println("ready", d.Endpoint())
	<-ctx.Done()
	return d.Stop()
}

func parse(args []string, usage io.Writer) (o options, err error) {
	c := &o.config
	set := flag.NewFlagSet("csitest-driver", flag.ContinueOnError)
	set.SetOutput(usage)
	set.StringVar(&c.Dir, "dir", "", "folder of the driver (required)")
	set.StringVar(&c.Name, "name", "", "name of the driver")
	set.StringVar(&c.Version, "version", "", "version of the driver")
	set.StringVar(&c.Sockets.Endpoint, "endpoint", "", "path of the socket; default csi.sock in the folder")
	set.StringVar(&c.Sockets.Registration, "registration", "", "path of the registration socket, or the folder for it, which gets NAME-reg.sock; none without")
	set.StringVar(&c.Node.NodeID, "node", "", "ID of this node")
	set.Int64Var(&c.Node.MaxVolumes, "max-volumes", 0, "volumes that may be attached to a node")
	mode := set.String("mode", "", "mode of volumes that name none: tmpfs, bind, loop, block, plain")
	set.StringVar(&c.FSType, "fs-type", "", "file system of image volumes whose capability names none")
	set.Int64Var(&c.DefaultBytes, "bytes", 0, "size of volumes that name none")
	set.BoolVar(&c.AutoCreate, "auto-create", false, "volumes come into being when they are first used")
	set.BoolVar(&c.Lenient, "lenient", false, "refuse only what cannot be done")
	set.BoolVar(&c.AbortBusy, "abort-busy", false, "answer ABORTED to a second call for a volume")
	set.BoolVar(&c.DeviceNodes, "device-nodes", false, "publish block volumes by mknod")
	all := set.Bool("all", false, "offer all capabilities; the lists below are ignored")
	plugin := set.String("plugin-capabilities", "CONTROLLER_SERVICE", "names and numbers")
	expansion := set.String("expansion", "", "ONLINE or OFFLINE")
	node := set.String("node-capabilities", "STAGE_UNSTAGE_VOLUME", "names and numbers")
	controller := set.String("controller-capabilities", "CREATE_DELETE_VOLUME", "names and numbers")
	mutable := set.String("mutable", "", "keys of mutable parameters")
	set.StringVar(&o.calls, "calls", "", "file to which calls are appended")
	set.Func("fault", "METHOD[,volume=ID][,skip=N][,times=N][,delay=D][,delay-after=D][,after][,code=C][,drop][,restart][,hang]", func(text string) error {
		f, err := parseFault(text)
		o.faults = append(o.faults, f)
		return err
	})
	if err := set.Parse(args); err != nil {
		return o, err
	}
	if set.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	c.Mode = csitest.Mode(*mode)
	c.MutableParameters = strings.FieldsFunc(*mutable, func(r rune) bool { return r == ',' })
	if c.Dir == "" {
		return o, errors.New("-dir is missing")
	}
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return o, err
	}
	if st, err := os.Stat(c.Sockets.Registration); err == nil && st.IsDir() {
		c.Sockets.Registration = filepath.Join(c.Sockets.Registration, filepath.Base(c.Name)+"-reg.sock")
	}
	c.Capabilities = csitest.AllCapabilities()
	if !*all {
		c.Capabilities, err = csitest.ParseCapabilities(*plugin, *expansion, *node, *controller)
	}
	return o, err
}

// parseFault reads a -fault.
func parseFault(text string) (f fault, err error) {
	parts := strings.Split(text, ",")
	f.method = parts[0]
	for _, p := range parts[1:] {
		key, value, _ := strings.Cut(p, "=")
		if err := f.set(key, value); err != nil {
			return f, fmt.Errorf("%q: %w", p, err)
		}
	}
	return f, nil
}

func (f *fault) set(key, value string) (err error) {
	switch key {
	case "volume":
		f.fault.VolumeID = value
	case "skip":
		f.fault.Skip, err = strconv.Atoi(value)
	case "times":
		f.fault.Times, err = strconv.Atoi(value)
	case "delay":
		f.fault.DelayBefore, err = time.ParseDuration(value)
	case "delay-after":
		f.fault.DelayAfter, err = time.ParseDuration(value)
	case "after":
		f.fault.AfterWork = true
	case "drop":
		f.fault.Drop = true
	case "restart":
		f.fault.Restart = true
	case "hang":
		f.fault.Hang = true
	case "code":
		err = f.fault.Code.UnmarshalJSON([]byte(strconv.Quote(value)))
	default:
		err = errors.New("unknown")
	}
	return err
}

// recorder writes calls down.
type recorder struct {
	mu   sync.Mutex
	file *os.File
}

// record is a line of the file.
type record struct {
	Method      string
	VolumeID    string `json:",omitempty"`
	NodeID      string `json:",omitempty"`
	StagingPath string `json:",omitempty"`
	TargetPath  string `json:",omitempty"`
	Code        string
}

func (r *recorder) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	reply, err := handler(ctx, req)
	line := record{Method: path.Base(info.FullMethod), Code: status.Code(err).String()}
	if m, ok := req.(interface{ GetVolumeId() string }); ok {
		line.VolumeID = m.GetVolumeId()
	}
	if m, ok := req.(interface{ GetNodeId() string }); ok {
		line.NodeID = m.GetNodeId()
	}
	if m, ok := req.(interface{ GetStagingTargetPath() string }); ok {
		line.StagingPath = m.GetStagingTargetPath()
	}
	if m, ok := req.(interface{ GetTargetPath() string }); ok {
		line.TargetPath = m.GetTargetPath()
	}
	text, e := json.Marshal(line)
	if e != nil {
		return reply, errors.Join(err, e)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, e := r.file.Write(append(text, '\n')); e != nil {
		return nil, status.Errorf(codes.Internal, "write the call down: %v", e)
	}
	return reply, err
}
