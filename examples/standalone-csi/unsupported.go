//go:build !linux

package main

import (
	"errors"
	"runtime"
)

const roleVariable = "VOLUMEKIT_STANDALONE_CSI_ROLE"

func play(string) error { return command("") }

func command(string) error {
	return errors.New("this needs the mounts and namespaces of Linux, and runs on " + runtime.GOOS)
}
