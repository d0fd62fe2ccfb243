package asw_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/internal/nstest"
)

// TestDeadFoldersStopNothing lists folders that give errors, as those of a
// file system whose server is gone do: the /proc folder of a process that has
// ended, mounted at each level of the tree.
func TestDeadFoldersStopNothing(t *testing.T) {
	root := nstest.Dir(t)
	const volumes = "/volumes/kubernetes.io~empty-dir"
	dead := []string{"pods/a-pod", "pods/b-volumes/volumes", "pods/c-plugin" + volumes}
	tree(t, root, "pods/d-volume"+volumes+"/good", "pods/e"+volumes+"/good")
	tree(t, root, dead...)
	child := exec.Command("sleep", "1000")
	must(t, child.Start())
	// A volume itself may be as dead as it likes: nobody looks into it.
	for _, path := range append(dead, "pods/d-volume"+volumes+"/good") {
		must(t, unix.Mount(fmt.Sprintf("/proc/%d", child.Process.Pid), filepath.Join(root, path), "", unix.MS_BIND, ""))
	}
	must(t, child.Process.Kill())
	_ = child.Wait()

	found := find(t, finder(t, root), journal.Contents{})
	if got := faultPaths(t, root, found); !slices.Equal(got, dead) {
		t.Errorf("faults %v, want %v", found.Faults, dead)
	}
	if len(found.Volumes) != 2 || len(found.EmptyPods) != 0 {
		t.Errorf("%+v", found)
	}
}
