package csitest_test

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/csi/csitest/checker"
)

// TestCheckerStandsBeforeTheDriver puts the checker in, as a test of an
// orchestrator does.
func TestCheckerStandsBeforeTheDriver(t *testing.T) {
	watch := checker.New(checker.Options{})
	config := staging(csitest.ModeTmpfs)
	config.Interceptors = []grpc.UnaryServerInterceptor{watch.UnaryServer()}
	b := start(t, config)
	c, s, target := mountCapability(writer, ""), b.staging("stage"), b.path("pods/1/target")
	b.d.Script("NodeStageVolume", csitest.Fault{Times: 1, AfterWork: true, Code: codes.DeadlineExceeded})
	b.want(b.stage("v", s, c), codes.DeadlineExceeded)
	b.must(b.stage("v", s, c), b.publish("v", s, target, c))
	before := len(watch.Violations())
	b.want(b.unstage("v", s), codes.FailedPrecondition) // before the unpublish
	if len(watch.Violations()) == before {
		t.Error("the checker saw nothing wrong")
	}
	b.must(b.unpublish("v", target), b.unstage("v", s))
}
