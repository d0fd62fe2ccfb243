//go:build !linux

package projection

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/volumekit/volumekit/mount"
)

// folder is an open folder. Its methods take names of what is right in it,
// never paths, and follow no link that leads out of it.
type folder struct {
	root *os.Root
	lent bool
}

func openFolder(path string) (folder, error) {
	root, err := os.OpenRoot(path)
	return folder{root: root}, err
}

// folderOf is the folder of a root.
func folderOf(root *os.Root) (folder, error) { return folder{root: root, lent: true}, nil }

// folderIn is the top folder of a file system that is mounted nowhere yet.
func folderIn(d mount.Detached) (folder, error) {
	root, err := d.Root()
	return folder{root: root, lent: true}, err
}

func (f folder) close() error {
	if f.lent {
		return nil
	}
	return f.root.Close()
}

func (f folder) open(name string) (folder, error) {
	root, err := f.root.OpenRoot(name)
	return folder{root: root}, err
}

func (f folder) mkdir(name string, mode fs.FileMode) error { return f.root.Mkdir(name, mode) }
func (f folder) symlink(text, name string) error           { return f.root.Symlink(text, name) }
func (f folder) rename(from, to string) error              { return f.root.Rename(from, to) }
func (f folder) readlink(name string) (string, error)      { return f.root.Readlink(name) }
func (f folder) remove(name string) error                  { return f.root.Remove(name) }
func (f folder) chmod(mode fs.FileMode) error              { return f.root.Chmod(".", mode) }

func (f folder) isFolder(name string) bool {
	info, err := f.root.Lstat(name)
	return err == nil && info.IsDir()
}

func (f folder) stat() (about, error) {
	info, err := f.root.Stat(".")
	return aboutOf(info, err)
}

// chmodIn changes the mode of a folder in it.
func (f folder) chmodIn(name string, mode fs.FileMode) error { return f.root.Chmod(name, mode) }

func (f folder) sync() error {
	dir, err := f.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// names lists what is in it.
func (f folder) names() (names, error) {
	dir, err := f.root.OpenFile(".", os.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, err
	}
	entries, err := dir.Readdirnames(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return nil, err
	}
	have := make(names, len(entries))
	for _, name := range entries {
		have[name] = true
	}
	return have, nil
}

// create makes a file, which must not be there.
func (f folder) create(name string, mode fs.FileMode) (file, error) {
	made, err := f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|openFlags, mode)
	return file{made}, err
}

// openFile opens a file to be read.
func (f folder) openFile(name string) (file, error) {
	found, err := f.root.OpenFile(name, os.O_RDONLY|openFlags, 0)
	return file{found}, err
}

// file is an open file.
type file struct{ f *os.File }

func (f file) write(data []byte) error {
	_, err := f.f.Write(data)
	return err
}

func (f file) read(to []byte) (int, error) {
	n, err := f.f.Read(to)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func (f file) stat() (about, error) {
	info, err := f.f.Stat()
	return aboutOf(info, err)
}

func (f file) chown(uid, gid int) error     { return f.f.Chown(uid, gid) }
func (f file) chmod(mode fs.FileMode) error { return f.f.Chmod(mode) }
func (f file) sync() error                  { return f.f.Sync() }
func (f file) close() error                 { return f.f.Close() }

func aboutOf(info fs.FileInfo, err error) (about, error) {
	if err != nil {
		return about{}, err
	}
	mode := info.Mode()
	return about{
		perm: mode.Perm(), regular: mode == mode.Perm(),
		setgid: mode&fs.ModeSetgid != 0, size: info.Size(), owner: ownerOf(info),
	}, nil
}
