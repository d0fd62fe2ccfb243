package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/plugins"
)

// left is what is still there after a drain.
type left struct {
	mounts, paths []string
}

func (l left) none() bool { return len(l.mounts)+len(l.paths) == 0 }

// mountTable reads the kernel's table, whatever the manager's mounter believes:
// that one keeps what it has read for a while.
func mountTable(ctx context.Context) (mount.Table, error) {
	return hostmount.New(hostmount.Options{}).Table(ctx)
}

// leftovers looks for mounts, and for anything but the empty folders and the
// books that a manager keeps for its next start.
func leftovers(ctx context.Context, layout plugins.Layout) (l left, err error) {
	root := layout.Root
	table, err := mountTable(ctx)
	if err != nil {
		return l, err
	}
	for _, entry := range table.Below(root) {
		l.mounts = append(l.mounts, "mount "+entry.Target)
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == layout.StateDir():
			return fs.SkipDir
		case path != root && (filepath.Dir(path) != root || !d.IsDir()):
			l.paths = append(l.paths, path)
		}
		return nil
	})
	return l, err
}

// removeBooks removes what a manager keeps for its next start. Nothing else
// may be left.
func removeBooks(layout plugins.Layout) error {
	faults := []error{os.RemoveAll(layout.StateDir())}
	entries, err := os.ReadDir(layout.Root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		faults = append(faults, os.Remove(filepath.Join(layout.Root, e.Name())))
	}
	return errors.Join(faults...)
}

// mountID is one mount under the root.
type mountID struct {
	id     uint64
	target string
}

// mounts lists the mounts under the root.
func (a *agent) mounts(ctx context.Context) (list []mountID) {
	table, err := mountTable(ctx)
	if err != nil {
		return nil
	}
	for _, entry := range table.Below(a.root) {
		list = append(list, mountID{entry.ID, entry.Target})
	}
	return list
}

// compare says what became of the mounts of an agent that was killed.
func (a *agent) compare(before, now []mountID) {
	there := map[mountID]bool{}
	for _, m := range now {
		there[m] = true
	}
	same := 0
	for _, m := range before {
		if there[m] {
			same++
		}
	}
	a.out.event("agent pid %d: of the %d mounts that the killed agent left, %d serve on, the same mount ids; %d were made anew",
		os.Getpid(), len(before), same, len(now)-same)
}
