package mounttest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/volumekit/volumekit/mount"
)

// Confined implements [mount.Confiner].
func (m *Mounter) Confined(ctx context.Context, base, path string) (mountID uint64, whole bool, err error) {
	way, err := filepath.Rel(base, filepath.Dir(path))
	if err != nil || way == ".." || strings.HasPrefix(way, ".."+string(filepath.Separator)) {
		return 0, false, fmt.Errorf("%w: %s is not below %s", mount.ErrNotConfined, path, base)
	}
	top, err := m.Inspect(ctx, base)
	if err != nil || way == "." {
		return top.MountID, err == nil, err
	}
	at := base
	for name := range strings.SplitSeq(way, string(filepath.Separator)) {
		at = filepath.Join(at, name)
		point, err := m.Inspect(ctx, at)
		if err != nil {
			return top.MountID, false, err
		}
		if !point.Exists {
			return top.MountID, false, nil
		}
		info, err := os.Lstat(at)
		if point.Mounted || err != nil || !info.IsDir() {
			return top.MountID, false, fmt.Errorf("%w: %s", mount.ErrNotConfined, at)
		}
	}
	return top.MountID, true, nil
}
