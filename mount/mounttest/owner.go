package mounttest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
)

var _ mount.Owner = (*Mounter)(nil)

// SetGroup implements [mount.Owner]. Permission bits are really set. The group
// is kept in memory alone, under the name of the file at that time, since few
// users may give files to any group: [Mounter.Group] tells it.
func (m *Mounter) SetGroup(ctx context.Context, root string, o mount.Ownership) error {
	return m.do(ctx, Call{Op: OpSetGroup, Target: root, Ownership: o}, func() error {
		if err := m.setGroup(ctx, root, o); err != nil {
			return fmt.Errorf("give %q to group %d: %w", root, o.Group, err)
		}
		return nil
	})
}

// Group returns the group that SetGroup gave a file to. ok is false if none did.
// The last component of name is not followed when it is a symbolic link.
func (m *Mounter) Group(name string) (group int64, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, _, err := m.tree.lookup(name, false)
	if err != nil {
		return 0, false
	}
	group, ok = m.groups[dentry{s.mount.fs, s.rel}]
	return group, ok
}

func (m *Mounter) setGroup(ctx context.Context, root string, o mount.Ownership) error {
	if o.Group < 0 || o.Group >= math.MaxUint32 {
		return fmt.Errorf("%w: no number of a group", mount.ErrBadOption)
	}
	s, info, err := m.tree.lookup(root, false)
	if err == nil {
		err = m.tree.within(s)
	}
	if err == nil {
		err = m.linkOnWay(root)
	}
	switch {
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%w: it is a symbolic link", mount.ErrNotConfined)
	}
	w := ownWalk{m: m, ctx: ctx, o: o, top: s, real: m.tree.real(s.mount.fs, s.rel)}
	at := dentry{s.mount.fs, s.rel}
	group, known := m.groups[at]
	if bits := w.bits(info); o.OnRootMismatch && known && group == o.Group && info.Mode()&bits == bits {
		return nil
	}
	if s.mount.readOnly {
		return fs.ErrPermission
	}
	if err := filepath.WalkDir(w.real, w.entry); err != nil {
		return err
	}
	err = w.give(at, w.real, info) // last
	if o.Progress != nil {
		o.Progress(w.entries)
	}
	return err
}

// ownWalk is one call of SetGroup.
type ownWalk struct {
	m       *Mounter
	ctx     context.Context //nolint:containedctx // lives as long as the call
	o       mount.Ownership
	top     spot
	real    string
	entries int64
}

// entry is called for all below the top, and passes over what is mounted there.
func (w *ownWalk) entry(name string, e fs.DirEntry, err error) error {
	if err = errors.Join(err, w.ctx.Err()); err != nil || name == w.real {
		return err
	}
	rel, err := filepath.Rel(w.real, name)
	if err != nil {
		return err
	}
	at := dentry{w.top.mount.fs, path.Join(w.top.rel, filepath.ToSlash(rel))}
	if len(w.m.tree.bottoms[at]) > 0 {
		if e.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	info, err := e.Info()
	if err != nil {
		return err
	}
	return w.give(at, name, info)
}

func (w *ownWalk) bits(info fs.FileInfo) fs.FileMode {
	files, folders := fs.FileMode(0o660), 0o770|fs.ModeSetgid
	if w.o.ReadOnly {
		files, folders = 0o440, 0o550|fs.ModeSetgid
	}
	if info.IsDir() {
		return folders
	}
	return files
}

func (w *ownWalk) give(at dentry, name string, info fs.FileInfo) error {
	w.entries++
	const all = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	mode, bits := info.Mode(), w.bits(info)
	switch {
	case mode&fs.ModeDevice != 0:
		return nil
	case mode&fs.ModeSymlink == 0 && mode&bits != bits:
		if err := os.Chmod(name, mode&all|bits); err != nil {
			return cause(err)
		}
	}
	w.m.groups[at] = w.o.Group
	return nil
}
