package checker_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/volumekit/volumekit/csi/csitest/checker"
)

// belief is what the random orchestrator thinks of one step.
type belief int

const (
	none belief = iota
	maybe
	sure
)

// dice yields random decisions: from bytes for fuzzing, else from a seed.
type dice func(n int) int

func seeded(seed uint64) dice { return rand.New(rand.NewPCG(seed, 1)).IntN }

func fromBytes(data []byte) dice {
	return func(n int) int {
		if len(data) == 0 {
			return 0
		}
		b := int(data[0])
		data = data[1:]
		return b % n
	}
}

// randomCO is an orchestrator that keeps the rules, by its own reckoning, on
// one volume of a driver whose answers are random.
type randomCO struct {
	t       testing.TB
	c       *checker.Checker
	roll    dice
	id      string
	attach  bool // the driver has the step
	stage   bool
	mode    csi.VolumeCapability_AccessMode_Mode
	block   bool
	attachd belief
	staged  belief
	context map[string]string
	targets []randomTarget
	serial  int
}

type randomTarget struct {
	path     string
	state    belief
	readonly bool
}

func newRandomCO(t testing.TB, c *checker.Checker, roll dice, id string) *randomCO {
	o := &randomCO{t: t, c: c, roll: roll, id: id, mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER}
	o.block = roll(4) == 0
	n := 1 + roll(3)
	switch roll(3) {
	case 0:
		o.mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	case 1:
		o.mode, n = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, 1
	}
	for i := range n {
		o.targets = append(o.targets, randomTarget{path: fmt.Sprintf("/pods/%s/%d", id, i)})
	}
	return o
}

// ask lets the driver report its capabilities.
func (o *randomCO) ask(attach, stage bool) {
	o.attach, o.stage = attach, stage
	d := fullDriver()
	if !attach {
		d.controllerCaps = without(d.controllerCaps, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	}
	if !stage {
		d.nodeCaps = without(d.nodeCaps, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	}
	controller, _ := d.ControllerGetCapabilities(o.t.Context(), nil)
	node, _ := d.NodeGetCapabilities(o.t.Context(), nil)
	o.c.Begin(o.t.Context(), csi.Controller_ControllerGetCapabilities_FullMethodName, &csi.ControllerGetCapabilitiesRequest{}).End(controller, nil)
	o.c.Begin(o.t.Context(), csi.Node_NodeGetCapabilities_FullMethodName, &csi.NodeGetCapabilitiesRequest{}).End(node, nil)
	o.c.Begin(o.t.Context(), csi.Node_NodeGetInfo_FullMethodName, &csi.NodeGetInfoRequest{}).End(&csi.NodeGetInfoResponse{NodeId: nodeID}, nil)
}

type result int

const (
	ok result = iota
	lost
	final
)

// call makes a call with a random result, a good one for luck 0.
func (o *randomCO) call(method string, req, resp proto.Message, luck int) result {
	ctx, cancel := context.WithCancel(o.t.Context())
	defer cancel()
	k := o.c.Begin(ctx, method, req)
	lostCodes := []codes.Code{codes.DeadlineExceeded, codes.Canceled, codes.Unavailable, codes.Aborted, codes.Internal, codes.Unknown, codes.DataLoss}
	finalCodes := []codes.Code{codes.InvalidArgument, codes.FailedPrecondition, codes.PermissionDenied, codes.Unauthenticated, codes.OutOfRange, codes.AlreadyExists}
	switch luck {
	case 1:
		k.End(nil, status.Error(lostCodes[o.roll(len(lostCodes))], ""))
		return lost
	case 2:
		cancel() // the work is done, the answer lost
		k.End(resp, nil)
		return lost
	case 3:
		k.End(nil, status.Error(finalCodes[o.roll(len(finalCodes))], ""))
		return final
	}
	k.End(resp, nil)
	return ok
}

// luck is good half of the time.
func (o *randomCO) luck() int { return max(0, o.roll(6)-2) }

func made(was belief, r result) belief {
	switch r {
	case ok:
		return sure
	case lost:
		return max(was, maybe)
	}
	return was
}

func undone(was belief, r result) belief {
	switch {
	case r == ok:
		return none
	case r == lost && was != none:
		return maybe
	}
	return was
}

func (o *randomCO) capability() *csi.VolumeCapability {
	vc := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: o.mode}}
	vc.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs"}}
	if o.block {
		vc.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	}
	return vc
}

func (o *randomCO) stagingPath() string {
	if o.stage {
		return "/staging/" + o.id
	}
	return ""
}

func (o *randomCO) doAttach(luck int) {
	o.serial++
	answer := map[string]string{"lun": fmt.Sprint(o.serial)}
	if o.attachd == sure {
		answer = o.context
	}
	o.attachd = made(o.attachd, o.call(csi.Controller_ControllerPublishVolume_FullMethodName, &csi.ControllerPublishVolumeRequest{
		VolumeId: o.id, NodeId: nodeID, VolumeCapability: o.capability(),
	}, &csi.ControllerPublishVolumeResponse{PublishContext: answer}, luck))
	if o.attachd == sure && luck == 0 {
		o.context = answer
	}
}

func (o *randomCO) doDetach(luck int) {
	o.attachd = undone(o.attachd, o.call(csi.Controller_ControllerUnpublishVolume_FullMethodName,
		&csi.ControllerUnpublishVolumeRequest{VolumeId: o.id, NodeId: nodeID}, &csi.ControllerUnpublishVolumeResponse{}, luck))
}

func (o *randomCO) doStage(luck int) {
	o.staged = made(o.staged, o.call(csi.Node_NodeStageVolume_FullMethodName, &csi.NodeStageVolumeRequest{
		VolumeId: o.id, StagingTargetPath: o.stagingPath(), VolumeCapability: o.capability(), PublishContext: o.context,
	}, &csi.NodeStageVolumeResponse{}, luck))
}

func (o *randomCO) doUnstage(luck int) {
	o.staged = undone(o.staged, o.call(csi.Node_NodeUnstageVolume_FullMethodName,
		&csi.NodeUnstageVolumeRequest{VolumeId: o.id, StagingTargetPath: o.stagingPath()}, &csi.NodeUnstageVolumeResponse{}, luck))
}

func (o *randomCO) doPublish(t *randomTarget, luck int) {
	if t.state == none {
		t.readonly = o.roll(2) == 0
	}
	o.serial++
	t.state = made(t.state, o.call(csi.Node_NodePublishVolume_FullMethodName, &csi.NodePublishVolumeRequest{
		VolumeId: o.id, StagingTargetPath: o.stagingPath(), TargetPath: t.path, Readonly: t.readonly,
		VolumeCapability: o.capability(), PublishContext: o.context,
		VolumeContext: map[string]string{tokens: fmt.Sprintf(`{"":{"token":"token-%s-%d"}}`, o.id, o.serial)},
		Secrets:       map[string]string{"key": fmt.Sprintf("secret-%s-%d", o.id, o.serial)},
	}, &csi.NodePublishVolumeResponse{}, luck))
}

func (o *randomCO) doUnpublish(t *randomTarget, luck int) {
	t.state = undone(t.state, o.call(csi.Node_NodeUnpublishVolume_FullMethodName,
		&csi.NodeUnpublishVolumeRequest{VolumeId: o.id, TargetPath: t.path}, &csi.NodeUnpublishVolumeResponse{}, luck))
}

func (o *randomCO) doExpand(path string, luck int) {
	if luck == 3 {
		luck = 1 // its final errors have a rule of their own
	}
	o.call(csi.Node_NodeExpandVolume_FullMethodName, &csi.NodeExpandVolumeRequest{
		VolumeId: o.id, VolumePath: path, StagingTargetPath: o.stagingPath(), VolumeCapability: o.capability(),
	}, &csi.NodeExpandVolumeResponse{}, luck)
}

func (o *randomCO) published() bool {
	return slices.ContainsFunc(o.targets, func(t randomTarget) bool { return t.state != none })
}

// step does something that is allowed.
func (o *randomCO) step() {
	t := &o.targets[o.roll(len(o.targets))]
	usable := (!o.attach || o.attachd == sure) && (!o.stage || o.staged == sure)
	switch o.roll(8) {
	case 0:
		if o.attach {
			o.doAttach(o.luck())
		}
	case 1:
		if o.stage && (!o.attach || o.attachd == sure) {
			o.doStage(o.luck())
		}
	case 2, 3:
		if usable {
			o.doPublish(t, o.luck())
		}
	case 4:
		if t.state != none {
			o.doUnpublish(t, o.luck())
		}
	case 5:
		if usable && t.state == sure {
			o.doExpand(t.path, o.luck())
		}
	case 6:
		if o.stage && !o.published() {
			o.doUnstage(o.luck())
		}
	case 7:
		if o.attach && !o.published() && o.staged == none {
			o.doDetach(o.luck())
		}
	}
}

// end undoes everything.
func (o *randomCO) end() {
	for i := range o.targets {
		if o.targets[i].state != none {
			o.doUnpublish(&o.targets[i], 0)
		}
	}
	if o.staged != none {
		o.doUnstage(0)
	}
	if o.attachd != none {
		o.doDetach(0)
	}
}

// misstep breaks a rule, if one can be broken now, and returns those of which
// one must speak.
func (o *randomCO) misstep() []checker.Rule {
	switch {
	case o.stage && o.published():
		o.doUnstage(0)
		return []checker.Rule{checker.UnstageInUse, checker.UndoUncertain}
	case o.attach && o.staged != none:
		o.doDetach(0)
		return []checker.Rule{checker.DetachInUse, checker.UndoUncertain}
	case o.attach && o.attachd != sure && o.stage:
		o.doStage(0)
		return []checker.Rule{checker.AttachBeforeUse}
	case o.stage && o.staged != sure:
		o.doPublish(&o.targets[0], 0)
		return []checker.Rule{checker.StageBeforePublish}
	case !o.stage && !o.published():
		o.doExpand(o.targets[0].path, 0)
		return []checker.Rule{checker.ExpandTooEarly}
	}
	return nil
}

// walk makes random steps, all allowed, then either ends cleanly or missteps.
func walk(t *testing.T, roll dice, steps int) {
	t.Helper()
	c := checker.New(checker.Options{})
	o := newRandomCO(t, c, roll, "vol-x")
	o.ask(roll(3) > 0, roll(3) > 0)
	for range steps {
		o.step()
	}
	if got := c.Violations(); len(got) > 0 {
		t.Fatalf("an orchestrator that keeps the rules is blamed: %v", got)
	}
	if roll(2) == 0 {
		o.end()
		c.VerifyClean(t)
		return
	}
	want := o.misstep()
	got := c.Violations()
	if (len(want) > 0) != (len(got) > 0) || len(got) > 0 && !slices.Contains(want, got[0].Rule) {
		t.Fatalf("violations %v, want one of %v", got, want)
	}
}

func TestRandomOrchestrator(t *testing.T) {
	for seed := range uint64(400) {
		walk(t, seeded(seed), 60)
	}
}

func FuzzOrchestrator(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("a volume is attached, staged and published"))
	for seed := range uint64(8) {
		roll, data := seeded(seed), make([]byte, 200)
		for i := range data {
			data[i] = byte(roll(256))
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) { walk(t, fromBytes(data), min(len(data), 200)) })
}

// Volumes do not disturb one another, from whichever goroutine.
func TestRandomOrchestratorsAtOnce(t *testing.T) {
	c := checker.New(checker.Options{})
	newRandomCO(t, c, seeded(1), "asker").ask(true, true)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			o := newRandomCO(t, c, seeded(uint64(i)+100), fmt.Sprintf("vol-%d", i))
			o.attach, o.stage = true, true
			for range 150 {
				o.step()
				_ = c.Counts()
			}
			o.end()
		})
	}
	wg.Wait()
	c.VerifyClean(t)
}
