package csi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/plugins"
)

// Expansion says who enlarges storage.
type Expansion struct {
	// Claims is told how the expansion of a claim goes on (KEP-1790). Nil means
	// nobody.
	Claims ClaimUpdater
	// Controller enlarges storage through the drivers' own controllers, from
	// what a claim requests: for nodes without a control plane that does it.
	Controller bool
}

// ClaimUpdater writes what has become of a claim's expansion.
type ClaimUpdater interface {
	// UpdateClaimStatus changes the status of a claim. change is called with a
	// copy of the claim's newest version, as often as there is a conflict; what
	// it leaves as it was is not written. An error of change ends the update and
	// is returned. A claim that does not exist is NotFound, as package
	// k8s.io/apimachinery/pkg/api/errors tells it.
	UpdateClaimStatus(ctx context.Context, namespace, name string, change func(*v1.PersistentVolumeClaim) error) error
}

const storage = v1.ResourceStorage

// wished is the size that a claim asks for, if the drivers' controllers are to
// give it: nil unless that is more than the persistent volume has.
func (e Expansion) wished(spec *plugins.Spec) *resource.Quantity {
	if !e.Controller || spec == nil || spec.PV == nil || spec.Claim == nil {
		return nil
	}
	want, ok := spec.Claim.Spec.Resources.Requests[storage]
	if !ok || want.Cmp(spec.PV.Spec.Capacity[storage]) <= 0 {
		return nil
	}
	want = want.DeepCopy()
	return &want
}

// sizeNow is how large the volume is as far as its claim tells, nil if that is
// as much as wished or nothing tells. A volume that is smaller is expanded
// after it was set up, so that a failure of that holds up no pod.
func sizeNow(req plugins.SetUpRequest) *resource.Quantity {
	if req.Params.Size == nil || req.Spec == nil || req.Spec.PV == nil || req.Spec.Claim == nil {
		return nil
	}
	now, told := req.Spec.Claim.Status.Capacity[storage]
	if !told {
		now, told = req.Spec.PV.Spec.Capacity[storage]
	}
	if now = now.DeepCopy(); !told || now.Cmp(*req.Params.Size) >= 0 {
		return nil
	}
	return &now
}

// bytesIn is a quantity in whole bytes, rounded up; zero if it is none that a
// volume can have.
func bytesIn(q resource.Quantity) int64 {
	if q = q.DeepCopy(); q.Sign() <= 0 || q.CmpInt64(math.MaxInt64) > 0 {
		return 0
	}
	return q.Value()
}

func quantityOf(bytes int64) resource.Quantity {
	return *resource.NewQuantity(bytes, resource.BinarySI)
}

// growth is what this process knows of a published volume's expansion. It ends
// with the publish: a volume that is published anew is asked for again.
type growth struct {
	// size is what the driver has given it on this node.
	size int64
	// failed is the size that the driver has failed to give it.
	failed int64
}

// growthOf is what is known of the growth of a pod's volume. What the driver
// gave it for one pod every pod on the node has.
func (p *Plugin) growthOf(v plugins.PodVolume, s source) growth {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.live[v].growth
	for _, other := range p.live {
		if other.driver == s.driver && other.handle == s.handle && other.growth.size > known.size {
			known.size = other.growth.size
		}
	}
	return known
}

// noteGrowth changes what is known of a published volume's growth.
func (p *Plugin) noteGrowth(v plugins.PodVolume, change func(*growth)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if what, ok := p.live[v]; ok {
		change(&what.growth)
		p.live[v] = what
	}
}

// inUse returns what a driver answered that cannot expand a volume in use: it
// is not asked again before the volume is published anew.
func (p *Plugin) inUse(s source) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused[storageName(s.driver, s.handle)]
}

func (p *Plugin) noteInUse(s source, answer error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused == nil {
		p.refused = map[string]error{}
	}
	p.refused[storageName(s.driver, s.handle)] = answer
}

// forgetRefusal is for a volume that is not published any more. The lock is
// held.
func (p *Plugin) forgetRefusal(s source) {
	key := storageName(s.driver, s.handle)
	if _, refused := p.refused[key]; !refused {
		return
	}
	for _, other := range p.live {
		if other.driver == s.driver && other.handle == s.handle {
			return
		}
	}
	delete(p.refused, key)
}

// enlargement is one expansion with all that goes with it.
type enlargement struct {
	source
	driver *driver
	req    plugins.SetUpRequest
	known  growth
	plan   expansionPlan
}

// Expand implements [plugins.Expander]: it follows the recovery protocol of
// KEP-1790 where the claim takes part in that. The result is zero where there is
// nothing to do on this node.
//
// A driver that cannot expand a volume in use is not asked again before the
// volume is published anew (CSI spec, NodeExpandVolume errors). An answer that
// does not come is no failure, and is never recorded as one.
func (p *Plugin) Expand(ctx context.Context, req plugins.SetUpRequest) (resource.Quantity, error) {
	none := resource.Quantity{}
	e, err := p.enlargement(ctx, req)
	if err != nil {
		return none, err
	}
	switch e.plan.do {
	case expandNothing:
		return none, nil
	case expandReadOnly:
		p.tellReadOnly(e)
		return none, nil
	case expandLater:
		return none, plugins.WaitFor(claimRef(req.Spec.Claim), errors.New(e.plan.why))
	case expandNever:
		return none, plugins.Permanent(fmt.Errorf("%w: %s", ErrInfeasible, e.plan.why))
	}
	if refusal := p.inUse(e.source); refusal != nil && e.known.size < e.plan.to {
		return none, refusal
	}
	size, err := p.enlarge(ctx, e)
	switch {
	case err == nil && size > 0:
		return quantityOf(size), nil
	case plugins.ClassOf(err) == plugins.ClassUnsupported && !e.plan.controller:
		return none, nil // a driver that lost the capability, or never had it
	}
	return none, err
}

// enlargement finds out what is to be done.
func (p *Plugin) enlargement(ctx context.Context, req plugins.SetUpRequest) (*enlargement, error) {
	s, err := sourceOf(req.Spec, req.Volume.Pod)
	switch {
	case err != nil:
		return nil, err
	case s.ephemeral:
		return nil, plugins.Permanent(errors.New("an inline volume has no size that could grow"))
	case req.Params.Size == nil || bytesIn(*req.Params.Size) == 0:
		return nil, plugins.Permanent(errors.New("the size that the volume is to have is not a number of bytes"))
	}
	d, err := p.drivers.driver(ctx, s.driver)
	if err != nil {
		return nil, err
	}
	e := &enlargement{source: s, driver: d, req: req, known: p.growthOf(req.Volume, s)}
	e.plan = decide(expansionFacts{
		claim: req.Spec.Claim, modes: req.Spec.AccessModes(), readOnly: s.readOnly || req.Params.ReadOnly,
		wished: bytesIn(*req.Params.Size), pv: bytesIn(req.Spec.PV.Spec.Capacity[storage]),
		here: e.known.size, failed: e.known.failed,
		can: d.nodeCan.has(canExpand), alone: p.config.Expansion.Controller,
	})
	return e, nil
}

// enlarge has the driver expand the volume and the claim told. The size is zero
// where nothing had to be done on the node.
func (p *Plugin) enlarge(ctx context.Context, e *enlargement) (int64, error) {
	size := e.known.size
	if size < e.plan.to { // else the claim alone does not know it yet
		var err error
		if size, err = p.ask(ctx, e); err != nil {
			return 0, p.expansionFailed(ctx, e, err)
		}
		p.noteGrowth(e.req.Volume, func(g *growth) { *g = growth{size: size} })
	}
	if err := p.recordEnlarged(ctx, e); err != nil {
		return 0, err
	}
	p.tellEnlarged(e, size)
	return size, nil
}

// ask calls the driver: its controller first where that is ours to do.
func (p *Plugin) ask(ctx context.Context, e *enlargement) (int64, error) {
	if e.plan.controller {
		size, nodeToo, err := p.expandByController(ctx, e)
		if err != nil || !nodeToo {
			return size, err
		}
	}
	return p.expandOnNode(ctx, e)
}

// expandOnNode calls NodeExpandVolume. An answer with less than was asked for
// counts as what was asked for, as it does in the kubelet: many drivers answer
// with what the file system leaves.
func (p *Plugin) expandOnNode(ctx context.Context, e *enlargement) (int64, error) {
	req, err := p.nodeExpandRequest(ctx, e)
	if err != nil {
		return 0, err
	}
	if err := p.recordNodeBegins(ctx, e); err != nil {
		return 0, err
	}
	res, err := call(ctx, e.driver, nodeExpand, e.handle, req, e.driver.node.NodeExpandVolume)
	if err != nil {
		return 0, err
	}
	if got := res.GetCapacityBytes(); got != 0 && got < e.plan.to {
		p.host.Log.Info("Driver answers NodeExpandVolume with less than it was asked for", "driver", e.source.driver,
			"volume", shorten(e.handle, 128), "bytes", got, "asked", e.plan.to)
	}
	return max(res.GetCapacityBytes(), e.plan.to), nil
}

func (p *Plugin) nodeExpandRequest(ctx context.Context, e *enlargement) (*csipb.NodeExpandVolumeRequest, error) {
	spec, params := e.req.Spec, e.req.Params
	label := ""
	if params.SELinuxLabel != "" {
		info, err := driverInfo(ctx, p.host, e.source.driver)
		if err != nil {
			return nil, err
		}
		label = p.label(info, params)
	}
	capability, err := p.capability(e.driver, e.source, spec, params.FSGroup, label)
	if err != nil {
		return nil, err
	}
	req := &csipb.NodeExpandVolumeRequest{
		VolumeId: e.handle, VolumePath: p.publishedPath(e.req), VolumeCapability: capability,
		CapacityRange: &csipb.CapacityRange{RequiredBytes: e.plan.to},
	}
	if e.driver.nodeCan.has(canStage) {
		req.StagingTargetPath = e.req.DeviceMountPath
	}
	if req.Secrets, err = readSecret(ctx, p.host, refOf(spec.PV.Spec.CSI.NodeExpandSecretRef)); err != nil {
		return nil, err
	}
	return req, nil
}

// publishedPath is where the driver has published the volume.
func (p *Plugin) publishedPath(req plugins.SetUpRequest) string {
	if isBlock(req.Spec) {
		return p.places().blockPublish(req.Volume.Name, req.Volume.Pod)
	}
	return filepath.Join(req.Path, mountDir)
}
