package plugintest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/volumekit/volumekit/mount"
)

// tree is what lies below a folder: for each path its type, mode and content.
type tree map[string]string

// snapshot reads everything below dir, without following links.
func snapshot(dir string) tree {
	found := tree{}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		if err != nil {
			found[name] = "unreadable: " + err.Error()
			return nil
		}
		info, err := d.Info()
		if err != nil {
			found[name] = "gone"
			return nil
		}
		found[name] = info.Mode().String() + " " + content(path, info.Mode())
		return nil
	})
	return found
}

func content(path string, mode fs.FileMode) string {
	switch {
	case mode.IsRegular():
		data, err := os.ReadFile(path)
		if err != nil {
			return err.Error()
		}
		sum := sha256.Sum256(data)
		return fmt.Sprintf("%d bytes %s", len(data), hex.EncodeToString(sum[:8]))
	case mode&fs.ModeSymlink != 0:
		to, _ := os.Readlink(path)
		return "-> " + to
	}
	return ""
}

// visible is what a container reads below dir: links are followed, and names
// that begin with ".." are the writer's own. Folders are not listed.
func visible(dir string) tree {
	found := tree{}
	list, err := os.ReadDir(dir)
	if err != nil {
		if data, err := os.ReadFile(dir); err == nil { // the volume is a file
			found["."] = string(data)
		}
		return found
	}
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), "..") {
			look(found, dir, e.Name())
		}
	}
	return found
}

func look(found tree, dir, name string) {
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	if err != nil {
		found[name] = "unreadable: " + err.Error()
		return
	}
	if !info.IsDir() {
		found[name] = info.Mode().String() + " " + content(path, info.Mode())
		return
	}
	list, err := os.ReadDir(path)
	if err != nil {
		found[name] = "unreadable: " + err.Error()
	}
	for _, e := range list {
		look(found, dir, filepath.Join(name, e.Name()))
	}
}

// diff says what came, went and changed from before to after; empty for
// nothing.
func diff(before, after tree) string {
	var lines []string
	for _, path := range slices.Sorted(maps.Keys(before)) {
		now, there := after[path]
		switch {
		case !there:
			lines = append(lines, "gone: "+path)
		case now != before[path]:
			lines = append(lines, fmt.Sprintf("changed: %s from %s to %s", path, before[path], now))
		}
	}
	for _, path := range slices.Sorted(maps.Keys(after)) {
		if _, there := before[path]; !there {
			lines = append(lines, "new: "+path)
		}
	}
	return strings.Join(lines, "; ")
}

// mounted lists the mounts below the world's root.
func (w *world) mounted() []mount.Entry {
	table, err := w.mounts.Mounter.Table(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return table.Below(w.root)
}

// state is what a world looks like: mounts and files.
func (w *world) state() tree {
	found := snapshot(w.root)
	for i, e := range w.mounted() {
		found[fmt.Sprintf("mount %d of %s at %s", i, e.FSType, e.Target)] = fmt.Sprintf("id %d", e.ID)
	}
	return found
}

// unmountAll lets every mount vanish, as a reboot does.
func (w *world) unmountAll() {
	for _, e := range w.mounted() {
		err := w.mounts.Mounter.Unmount(context.Background(), e.Target, mount.UnmountOptions{Lazy: true})
		if err != nil && !errors.Is(err, mount.ErrNotMounted) {
			w.t.Errorf("unmount %s: %v", e.Target, err)
		}
	}
}

// mark leaves a file in the volume as a container would, and says whether that
// was possible: the volume is a folder that may be written to.
func (w *world) mark(p *part, text string) (path string, ok bool) {
	info, err := os.Stat(p.result.Path)
	if err != nil || !info.IsDir() || p.result.Attributes.ReadOnly {
		return "", false
	}
	path = filepath.Join(p.result.Path, "plugintest-mark")
	return path, os.WriteFile(path, []byte(text), 0o600) == nil
}
