package memory

import (
	"context"
	"reflect"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

// Event is one recorded event.
type Event struct {
	// Object and UID name the object that it is about.
	Object plugins.Ref
	UID    types.UID
	// Type is Normal or Warning, Reason a CamelCase word, Message for people.
	Type, Reason, Message string
}

// String is "<type> <reason> <object>: <message>".
func (e Event) String() string {
	return e.Type + " " + e.Reason + " " + e.Object.String() + ": " + e.Message
}

// Recorder is a [plugins.EventRecorder] that keeps the latest events. It is
// safe for concurrent use and never blocks who records.
type Recorder struct {
	capacity int

	mu       sync.Mutex
	events   []Event // a ring once it is full: event n is at n % capacity
	total    int
	changed  chan struct{} // closed and replaced with each event
	watchers map[chan Event]struct{}
}

var _ plugins.EventRecorder = (*Recorder)(nil)

// DefaultCapacity is how many events a [Recorder] keeps unless told otherwise.
const DefaultCapacity = 1000

// NewRecorder returns a recorder that keeps the latest capacity events, or
// [DefaultCapacity] if that is not positive.
func NewRecorder(capacity int) *Recorder {
	if capacity <= 0 {
		capacity = DefaultCapacity
	}
	return &Recorder{capacity: capacity, changed: make(chan struct{}), watchers: make(map[chan Event]struct{})}
}

// Event implements [plugins.EventRecorder].
func (r *Recorder) Event(object runtime.Object, eventtype, reason, message string) {
	e := Event{Type: eventtype, Reason: reason, Message: message}
	e.Object, e.UID = refOfAny(object)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) < r.capacity {
		r.events = append(r.events, e)
	} else {
		r.events[r.total%r.capacity] = e
	}
	r.total++
	close(r.changed)
	r.changed = make(chan struct{})
	for w := range r.watchers {
		select {
		case w <- e:
		default: // it is full, and says so by its gap
		}
	}
}

// refOfAny names an object of any type, or what a reference refers to.
func refOfAny(obj runtime.Object) (plugins.Ref, types.UID) {
	if obj == nil || reflect.ValueOf(obj).Kind() == reflect.Pointer && reflect.ValueOf(obj).IsNil() {
		return plugins.Ref{}, ""
	}
	if to, ok := obj.(*v1.ObjectReference); ok {
		return plugins.Ref{Kind: to.Kind, Namespace: to.Namespace, Name: to.Name}, to.UID
	}
	ref := plugins.Ref{Kind: obj.GetObjectKind().GroupVersionKind().Kind}
	if ref.Kind == "" {
		ref.Kind = reflect.Indirect(reflect.ValueOf(obj)).Type().Name()
	}
	named, ok := obj.(metav1.Object)
	if !ok {
		return ref, ""
	}
	ref.Namespace, ref.Name = named.GetNamespace(), named.GetName()
	return ref, named.GetUID()
}

// List returns the events that are kept, oldest first.
func (r *Recorder) List() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.since(0)
}

// since returns the kept events from number n on; r.mu is held.
func (r *Recorder) since(n int) []Event {
	n = max(n, r.total-len(r.events))
	list := make([]Event, 0, r.total-n)
	for ; n < r.total; n++ {
		list = append(list, r.events[n%r.capacity])
	}
	return list
}

// Dropped is how many events are no longer kept.
func (r *Recorder) Dropped() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total - len(r.events)
}

// WaitFor returns the first event that match accepts, of those kept and those
// to come, or ctx.Err. match is called without a lock.
func (r *Recorder) WaitFor(ctx context.Context, match func(Event) bool) (Event, error) {
	for n := 0; ; {
		r.mu.Lock()
		list, next, changed := r.since(n), r.total, r.changed
		r.mu.Unlock()
		for _, e := range list {
			if match(e) {
				return e, nil
			}
		}
		n = next
		select {
		case <-ctx.Done():
			return Event{}, ctx.Err()
		case <-changed:
		}
	}
}

// Watch returns a channel of the events to come and a function that ends it,
// which may be called more than once. The channel holds size events; while it
// is full, further ones pass it by. It is closed by stop.
func (r *Recorder) Watch(size int) (events <-chan Event, stop func()) {
	w := make(chan Event, max(size, 1))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers[w] = struct{}{}
	return w, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if _, open := r.watchers[w]; open {
			delete(r.watchers, w)
			close(w)
		}
	}
}
