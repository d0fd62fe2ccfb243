package dsw

import (
	"github.com/volumekit/volumekit/plugins"
)

// refIndex finds the volumes that refer to an object: by kind, then by ref.
type refIndex map[string]map[plugins.Ref]*refList

// refList holds the links of all volumes that refer to one object.
type refList struct {
	ref  plugins.Ref
	head *link
}

// link is one reference of one volume: an element of a doubly linked list, so
// that it is removed at once however many volumes refer to the object.
type link struct {
	vol        *volume
	list       *refList
	content    bool
	prev, next *link
}

// relink makes the links of v: those of its resolution, and of a failure.
func (x refIndex) relink(v *volume, failed []plugins.Ref) {
	x.unlink(v)
	var content, spec []plugins.Ref
	if v.res != nil {
		content, spec = v.res.ContentRefs, v.res.SpecRefs
	}
	n := len(content) + len(spec) + len(failed)
	if n == 0 {
		return
	}
	v.links = make([]link, 0, n) // never grows: others point into it
	for _, ref := range content {
		x.link(v, ref, true)
	}
	for _, ref := range spec {
		x.link(v, ref, false)
	}
	for _, ref := range failed {
		x.link(v, ref, false)
	}
}

func (x refIndex) link(v *volume, ref plugins.Ref, content bool) {
	kind := x[ref.Kind]
	if kind == nil {
		kind = map[plugins.Ref]*refList{}
		x[ref.Kind] = kind
	}
	list := kind[ref]
	if list == nil {
		list = &refList{ref: ref}
		kind[ref] = list
	}
	v.links = append(v.links, link{vol: v, list: list, content: content, next: list.head})
	l := &v.links[len(v.links)-1]
	if l.next != nil {
		l.next.prev = l
	}
	list.head = l
}

// unlink takes all links of v out of their lists.
func (x refIndex) unlink(v *volume) {
	for i := range v.links {
		l := &v.links[i]
		if l.next != nil {
			l.next.prev = l.prev
		}
		if l.prev != nil {
			l.prev.next = l.next
			continue
		}
		l.list.head = l.next
		if l.next == nil {
			ref := l.list.ref
			delete(x[ref.Kind], ref)
			if len(x[ref.Kind]) == 0 {
				delete(x, ref.Kind)
			}
		}
	}
	v.links = nil
}

// meets reports whether a notice is about what ref names. A notice without a
// name is about all objects of the kind, in the namespace if it has one; a ref
// without a name means any of them.
func meets(notice, ref plugins.Ref) bool {
	switch {
	case notice.Kind != ref.Kind:
		return false
	case notice == ref:
		return true
	case notice.Name != "" && ref.Name != "":
		return false
	}
	return notice.Namespace == "" || ref.Namespace == "" || notice.Namespace == ref.Namespace
}

// Touch takes a notice that an object changed; without a name it is about all
// objects of the kind, in the namespace if that is set. Content that is made
// of it gets a new generation; what was resolved from it, or could not be
// resolved because of it, has to be resolved again.
func (w *World) Touch(ref plugins.Ref) Change {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	w.notices.add(ref, w.seq)
	var c Change
	kind := w.refs[ref.Kind]
	if ref.Name == "" {
		for other, list := range kind {
			if meets(ref, other) {
				w.touch(list, &c)
			}
		}
		return c
	}
	w.touch(kind[ref], &c)
	w.touch(kind[plugins.Ref{Kind: ref.Kind}], &c)
	if ref.Namespace != "" {
		w.touch(kind[plugins.Ref{Kind: ref.Kind, Namespace: ref.Namespace}], &c)
		return c
	}
	return c
}

func (w *World) touch(list *refList, c *Change) {
	if list == nil {
		return
	}
	for l := list.head; l != nil; l = l.next {
		v := l.vol
		switch {
		case l.content && v.bumped != w.seq:
			v.bumped, v.generation = w.seq, w.seq
			v.target.wish.Generation = w.seq
			w.wake(v.target.entry, c)
		case !l.content && v.inFlight:
			v.again = true
		case !l.content && v.asked != w.seq:
			v.asked = w.seq
			c.Resolve = append(c.Resolve, Unresolved{v.pod.pod.UID, v.use.Name})
		}
	}
}

// noticeLog keeps the notices that came while tasks were under way: what a
// task depends on is known only when it ends, and a notice in between must not
// be lost.
type noticeLog struct {
	users int // volumes with a task under way
	list  []numberedNotice
	from  uint64 // notices up to this one are not in list
}

type numberedNotice struct {
	ref plugins.Ref
	seq uint64
}

// maxNotices bounds the log. What is older counts as missed.
const maxNotices = 512

func (n *noticeLog) add(ref plugins.Ref, seq uint64) {
	if n.users == 0 {
		n.list, n.from = n.list[:0], seq
		return
	}
	if last := len(n.list) - 1; last >= 0 && n.list[last].ref == ref {
		n.list[last].seq = seq
		return
	}
	if len(n.list) == maxNotices {
		half := len(n.list) / 2
		n.from = n.list[half-1].seq
		n.list = n.list[:copy(n.list, n.list[half:])]
	}
	n.list = append(n.list, numberedNotice{ref, seq})
}

// missed reports whether a notice after since is about what v was resolved
// from.
func (n *noticeLog) missed(v *volume, since uint64) bool {
	for i := range v.links {
		if v.links[i].content {
			continue
		}
		if n.from > since {
			return true
		}
		for j := len(n.list) - 1; j >= 0 && n.list[j].seq > since; j-- {
			if meets(n.list[j].ref, v.links[i].list.ref) {
				return true
			}
		}
	}
	return false
}
