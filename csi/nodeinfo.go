package csi

import (
	"context"
	"maps"
	"math"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/go-logr/logr"

	"github.com/volumekit/volumekit/plugins"
)

const (
	// maxNodeID is the longest node ID (CSI spec, NodeGetInfoResponse). The API
	// of Kubernetes took 192 bytes before it took 256.
	maxNodeID = 256
	// maxSegments is how many topology segments a driver may name: each becomes
	// a label of the node.
	maxSegments = 64
)

// askNodeInfo calls NodeGetInfo and checks the answer. An answer that cannot be
// used is a [refusedError].
func askNodeInfo(ctx context.Context, d *driver, log logr.Logger) (NodeInfo, error) {
	res, err := call(ctx, d, nodeGetInfo, "", &csipb.NodeGetInfoRequest{}, d.node.NodeGetInfo)
	if err != nil {
		return NodeInfo{}, err
	}
	if n := res.GetMaxVolumesPerNode(); n < 0 {
		log.Info("Driver answers NodeGetInfo with a negative number of volumes, taken for none", "driver", d.name, "maxVolumes", n)
	}
	return nodeInfoOf(d.name, res)
}

// nodeInfoOf reads an answer of NodeGetInfo, which is hostile.
func nodeInfoOf(driver string, res *csipb.NodeGetInfoResponse) (NodeInfo, error) {
	info := NodeInfo{Driver: driver, ID: res.GetNodeId(), MaxVolumes: max(0, res.GetMaxVolumesPerNode())}
	bad := func(format string, args ...any) (NodeInfo, error) {
		return NodeInfo{}, refused(plugins.Permanentf("CSI driver "+driver+" answered NodeGetInfo with "+format, args...))
	}
	switch segments := res.GetAccessibleTopology().GetSegments(); {
	case info.ID == "":
		return bad("no node ID")
	case len(info.ID) > maxNodeID:
		return bad("a node ID of %d bytes, at most %d are allowed", len(info.ID), maxNodeID)
	case !printable(info.ID):
		return bad("a node ID with control characters: %q", info.ID)
	case len(segments) > maxSegments:
		return bad("%d topology segments, at most %d are taken", len(segments), maxSegments)
	case len(segments) > 0:
		info.Topology = maps.Clone(segments)
	}
	for key, value := range info.Topology {
		if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
			return bad("the topology key %q, which is not the key of a label: %s", shorten(key, 128), wrong[0])
		}
		if wrong := validation.IsValidLabelValue(value); len(wrong) > 0 {
			return bad("%q for the topology key %s, which is not the value of a label: %s", shorten(value, 128), key, wrong[0])
		}
	}
	return info, nil
}

// equal reports whether both say the same.
func (i NodeInfo) equal(o NodeInfo) bool {
	return i.Driver == o.Driver && i.ID == o.ID && i.MaxVolumes == o.MaxVolumes && maps.Equal(i.Topology, o.Topology)
}

// clone returns a copy that shares nothing.
func (i NodeInfo) clone() NodeInfo {
	i.Topology = maps.Clone(i.Topology)
	return i
}

// refreshing is a NodeGetInfo under way for whoever wants one.
type refreshing struct {
	done chan struct{}
	err  error
}

// refreshNodeInfo asks a driver anew what it says of the node. Callers that come
// while it is being asked share the answer.
func (d *Drivers) refreshNodeInfo(ctx context.Context, name string) error {
	cur, l, err := d.find(ctx, name, servesNode)
	if err != nil {
		return err
	}
	d.mu.Lock()
	r := l.entry.refresh
	if r != nil {
		d.mu.Unlock()
		select {
		case <-r.done:
			return r.err
		case <-ctx.Done():
			return plugins.Transient(context.Cause(ctx))
		}
	}
	r = &refreshing{done: make(chan struct{})}
	l.entry.refresh = r
	d.mu.Unlock()
	info, err := askNodeInfo(ctx, cur, d.config.Log)
	changed := false
	d.mu.Lock()
	if err == nil && l.current != nil && l.current.generation == cur.generation && !l.current.info.equal(info) {
		changed = true
		next := *l.current
		next.info = info
		l.current = &next
		l.entry.learn(d.config.Clock.Now())
	}
	l.entry.refresh = nil
	d.mu.Unlock()
	r.err = err
	close(r.done)
	if changed {
		d.config.Log.Info("Driver says something else of the node now", "driver", name, "nodeID", info.ID, "maxVolumes", info.MaxVolumes)
		d.notices.tell(socketRef(name))
	}
	return err
}

// setUpdatePeriod has the node info of a driver asked for anew by a period; zero
// ends that.
func (d *Drivers) setUpdatePeriod(name string, period time.Duration) {
	if CheckDriverName(name) != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.entry(name); e.period != period {
		e.period = period
		e.touch()
	}
}

const (
	// publishTime bounds one call to the publisher.
	publishTime = time.Minute
	// firstPublish and lastPublish lie between attempts that failed.
	firstPublish = time.Second
	lastPublish  = time.Minute
)

// keeper keeps up to date what the publisher was told of a driver, and what the
// driver says. Only its goroutine uses it.
type keeper struct {
	drivers *Drivers
	name    string
	// told is what the publisher knows, as far as we know; nil if nothing.
	told *NodeInfo
	// touched: it may know something.
	touched bool

	// wish is what failed last, retry when it is to be tried again.
	wish     deed
	failures int
	retry    time.Time

	period    time.Duration
	refreshed time.Time
}

// deed is what is to be told: the info, or that there is none any more.
type deed struct {
	due      bool
	withdraw bool
	info     NodeInfo
}

func (a deed) equal(b deed) bool {
	return a.due == b.due && a.withdraw == b.withdraw && a.info.equal(b.info)
}

// view is what a keeper sees of its driver.
type view struct {
	info    NodeInfo
	away    time.Time // zero while it is there
	period  time.Duration
	changed <-chan struct{}
}

// run works until ctx ends. Nothing is withdrawn then: that we end says nothing
// of the driver.
func (k *keeper) run(ctx context.Context) {
	clock := k.drivers.config.Clock
	for ctx.Err() == nil {
		v := k.drivers.view(k.name)
		now := clock.Now()
		again := k.publish(ctx, v, now)
		if next := k.refresh(ctx, v, now); again.IsZero() || !next.IsZero() && next.Before(again) {
			again = next
		}
		if !again.IsZero() && !again.After(clock.Now()) {
			continue
		}
		var due <-chan time.Time
		stop := func() bool { return true }
		if !again.IsZero() {
			timer := clock.NewTimer(again.Sub(clock.Now()))
			due, stop = timer.C(), timer.Stop
		}
		select {
		case <-v.changed:
		case <-due:
		case <-ctx.Done():
		}
		stop()
	}
}

// publish tells the publisher what it does not know, and returns when to look
// again: now, if something else may be due.
func (k *keeper) publish(ctx context.Context, v view, now time.Time) time.Time {
	publisher := k.drivers.config.NodeInfo
	if publisher == nil {
		return time.Time{}
	}
	wish, later := k.wished(v, now)
	if !wish.due {
		k.wish, k.failures = deed{}, 0
		return later
	}
	if k.wish.equal(wish) && now.Before(k.retry) {
		return k.retry
	}
	if !k.wish.equal(wish) {
		k.failures = 0
	}
	limited, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	var err error
	if wish.withdraw {
		err = publisher.WithdrawNodeInfo(limited, k.name)
	} else {
		k.touched = true
		err = publisher.PublishNodeInfo(limited, wish.info.clone())
	}
	now = k.drivers.config.Clock.Now()
	if err != nil {
		if ctx.Err() != nil {
			return time.Time{}
		}
		k.failures++
		k.wish, k.retry = wish, now.Add(grown(firstPublish, lastPublish, k.failures))
		k.drivers.config.Log.Error(err, "Tell what a driver says of the node", "driver", k.name, "withdraw", wish.withdraw, "attempt", k.failures)
		return k.retry
	}
	k.wish, k.failures = deed{}, 0
	if wish.withdraw {
		k.told, k.touched = nil, false
	} else {
		k.told = &wish.info
	}
	return now
}

// wished compares what is known with what is there.
func (k *keeper) wished(v view, now time.Time) (wish deed, later time.Time) {
	if !v.away.IsZero() {
		end := v.away.Add(k.drivers.config.Grace)
		switch {
		case !k.touched:
			return deed{}, time.Time{}
		case now.Before(end):
			return deed{}, end
		}
		return deed{due: true, withdraw: true}, time.Time{}
	}
	if v.info.ID == "" || k.told != nil && k.told.equal(forAPI(v.info)) {
		return deed{}, time.Time{}
	}
	return deed{due: true, info: forAPI(v.info)}, time.Time{}
}

// forAPI is the info as the API of Kubernetes takes it: its count of volumes
// has 32 bits.
func forAPI(i NodeInfo) NodeInfo {
	i.MaxVolumes = min(i.MaxVolumes, math.MaxInt32)
	return i
}

// refresh asks the driver anew if that is due, and returns when it is due next.
func (k *keeper) refresh(ctx context.Context, v view, now time.Time) time.Time {
	if v.period != k.period {
		k.period, k.refreshed = v.period, now
	}
	if k.period <= 0 || !v.away.IsZero() {
		k.refreshed = now // the driver is asked when it comes
		return time.Time{}
	}
	if next := k.refreshed.Add(k.period); now.Before(next) {
		return next
	}
	k.refreshed = now
	if err := k.drivers.refreshNodeInfo(ctx, k.name); err != nil && ctx.Err() == nil {
		k.drivers.config.Log.Error(err, "Ask a driver anew what it says of the node", "driver", k.name)
	}
	return k.refreshed.Add(k.period)
}
