package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/internal/nstest"
)

// program is set in the environment of a run of this binary that is the
// program.
const program = "CSITEST_DRIVER_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(program) != "" {
		main()
		os.Exit(0)
	}
	nstest.Main(m)
}

// process is the program running.
type process struct {
	*exec.Cmd
	endpoint string
	lines    *bufio.Reader
}

func startProgram(t *testing.T, args ...string) *process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), program+"=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: cmd, lines: bufio.NewReader(out)}
	line, err := p.lines.ReadString('\n')
	if err != nil {
		t.Fatalf("the program is not ready: %v", err)
	}
	p.endpoint = strings.TrimSpace(strings.TrimPrefix(line, "ready "))
	return p
}

// end sends a signal and returns how the program ended.
func (p *process) end(t *testing.T, s syscall.Signal) error {
	t.Helper()
	if err := p.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	return p.Wait()
}

func (p *process) node(t *testing.T) csi.NodeClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///driver", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return csitest.Dial(ctx, p.endpoint) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return csi.NewNodeClient(conn)
}

func TestKilledProgramRemembers(t *testing.T) {
	dir := nstest.Dir(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stage := filepath.Join(dir, "stage")
	if err := os.Mkdir(stage, 0o750); err != nil {
		t.Fatal(err)
	}
	request := &csi.NodeStageVolumeRequest{
		VolumeId: "v", StagingTargetPath: stage, Secrets: map[string]string{"key": "hidden"},
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	}
	calls := filepath.Join(dir, "calls")
	args := []string{"-dir", filepath.Join(dir, "driver"), "-auto-create", "-calls", calls}

	// It does the work, and is killed before it answers.
	p := startProgram(t, append(args, "-fault", "NodeStageVolume,after,hang")...)
	client := p.node(t)
	result := make(chan error, 1)
	go func() {
		_, err := client.NodeStageVolume(ctx, request)
		result <- err
	}()
	for { // until its table says that the work is done
		list, err := csitest.ReadState(filepath.Join(dir, "driver"))
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 1 && list[0].Staged != nil && list[0].Staged.Complete {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("the volume was never staged")
		}
	}
	if err := p.end(t, syscall.SIGKILL); err == nil {
		t.Error("a killed program ended well")
	}
	if err := <-result; status.Code(err) != codes.Unavailable {
		t.Errorf("the call ended with %v", err)
	}

	p = startProgram(t, args...)
	client = p.node(t)
	if _, err := client.NodeStageVolume(ctx, request); err != nil {
		t.Error(err)
	}
	if _, err := client.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: stage}); err != nil {
		t.Error(err)
	}
	if err := syscall.Unmount(stage, 0); err == nil {
		t.Error("something is left mounted: the second stage did not know of the first")
	}
	if err := p.end(t, syscall.SIGTERM); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	if _, err := os.Lstat(p.endpoint); err == nil {
		t.Error("the socket is left behind")
	}
	checkCalls(t, calls)
}

func checkCalls(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "hidden") {
		t.Error("a secret is in the file of calls")
	}
	var got []string
	for line := range strings.Lines(string(text)) {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		got = append(got, r.Method+" "+r.VolumeID+" "+r.Code)
	}
	if want := "NodeStageVolume v OK, NodeUnstageVolume v OK"; strings.Join(got, ", ") != want {
		t.Errorf("calls are %q, want %q", got, want)
	}
}

func TestFlags(t *testing.T) {
	dir := t.TempDir()
	o, err := parse([]string{
		"-dir", dir, "-name", "d.example", "-registration", dir, "-mode", "bind", "-node", "n", "-node-capabilities", "STAGE_UNSTAGE_VOLUME,200",
		"-fault", "NodeStageVolume,volume=v,skip=1,times=2,delay=1s,delay-after=2s,after,drop,restart,hang,code=ABORTED",
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := csitest.Fault{
		VolumeID: "v", Skip: 1, Times: 2, DelayBefore: time.Second, DelayAfter: 2 * time.Second,
		AfterWork: true, Drop: true, Restart: true, Hang: true, Code: codes.Aborted,
	}
	if f := o.faults[0]; f.method != "NodeStageVolume" || f.fault.Code != want.Code || f.fault.VolumeID != want.VolumeID || f.fault.Skip != 1 ||
		f.fault.Times != 2 || f.fault.DelayBefore != want.DelayBefore || f.fault.DelayAfter != want.DelayAfter || !f.fault.AfterWork || !f.fault.Drop || !f.fault.Restart || !f.fault.Hang {
		t.Errorf("fault is %+v", f)
	}
	c := o.config
	if c.Sockets.Registration != filepath.Join(dir, "d.example-reg.sock") || c.Mode != csitest.ModeBind || len(c.Capabilities.Node) != 2 || c.Node.NodeID != "n" {
		t.Errorf("config is %+v", c)
	}
	for _, bad := range [][]string{{"-fault", "M,code=NONE"}, {"-fault", "M,often"}, {"-fault", "M,times=x"}, {"-node-capabilities", "X"}, {"left over"}} {
		if _, err := parse(append([]string{"-dir", dir}, bad...), io.Discard); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestProgramNeedsAFolder(t *testing.T) {
	for _, args := range [][]string{nil, {"-dir", "/proc/none/such"}} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("%q: it ran", args)
		}
	}
}
