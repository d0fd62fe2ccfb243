//go:build !linux

package nstest

import (
	"os"
	"runtime"
	"testing"
)

func reexec() (code int, done bool) {
	_ = os.Setenv(inside, "no mounts on "+runtime.GOOS)
	return 0, false
}

// Dir skips the test: there are no mounts here.
func Dir(t testing.TB) string {
	t.Helper()
	Require(t)
	return t.TempDir()
}

func private() error { return nil }

func realRoot() bool { return false }
