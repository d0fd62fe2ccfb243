package steps

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

// scope is what a step is remembered with, so that it is forgotten with it: a
// pod, or the node-wide part of a volume.
type scope struct {
	pod types.UID
	id  plugins.VolumeID
}

func scopeOf(k *reconciler.Key) scope {
	if k.Volume == (plugins.PodVolume{}) {
		return scope{id: k.ID}
	}
	return scope{pod: k.Volume.Pod}
}

// notes are what is remembered of steps, by scope. A scope of a pod is
// forgotten with the pod. Those of volumes are looked through from time to
// time when pods go.
type notes[T any] struct {
	scopes  map[scope]map[reconciler.Key]T
	nodes   int // scopes of volumes
	skipped int // how often pods went since they were looked through
}

// minNotes is how many scopes of volumes are few.
const minNotes = 64

func newNotes[T any]() notes[T] {
	return notes[T]{scopes: map[scope]map[reconciler.Key]T{}}
}

func (n *notes[T]) get(key *reconciler.Key) (T, bool) {
	note, ok := n.scopes[scopeOf(key)][*key]
	return note, ok
}

func (n *notes[T]) set(key *reconciler.Key, note T) {
	s := scopeOf(key)
	keys := n.scopes[s]
	if keys == nil {
		keys = map[reconciler.Key]T{}
		n.scopes[s] = keys
		if s.id != "" {
			n.nodes++
		}
	}
	keys[*key] = note
}

func (n *notes[T]) remove(key *reconciler.Key) {
	s := scopeOf(key)
	if keys := n.scopes[s]; keys != nil {
		if delete(keys, *key); len(keys) == 0 {
			n.forget(s)
		}
	}
}

func (n *notes[T]) forget(s scope) {
	if _, ok := n.scopes[s]; !ok {
		return
	}
	delete(n.scopes, s)
	if s.id != "" {
		n.nodes--
	}
}

// due lists the scopes of volumes when it is time to look through them. It is
// called whenever a pod goes, and lists a few for each call on average.
func (n *notes[T]) due() []scope {
	if n.skipped++; n.nodes > minNotes && n.skipped < n.nodes/4 {
		return nil
	}
	n.skipped = 0
	if n.nodes == 0 {
		return nil
	}
	list := make([]scope, 0, n.nodes)
	for s := range n.scopes {
		if s.id != "" {
			list = append(list, s)
		}
	}
	return list
}
