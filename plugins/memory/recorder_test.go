package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/plugins"
)

func reasons(list []Event) string {
	s := ""
	for _, e := range list {
		s += e.Reason + " "
	}
	return s
}

func TestRecorderKeepsTheLatest(t *testing.T) {
	t.Parallel()
	r := NewRecorder(3)
	for i, want := range []string{"0 ", "0 1 ", "0 1 2 ", "1 2 3 ", "2 3 4 ", "3 4 5 ", "4 5 6 "} {
		r.Event(pod("a", "1"), "Normal", fmt.Sprint(i), "message")
		if got := reasons(r.List()); got != want {
			t.Errorf("%d: %q, want %q", i, got, want)
		}
	}
	if r.Dropped() != 4 {
		t.Errorf("dropped %d, want 4", r.Dropped())
	}
	if r := NewRecorder(0); r.capacity != DefaultCapacity || len(r.List()) != 0 {
		t.Errorf("capacity %d", r.capacity)
	}
}

func TestRecorderNamesTheObject(t *testing.T) {
	t.Parallel()
	kinded := pod("a", "1")
	kinded.Kind = "Special"
	for name, c := range map[string]struct {
		obj  runtime.Object
		want Event
	}{
		"pod":       {pod("a", "1"), Event{Object: plugins.Ref{Kind: "Pod", Namespace: "ns", Name: "pod-a"}, UID: "a"}},
		"kind":      {kinded, Event{Object: plugins.Ref{Kind: "Special", Namespace: "ns", Name: "pod-a"}, UID: "a"}},
		"reference": {&v1.ObjectReference{Kind: "Node", Name: "n", UID: "u"}, Event{Object: plugins.Ref{Kind: "Node", Name: "n"}, UID: "u"}},
		"list":      {&v1.PodList{}, Event{Object: plugins.Ref{Kind: "PodList"}}},
		"status":    {&metav1.Status{}, Event{Object: plugins.Ref{Kind: "Status"}}},
		"nil":       {nil, Event{}},
		"nil pod":   {(*v1.Pod)(nil), Event{}},
	} {
		r := NewRecorder(1)
		r.Event(c.obj, "Warning", "FailedMount", "message")
		c.want.Type, c.want.Reason, c.want.Message = "Warning", "FailedMount", "message"
		if got := r.List(); len(got) != 1 || got[0] != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	e := Event{Object: plugins.Ref{Kind: "Pod", Namespace: "ns", Name: "a"}, Type: "Normal", Reason: "R", Message: "m"}
	if got, want := e.String(), "Normal R Pod ns/a: m"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRecorderWaitFor(t *testing.T) {
	t.Parallel()
	r := NewRecorder(2)
	is := func(reason string) func(Event) bool {
		return func(e Event) bool { return e.Reason == reason }
	}
	r.Event(nil, "Normal", "before", "")
	if e, err := r.WaitFor(t.Context(), is("before")); err != nil || e.Reason != "before" {
		t.Errorf("%v, %v", e, err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if e, err := r.WaitFor(t.Context(), is("last")); err != nil || e.Reason != "last" {
				t.Errorf("%v, %v", e, err)
			}
		})
	}
	for i := range 100 {
		r.Event(nil, "Normal", fmt.Sprint(i), "")
	}
	r.Event(nil, "Normal", "last", "")
	wg.Wait()

	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		if _, err := r.WaitFor(ctx, is("never")); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	cancel()
	wg.Wait()
}

func TestRecorderWatch(t *testing.T) {
	t.Parallel()
	r := NewRecorder(0)
	r.Event(nil, "Normal", "before", "")
	events, stop := r.Watch(2)
	for _, reason := range []string{"1", "2", "too many"} {
		r.Event(nil, "Normal", reason, "")
	}
	stop()
	stop()
	r.Event(nil, "Normal", "after", "")
	var got []Event
	for e := range events {
		got = append(got, e)
	}
	if reasons(got) != "1 2 " {
		t.Errorf("%q", reasons(got))
	}
	if got := reasons(r.List()); got != "before 1 2 too many after " {
		t.Errorf("%q", got)
	}
}

func TestRecorderSideBySide(t *testing.T) {
	t.Parallel()
	r := NewRecorder(10)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 50 {
				r.Event(pod("a", "1"), "Normal", fmt.Sprint(w, "-", i), "")
				events, stop := r.Watch(1)
				_ = r.List()
				stop()
				for range events {
				}
			}
		})
	}
	wg.Wait()
	if len(r.List()) != 10 || r.Dropped() != 190 {
		t.Errorf("%d kept, %d dropped", len(r.List()), r.Dropped())
	}
}
