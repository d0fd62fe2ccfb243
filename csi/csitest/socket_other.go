//go:build !linux

package csitest

// shorten has no way to do it here: a path that is too long fails to bind.
func shorten(path string) (short string, done func(), err error) { return path, func() {}, nil }
