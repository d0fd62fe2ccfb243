package csi

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
)

// Refresh implements [plugins.Refresher]: volumes of drivers that require it
// are published again, with fresh tokens. What is mounted stays, whatever the
// driver answers.
func (p *Plugin) Refresh(ctx context.Context, req plugins.SetUpRequest) (plugins.Content, error) {
	s, err := sourceOf(req.Spec, req.Volume.Pod)
	if err != nil {
		return plugins.Content{}, err
	}
	info, err := driverInfo(ctx, p.host, s.driver)
	if err != nil {
		return plugins.Content{}, err
	}
	if !info.RequiresRepublish {
		return plugins.Content{}, nil
	}
	pub, err := p.prepare(ctx, req, isBlock(req.Spec))
	if err != nil {
		return plugins.Content{}, err
	}
	before, err := p.host.Mounter.Inspect(ctx, pub.request.TargetPath)
	if err != nil {
		return plugins.Content{}, plugins.Transient(err)
	}
	if err := p.callPublish(ctx, pub); err != nil {
		return plugins.Content{}, err
	}
	after, err := p.seen(ctx, pub.request.TargetPath)
	if err != nil {
		return plugins.Content{}, err
	}
	if before.MountID != after.MountID {
		p.host.Event(req.Object, v1.EventTypeWarning, reasonRemounted, fmt.Sprintf(
			"driver %s mounted volume %s anew when it was asked to renew it: running containers still have the old mount", s.driver, req.Volume.Name))
	}
	live := pub.published()
	live.mounted = after.Mounted
	p.remember(req.Volume, live)
	return plugins.Content{RefreshAt: p.nextPublish(pub)}, nil
}

const reasonRemounted = "VolumeRemounted"

// republishJitter is the part of the period by which publishes are spread.
const republishJitter = 0.1

// nextPublish is when a volume has to be published again: never for most.
func (p *Plugin) nextPublish(pub *publication) time.Time {
	if !pub.info.RequiresRepublish {
		return time.Time{}
	}
	period := p.config.RepublishPeriod
	period += time.Duration(republishJitter * (2*rand.Float64() - 1) * float64(period)) //nolint:gosec // spreads load
	next := p.host.Time().Now().Add(period)
	if !pub.due.IsZero() && pub.due.Before(next) {
		return pub.due
	}
	return next
}
