//go:build unix

package main

import (
	"path/filepath"
	"syscall"
	"testing"
)

// pipes adds files that would hang a reader.
func pipes(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o644); err != nil {
		t.Fatal(err)
	}
	want["pipe.yaml"] = "this is not a regular file"
}
