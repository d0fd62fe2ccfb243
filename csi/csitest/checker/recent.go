package checker

import "slices"

// recentSize bounds each memory of things that are gone.
const recentSize = 4096

// recent is a map that forgets its oldest entries.
type recent[V any] struct {
	values map[string]V
	order  []string // may name removed keys
}

func newRecent[V any]() *recent[V] { return &recent[V]{values: map[string]V{}} }

func (r *recent[V]) put(key string, v V) {
	if _, ok := r.values[key]; !ok {
		r.order = append(r.order, key)
	}
	r.values[key] = v
	for len(r.order) > recentSize {
		delete(r.values, r.order[0])
		r.order = r.order[1:] // append copies it elsewhere in time
	}
}

func (r *recent[V]) get(key string) (V, bool) {
	v, ok := r.values[key]
	return v, ok
}

func (r *recent[V]) remove(key string) {
	if _, ok := r.values[key]; ok {
		delete(r.values, key)
		r.order = slices.DeleteFunc(r.order, func(s string) bool { return s == key })
	}
}

func (r *recent[V]) clear() {
	clear(r.values)
	r.order = nil
}
