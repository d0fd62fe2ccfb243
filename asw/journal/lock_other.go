//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package journal

import (
	"os"
	"runtime"

	"github.com/volumekit/volumekit/plugins"
)

const carefully = 0

func takeLock(string) (*os.File, error) {
	return nil, plugins.Unsupportedf("a journal cannot be locked on %s", runtime.GOOS)
}
