package projection

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
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
func compare(ctx context.Context, top folder, live string, tree *Tree) ([]string, error) {
	if live == "" {
		return tree.Paths(), nil
	}
	c := &comparison{tree: tree, seen: make(map[string]bool, tree.Len())}
	root, err := top.open(live)
	if err != nil {
		return tree.Paths(), nil //nolint:nilerr // as said above
	}
	if info, err := root.stat(); err == nil {
		c.base = info.owner
	}
	err = c.folder(ctx, root, "")
	if err = errors.Join(err, root.close()); err != nil {
		return nil, err
	}
	for i := range tree.files {
		if name := tree.files[i].name; !c.seen[name] {
			c.changed = append(c.changed, name)
		}
	}
	slices.Sort(c.changed)
	return c.changed, nil
}

func (c *comparison) folder(ctx context.Context, in folder, at string) error {
	have, err := in.names()
	if err != nil {
		return err
	}
	for name := range have {
		if err := ctx.Err(); err != nil {
			return err
		}
		full := path.Join(at, name)
		want, wanted := c.tree.File(full)
		if wanted && c.same(in, name, want) {
			c.seen[full] = true
			continue
		}
		if in.isFolder(name) {
			if err := c.subfolder(ctx, in, full); err != nil {
				return err
			}
			continue
		}
		c.seen[full] = true
		c.changed = append(c.changed, full)
	}
	return nil
}

func (c *comparison) subfolder(ctx context.Context, parent folder, full string) error {
	sub, err := parent.open(path.Base(full))
	if err != nil {
		return err
	}
	return errors.Join(c.folder(ctx, sub, full), sub.close())
}

// same reports whether a file on disk is what is wanted.
func (c *comparison) same(in folder, name string, want File) bool {
	file, err := in.openFile(name)
	if err != nil {
		return false
	}
	defer func() { _ = file.close() }()
	info, err := file.stat()
	if err != nil || !info.regular || info.size != int64(len(want.Data)) || info.perm != fs.FileMode(want.Mode) ||
		info.owner != c.base.with(want) {
		return false
	}
	if need := min(len(want.Data), 64<<10); need > len(c.buffer) {
		c.buffer = make([]byte, max(need, 2*len(c.buffer)))
	}
	for rest := want.Data; len(rest) > 0; {
		n, err := file.read(c.buffer[:min(len(rest), len(c.buffer))])
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
func removeTree(in folder, name string) error {
	err := in.remove(name)
	switch {
	case err == nil || errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, syscall.EBUSY):
		return fmt.Errorf("%w: %w", mount.ErrCrossesMount, err)
	}
	sub, notDir := in.open(name)
	if notDir != nil {
		return err
	}
	have, err := sub.names()
	errs := []error{err}
	for inner := range have {
		errs = append(errs, removeTree(sub, inner))
	}
	if err := errors.Join(append(errs, sub.close())...); err != nil {
		return err
	}
	return in.remove(name)
}
