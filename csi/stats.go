package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/volumekit/volumekit/plugins"
)

// Stats implements [plugins.StatsReader]: it asks the driver. The error is of
// class unsupported if the driver does not measure volumes.
func (p *Plugin) Stats(ctx context.Context, target plugins.Target) (plugins.Stats, error) {
	at, err := p.whereabouts(ctx, target)
	if err != nil {
		return plugins.Stats{}, err
	}
	d, err := p.drivers.driver(ctx, at.driver)
	if err != nil {
		return plugins.Stats{}, err
	}
	if !d.nodeCan.has(canStats) {
		return plugins.Stats{}, plugins.Unsupportedf("CSI driver %s does not measure volumes: it lacks the capability GET_VOLUME_STATS", d.name)
	}
	res, err := p.askStats(ctx, d, at, target)
	if err != nil {
		return plugins.Stats{}, err
	}
	return statsOf(d.name, res, p.host.Time().Now())
}

func (p *Plugin) askStats(ctx context.Context, d *driver, at published, target plugins.Target) (*csipb.NodeGetVolumeStatsResponse, error) {
	req := &csipb.NodeGetVolumeStatsRequest{VolumeId: at.handle, VolumePath: at.target, StagingTargetPath: at.staging}
	if !d.nodeCan.has(canStage) {
		req.StagingTargetPath = ""
	}
	return call(ctx, d, nodeStats, at.handle, req, ifStillThere(p, at, target, d.node.NodeGetVolumeStats))
}

// ifStillThere makes a call only if the volume is where it was believed to be:
// it may have been unpublished while the call waited for its turn.
func ifStillThere[Req, Res any](
	p *Plugin, at published, target plugins.Target, rpc func(context.Context, Req, ...grpc.CallOption) (Res, error),
) func(context.Context, Req, ...grpc.CallOption) (Res, error) {
	return func(ctx context.Context, req Req, opts ...grpc.CallOption) (Res, error) {
		now, err := p.whereabouts(ctx, target)
		if err == nil && (now.driver != at.driver || now.handle != at.handle || now.target != at.target || now.staging != at.staging) {
			err = plugins.Transientf("volume %s has changed meanwhile", target.Volume.Name)
		}
		if err != nil {
			var none Res
			return none, &unsentError{err}
		}
		return rpc(ctx, req, opts...)
	}
}

// leaves says that a volume is about to be unpublished.
func (p *Plugin) leaves(v plugins.PodVolume) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaving[v] = struct{}{}
}

func (p *Plugin) isLeaving(v plugins.PodVolume) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, leaves := p.leaving[v]
	return leaves
}

// whereabouts says which volume a target has, and where: what this process has
// published, else what the files say that an earlier one left.
func (p *Plugin) whereabouts(ctx context.Context, t plugins.Target) (published, error) {
	if p.isLeaving(t.Volume) {
		return published{}, plugins.Transientf("volume %s is being unpublished", t.Volume.Name)
	}
	if at, ok := p.recall(t.Volume); ok {
		return at, nil
	}
	at := published{target: p.publishedPath(plugins.SetUpRequest{Target: t}), pod: t.Pod}
	data, err := readVolData(t.Path)
	if errors.Is(err, fs.ErrNotExist) {
		at.block, at.target = true, p.places().blockPublish(t.Volume.Name, t.Volume.Pod)
		if _, err = os.Lstat(at.target); err == nil { // the file is that of all pods
			data, err = readVolData(p.places().blockData(t.Volume.Name))
		}
	}
	if err != nil {
		return published{}, plugins.Transient(fmt.Errorf("find out what volume %s is: %w", t.Volume.Name, err))
	}
	at.driver, at.handle, at.ephemeral = data.Driver, data.Handle, data.ephemeral()
	if at.ephemeral {
		at.handle = inlineHandle(t.Volume.Pod, t.Volume.Name)
		return at, nil
	}
	if at.staging, err = p.findStaging(ctx, data, t.Volume.Name, at.block); err != nil {
		return published{}, plugins.Transient(fmt.Errorf("find out where volume %s is staged: %w", t.Volume.Name, err))
	}
	return at, nil
}

// statsOf reads an answer of NodeGetVolumeStats. Of each unit the first entry
// counts; units that are not known do not.
func statsOf(driver string, res *csipb.NodeGetVolumeStatsResponse, now time.Time) (plugins.Stats, error) {
	if len(res.GetUsage()) == 0 {
		return plugins.Stats{}, plugins.Transientf("CSI driver %s answered NodeGetVolumeStats without any usage", driver)
	}
	s := plugins.Stats{Time: now}
	var bytes, inodes bool
	for _, u := range res.GetUsage() {
		switch unit := u.GetUnit(); {
		case unit == csipb.VolumeUsage_BYTES && !bytes:
			bytes = true
			s.CapacityBytes, s.UsedBytes, s.AvailableBytes = figures(u)
		case unit == csipb.VolumeUsage_INODES && !inodes:
			inodes = true
			s.Inodes, s.InodesUsed, s.InodesFree = figures(u)
		}
	}
	return s, nil
}

// figures are those of one usage, nil where the driver does not say: a zero is
// a figure only beside another that is not (a full volume has none available).
func figures(u *csipb.VolumeUsage) (total, used, available *int64) {
	known := func(n int64, zero bool) *int64 {
		if n < 0 || n == 0 && !zero {
			return nil
		}
		return &n
	}
	return known(u.GetTotal(), false), known(u.GetUsed(), u.GetAvailable() > 0), known(u.GetAvailable(), u.GetUsed() > 0)
}
