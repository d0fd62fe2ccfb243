package projection

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"

	"github.com/volumekit/volumekit/mount"
)

// comparison walks a live version beside the tree that is wanted.
type comparison struct {
	tree    *Tree
	base    owner // of the version folder: what a file without wishes has
	buffer  []byte
	seen    map[string]bool
	changed []string
}

// compare lists the files in which the live version differs from tree: added,
// removed, and changed ones. Files are compared byte by byte, since the disk
// is the only thing that two processes share. What cannot be read counts as
// changed: writing it anew is the cure.
func (w *Writer) compare(ctx context.Context, live string, tree *Tree) ([]string, error) {
	if live == "" {
		return tree.Paths(), nil
	}
	c := &comparison{tree: tree, seen: make(map[string]bool, tree.Len())}
	root, err := w.Root.OpenRoot(live)
	if err != nil {
		return tree.Paths(), nil //nolint:nilerr // as said above
	}
	if info, err := root.Stat("."); err == nil {
		c.base = ownerOf(info)
	}
	err = c.folder(ctx, root, "")
	if err = errors.Join(err, root.Close()); err != nil {
		return nil, err
	}
	for name := range tree.files {
		if !c.seen[name] {
			c.changed = append(c.changed, name)
		}
	}
	slices.Sort(c.changed)
	return c.changed, nil
}

func (c *comparison) folder(ctx context.Context, root *os.Root, at string) error {
	have, err := list(root)
	if err != nil {
		return err
	}
	for name := range have {
		if err := ctx.Err(); err != nil {
			return err
		}
		full := path.Join(at, name)
		want, wanted := c.tree.files[full]
		if wanted && c.same(root, name, want) {
			c.seen[full] = true
			continue
		}
		if info, err := root.Lstat(name); err == nil && info.IsDir() {
			if err := c.subfolder(ctx, root, full); err != nil {
				return err
			}
			continue
		}
		c.seen[full] = true
		c.changed = append(c.changed, full)
	}
	return nil
}

func (c *comparison) subfolder(ctx context.Context, parent *os.Root, full string) error {
	root, err := parent.OpenRoot(path.Base(full))
	if err != nil {
		return err
	}
	return errors.Join(c.folder(ctx, root, full), root.Close())
}

// same reports whether a file on disk is what is wanted.
func (c *comparison) same(root *os.Root, name string, want File) bool {
	file, err := root.OpenFile(name, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return false
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.Size() != int64(len(want.Data)) || info.Mode() != fs.FileMode(want.Mode) ||
		ownerOf(info) != c.base.with(want) {
		return false
	}
	if need := min(len(want.Data), 64<<10); need > len(c.buffer) {
		c.buffer = make([]byte, max(need, 4<<10))
	}
	for rest := want.Data; len(rest) > 0; {
		n, err := file.Read(c.buffer[:min(len(rest), len(c.buffer))])
		if n == 0 || err != nil || !bytes.Equal(c.buffer[:n], rest[:n]) {
			return false
		}
		rest = rest[n:]
	}
	return true
}

// removeTree removes name and all below it. It follows no link and enters no
// mount: rmdir(2) and unlink(2) refuse a mount point with EBUSY, before they
// ask whether a folder is empty.
func removeTree(root *os.Root, name string) error {
	err := root.Remove(name)
	switch {
	case err == nil || errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, syscall.EBUSY):
		return fmt.Errorf("%w: %w", mount.ErrCrossesMount, err)
	}
	sub, notDir := root.OpenRoot(name)
	if notDir != nil {
		return err
	}
	have, err := list(sub)
	errs := []error{err}
	for inner := range have {
		errs = append(errs, removeTree(sub, inner))
	}
	if err := errors.Join(append(errs, sub.Close())...); err != nil {
		return err
	}
	return root.Remove(name)
}
