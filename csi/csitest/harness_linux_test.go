package csitest_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/internal/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// bench is a driver and a client of it.
type bench struct {
	*testing.T
	csi.IdentityClient
	csi.NodeClient
	csi.ControllerClient
	registration.RegistrationClient

	ctx context.Context
	dir string
	d   *csitest.Driver
}

// start starts a driver in a folder that takes mounts.
func start(t *testing.T, c csitest.Config) *bench {
	t.Helper()
	return startIn(t, nstest.Dir(t), c)
}

func startIn(t *testing.T, dir string, c csitest.Config) *bench {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	c.Dir = filepath.Join(dir, "driver")
	d, err := csitest.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(ctx); err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, ctx: ctx, dir: dir, d: d}
	b.connect(d.Endpoint())
	t.Cleanup(func() {
		if err := d.UndoAll(); err != nil {
			t.Errorf("undo: %v", err)
		}
		if err := d.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		b.nothingLeft()
	})
	return b
}

func (b *bench) connect(endpoint string) {
	b.Helper()
	conn := dial(b.T, endpoint)
	b.IdentityClient, b.NodeClient = csi.NewIdentityClient(conn), csi.NewNodeClient(conn)
	b.ControllerClient, b.RegistrationClient = csi.NewControllerClient(conn), registration.NewRegistrationClient(conn)
}

func dial(t *testing.T, endpoint string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///driver", grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.5, MaxDelay: 100 * time.Millisecond},
			MinConnectTimeout: 10 * time.Second,
		}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return csitest.Dial(ctx, endpoint) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// nothingLeft fails if something is mounted or attached that the driver did.
func (b *bench) nothingLeft() {
	b.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if strings.Contains(line, " "+b.dir+"/") {
			b.Errorf("left mounted: %s", line)
		}
	}
	if n := devices(b.T, b.dir); len(n) > 0 {
		b.Errorf("left attached: %q", n)
	}
}

// devices are the loop devices of the images in a test's folder.
func devices(t *testing.T, dir string) (list []string) {
	t.Helper()
	images, err := filepath.Glob(filepath.Join(dir, "driver", "data", "*", "image"))
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range images {
		found, err := csitest.DevicesOf(image)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, found...)
	}
	return list
}

// path makes the parent of a path in the test's folder.
func (b *bench) path(name string) string {
	b.Helper()
	p := filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		b.Fatal(err)
	}
	return p
}

// staging makes a staging folder.
func (b *bench) staging(name string) string {
	b.Helper()
	p := b.path(name)
	if err := os.MkdirAll(p, 0o750); err != nil {
		b.Fatal(err)
	}
	return p
}

func mountCapability(mode csi.VolumeCapability_AccessMode_Mode, fsType string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: flags}},
	}
}

func blockCapability(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

const (
	writer  = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	writers = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
)

func (b *bench) stage(id, path string, c *csi.VolumeCapability) error {
	_, err := b.NodeStageVolume(b.ctx, &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: path, VolumeCapability: c})
	return err
}

func (b *bench) unstage(id, path string) error {
	_, err := b.NodeUnstageVolume(b.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: path})
	return err
}

func (b *bench) publish(id, staging, target string, c *csi.VolumeCapability) error {
	_, err := b.NodePublishVolume(b.ctx, &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: c})
	return err
}

func (b *bench) unpublish(id, target string) error {
	_, err := b.NodeUnpublishVolume(b.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	return err
}

// must fails the test at the first error.
func (b *bench) must(errs ...error) {
	b.Helper()
	for _, err := range errs {
		if err != nil {
			b.Fatal(err)
		}
	}
}

// want fails the test if an error has another code.
func (b *bench) want(err error, code codes.Code) {
	b.Helper()
	if status.Code(err) != code {
		b.Errorf("error is %v, want code %s", err, code)
	}
}

func (b *bench) write(path, text string) {
	b.Helper()
	b.must(os.WriteFile(path, []byte(text), 0o600))
}

func (b *bench) read(path, text string) {
	b.Helper()
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, []byte(text)) {
		b.Errorf("%s has %q, %v; want %q", path, got, err, text)
	}
}

func (b *bench) gone(path string) {
	b.Helper()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		b.Errorf("%s is still there: %v", path, err)
	}
}

// volume is the driver's state of a volume.
func (b *bench) volume(id string) csitest.VolumeState {
	b.Helper()
	v, ok := b.d.Volume(id)
	if !ok {
		b.Fatalf("the driver knows no volume %s", id)
	}
	return v
}

// methods are the calls so far.
func (b *bench) methods() string {
	var list []string
	for _, c := range b.d.Calls() {
		list = append(list, c.Method)
	}
	return strings.Join(list, " ")
}

const stageCapability = csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME

// staging is a driver of static volumes that stages.
func staging(mode csitest.Mode, more ...csi.NodeServiceCapability_RPC_Type) csitest.Config {
	return csitest.Config{
		Mode: mode, AutoCreate: true,
		Capabilities: csitest.NodeCapabilities(append(more, stageCapability)...),
	}
}
