package steps

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

// podFolders keeps the removal of a pod's empty folders apart from steps that
// are about to put something into them.
type podFolders struct {
	mu   sync.Mutex
	busy map[string]*folderUse // by pod UID
}

// folderUse is how a pod's folder is used now: by steps, or by its removal.
type folderUse struct {
	steps   int
	removed chan struct{} // not nil while it is being removed; closed at the end
}

// enter waits until the pod's folder is not being removed and keeps it from
// being so until leave is called.
func (f *podFolders) enter(ctx context.Context, uid string) (leave func(), err error) {
	for {
		f.mu.Lock()
		use := f.busy[uid]
		if use == nil {
			use = &folderUse{}
			f.busy[uid] = use
		}
		if use.removed == nil {
			use.steps++
			f.mu.Unlock()
			return func() { f.leave(uid) }, nil
		}
		removed := use.removed
		f.mu.Unlock()
		select {
		case <-removed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (f *podFolders) leave(uid string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	use := f.busy[uid]
	if use.steps--; use.steps == 0 {
		delete(f.busy, uid)
	}
}

// remove calls do unless a step uses the folder, or it is being removed.
func (f *podFolders) remove(uid string, do func()) {
	f.mu.Lock()
	if f.busy[uid] != nil {
		f.mu.Unlock()
		return
	}
	use := &folderUse{removed: make(chan struct{})}
	f.busy[uid] = use
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.busy, uid)
		f.mu.Unlock()
		close(use.removed)
	}()
	do()
}

// RemovePodFolder removes the folders of a pod that is gone and has no volume
// left, as far as they are empty; what others keep there stays. It never
// removes anything but an empty folder. A UID that cannot be a folder's name
// is ignored.
func (e *Executor) RemovePodFolder(uid types.UID) {
	if plugins.CheckName(string(uid)) != nil || e.podKnown(uid) {
		return
	}
	e.folders.remove(string(uid), func() {
		if e.podKnown(uid) {
			return // it came back, and its steps may have been here already
		}
		l := e.Host.Layout
		for _, name := range e.Registry.Names() {
			_ = rmdir(l.PodVolumesOf(uid, name))
		}
		_ = rmdir(l.PodVolumesDir(uid))
		if rmdir(l.PodDir(uid)) == nil || !isFolder(l.PodDir(uid)) {
			return // as nearly always
		}
		for _, dir := range []string{l.PodVolumesDir(uid), l.PodPluginsDir(uid), l.PodDevicesDir(uid), l.PodSubpathsDir(uid)} {
			removeEmpty(dir)
		}
		_ = rmdir(l.PodDir(uid))
	})
}

// removeEmpty removes dir and the folders right below it where they are empty.
func removeEmpty(dir string) {
	if rmdir(dir) == nil || !isFolder(dir) {
		return
	}
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	names, _ := d.Readdirnames(-1)
	_ = d.Close()
	for _, name := range names {
		_ = rmdir(filepath.Join(dir, name))
	}
	_ = rmdir(dir)
}

// isFolder reports whether path is a folder and no symbolic link to one.
func isFolder(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// rmdir removes an empty folder and nothing else.
func rmdir(path string) error { return syscall.Rmdir(path) }

// inside reports whether the absolute path p is root or lies below it, once
// both are clean.
func inside(root, p string) bool {
	rel, err := filepath.Rel(root, p)
	return err == nil && filepath.IsLocal(rel)
}
