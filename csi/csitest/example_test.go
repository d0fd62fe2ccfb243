package csitest_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/volumekit/volumekit/csi/csitest"
)

// A driver whose first answer is lost although it has done the work. Mode plain
// mounts nothing, so that this runs everywhere.
func Example() {
	dir, err := os.MkdirTemp("", "csitest")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	d, err := csitest.New(csitest.Config{Dir: filepath.Join(dir, "driver"), Mode: csitest.ModePlain, AutoCreate: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	if err := d.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	defer d.Stop()
	defer d.UndoAll()
	d.Script("NodePublishVolume", csitest.Fault{Times: 1, AfterWork: true, Code: codes.DeadlineExceeded})

	conn, err := grpc.NewClient("passthrough:///driver", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return csitest.Dial(ctx, d.Endpoint()) }))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	for range 2 {
		_, err = csi.NewNodeClient(conn).NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId:   "volume-1",
			TargetPath: filepath.Join(dir, "target"),
			VolumeCapability: &csi.VolumeCapability{
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			},
		})
		fmt.Println(status.Code(err), len(d.Volumes()[0].Published))
	}
	fmt.Println(d.CallCounts()["NodePublishVolume"], "calls")
	// Output:
	// DeadlineExceeded 1
	// OK 1
	// 2 calls
}
