package checker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
)

// seen is what the file system said of the paths in a request.
type seen struct {
	stagingMissing bool
	parentMissing  bool
	targetExists   bool
}

// look reads the file system where [Options.Filesystem] allows it. What cannot
// be looked at, as a dead mount, is no fault.
func (c *Checker) look(req proto.Message) seen {
	var s seen
	if !c.opts.Filesystem {
		return s
	}
	switch r := req.(type) {
	case *csi.NodeStageVolumeRequest:
		s.stagingMissing = notDir(r.GetStagingTargetPath())
	case *csi.NodePublishVolumeRequest:
		target := r.GetTargetPath()
		s.parentMissing = notDir(filepath.Dir(target))
		_, err := os.Lstat(target)
		s.targetExists = err == nil
	}
	return s
}

func notDir(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	return !info.IsDir()
}
