package hostpath

import (
	"fmt"
	"io/fs"

	v1 "k8s.io/api/core/v1"
)

// kind says what a hostPath.type asks for.
type kind struct {
	// is accepts the right types of file; nil accepts every one, and nothing.
	is func(fs.FileMode) bool
	// name is what is wanted, for messages.
	name string
	// create makes it; nil where that is not asked for.
	create func(place) (place, error)
}

// kindOf knows the values of hostPath.type.
func kindOf(t v1.HostPathType) (k kind, known bool) {
	switch t {
	case v1.HostPathUnset:
		return kind{}, true
	case v1.HostPathDirectoryOrCreate:
		return kind{is: fs.FileMode.IsDir, name: "a folder", create: makeFolders}, true
	case v1.HostPathDirectory:
		return kind{is: fs.FileMode.IsDir, name: "a folder"}, true
	case v1.HostPathFileOrCreate:
		return kind{is: fs.FileMode.IsRegular, name: "a regular file", create: makeFile}, true
	case v1.HostPathFile:
		return kind{is: fs.FileMode.IsRegular, name: "a regular file"}, true
	case v1.HostPathSocket:
		return kind{is: isSocket, name: "a socket"}, true
	case v1.HostPathCharDev:
		return kind{is: isCharDevice, name: "a character device"}, true
	case v1.HostPathBlockDev:
		return kind{is: isBlockDevice, name: "a block device"}, true
	}
	return kind{}, false
}

func isSocket(m fs.FileMode) bool     { return m&fs.ModeSocket != 0 }
func isCharDevice(m fs.FileMode) bool { return m&fs.ModeCharDevice != 0 }
func isBlockDevice(m fs.FileMode) bool {
	return m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0
}

// provide creates what is missing at p, if the type asks for that, and returns
// what is there then.
func (w wish) provide(p place) (place, error) {
	if len(p.missing) == 0 || w.create == nil {
		return p, nil
	}
	made, err := w.create(p)
	if err != nil {
		return place{}, fmt.Errorf("hostPath %s (type %s): %w", w.path, w.typ, err)
	}
	_ = p.Close()
	return made, nil
}

// check compares what is there with what is wanted.
func (w wish) check(p place) error {
	switch {
	case w.is == nil:
		return nil
	case len(p.missing) > 0:
		return fmt.Errorf("hostPath %s (type %s): %s is wanted, but %s does not exist: %w",
			w.path, w.typ, w.name, p.full(), fs.ErrNotExist)
	case !w.is(p.mode):
		return fmt.Errorf("hostPath %s (type %s): %s is wanted, but %s is %s", w.path, w.typ, w.name, p.path, typeName(p.mode))
	}
	return nil
}
