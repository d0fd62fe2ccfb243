package mounttest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/mounttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	for _, private := range []bool{false, true} {
		name := map[bool]string{false: "shared", true: "private"}[private]
		t.Run(name, func(t *testing.T) {
			mounttest.TestMounter(t, func(t *testing.T) (mount.Mounter, string) {
				dir := t.TempDir()
				return mounttest.New(mounttest.Options{Dir: dir, Private: private}), dir
			})
		})
	}
}
