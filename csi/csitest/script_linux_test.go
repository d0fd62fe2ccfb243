package csitest_test

import (
	"context"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	testclock "k8s.io/utils/clock/testing"

	"github.com/volumekit/volumekit/csi/csitest"
)

func TestErrorBeforeAndAfterWork(t *testing.T) {
	b := start(t, staging(csitest.ModeTmpfs))
	c, s := mountCapability(writer, ""), b.staging("stage")
	b.d.Script("NodeStageVolume", csitest.Fault{Times: 1, Code: codes.Internal, Message: "no"})
	b.d.Script("NodeStageVolume", csitest.Fault{Times: 1, AfterWork: true, Code: codes.DeadlineExceeded})
	b.want(b.stage("v", s, c), codes.Internal)
	if _, ok := b.d.Volume("v"); ok {
		t.Error("work was done in spite of an error before it")
	}
	b.want(b.stage("v", s, c), codes.DeadlineExceeded)
	if v := b.volume("v"); v.Staged == nil || !v.Staged.Complete {
		t.Error("no work was done before an error after it")
	}
	b.must(b.stage("v", s, c))
}

func TestScriptIsForSomeCalls(t *testing.T) {
	b := start(t, staging(csitest.ModeTmpfs))
	c := mountCapability(writer, "")
	s := b.d.Script("*", csitest.Fault{VolumeID: "w", Skip: 1, Times: 2, Code: codes.Unavailable})
	b.must(b.stage("v", b.staging("v"), c), b.stage("w", b.staging("w"), c))
	b.want(b.stage("w", b.staging("w"), c), codes.Unavailable)
	b.must(b.stage("v", b.staging("v"), c))
	b.want(b.unstage("w", b.staging("w")), codes.Unavailable)
	b.must(b.unstage("w", b.staging("w")))
	if s.Hits() != 2 {
		t.Errorf("%d hits", s.Hits())
	}
	removed := b.d.Script("NodeUnstageVolume", csitest.Fault{Code: codes.Internal})
	removed.Remove()
	b.d.Script("NodeUnstageVolume", csitest.Fault{Code: codes.Internal})
	b.d.ClearScripts()
	b.must(b.unstage("v", b.staging("v")))
}

// later runs a call and returns where its error will be.
func later(call func() error) <-chan error {
	c := make(chan error, 1)
	go func() { c <- call() }()
	return c
}

func TestBlockUntilReleased(t *testing.T) {
	b := start(t, staging(csitest.ModeTmpfs))
	c, path := mountCapability(writer, ""), b.staging("stage")
	s := b.d.Script("NodeStageVolume", csitest.Fault{Block: true})
	result := later(func() error { return b.stage("v", path, c) })
	b.must(s.Wait(b.ctx, 1))
	if calls := b.d.Calls(); len(calls) != 1 || calls[0].Done {
		t.Errorf("calls are %+v", calls)
	}
	s.Release()
	b.must(<-result)
	if call, err := b.d.WaitCall(b.ctx, csitest.Ended("NodeStageVolume", "v")); err != nil || call.Code != codes.OK {
		t.Errorf("call is %+v, %v", call, err)
	}
}

func TestBlockEndsWithTheCaller(t *testing.T) {
	b := start(t, staging(csitest.ModeTmpfs))
	s := b.d.Script("NodeStageVolume", csitest.Fault{Block: true})
	ctx, cancel := context.WithCancel(b.ctx)
	path := b.staging("stage")
	result := later(func() error {
		_, err := b.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: path, VolumeCapability: mountCapability(writer, "")})
		return err
	})
	b.must(s.Wait(b.ctx, 1))
	cancel()
	b.want(<-result, codes.Canceled)
	call, err := b.d.WaitCall(b.ctx, csitest.Ended("NodeStageVolume", ""))
	b.must(err)
	if call.Code != codes.Canceled || len(b.d.Volumes()) != 0 {
		t.Errorf("call is %+v, volumes %+v", call, b.d.Volumes())
	}
}

func TestHangDoesItsWorkWhenNobodyWaits(t *testing.T) {
	config := staging(csitest.ModeTmpfs)
	config.AbortBusy = true
	b := start(t, config)
	c, path := mountCapability(writer, ""), b.staging("stage")
	s := b.d.Script("NodeStageVolume", csitest.Fault{Hang: true, Times: 1})
	ctx, cancel := context.WithCancel(b.ctx)
	result := later(func() error {
		_, err := b.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: path, VolumeCapability: c})
		return err
	})
	b.must(s.Wait(b.ctx, 1))
	cancel()
	b.want(<-result, codes.Canceled)
	b.want(b.stage("v", path, c), codes.Aborted)
	b.must(b.stage("other", b.staging("other"), c)) // other volumes are free
	s.Release()
	_, err := b.d.WaitCall(b.ctx, func(c csitest.Call) bool { return c.Done && c.Code == codes.OK && c.VolumeID == "v" })
	b.must(err)
	if v := b.volume("v"); v.Staged == nil || !v.Staged.Complete {
		t.Errorf("volume is %+v", v)
	}
}

func TestSecondCallWaitsForTheFirst(t *testing.T) {
	b := start(t, staging(csitest.ModeTmpfs))
	c, path := mountCapability(writer, ""), b.staging("stage")
	s := b.d.Script("NodeStageVolume", csitest.Fault{Block: true, Times: 1})
	first := later(func() error { return b.stage("v", path, c) })
	b.must(s.Wait(b.ctx, 1))
	second := later(func() error { return b.unstage("v", path) })
	_, err := b.d.WaitCall(b.ctx, csitest.Began("NodeUnstageVolume", "v"))
	b.must(err)
	s.Release()
	b.must(<-first, <-second)
	if v := b.volume("v"); v.Staged != nil {
		t.Errorf("volume is %+v", v)
	}
}

func TestDroppedConnection(t *testing.T) {
	b := start(t, staging(csitest.ModeTmpfs))
	c, path := mountCapability(writer, ""), b.staging("stage")
	b.d.Script("NodeStageVolume", csitest.Fault{Times: 1, AfterWork: true, Drop: true})
	b.want(b.stage("v", path, c), codes.Unavailable)
	if v := b.volume("v"); v.Staged == nil || !v.Staged.Complete {
		t.Errorf("volume is %+v", v)
	}
	b.must(b.retry(func() error { return b.stage("v", path, c) }))
}

// retry calls until the connection is there again.
func (b *bench) retry(call func() error) error {
	for {
		err := call()
		if status.Code(err) != codes.Unavailable || b.ctx.Err() != nil {
			return err
		}
		// It fails too if the client does not know yet that its connection is gone.
		_, _ = b.GetPluginInfo(b.ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	}
}

func TestRestartInTheMiddleOfACall(t *testing.T) {
	for _, after := range []bool{false, true} {
		b := start(t, staging(csitest.ModeTmpfs))
		c, path := mountCapability(writer, ""), b.staging("stage")
		b.d.Script("NodeStageVolume", csitest.Fault{Times: 1, AfterWork: after, Restart: true})
		b.want(b.stage("v", path, c), codes.Unavailable)
		b.must(b.retry(func() error {
			_, err := b.GetPluginInfo(b.ctx, &csi.GetPluginInfoRequest{})
			return err
		}))
		if v, _ := b.d.Volume("v"); (v.Staged != nil) != after {
			t.Errorf("after %v: volume is %+v", after, v)
		}
		b.must(b.retry(func() error { return b.stage("v", path, c) }))
	}
}

// waiting returns when somebody waits for the clock.
func (b *bench) waiting(clock *testclock.FakeClock) {
	b.Helper()
	for !clock.HasWaiters() {
		b.must(b.ctx.Err())
		runtime.Gosched()
	}
}

func TestDelay(t *testing.T) {
	clock := testclock.NewFakeClock(time.Unix(1000, 0))
	config := staging(csitest.ModeTmpfs)
	config.Clock = clock
	b := start(t, config)
	c, path := mountCapability(writer, ""), b.staging("stage")
	b.d.Script("NodeStageVolume", csitest.Fault{Times: 1, DelayBefore: time.Hour, DelayAfter: time.Minute})
	result := later(func() error { return b.stage("v", path, c) })
	b.waiting(clock)
	if len(b.d.Volumes()) != 0 {
		t.Error("work before its delay")
	}
	clock.Step(time.Hour)
	b.waiting(clock)
	if b.volume("v").Staged == nil {
		t.Error("no work before the delay after it")
	}
	clock.Step(time.Minute)
	b.must(<-result)
	if call := b.d.Calls()[0]; call.End.Sub(call.Start) != time.Hour+time.Minute {
		t.Errorf("the call took %v", call.End.Sub(call.Start))
	}
}

func TestAlteredReply(t *testing.T) {
	b := start(t, staging(csitest.ModeTmpfs))
	b.d.Script("NodeGetInfo", csitest.Fault{Alter: func(reply proto.Message) {
		if r, ok := reply.(*csi.NodeGetInfoResponse); ok {
			r.NodeId = ""
		}
	}})
	info, err := b.NodeGetInfo(b.ctx, &csi.NodeGetInfoRequest{})
	if err != nil || info.GetNodeId() != "" {
		t.Errorf("info is %v, %v", info, err)
	}
}

func TestCallLog(t *testing.T) {
	var seen []string
	var mu sync.Mutex
	config := staging(csitest.ModeTmpfs)
	config.KeepCalls = 3
	config.Interceptors = []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		reply, err := handler(ctx, req)
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, filepath.Base(info.FullMethod))
		return reply, err
	}}
	b := start(t, config)
	path := b.staging("stage")
	_, err := b.NodeStageVolume(b.ctx, &csi.NodeStageVolumeRequest{
		VolumeId: "v", StagingTargetPath: path, VolumeCapability: mountCapability(writer, ""), Secrets: map[string]string{"key": "secret"},
	})
	b.must(err)
	call := b.d.Calls()[0]
	if r, ok := call.Request.(*csi.NodeStageVolumeRequest); !ok || r.GetSecrets()["key"] != "secret" || call.Seq != 1 || call.Endpoint != b.d.Endpoint() || call.Reply == nil {
		t.Errorf("call is %+v", call)
	}
	b.must(b.unstage("v", path), b.unstage("v", path), b.unstage("w", path))
	if got := b.methods(); got != "NodeUnstageVolume NodeUnstageVolume NodeUnstageVolume" {
		t.Errorf("calls kept are %s", got)
	}
	if counts := b.d.CallCounts(); counts["NodeStageVolume"] != 1 || counts["NodeUnstageVolume"] != 3 {
		t.Errorf("counts are %v", counts)
	}
	b.d.ResetCalls()
	b.must(b.unstage("w", path))
	if calls := b.d.Calls(); len(calls) != 1 || calls[0].Seq != 5 || calls[0].VolumeID != "w" || !calls[0].Done {
		t.Errorf("calls are %+v", calls)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 5 || !slices.Contains(seen, "NodeStageVolume") {
		t.Errorf("the interceptor saw %v", seen)
	}
}
