package hostmount_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

// TestConformance holds the mounter of this machine to the rules of the seam.
func TestConformance(t *testing.T) {
	nstest.Require(t)
	mounttest.TestMounter(t, func(t *testing.T) (mount.Mounter, string) {
		return hostmount.New(hostmount.Options{}), nstest.Dir(t)
	})
}

// TestConformanceClassic does it without the kernel's newer calls. mount(2)
// can make a bind mount read-only only after it is visible, which Mounter.Mount
// says.
func TestConformanceClassic(t *testing.T) {
	nstest.Require(t)
	mounttest.TestMounter(t, func(t *testing.T) (mount.Mounter, string) {
		return hostmount.New(hostmount.Options{Classic: true}), nstest.Dir(t)
	}, "read-only bind at once")
}

// pair is a kernel and an imitation with the same propagation.
func pair(t *testing.T, private bool) (host, memory mounttest.Subject) {
	t.Helper()
	dir := nstest.Dir(t)
	if private {
		if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
			t.Fatal(err)
		}
	}
	imitated := t.TempDir()
	return mounttest.Subject{Name: "the kernel", Mounter: hostmount.New(hostmount.Options{}), Dir: dir},
		mounttest.Subject{
			Name:    "memory",
			Mounter: mounttest.New(mounttest.Options{Dir: imitated, Private: private}),
			Dir:     imitated,
		}
}

// TestMemoryIsLikeTheKernel does the same random operations in memory and for
// real.
func TestMemoryIsLikeTheKernel(t *testing.T) {
	nstest.Require(t)
	const steps = 150
	for seed := range int64(4) {
		for _, private := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed %d private %t", seed, private), func(t *testing.T) {
				host, memory := pair(t, private)
				mounttest.Compare(t, seed, steps, host, memory)
			})
		}
	}
}

func FuzzMemoryIsLikeTheKernel(f *testing.F) {
	f.Add([]byte("\x00\x00\x06\x00\x00\x01"), false)
	f.Add([]byte("make a tree, mount here and there, and take it all away again"), true)
	f.Fuzz(func(t *testing.T, script []byte, private bool) {
		host, memory := pair(t, private)
		mounttest.CompareScript(t, script[:min(len(script), 1000)], host, memory)
	})
}
