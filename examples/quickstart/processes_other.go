//go:build !linux

package main

import (
	"fmt"
	"runtime"
)

func command(options) (code int, err error) {
	return 1, fmt.Errorf("it mounts for real, which works on Linux alone; this is %s", runtime.GOOS)
}

func keep(stage) (code int, err error) { return command(options{}) }

func keepInherited() {}

func cleanUpInside(int, *place) error { return nil }
