//go:build !linux

package csitest

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

func unsupported() error {
	return fmt.Errorf("csitest mounts nothing on %s, only mode plain works: %w", runtime.GOOS, errors.ErrUnsupported)
}

func mounted(string) (bool, error) { return false, unsupported() }

func notEmpty(error) bool { return false }

func mountFlags([]string) (flags uintptr, data []string, err error) { return 0, nil, nil }

func mountNew(string, string, string, uintptr, []string) error { return unsupported() }

func bind(string, string, uintptr) error { return unsupported() }

func restrict(string, uintptr, bool) error { return unsupported() }

func unmountAll(string) error { return unsupported() }

func resizeTmpfs(string, int64) error { return unsupported() }

func setGroup(string, string) error { return nil }

func usageAt(string) ([]*csi.VolumeUsage, error) { return nil, unsupported() }

func devicesOf(string) ([]string, error) { return nil, unsupported() }

func attachDevice(string, bool) (string, error) { return "", unsupported() }

func detachDevice(string, string) error { return unsupported() }

func growDevice(string) error { return unsupported() }

func makeNode(string, string) error { return unsupported() }

func lookAt(string) (kind string, empty bool, err error) { return "", false, unsupported() }

func makeFileSystem(string, string) error { return unsupported() }

func growFileSystem(string, string, string) error { return unsupported() }

func mountDevice(string, string, string, mountOptions) error { return unsupported() }
