package csi

import (
	"context"
	"os"
	"runtime"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/plugins"
)

// statsDriver answers questions about volumes.
type statsDriver struct {
	csipb.NodeClient
	asked *csipb.NodeGetVolumeStatsRequest
	reply *csipb.NodeGetVolumeStatsResponse
	err   error
}

func (s *statsDriver) NodeGetVolumeStats(_ context.Context, r *csipb.NodeGetVolumeStatsRequest, _ ...grpc.CallOption) (*csipb.NodeGetVolumeStatsResponse, error) {
	s.asked = r
	return s.reply, s.err
}

func newStatsRig(t *testing.T) (*growthRig, *statsDriver, plugins.Target) {
	t.Helper()
	r := newGrowthRig(t)
	s := &statsDriver{reply: &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{{Unit: csipb.VolumeUsage_BYTES, Total: 10, Used: 4, Available: 6}}}}
	r.fake.d.node = s
	r.fake.d.nodeCan[canStats] = struct{}{}
	v := r.volume("pod-uid")
	r.remember(v, published{source: source{driver: "d", handle: "h"}, target: "/t", staging: "/s", pod: plugins.PodRef{Namespace: "ns", Name: "pod", UID: "pod-uid"}})
	return r, s, r.host.Layout.Target(v, plugins.PodRef{UID: "pod-uid"})
}

func TestStatsOfWhatIsPublished(t *testing.T) {
	t.Parallel()
	r, s, target := newStatsRig(t)
	got, err := r.Stats(t.Context(), target)
	if err != nil || *got.CapacityBytes != 10 || *got.UsedBytes != 4 || *got.AvailableBytes != 6 || got.Inodes != nil || got.Time.IsZero() {
		t.Errorf("%+v, %v", got, err)
	}
	if s.asked.VolumeId != "h" || s.asked.VolumePath != "/t" || s.asked.StagingTargetPath != "/s" {
		t.Errorf("request: %v", s.asked)
	}
	delete(r.fake.d.nodeCan, canStage)
	if _, err := r.Stats(t.Context(), target); err != nil || s.asked.StagingTargetPath != "" {
		t.Errorf("without staging: %v, %v", s.asked, err)
	}
	s.err = status.Error(codes.NotFound, "")
	if _, err := r.Stats(t.Context(), target); answered(err) != codes.NotFound || plugins.ClassOf(err) != plugins.ClassTransient {
		t.Errorf("not found: %v", err)
	}
	s.err, s.reply = nil, &csipb.NodeGetVolumeStatsResponse{}
	if _, err := r.Stats(t.Context(), target); plugins.ClassOf(err) != plugins.ClassTransient {
		t.Errorf("no usage: %v", err)
	}
	delete(r.fake.d.nodeCan, canStats)
	if _, err := r.Stats(t.Context(), target); plugins.ClassOf(err) != plugins.ClassUnsupported {
		t.Errorf("no capability: %v", err)
	}
}

func TestStatsWaitForTheVolumesTurn(t *testing.T) {
	t.Parallel()
	r, s, target := newStatsRig(t)
	_, leave, err := r.fake.d.calls.enter(t.Context(), "h", nodeUnpublish)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Stats(ctx, target); plugins.ClassOf(err) != plugins.ClassTransient || s.asked != nil {
		t.Errorf("%v, %v", s.asked, err)
	}
	leave()
}

// What waits for its turn behind an unpublish asks nothing about a place that is
// no more.
func TestStatsOfWhatIsUnpublishedMeanwhile(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(r *growthRig, v plugins.PodVolume){
		"leaving": func(r *growthRig, v plugins.PodVolume) { r.leaves(v) },
		"gone":    func(r *growthRig, v plugins.PodVolume) { r.drop(v) },
		"moved": func(r *growthRig, v plugins.PodVolume) {
			r.remember(v, published{source: source{driver: "d", handle: "other"}, target: "/t", staging: "/s"})
		},
	} {
		r, s, target := newStatsRig(t)
		_, leave, err := r.fake.d.calls.enter(t.Context(), "h", nodeUnpublish)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			_, err := r.Stats(t.Context(), target)
			done <- err
		}()
		for waiting := false; !waiting; {
			r.fake.d.calls.mu.Lock()
			waiting = r.fake.d.calls.busy["h"].users == 2
			r.fake.d.calls.mu.Unlock()
			runtime.Gosched()
		}
		change(r, target.Volume)
		leave()
		if err := <-done; plugins.ClassOf(err) != plugins.ClassTransient || s.asked != nil {
			t.Errorf("%s: %v, %v", name, s.asked, err)
		}
	}
	r, s, target := newStatsRig(t)
	r.leaves(target.Volume)
	at, _ := r.recall(target.Volume)
	r.remember(target.Volume, at) // the pod is back
	if _, err := r.Stats(t.Context(), target); err != nil || s.asked == nil {
		t.Errorf("published anew: %v", err)
	}
	r.leaves(target.Volume)
	r.drop(target.Volume)
	if len(r.leaving) != 0 {
		t.Errorf("remembered: %v", r.leaving)
	}
}

func TestStatsOfWhatAnEarlierProcessPublished(t *testing.T) {
	t.Parallel()
	r, s, target := newStatsRig(t)
	r.drop(target.Volume)
	if _, err := r.Stats(t.Context(), target); plugins.ClassOf(err) != plugins.ClassTransient {
		t.Errorf("nothing there: %v", err)
	}
	write := func(dir string, data volData) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		if err := data.write(dir); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what, handle, path, staging string) {
		t.Helper()
		if _, err := r.Stats(t.Context(), target); err != nil || s.asked.VolumeId != handle || s.asked.VolumePath != path || s.asked.StagingTargetPath != staging {
			t.Errorf("%s: %v, %v", what, s.asked, err)
		}
	}
	write(r.places().blockData("pv"), volData{Driver: "d", Handle: "block"})
	if _, err := r.Stats(t.Context(), target); plugins.ClassOf(err) != plugins.ClassTransient {
		t.Errorf("another pod's device: %v", err)
	}
	if err := os.MkdirAll(r.places().blockPublish("pv", "pod-uid"), 0o750); err != nil {
		t.Fatal(err)
	}
	check("block", "block", r.places().blockPublish("pv", "pod-uid"), r.places().blockStaging("pv"))
	write(target.Path, volData{Driver: "d", Handle: "h2", Lifecycle: lifecyclePersistent})
	check("file system", "h2", target.Path+"/mount", r.places().staging("d", "h2"))
	write(target.Path, volData{Driver: "d", Handle: "other", Lifecycle: lifecycleEphemeral})
	check("inline", inlineHandle("pod-uid", "pv"), target.Path+"/mount", "")
	if err := os.WriteFile(target.Path+"/"+dataFile, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Stats(t.Context(), target); plugins.ClassOf(err) != plugins.ClassTransient {
		t.Errorf("damaged: %v", err)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	const unknown = -1
	type three [3]int64
	usage := func(unit csipb.VolumeUsage_Unit, total, used, available int64) *csipb.VolumeUsage {
		return &csipb.VolumeUsage{Unit: unit, Total: total, Used: used, Available: available}
	}
	none := three{unknown, unknown, unknown}
	for name, c := range map[string]struct {
		usage         []*csipb.VolumeUsage
		bytes, inodes three
	}{
		"both":     {[]*csipb.VolumeUsage{usage(1, 10, 4, 6), usage(2, 100, 1, 99)}, three{10, 4, 6}, three{100, 1, 99}},
		"empty":    {[]*csipb.VolumeUsage{usage(1, 10, 0, 10)}, three{10, 0, 10}, none},
		"full":     {[]*csipb.VolumeUsage{usage(1, 10, 10, 0)}, three{10, 10, 0}, none},
		"total":    {[]*csipb.VolumeUsage{usage(1, 10, 0, 0)}, three{10, unknown, unknown}, none},
		"zero":     {[]*csipb.VolumeUsage{usage(1, 0, 0, 0), usage(2, 0, 0, 0)}, none, none},
		"negative": {[]*csipb.VolumeUsage{usage(1, -10, -4, 6)}, three{unknown, unknown, 6}, none},
		"units":    {[]*csipb.VolumeUsage{usage(0, 1, 2, 3), usage(77, 1, 2, 3), nil}, none, none},
		"twice":    {[]*csipb.VolumeUsage{usage(1, 10, 4, 6), usage(1, 20, 5, 7)}, three{10, 4, 6}, none},
	} {
		got, err := statsOf("d", &csipb.NodeGetVolumeStatsResponse{Usage: c.usage}, time.Unix(1, 0))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		flat := func(list ...*int64) (out three) {
			for i, n := range list {
				if out[i] = unknown; n != nil {
					out[i] = *n
				}
			}
			return out
		}
		if bytes := flat(got.CapacityBytes, got.UsedBytes, got.AvailableBytes); bytes != c.bytes {
			t.Errorf("%s: bytes %v, want %v", name, bytes, c.bytes)
		}
		if inodes := flat(got.Inodes, got.InodesUsed, got.InodesFree); inodes != c.inodes {
			t.Errorf("%s: inodes %v, want %v", name, inodes, c.inodes)
		}
	}
}
