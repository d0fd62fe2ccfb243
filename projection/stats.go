package projection

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/volumekit/volumekit/plugins"
)

// Stats counts what the volume's files take up. There are few of them, so
// they are simply looked at. Capacity means nothing here and is left unknown.
func (v *Volume) Stats(ctx context.Context, target plugins.Target) (plugins.Stats, error) {
	root, err := os.OpenRoot(target.Path)
	if err != nil {
		return plugins.Stats{}, plugins.Transient(err)
	}
	defer root.Close()
	var bytes, inodes int64
	err = fs.WalkDir(root.FS(), ".", func(_ string, entry fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		var info fs.FileInfo
		if err == nil {
			info, err = entry.Info()
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // an old version on its way out
			return nil
		case err != nil:
			return err
		}
		bytes, inodes = bytes+usedBytes(info), inodes+1
		return nil
	})
	if err != nil {
		return plugins.Stats{}, plugins.Transient(err)
	}
	return plugins.Stats{UsedBytes: &bytes, InodesUsed: &inodes, Time: v.host.Time().Now()}, nil
}
