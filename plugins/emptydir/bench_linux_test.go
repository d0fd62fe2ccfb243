package emptydir_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/plugins"
)

// BenchmarkFolder is SetUp and TearDown of a plain volume beside its floor, the
// bare system calls.
func BenchmarkFolder(b *testing.B) {
	const pods = 64
	n := newNode(b, b.TempDir(), hostmount.New(hostmount.Options{}))
	spec := specOf(&v1.EmptyDirVolumeSource{})
	reqs := make([]plugins.SetUpRequest, pods)
	for i := range reqs {
		pod := podWith()
		pod.UID = types.UID("pod-" + strconv.Itoa(i))
		reqs[i] = n.request(spec, pod)
	}
	b.Run("floor", func(b *testing.B) {
		for i := range b.N {
			path := reqs[i%pods].Path
			must(b, unix.Mkdir(path, 0o777))
			must(b, unix.Chmod(path, 0o777))
			must(b, unix.Rmdir(path))
		}
	})
	b.Run("standard library", func(b *testing.B) {
		for i := range b.N {
			path := reqs[i%pods].Path
			must(b, os.Mkdir(path, 0o777))
			must(b, os.Chmod(path, 0o777))
			must(b, os.RemoveAll(path))
		}
	})
	b.Run("plugin", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			req := &reqs[i%pods]
			_, err := n.plugin.SetUp(context.Background(), *req)
			must(b, err)
			must(b, n.plugin.TearDown(context.Background(), plugins.TearDownRequest{Target: req.Target}))
		}
	})
}

// BenchmarkMemory is the same for a tmpfs.
func BenchmarkMemory(b *testing.B) {
	n := realNode(b)
	spec := specOf(&v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: quantity("1Mi")})
	req := n.request(spec, podWith())
	b.Run("floor", func(b *testing.B) {
		path := filepath.Join(n.root, "floor")
		for range b.N {
			must(b, unix.Mkdir(path, 0o755))
			must(b, unix.Mount("tmpfs", path, "tmpfs", 0, "size=1048576,mode=1777"))
			must(b, unix.Unmount(path, 0))
			must(b, unix.Rmdir(path))
		}
	})
	b.Run("plugin", func(b *testing.B) {
		for range b.N {
			_, err := n.plugin.SetUp(context.Background(), req)
			must(b, err)
			must(b, n.plugin.TearDown(context.Background(), plugins.TearDownRequest{Target: req.Target}))
		}
	})
}
