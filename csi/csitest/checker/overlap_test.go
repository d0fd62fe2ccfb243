package checker_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volumekit/volumekit/csi/csitest/checker"
)

// A call that the orchestrator gave up does not count as in flight.
func TestGivenUpCall(t *testing.T) {
	e := newEnv(t, strict())
	e.start()
	e.intro()
	e.must(e.attach())
	for range 20 {
		entered := e.hang("NodeStageVolume")
		ctx, cancel := context.WithCancel(e.ctx())
		go func() { <-entered; cancel() }()
		_, err := e.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
			VolumeId: volID, StagingTargetPath: stagedA, VolumeCapability: e.mountCap(),
			PublishContext: map[string]string{"device": "/dev/x"}, VolumeContext: map[string]string{"pool": "fast"},
		})
		if err == nil {
			t.Fatal("staged")
		}
		if got := e.c.Leftovers(); !slices.ContainsFunc(got, func(v checker.Violation) bool {
			return v.Rule == checker.LeftUncertain || v.Rule == checker.LeftInFlight
		}) {
			t.Fatalf("left over: %v", got)
		}
		e.must(e.unstage())
	}
	e.must(e.detach())
	e.c.VerifyClean(t)
}

// On two connections the overlap is judged when the first call ends.
func TestOverlapOnTwoConnections(t *testing.T) {
	e := newEnv(t, checker.Options{})
	e.start()
	e.mounted()
	_, _, _, second := clients(e.connect())
	entered := e.hang("NodeGetVolumeStats")
	ctx, cancel := context.WithCancel(e.ctx())
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = e.node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: volID, VolumePath: targetA, StagingTargetPath: stagedA})
	})
	<-entered
	_, err := second.NodeGetVolumeHealth(e.ctx(), &csi.NodeGetVolumeHealthRequest{VolumeId: volID, StagingTargetPath: stagedA})
	e.must(err)
	cancel()
	wg.Wait()
	wantRules(t, e.c.Violations(), checker.OneCallPerVolume)
}

// With Parallel, publishes to different targets may overlap, to one not.
func TestParallel(t *testing.T) {
	for _, test := range []struct {
		name     string
		parallel bool
		target   string
		want     []checker.Rule
	}{
		{"allowed", true, targetB, nil},
		{"same target", true, targetA, []checker.Rule{checker.OneCallPerVolume}},
		{"not allowed", false, targetB, []checker.Rule{checker.OneCallPerVolume}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEnv(t, checker.Options{Parallel: test.parallel})
			e.start()
			e.intro()
			e.must(e.attach())
			e.must(e.stage())
			overlap(e, "NodePublishVolume", func(ctx context.Context) {
				_, _ = e.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
					VolumeId: volID, StagingTargetPath: stagedA, TargetPath: targetA, VolumeCapability: e.mountCap(),
					PublishContext: map[string]string{"device": "/dev/x"},
					VolumeContext:  map[string]string{"pool": "fast", "csi.storage.k8s.io/pod.name": test.target},
				})
			}, func() { e.must(e.publish(test.target)) })
			wantRules(t, e.c.Violations(), test.want...)
		})
	}
}

// overlap makes one call while another waits.
func overlap(e *env, method string, first func(context.Context), second func()) {
	entered := e.hang(method)
	ctx, cancel := context.WithCancel(e.ctx())
	var wg sync.WaitGroup
	wg.Go(func() { first(ctx) })
	<-entered
	second()
	cancel()
	wg.Wait()
}

// Fed by hand or on two connections, an overlap shows when the older call ends
// well.
func TestOverlapOlderEndsFirst(t *testing.T) {
	c := checker.New(checker.Options{})
	begin := func() *checker.Call {
		return c.Begin(t.Context(), csi.Node_NodeUnpublishVolume_FullMethodName, &csi.NodeUnpublishVolumeRequest{VolumeId: volID, TargetPath: targetA})
	}
	older, younger := begin(), begin()
	older.End(&csi.NodeUnpublishVolumeResponse{}, nil)
	younger.End(&csi.NodeUnpublishVolumeResponse{}, nil)
	wantRules(t, c.Violations(), checker.OneCallPerVolume)
	if n := len(c.Violations()); n != 1 {
		t.Errorf("told %d times", n)
	}
}
