package checker_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/volumekit/volumekit/csi/csitest/checker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	nodeID  = "node-1"
	volID   = "vol-1"
	stagedA = "/plugins/driver/vol-1/globalmount"
	targetA = "/pods/a/mount"
	targetB = "/pods/b/mount"
	tokens  = checker.ServiceAccountTokens
)

// driver is a driver that does nothing but answer.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	csi.UnimplementedGroupControllerServer

	nodeCaps       []csi.NodeServiceCapability_RPC_Type
	controllerCaps []csi.ControllerServiceCapability_RPC_Type
	groupCaps      []csi.GroupControllerServiceCapability_RPC_Type
	pluginCaps     []csi.PluginCapability_Service_Type
	expansion      []csi.PluginCapability_VolumeExpansion_Type
	publishContext map[string]string

	mu     sync.Mutex
	script map[string][]error       // errors of the next calls, by method
	block  map[string]chan struct{} // the next call says so and waits until its context ends
}

// intercept plays the script.
func (d *driver) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := filepath.Base(info.FullMethod)
	d.mu.Lock()
	entered := d.block[method]
	delete(d.block, method)
	var err error
	if list := d.script[method]; len(list) > 0 {
		err, d.script[method] = list[0], list[1:]
	}
	d.mu.Unlock()
	if entered != nil {
		close(entered)
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "driver.example.com", VendorVersion: "1"}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	r := &csi.GetPluginCapabilitiesResponse{}
	for _, t := range d.pluginCaps {
		r.Capabilities = append(r.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}})
	}
	for _, t := range d.expansion {
		r.Capabilities = append(r.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: t}}})
	}
	return r, nil
}

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	r := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range d.controllerCaps {
		r.Capabilities = append(r.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}}})
	}
	return r, nil
}

func (d *driver) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	r := &csi.GroupControllerGetCapabilitiesResponse{}
	for _, t := range d.groupCaps {
		r.Capabilities = append(r.Capabilities, &csi.GroupControllerServiceCapability{Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{Type: t}}})
	}
	return r, nil
}

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	r := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range d.nodeCaps {
		r.Capabilities = append(r.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}}})
	}
	return r, nil
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: nodeID}, nil
}

func (d *driver) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: r.GetName(), VolumeContext: map[string]string{"pool": "fast"}}}, nil
}

func (d *driver) DeleteVolume(context.Context, *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, nil
}

func (d *driver) ValidateVolumeCapabilities(context.Context, *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return &csi.ValidateVolumeCapabilitiesResponse{}, nil
}

func (d *driver) ControllerPublishVolume(context.Context, *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	return &csi.ControllerPublishVolumeResponse{PublishContext: d.publishContext}, nil
}

func (d *driver) ControllerUnpublishVolume(context.Context, *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (d *driver) ControllerExpandVolume(context.Context, *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: 2 << 30, NodeExpansionRequired: true}, nil
}

func (d *driver) NodeStageVolume(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, nil
}

func (d *driver) NodeUnstageVolume(context.Context, *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, nil
}

func (d *driver) NodePublishVolume(context.Context, *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, nil
}

func (d *driver) NodeUnpublishVolume(context.Context, *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (d *driver) NodeExpandVolume(context.Context, *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return &csi.NodeExpandVolumeResponse{}, nil
}

func (d *driver) NodeGetVolumeStats(context.Context, *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	return &csi.NodeGetVolumeStatsResponse{}, nil
}

func (d *driver) NodeGetVolumeHealth(context.Context, *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	return &csi.NodeGetVolumeHealthResponse{}, nil
}

// env is an orchestrator, a driver, and the checker between them.
type env struct {
	t      *testing.T
	d      *driver
	c      *checker.Checker
	opts   checker.Options
	dial   []grpc.DialOption
	socket string
	id     csi.IdentityClient
	ctl    csi.ControllerClient
	group  csi.GroupControllerClient
	node   csi.NodeClient
	mode   csi.VolumeCapability_AccessMode_Mode
}

// fullDriver has all capabilities.
func fullDriver() *driver {
	d := &driver{
		publishContext: map[string]string{"device": "/dev/x"},
		script:         map[string][]error{}, block: map[string]chan struct{}{},
		expansion: []csi.PluginCapability_VolumeExpansion_Type{csi.PluginCapability_VolumeExpansion_ONLINE},
		groupCaps: []csi.GroupControllerServiceCapability_RPC_Type{csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT},
	}
	for _, v := range values(csi.NodeServiceCapability_RPC_Type_value) {
		d.nodeCaps = append(d.nodeCaps, csi.NodeServiceCapability_RPC_Type(v))
	}
	for _, v := range values(csi.ControllerServiceCapability_RPC_Type_value) {
		d.controllerCaps = append(d.controllerCaps, csi.ControllerServiceCapability_RPC_Type(v))
	}
	for _, v := range values(csi.PluginCapability_Service_Type_value) {
		d.pluginCaps = append(d.pluginCaps, csi.PluginCapability_Service_Type(v))
	}
	return d
}

// values returns the defined values but UNKNOWN.
func values(m map[string]int32) []int32 {
	var list []int32
	for _, v := range m {
		if v != 0 {
			list = append(list, v)
		}
	}
	slices.Sort(list)
	return list
}

func without[T comparable](list []T, gone ...T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(v T) bool { return slices.Contains(gone, v) })
}

func newEnv(t *testing.T, opts checker.Options) *env {
	return &env{t: t, d: fullDriver(), opts: opts, mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER}
}

// start serves the driver on a socket, and connects.
func (e *env) start() {
	e.t.Helper()
	dir, err := os.MkdirTemp("", "checker") // short enough for a socket
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	e.socket = filepath.Join(dir, "csi.sock")
	listener, err := net.Listen("unix", e.socket)
	if err != nil {
		e.t.Fatal(err)
	}
	e.c = checker.New(e.opts)
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(e.c.UnaryServer(), e.d.intercept))
	csi.RegisterIdentityServer(server, e.d)
	csi.RegisterControllerServer(server, e.d)
	csi.RegisterGroupControllerServer(server, e.d)
	csi.RegisterNodeServer(server, e.d)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			e.t.Error(err)
		}
	}()
	e.t.Cleanup(func() { server.Stop(); <-ended })
	e.id, e.ctl, e.group, e.node = clients(e.connect())
}

func clients(conn *grpc.ClientConn) (csi.IdentityClient, csi.ControllerClient, csi.GroupControllerClient, csi.NodeClient) {
	return csi.NewIdentityClient(conn), csi.NewControllerClient(conn), csi.NewGroupControllerClient(conn), csi.NewNodeClient(conn)
}

func (e *env) connect() *grpc.ClientConn {
	e.t.Helper()
	opts := append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost")}, e.dial...)
	conn, err := grpc.NewClient("unix:"+e.socket, opts...)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (e *env) ctx() context.Context { return e.t.Context() }

// fail makes the next calls of the method fail.
func (e *env) fail(method string, list ...codes.Code) {
	e.d.mu.Lock()
	defer e.d.mu.Unlock()
	for _, code := range list {
		e.d.script[method] = append(e.d.script[method], status.Error(code, "as the script says"))
	}
}

// hang makes the next call of the method wait until it is given up. The channel
// closes when it waits.
func (e *env) hang(method string) <-chan struct{} {
	entered := make(chan struct{})
	e.d.mu.Lock()
	defer e.d.mu.Unlock()
	e.d.block[method] = entered
	return entered
}

func (e *env) mountCap() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4", MountFlags: []string{"noatime"}}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: e.mode},
	}
}

// Each of the following calls an RPC as a correct orchestrator does, with what
// the functions change, and returns its error.

func change[T any](r T, edits []func(T)) T {
	for _, edit := range edits {
		edit(r)
	}
	return r
}

// intro asks everything that is asked first.
func (e *env) intro() {
	e.t.Helper()
	_, err1 := e.id.GetPluginInfo(e.ctx(), &csi.GetPluginInfoRequest{})
	_, err2 := e.id.Probe(e.ctx(), &csi.ProbeRequest{})
	e.askPlugin()
	e.askController()
	e.askNode()
	_, err3 := e.group.GroupControllerGetCapabilities(e.ctx(), &csi.GroupControllerGetCapabilitiesRequest{})
	e.info()
	if err := errors.Join(err1, err2, err3); err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) askPlugin() {
	_, err := e.id.GetPluginCapabilities(e.ctx(), &csi.GetPluginCapabilitiesRequest{})
	e.must(err)
}

func (e *env) askController() {
	_, err := e.ctl.ControllerGetCapabilities(e.ctx(), &csi.ControllerGetCapabilitiesRequest{})
	e.must(err)
}

func (e *env) askNode() {
	_, err := e.node.NodeGetCapabilities(e.ctx(), &csi.NodeGetCapabilitiesRequest{})
	e.must(err)
}

func (e *env) info() {
	_, err := e.node.NodeGetInfo(e.ctx(), &csi.NodeGetInfoRequest{})
	e.must(err)
}

func (e *env) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) create(edits ...func(*csi.CreateVolumeRequest)) error {
	_, err := e.ctl.CreateVolume(e.ctx(), change(&csi.CreateVolumeRequest{
		Name: volID, VolumeCapabilities: []*csi.VolumeCapability{e.mountCap()},
		CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30},
	}, edits))
	return err
}

func (e *env) remove() error {
	_, err := e.ctl.DeleteVolume(e.ctx(), &csi.DeleteVolumeRequest{VolumeId: volID})
	return err
}

func (e *env) attach(edits ...func(*csi.ControllerPublishVolumeRequest)) error {
	_, err := e.ctl.ControllerPublishVolume(e.ctx(), change(&csi.ControllerPublishVolumeRequest{
		VolumeId: volID, NodeId: nodeID, VolumeCapability: e.mountCap(), VolumeContext: map[string]string{"pool": "fast"},
		Secrets: map[string]string{"password": "attach-secret"},
	}, edits))
	return err
}

func (e *env) detach(edits ...func(*csi.ControllerUnpublishVolumeRequest)) error {
	_, err := e.ctl.ControllerUnpublishVolume(e.ctx(), change(&csi.ControllerUnpublishVolumeRequest{
		VolumeId: volID, NodeId: nodeID, Secrets: map[string]string{"password": "attach-secret"},
	}, edits))
	return err
}

func (e *env) stage(edits ...func(*csi.NodeStageVolumeRequest)) error {
	_, err := e.node.NodeStageVolume(e.ctx(), change(&csi.NodeStageVolumeRequest{
		VolumeId: volID, StagingTargetPath: stagedA, VolumeCapability: e.mountCap(),
		PublishContext: map[string]string{"device": "/dev/x"}, VolumeContext: map[string]string{"pool": "fast"},
		Secrets: map[string]string{"password": "stage-secret"},
	}, edits))
	return err
}

func (e *env) unstage(edits ...func(*csi.NodeUnstageVolumeRequest)) error {
	_, err := e.node.NodeUnstageVolume(e.ctx(), change(&csi.NodeUnstageVolumeRequest{VolumeId: volID, StagingTargetPath: stagedA}, edits))
	return err
}

func (e *env) publish(target string, edits ...func(*csi.NodePublishVolumeRequest)) error {
	_, err := e.node.NodePublishVolume(e.ctx(), change(&csi.NodePublishVolumeRequest{
		VolumeId: volID, StagingTargetPath: stagedA, TargetPath: target, VolumeCapability: e.mountCap(),
		PublishContext: map[string]string{"device": "/dev/x"},
		VolumeContext: map[string]string{
			"pool": "fast", "csi.storage.k8s.io/pod.name": target,
			tokens: `{"aud":{"token":"first-token","expirationTimestamp":"2030-01-01T00:00:00Z"}}`,
		},
		Secrets: map[string]string{"password": "publish-secret"},
	}, edits))
	return err
}

func (e *env) unpublish(target string) error {
	_, err := e.node.NodeUnpublishVolume(e.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: volID, TargetPath: target})
	return err
}

func (e *env) stats(edits ...func(*csi.NodeGetVolumeStatsRequest)) error {
	_, err := e.node.NodeGetVolumeStats(e.ctx(), change(&csi.NodeGetVolumeStatsRequest{VolumeId: volID, VolumePath: targetA, StagingTargetPath: stagedA}, edits))
	return err
}

func (e *env) health(edits ...func(*csi.NodeGetVolumeHealthRequest)) error {
	_, err := e.node.NodeGetVolumeHealth(e.ctx(), change(&csi.NodeGetVolumeHealthRequest{VolumeId: volID, VolumePublishPath: targetA, StagingTargetPath: stagedA}, edits))
	return err
}

func (e *env) expand(edits ...func(*csi.NodeExpandVolumeRequest)) error {
	_, err := e.node.NodeExpandVolume(e.ctx(), change(&csi.NodeExpandVolumeRequest{
		VolumeId: volID, VolumePath: targetA, StagingTargetPath: stagedA, VolumeCapability: e.mountCap(),
		CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30},
	}, edits))
	return err
}

func (e *env) expandController() error {
	_, err := e.ctl.ControllerExpandVolume(e.ctx(), &csi.ControllerExpandVolumeRequest{
		VolumeId: volID, VolumeCapability: e.mountCap(), CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30},
	})
	return err
}

// mounted brings the volume to target A.
func (e *env) mounted() {
	e.t.Helper()
	e.intro()
	e.must(e.attach())
	e.must(e.stage())
	e.must(e.publish(targetA))
}
