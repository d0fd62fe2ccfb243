package mounttest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// A program's code for mounting is tested without privileges.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = errors.Join(os.RemoveAll(dir), os.RemoveAll(dir+".stash")) }()
	ctx := context.Background()
	m := mounttest.New(mounttest.Options{Dir: dir})

	target := filepath.Join(dir, "volume")
	_ = os.Mkdir(target, 0o755)
	m.Inject(mounttest.Fault{Op: mounttest.OpMount, Target: "volume", Err: errors.New("no memory"), Times: 1})
	tmpfs := mount.Mount{Source: "tmpfs", Target: target, FSType: "tmpfs"}
	fmt.Println("first:", m.Mount(ctx, tmpfs))
	fmt.Println("second:", m.Mount(ctx, tmpfs))

	fmt.Println("remove:", errors.Is(m.RemoveAll(ctx, dir), mount.ErrCrossesMount))
	m.Busy(target)
	fmt.Println("busy:", errors.Is(m.Unmount(ctx, target, mount.UnmountOptions{}), mount.ErrBusy))
	fmt.Println("left:", len(m.Leftovers()))
	// Output:
	// first: no memory
	// second: <nil>
	// remove: true
	// busy: true
	// left: 1
}
