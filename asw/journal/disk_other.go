//go:build !linux

package journal

import "os"

// dataSync brings a file to the disk.
func dataSync(f *os.File) error { return f.Sync() }
