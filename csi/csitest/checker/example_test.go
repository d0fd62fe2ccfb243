package checker_test

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/volumekit/volumekit/csi/csitest/checker"
)

// At the driver's server the checker comes first in the chain.
func Example() {
	c := checker.New(checker.Options{})
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(c.UnaryServer()))
	defer server.Stop()
	// Register the driver's services, serve, let the orchestrator work, then
	// call c.VerifyClean(t).
	fmt.Println(len(c.Violations()))
	// Output: 0
}

// Without gRPC, requests and answers are fed by hand.
func ExampleChecker_Begin() {
	c := checker.New(checker.Options{})
	call := c.Begin(context.Background(), csi.Node_NodeUnpublishVolume_FullMethodName,
		&csi.NodeUnpublishVolumeRequest{VolumeId: "vol-1"})
	call.End(&csi.NodeUnpublishVolumeResponse{}, nil)
	for _, v := range c.Violations() {
		fmt.Println(v)
	}
	// Output: required-field: NodeUnpublishVolume of volume "vol-1": target_path is empty; set it (CSI specification: REQUIRED vs. OPTIONAL)
}
