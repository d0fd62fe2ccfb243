// Package nstest lets tests make real mounts without harm: the test binary
// runs again in a private mount namespace, and for an ordinary user in a user
// namespace of its own as well. What the tests leave mounted ends with them.
//
// A package whose tests mount says so once:
//
//	func TestMain(m *testing.M) { nstest.Main(m) }
//
// and each such test begins with nstest.Require or nstest.Dir.
package nstest

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// inside is set in the environment of the second run. Its value is why mounts
// are not possible, or "yes".
const inside = "VOLUMEKIT_NSTEST"

// Main runs the tests and exits. Left goroutines fail the run.
func Main(m *testing.M) {
	if os.Getenv(inside) == "" {
		if code, done := reexec(); done {
			os.Exit(code)
		}
	} else if err := private(); err != nil {
		_ = os.Setenv(inside, "mounts cannot be made private: "+err.Error())
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			_, _ = os.Stderr.WriteString("goroutines left behind: " + err.Error() + "\n")
			code = 1
		}
	}
	os.Exit(code)
}

// Require skips the test where mounts cannot be made, and says why.
func Require(t testing.TB) {
	t.Helper()
	if why := os.Getenv(inside); why != "yes" {
		if why == "" {
			why = "this package's TestMain does not call nstest.Main"
		}
		t.Skip("cannot mount here: " + why)
	}
}

// RealRoot reports whether the tests run as the machine's root, not merely as
// root of a user namespace: device nodes, foreign owners and loop devices need
// that.
func RealRoot() bool { return realRoot() }
