package mounttest

import (
	"cmp"
	"slices"
)

// attach adds a tree of mounts, its top first, at dest and at every peer of
// dest, and shows them.
func (t *tree) attach(list []*mounted, dest spot) error {
	var peers []*mounted
	if g := dest.mount.group; g != nil {
		peers = slices.Clone(g.members)
		slices.SortFunc(peers, func(a, b *mounted) int { return cmp.Compare(a.id, b.id) })
		for _, one := range list {
			if one.group == nil {
				one.group = &group{}
			}
		}
	}
	list[0].parent, list[0].at = dest.mount, dest.rel
	all := slices.Clone(list)
	for _, one := range list {
		t.hook(one)
	}
	for _, peer := range peers {
		if peer == dest.mount || peer.fs != dest.mount.fs || !inside(peer.root, dest.rel) {
			continue
		}
		all = append(all, t.spread(list, spot{peer, dest.rel})...)
	}
	touched := map[dentry]bool{}
	for _, one := range all {
		touched[t.placeOf(one)] = true
	}
	if err := t.render(touched); err != nil {
		// The caller was promised that nothing new is visible now.
		_ = t.remove(all)
		return err
	}
	return nil
}

// spread copies a tree to a peer. What is mounted there already goes on top of
// the copy, as the kernel has it.
func (t *tree) spread(list []*mounted, to spot) []*mounted {
	twins := map[*mounted]*mounted{}
	made := make([]*mounted, 0, len(list))
	on := t.children[to]
	for _, one := range list {
		c := one.twin()
		twins[one] = c
		c.parent, c.at = twins[one.parent], one.at
		if one == list[0] {
			c.parent, c.at = to.mount, to.rel
			if on != nil {
				t.unhook(on)
			}
		}
		t.hook(c)
		made = append(made, c)
	}
	if on != nil {
		on.parent, on.at = made[0], made[0].root
		t.rehook(on)
	}
	return made
}

// unmountSet returns what goes when m is unmounted: m, for a lazy unmount all
// below it, and what these spread to. Busy says that something is mounted
// below m.
func (t *tree) unmountSet(m *mounted, lazy bool) (set []*mounted, busy bool) {
	set = []*mounted{m}
	for i := 0; i < len(set); i++ {
		for _, child := range t.mounts {
			if child.parent == set[i] {
				set = append(set, child)
			}
		}
	}
	busy = len(set) > 1
	if !lazy {
		set = set[:1]
	}
	for _, one := range slices.Clone(set) {
		if one.parent.group == nil {
			continue
		}
		for _, peer := range one.parent.group.members {
			c := t.children[spot{peer, one.at}]
			if c != nil && !slices.Contains(set, c) {
				set = append(set, c)
			}
		}
	}
	return t.withoutParents(set, m), busy
}

// withoutParents drops the mounts that came in by propagation and carry others
// which stay. One that carries another on its root does not stay for that.
func (t *tree) withoutParents(set []*mounted, m *mounted) []*mounted {
	for {
		n := len(set)
		set = slices.DeleteFunc(set, func(one *mounted) bool {
			return one != m && slices.ContainsFunc(t.mounts, func(child *mounted) bool {
				return child.parent == one && child.at != one.root && !slices.Contains(set, child)
			})
		})
		if len(set) == n {
			return set
		}
	}
}

// remove takes mounts out of the tree and shows what was under them.
func (t *tree) remove(set []*mounted) error {
	touched := map[dentry]bool{}
	for _, one := range set {
		touched[t.placeOf(one)] = true
	}
	for _, one := range set {
		on := t.children[spot{one, one.root}]
		if on != nil {
			t.unhook(on)
		}
		t.unhook(one)
		t.forget(one)
		if on != nil {
			on.parent, on.at = one.parent, one.at
			t.rehook(on)
		}
	}
	if err := t.render(touched); err != nil {
		return err
	}
	for _, one := range set {
		if err := t.discard(one.fs); err != nil {
			return err
		}
	}
	t.tidy()
	return nil
}
