package nstest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/volumekit/volumekit/internal/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestDirIsAMountOfItsOwn(t *testing.T) {
	dir := nstest.Dir(t)
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}
