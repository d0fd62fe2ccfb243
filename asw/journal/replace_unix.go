//go:build !windows

package journal

import "os"

// canReplace says whether a file can be replaced while it is open.
const canReplace = true

// syncDir brings a folder's names to the disk.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return f.Sync()
}
