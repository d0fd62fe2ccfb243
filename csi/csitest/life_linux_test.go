package csitest_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/volumekit/volumekit/csi/csitest"
)

func TestRestartRemembers(t *testing.T) {
	b := start(t, staging(csitest.ModeTmpfs))
	c := mountCapability(writers, "")
	s, one, two := b.staging("stage"), b.path("pods/1/target"), b.path("pods/2/target")
	b.must(b.stage("v", s, c), b.publish("v", s, one, c), b.publish("v", s, two, c))
	b.write(filepath.Join(one, "file"), "x")
	// While the driver is down one of its mounts goes.
	b.must(b.d.Kill(), unix.Unmount(two, 0))
	if _, err := os.Lstat(b.d.Endpoint()); err != nil {
		t.Errorf("a killed driver has removed its socket: %v", err)
	}
	b.want(b.stage("v", s, c), codes.Unavailable)
	b.must(b.d.Start(b.ctx))
	b.must(b.retry(func() error { return b.unpublish("unknown", "/somewhere") }))
	v := b.volume("v")
	if !v.Staged.Complete || !v.Published[0].Complete || v.Published[1].Complete {
		t.Errorf("the table has %+v", v)
	}
	list, err := csitest.ReadState(filepath.Join(b.dir, "driver"))
	if err != nil || len(list) != 1 || list[0].ID != "v" {
		t.Errorf("the folder has %+v, %v", list, err)
	}
	// Repeated calls find what is there and make what is not.
	b.must(b.stage("v", s, c), b.publish("v", s, one, c), b.publish("v", s, two, c))
	b.read(filepath.Join(two, "file"), "x")
	b.must(b.unpublish("v", one), b.unpublish("v", two), b.unstage("v", s))
	b.must(b.d.Stop(), b.d.Stop())
	b.gone(b.d.Endpoint())
}

func TestVanishedStageIsMadeAgain(t *testing.T) {
	b := start(t, staging(csitest.ModeBind))
	c, s := mountCapability(writer, ""), b.staging("stage")
	b.must(b.stage("v", s, c), unix.Unmount(s, 0))
	b.want(b.publish("v", s, b.path("pods/1/target"), c), codes.FailedPrecondition)
	b.must(b.stage("v", s, c))
	if err := unix.Unmount(s, 0); err != nil {
		t.Errorf("nothing was mounted again: %v", err)
	}
	b.must(b.unstage("v", s))
}

func TestCutShortWorkIsRepeated(t *testing.T) {
	b := start(t, staging(csitest.ModeBind))
	c, s, target := mountCapability(writer, ""), b.staging("stage"), b.path("pods/1/target")
	b.must(b.stage("v", s, c), b.publish("v", s, target, c), b.d.Kill())
	// A driver that was killed between the mount and the table's last write.
	file := tableFile(b, "v")
	text, err := os.ReadFile(file)
	b.must(err)
	b.must(os.WriteFile(file, []byte(strings.ReplaceAll(string(text), `"Complete": true`, `"Complete": false`)), 0o600))
	b.must(b.d.Start(b.ctx))
	b.must(b.retry(func() error { return b.stage("v", s, c) }))
	b.must(b.publish("v", s, target, c), b.unpublish("v", target), b.unstage("v", s))
	b.nothingLeft()
}

func TestDevicesOfAKilledDriverAreFreed(t *testing.T) {
	needRoot(t, true)
	b := start(t, staging(csitest.ModeBlock))
	c, s := blockCapability(writer), b.staging("stage")
	b.must(b.stage("v", s, c), b.d.Kill())
	file := tableFile(b, "v")
	text, err := os.ReadFile(file)
	b.must(err)
	// As if it had been killed between the write of the table and the detaching.
	head, _, _ := strings.Cut(string(text), `"Staged"`)
	b.must(os.WriteFile(file, []byte(strings.TrimRight(head, ",\n\t ")+"}"), 0o600))
	if n := devices(t, b.dir); len(n) != 1 {
		t.Fatalf("devices are %q", n)
	}
	b.must(b.d.Start(b.ctx))
	if n := devices(t, b.dir); len(n) != 0 {
		t.Errorf("devices are %q", n)
	}
}

func TestDamagedTableIsAnError(t *testing.T) {
	b := start(t, staging(csitest.ModeBind))
	b.must(b.stage("v", b.staging("stage"), mountCapability(writer, "")), b.unstage("v", b.staging("stage")), b.d.Kill())
	b.must(os.WriteFile(tableFile(b, "v"), []byte("{"), 0o600))
	if err := b.d.Start(b.ctx); err == nil {
		t.Error("started with a damaged table")
	}
}

func TestMove(t *testing.T) {
	b := start(t, staging(csitest.ModeTmpfs))
	c, s := mountCapability(writer, ""), b.staging("stage")
	b.must(b.stage("v", s, c))
	old := b.d.Endpoint()
	b.must(b.d.Move(b.ctx, csitest.Sockets{Endpoint: filepath.Join(b.dir, "other.sock")}))
	b.gone(old)
	b.connect(b.d.Endpoint())
	b.must(b.unstage("v", s))
}

func TestTwoInstancesOfADriver(t *testing.T) {
	config := staging(csitest.ModeTmpfs)
	b := start(t, config)
	c, s := mountCapability(writer, ""), b.staging("stage")
	b.must(b.stage("v", s, c))
	second := csitest.Sockets{Endpoint: filepath.Join(b.dir, "second.sock"), Registration: filepath.Join(b.dir, "second-reg.sock")}
	stop, err := b.d.ServeAlso(b.ctx, second)
	b.must(err)
	other := csi.NewNodeClient(dial(t, second.Endpoint))
	_, err = other.NodeUnstageVolume(b.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: s})
	b.must(err)
	if calls := b.d.Calls(); calls[1].Endpoint != second.Endpoint {
		t.Errorf("the second call came on %s", calls[1].Endpoint)
	}
	b.must(stop(), stop())
	b.gone(second.Endpoint)
	b.gone(second.Registration)
	b.must(b.stage("v", s, c))
}

func TestRegistration(t *testing.T) {
	for _, same := range []bool{false, true} {
		config := staging(csitest.ModeTmpfs)
		config.Name = "some.driver.example"
		config.RegistrationVersions = []string{"1.0.0", "2.0.0"}
		dir := t.TempDir()
		config.Sockets = csitest.Sockets{Endpoint: filepath.Join(dir, "csi.sock"), Registration: filepath.Join(dir, "reg.sock"), Announce: "/elsewhere/csi.sock"}
		if same {
			config.Sockets.Registration = config.Sockets.Endpoint
		}
		b := start(t, config)
		client := registration.NewRegistrationClient(dial(t, config.Sockets.Registration))
		info, err := client.GetInfo(b.ctx, &registration.InfoRequest{})
		b.must(err)
		if info.GetType() != "CSIPlugin" || info.GetName() != config.Name || info.GetEndpoint() != "/elsewhere/csi.sock" || len(info.GetSupportedVersions()) != 2 {
			t.Errorf("info is %v", info)
		}
		_, err = client.NotifyRegistrationStatus(b.ctx, &registration.RegistrationStatus{Error: "not today"})
		b.must(err)
		if r, err := b.d.WaitRegistration(b.ctx, 0); err != nil || r.Registered || r.Error != "not today" {
			t.Errorf("registration is %+v, %v", r, err)
		}
		ctx, cancel := context.WithCancel(b.ctx)
		cancel()
		if _, err := b.d.WaitRegistration(ctx, 1); err == nil {
			t.Error("a second registration was told")
		}
	}
}

func TestLongPaths(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120), strings.Repeat("e", 120))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	config := staging(csitest.ModeTmpfs)
	config.Sockets = csitest.Sockets{Endpoint: filepath.Join(dir, "csi.sock"), Registration: filepath.Join(dir, "reg.sock")}
	b := start(t, config)
	c, s := mountCapability(writer, ""), b.staging("stage")
	b.must(b.stage("v", s, c), b.d.Restart(b.ctx))
	b.must(b.retry(func() error { return b.unstage("v", s) }))
	b.must(b.d.Stop())
	b.gone(config.Sockets.Endpoint)
}

func TestSocketPathOfSomethingElse(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "csi.sock")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := csitest.New(csitest.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context()); err == nil {
		t.Error("a file was replaced by a socket")
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "precious" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

func TestTwoDriversInAProcess(t *testing.T) {
	one := start(t, staging(csitest.ModeTmpfs))
	two := start(t, staging(csitest.ModeBind))
	c := mountCapability(writer, "")
	one.d.Script("*", csitest.Fault{Code: codes.Internal})
	two.must(two.stage("v", two.staging("stage"), c))
	one.want(one.stage("v", one.staging("stage"), c), codes.Internal)
	one.d.ClearScripts()
	if len(one.d.Volumes()) != 0 || len(two.d.Volumes()) != 1 || len(two.d.Calls()) != 1 {
		t.Error("one driver knows of the other")
	}
}

func TestStopEndsWaitingCalls(t *testing.T) {
	for name, fault := range map[string]csitest.Fault{"hang": {Hang: true}, "delay": {DelayBefore: time.Hour}} {
		t.Run(name, func(t *testing.T) {
			b := start(t, staging(csitest.ModeTmpfs))
			b.d.Script("NodeStageVolume", fault)
			path := b.staging("stage")
			result := later(func() error { return b.stage("v", path, mountCapability(writer, "")) })
			_, err := b.d.WaitCall(b.ctx, csitest.Began("NodeStageVolume", "v"))
			b.must(err, b.d.Stop())
			b.want(<-result, codes.Unavailable)
		})
	}
}

func TestUndoAll(t *testing.T) {
	config := csitest.Config{Mode: csitest.ModeBind, AutoCreate: true, Capabilities: csitest.AllCapabilities()}
	b := start(t, config)
	c := mountCapability(writer, "")
	a, err := b.ControllerPublishVolume(b.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "node", VolumeCapability: c})
	b.must(err)
	s, target := b.staging("stage"), b.path("pods/1/target")
	_, err = b.NodeStageVolume(b.ctx, &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: s, VolumeCapability: c, PublishContext: a.GetPublishContext()})
	b.must(err)
	_, err = b.NodePublishVolume(b.ctx, &csi.NodePublishVolumeRequest{VolumeId: "v", StagingTargetPath: s, TargetPath: target, VolumeCapability: c, PublishContext: a.GetPublishContext()})
	b.must(err, b.d.UndoAll())
	b.gone(target)
	b.nothingLeft()
	if v := b.volume("v"); len(v.Attached)+len(v.Published) != 0 || v.Staged != nil {
		t.Errorf("volume is %+v", v)
	}
}

func TestManyCallsAtOnce(t *testing.T) {
	b := start(t, staging(csitest.ModeTmpfs))
	c := mountCapability(writer, "")
	const n = 20
	results := make([]<-chan error, n)
	for i := range n {
		id := "v" + string(rune('a'+i))
		s, target := b.staging(id), b.path("pods/"+id+"/target")
		results[i] = later(func() error {
			for range 3 {
				for _, call := range []func() error{
					func() error { return b.stage(id, s, c) },
					func() error { return b.publish(id, s, target, c) },
					func() error { return b.unpublish(id, target) },
					func() error { return b.unstage(id, s) },
				} {
					if err := call(); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	for _, r := range results {
		b.must(<-r)
	}
	if counts := b.d.CallCounts(); counts["NodeStageVolume"] != 3*n {
		t.Errorf("counts are %v", counts)
	}
}
