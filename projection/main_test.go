package projection

import (
	"os"
	"testing"

	"github.com/volumekit/volumekit/internal/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

// memory is a folder in memory, where the machine has one.
func memory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "projection")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
