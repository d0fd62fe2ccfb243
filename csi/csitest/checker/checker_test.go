package checker_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/csi/csitest/checker"
)

// everything is the life of a volume as a correct orchestrator leads it.
func everything(e *env) {
	e.intro()
	e.must(e.create())
	_, err := e.ctl.ValidateVolumeCapabilities(e.ctx(), &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: volID, VolumeCapabilities: []*csi.VolumeCapability{e.mountCap()}, VolumeContext: map[string]string{"pool": "fast"},
	})
	e.must(err)
	e.must(e.attach())
	e.must(e.attach())
	e.must(e.stage())
	e.must(e.publish(targetA))
	e.must(e.publish(targetA, func(r *csi.NodePublishVolumeRequest) {
		r.VolumeContext[tokens] = `{"aud":{"token":"second-token"}}`
		r.Secrets = map[string]string{"password": "rotated-secret", tokens: `{"aud":{"token":"third-token"}}`}
	}))
	e.must(e.publish(targetB))
	e.must(e.stats())
	e.must(e.stats(func(r *csi.NodeGetVolumeStatsRequest) { r.VolumePath = stagedA }))
	e.must(e.health())
	e.must(e.expandController())
	e.must(e.expand())
	e.must(e.expand(func(r *csi.NodeExpandVolumeRequest) {
		r.VolumeCapability, r.CapacityRange, r.VolumePath = nil, nil, stagedA
	}))
	e.must(e.unpublish(targetB))
	e.must(e.unpublish(targetB))
	e.must(e.unpublish(targetA))
	e.must(e.unstage())
	e.must(e.detach())
	e.must(e.remove())
}

// strict switches all rules on.
func strict() checker.Options {
	return checker.Options{
		DriverName: "driver.example.com", MaxCapabilityCalls: 1,
		Enable: []checker.Rule{checker.PublishSingleNode, checker.PublishCapability, checker.ExpandOrder, checker.ProbeFirst, checker.PluginInfoFirst},
	}
}

func TestCorrectOrchestrator(t *testing.T) {
	modes := map[string]func(*driver){
		"everything": func(*driver) {},
		"no attach": func(d *driver) {
			d.controllerCaps = without(d.controllerCaps, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
		},
	}
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, strict())
			mode(e.d)
			e.start()
			if name == "everything" {
				everything(e)
				if got := e.c.Counts()["NodePublishVolume"]; got != 3 {
					t.Errorf("%d publishes counted", got)
				}
			} else {
				e.intro()
				nothing := func(r *csi.NodeStageVolumeRequest) { r.PublishContext = nil }
				none := func(r *csi.NodePublishVolumeRequest) { r.PublishContext = nil }
				e.must(e.stage(nothing))
				e.must(e.publish(targetA, none))
				e.must(e.unpublish(targetA))
				e.must(e.unstage())
			}
			e.c.VerifyClean(t)
			e.c.ResetCounts()
			if n := len(e.c.Counts()); n != 0 {
				t.Errorf("%d counters left", n)
			}
		})
	}
}

// A driver that only publishes gets neither attach nor staging path.
func TestPublishOnlyDriver(t *testing.T) {
	e := newEnv(t, strict())
	e.d.nodeCaps = nil
	e.d.controllerCaps = nil
	e.start()
	e.intro()
	plain := func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath, r.PublishContext = "", nil }
	e.must(e.publish(targetA, plain))
	e.must(e.publish(targetB, plain))
	e.must(e.unpublish(targetA))
	e.must(e.unpublish(targetB))
	e.c.VerifyClean(t)
}

// An inline volume is neither attached nor staged, whatever the driver has.
func TestEphemeralVolume(t *testing.T) {
	for name, edit := range map[string]func(*csi.NodePublishVolumeRequest){
		"by context": func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["csi.storage.k8s.io/ephemeral"] = "true" },
		"by id":      func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "csi-" + strings.Repeat("0f", 32) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, strict())
			e.start()
			e.intro()
			var id string
			e.must(e.publish(targetA, edit, func(r *csi.NodePublishVolumeRequest) {
				r.StagingTargetPath, r.PublishContext = "", nil
				id = r.VolumeId
			}))
			_, err := e.node.NodeUnpublishVolume(e.ctx(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: targetA})
			e.must(err)
			e.c.VerifyClean(t)
		})
	}
}

// Failures and what a correct orchestrator does about them.
func TestRecovery(t *testing.T) {
	lost := []codes.Code{codes.DeadlineExceeded, codes.Canceled, codes.Unavailable, codes.Aborted, codes.Internal, codes.Unknown, codes.ResourceExhausted, codes.DataLoss}
	e := newEnv(t, strict())
	e.start()
	e.intro()
	for _, code := range lost {
		if code != codes.ResourceExhausted { // the node is full: not attached
			e.fail("ControllerPublishVolume", code)
			_ = e.attach()
			e.must(e.detach())
		}
		e.must(e.attach())
		e.fail("NodeStageVolume", code, code)
		_ = e.stage()
		_ = e.stage()
		e.fail("NodeUnstageVolume", code)
		_ = e.unstage()
		e.must(e.unstage())
		e.must(e.stage())
		e.fail("NodePublishVolume", code)
		_ = e.publish(targetA)
		e.must(e.publish(targetA)) // confirmed
		e.fail("NodePublishVolume", code)
		_ = e.publish(targetA) // a republish that fails takes nothing away
		e.must(e.publish(targetB))
		e.fail("NodeUnpublishVolume", code)
		_ = e.unpublish(targetA)
		e.must(e.publish(targetA)) // wanted again
		e.must(e.unpublish(targetA))
		e.must(e.unpublish(targetB))
		e.must(e.unstage())
		e.fail("ControllerUnpublishVolume", code)
		_ = e.detach()
		e.must(e.detach())
	}
	e.fail("ControllerPublishVolume", codes.ResourceExhausted)
	_ = e.attach()
	e.c.VerifyClean(t)
}

// A final error leaves nothing to undo; NOT_FOUND of an undo is done.
func TestFinalErrors(t *testing.T) {
	e := newEnv(t, strict())
	e.start()
	e.intro()
	e.fail("ControllerPublishVolume", codes.NotFound)
	_ = e.attach()
	e.must(e.attach())
	e.fail("NodeStageVolume", codes.InvalidArgument)
	_ = e.stage()
	e.must(e.stage(func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability.GetMount().FsType = "xfs" }))
	e.fail("NodePublishVolume", codes.FailedPrecondition)
	_ = e.publish(targetA)
	e.must(e.publish(targetA, func(r *csi.NodePublishVolumeRequest) { r.Readonly = true }))
	e.fail("NodeUnpublishVolume", codes.NotFound)
	_ = e.unpublish(targetA)
	e.fail("NodeUnstageVolume", codes.FailedPrecondition, codes.NotFound)
	_ = e.unstage()
	if got := e.c.Leftovers(); len(got) != 2 || got[0].Rule != checker.LeftBehind {
		t.Errorf("after a refused unstage, left over: %v", got)
	}
	_ = e.unstage()
	e.fail("ControllerUnpublishVolume", codes.NotFound)
	_ = e.detach()
	e.c.VerifyClean(t)
}

// The interceptor works at the orchestrator too.
func TestUnaryClient(t *testing.T) {
	e := newEnv(t, checker.Options{})
	client := checker.New(strict())
	e.dial = append(e.dial, grpc.WithChainUnaryInterceptor(client.UnaryClient()))
	e.start()
	everything(e)
	client.VerifyClean(t)
	e.must(e.attach())
	e.must(e.stage())
	overlap(e, "NodeGetVolumeHealth", func(ctx context.Context) {
		_, _ = e.node.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: volID, StagingTargetPath: stagedA})
	}, func() { e.must(e.stats(func(r *csi.NodeGetVolumeStatsRequest) { r.VolumePath = stagedA })) })
	wantRules(t, client.Violations(), checker.OneCallPerVolume)
}

// An answer that came too late for the orchestrator says nothing to it.
func TestLostAnswer(t *testing.T) {
	c := checker.New(checker.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	k := c.Begin(ctx, csi.Node_NodePublishVolume_FullMethodName, &csi.NodePublishVolumeRequest{
		VolumeId: volID, TargetPath: targetA, VolumeCapability: newEnv(t, checker.Options{}).mountCap(),
	})
	cancel()
	k.End(&csi.NodePublishVolumeResponse{}, nil)
	c.Verify(t)
	wantRules(t, c.Leftovers(), checker.LeftUncertain)
	c.Reset()
	c.VerifyClean(t)
}

// Only the first End counts.
func TestSecondEnd(t *testing.T) {
	c := checker.New(checker.Options{})
	k := c.Begin(t.Context(), csi.Node_NodePublishVolume_FullMethodName, &csi.NodePublishVolumeRequest{
		VolumeId: volID, TargetPath: targetA, VolumeCapability: newEnv(t, checker.Options{}).mountCap(),
	})
	k.End(nil, status.Error(codes.Internal, "mount failed"))
	k.End(&csi.NodePublishVolumeResponse{}, nil)
	wantRules(t, c.Leftovers(), checker.LeftUncertain)
}

// What was not learned is not judged; what Options say counts as learned.
func TestCapabilitiesFromOptions(t *testing.T) {
	publish := func(c *checker.Checker) {
		c.Begin(t.Context(), csi.Node_NodePublishVolume_FullMethodName, &csi.NodePublishVolumeRequest{
			VolumeId: volID, TargetPath: targetA,
			VolumeCapability: &csi.VolumeCapability{
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{VolumeMountGroup: "7"}},
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: singleWriter},
			},
		}).End(&csi.NodePublishVolumeResponse{}, nil)
	}
	c := checker.New(checker.Options{})
	publish(c)
	c.Verify(t)
	d := fullDriver()
	node, _ := d.NodeGetCapabilities(t.Context(), nil)
	controller, _ := d.ControllerGetCapabilities(t.Context(), nil)
	plugin, _ := d.GetPluginCapabilities(t.Context(), nil)
	c = checker.New(checker.Options{Node: node, Controller: controller, Plugin: plugin})
	publish(c)
	wantRules(t, c.Violations(), checker.AttachBeforeUse, checker.StagingPathMissing)
	c = checker.New(checker.Options{Node: &csi.NodeGetCapabilitiesResponse{}})
	publish(c)
	wantRules(t, c.Violations(), checker.CapabilityMountGroup, checker.CapabilityAccessMode)
}

// Paths may be longer than strings, node ids too.
func TestLongPaths(t *testing.T) {
	opts := strict()
	opts.NodeIDs = []string{strings.Repeat("n", 256)}
	e := newEnv(t, opts)
	e.start()
	e.intro()
	long := "/pods/" + strings.Repeat("x", 200)
	e.must(e.attach(func(r *csi.ControllerPublishVolumeRequest) { r.NodeId = opts.NodeIDs[0] }))
	e.must(e.stage(func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = long + "/stage" }))
	e.must(e.publish(long+"/mount", func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = long + "/stage" }))
	e.c.Verify(t)
}

// A driver that is used without introduction is reported once per start.
func TestIntroductionIsMissedOnce(t *testing.T) {
	e := newEnv(t, strict())
	e.start()
	e.info()
	e.info()
	if n := len(e.c.Violations()); n != 2 { // Probe and GetPluginInfo
		t.Errorf("%d violations", n)
	}
	e.c.Restarted()
	e.info()
	if n := len(e.c.Violations()); n != 4 {
		t.Errorf("%d violations after a restart", n)
	}
}

func TestForeignMethods(t *testing.T) {
	c := checker.New(checker.Options{})
	c.Begin(t.Context(), "/grpc.health.v1.Health/Check", &csi.ProbeRequest{}).End(nil, nil)
	c.Begin(t.Context(), csi.Identity_Probe_FullMethodName, "no message").End(nil, nil)
	c.VerifyClean(t)
	if len(c.Counts()) != 0 {
		t.Errorf("counted %v", c.Counts())
	}
}

// After a restart of the driver the requests of the old connection may be lost
// unseen; after one of the orchestrator its memory is.
func TestRestarts(t *testing.T) {
	for name, restart := range map[string]func(*checker.Checker){"driver": (*checker.Checker).Restarted, "orchestrator": (*checker.Checker).COrestarted} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, strict())
			e.start()
			e.mounted()
			entered := e.hang("NodePublishVolume")
			ctx, cancel := context.WithCancel(e.ctx())
			var wg sync.WaitGroup
			wg.Go(func() {
				_, _ = e.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
					VolumeId: volID, StagingTargetPath: stagedA, TargetPath: targetB, VolumeCapability: e.mountCap(),
					PublishContext: map[string]string{"device": "/dev/x"}, VolumeContext: map[string]string{"pool": "fast"},
				})
			})
			<-entered
			restart(e.c)
			cancel()
			wg.Wait()
			e.intro() // all is asked again
			e.must(e.unpublish("/pods/never-seen/mount"))
			e.must(e.unpublish(targetB))
			e.must(e.unpublish(targetA))
			e.must(e.unstage())
			e.must(e.detach())
			e.c.VerifyClean(t)
		})
	}
}

func TestNodeRebooted(t *testing.T) {
	e := newEnv(t, strict())
	e.start()
	e.mounted()
	e.c.NodeRebooted()
	wantRules(t, e.c.Leftovers(), checker.LeftBehind)
	e.intro()
	e.must(e.stage())
	e.must(e.publish(targetA))
	e.must(e.unpublish(targetA))
	e.must(e.unstage())
	e.must(e.detach())
	e.c.VerifyClean(t)
}

func TestFilesystem(t *testing.T) {
	dir := t.TempDir()
	staging, target := filepath.Join(dir, "stage"), filepath.Join(dir, "pod", "mount")
	for _, d := range []string{staging, filepath.Dir(target)} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	opts := strict()
	opts.Filesystem = true
	e := newEnv(t, opts)
	e.start()
	e.intro()
	e.must(e.attach())
	e.must(e.stage(func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = staging }))
	here := func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = staging }
	e.must(e.publish(target, here))
	if err := os.Mkdir(target, 0o700); err != nil { // as the driver does
		t.Fatal(err)
	}
	e.must(e.publish(target, here))
	e.must(e.unpublish(target))
	e.must(e.publish(target, here)) // the driver left it behind: not the orchestrator's fault
	e.c.Verify(t)
}

func TestViolationsAreBoundedAndTold(t *testing.T) {
	var told []checker.Violation
	c := checker.New(checker.Options{MaxViolations: 2, OnViolation: func(v checker.Violation) { told = append(told, v) }})
	for range 3 {
		c.Begin(t.Context(), csi.Node_NodeUnpublishVolume_FullMethodName, &csi.NodeUnpublishVolumeRequest{VolumeId: volID}).End(&csi.NodeUnpublishVolumeResponse{}, nil)
	}
	if len(c.Violations()) != 2 || c.Dropped() != 1 || len(told) != 3 {
		t.Errorf("kept %d, dropped %d, told %d", len(c.Violations()), c.Dropped(), len(told))
	}
	var tb recorder
	c.VerifyClean(&tb)
	if len(tb) != 3 {
		t.Errorf("reported %q", tb)
	}
	if s := told[0].String(); !strings.Contains(s, "NodeUnpublishVolume") || !strings.Contains(s, volID) || !strings.Contains(s, "target_path") {
		t.Errorf("says %q", s)
	}
}

// recorder is a TB.
type recorder []string

func (*recorder) Helper()                        {}
func (r *recorder) Errorf(f string, args ...any) { *r = append(*r, fmt.Sprintf(f, args...)) }

// wantRules compares the rules of violations, each named once.
func wantRules(t *testing.T, got []checker.Violation, want ...checker.Rule) {
	t.Helper()
	var rules []checker.Rule
	for _, v := range got {
		if !slices.Contains(rules, v.Rule) {
			rules = append(rules, v.Rule)
		}
		if v.Text == "" || v.Method == "" || v.Section == "" {
			t.Errorf("incomplete: %+v", v)
		}
	}
	if !slices.Equal(rules, want) {
		t.Errorf("violations %v, want of rules %v", got, want)
	}
}
