package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// openPlain opens a plain file of the owner alone. What else may stand in its
// place (a link, a pipe, a device) is refused without waiting for anything.
func openPlain(path string, flags int) (*os.File, error) {
	// A device notices that it is opened, so look first.
	if info, err := os.Lstat(path); err == nil {
		if err := plain(path, info); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, flags|carefully, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = plain(path, info)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func plain(path string, info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	return fmt.Errorf("%s is not a plain file but %s", path, kindOf(info.Mode()))
}

func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a folder"
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	}
	return "of another kind"
}

// inPlace reports whether the journal and its lock are still what their names
// lead to. It costs one lstat(2), 1.3 µs, and one fstat(2), a sixth of that:
// of the lock it is enough to know that it was not removed, since whoever moves
// the whole folder moves the journal.
func (j *Journal) inPlace() bool {
	j.mu.Lock()
	file, lock := j.fileID, j.lock
	j.mu.Unlock()
	return file.isAt(j.path()) && hasName(lock)
}

// restore follows the loss of the folder or a file in it: it takes the lock of
// what is there now and writes the whole journal there from memory. Where
// another agent has taken hold of the folder meanwhile it changes nothing, and
// its error wraps ErrLocked. The caller has the turn.
func (j *Journal) restore() error {
	if err := j.relock(); err != nil {
		return fmt.Errorf("the journal was removed, and again to take %s: %w", j.dir, err)
	}
	if err := j.rewrite(); err != nil {
		return fmt.Errorf("the journal was removed: %w", err)
	}
	if err := syncDir(filepath.Dir(j.dir)); err != nil { // the folder may be new
		return fmt.Errorf("the journal was removed: %w", err)
	}
	j.options.Log.Error(errRemoved, "Journal was written anew", "dir", j.dir)
	return nil
}

var errRemoved = errors.New("somebody removed or replaced it")

// relock locks what the lock's name leads to now, if that is another file.
func (j *Journal) relock() error {
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return err
	}
	if j.holdsLock() {
		return nil
	}
	lock, err := takeLock(j.lockPath)
	if err != nil {
		return err
	}
	id, err := identify(lock)
	if err != nil {
		_ = lock.Close()
		return err
	}
	old := j.lock
	j.mu.Lock()
	j.lock, j.lockID = lock, id
	j.mu.Unlock()
	return old.Close()
}

// holdsLock reports whether the folder at this name is the one that is locked.
func (j *Journal) holdsLock() bool {
	j.mu.Lock()
	id := j.lockID
	j.mu.Unlock()
	return id.isAt(j.lockPath)
}
