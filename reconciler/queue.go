package reconciler

import (
	"container/heap"
	"time"
)

// queue is a first-in-first-out list.
type queue[T any] struct {
	items []T
	head  int
}

func (q *queue[T]) size() int { return len(q.items) - q.head }

func (q *queue[T]) push(x T) { q.items = append(q.items, x) }

// pop may be called on a queue that is not empty.
func (q *queue[T]) pop() T {
	var zero T
	x := q.items[q.head]
	q.items[q.head] = zero
	q.head++
	switch {
	case q.head == len(q.items):
		q.items, q.head = q.items[:0], 0
		if cap(q.items) > 1024 { // a burst's memory is not kept
			q.items = nil
		}
	case q.head > 64 && q.head*2 > len(q.items):
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return x
}

// alarm is a place in [timers]: of a volume, a call, or the safety pass.
type alarm struct {
	at       time.Time
	place    int     // index plus one, zero while not set
	ofVolume *volume // or
	ofCall   *call   // or neither, for the safety pass
}

// timers is a heap of alarms, the earliest first.
type timers []*alarm

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].at.Before(t[j].at) }
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].place, t[j].place = i+1, j+1
}

// Push and Pop are for container/heap.
func (t *timers) Push(x any) {
	a := x.(*alarm) // set pushes nothing else
	*t = append(*t, a)
	a.place = len(*t)
}

func (t *timers) Pop() any {
	last := len(*t) - 1
	a := (*t)[last]
	(*t)[last] = nil
	*t = (*t)[:last]
	a.place = 0
	return a
}

// set sets an alarm; the zero time takes it away.
func (t *timers) set(a *alarm, at time.Time) {
	switch {
	case at.IsZero():
		if a.place > 0 {
			heap.Remove(t, a.place-1)
		}
		a.at = at
	case a.place == 0:
		a.at = at
		heap.Push(t, a)
	case !a.at.Equal(at):
		a.at = at
		heap.Fix(t, a.place-1)
	}
}

// next is the time of the earliest alarm, zero if none is set.
func (t timers) next() time.Time {
	if len(t) == 0 {
		return time.Time{}
	}
	return t[0].at
}

// due takes out an alarm whose time has come, nil if there is none.
func (t *timers) due(now time.Time) *alarm {
	if len(*t) == 0 || (*t)[0].at.After(now) {
		return nil
	}
	return heap.Pop(t).(*alarm)
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
