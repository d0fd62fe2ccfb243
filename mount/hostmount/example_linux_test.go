package hostmount_test

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
)

// A mounter can be used at once; it holds nothing that has to be closed.
func ExampleNew() {
	var m mount.Mounter = hostmount.New(hostmount.Options{})
	p, err := m.Inspect(context.Background(), "/proc")
	fmt.Println(p.Mounted, p.FSType, err)
	// Output: true proc <nil>
}
