package memory

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
)

// TestNoChangeIsMissed runs readers that subscribe, read, and read again when
// told, against writers. Each reader must end with the last version.
func TestNoChangeIsMissed(t *testing.T) {
	t.Parallel()
	const writers, versions, readers = 4, 50, 8
	s := NewStore()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for v := 1; v <= versions; v++ {
				c := &v1.ConfigMap{ObjectMeta: named("ns", fmt.Sprint(w)), Data: map[string]string{"v": fmt.Sprint(v)}}
				if err := s.Apply(c); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for r := range readers {
		wg.Go(func() {
			name := fmt.Sprint(r % writers)
			changed := make(chan struct{}, 1)
			cancel := s.Subscribe(func(ref plugins.Ref) {
				if ref.Name == name {
					select {
					case changed <- struct{}{}:
					default:
					}
				}
			})
			defer cancel()
			for {
				c, err := s.ConfigMap(t.Context(), "ns", name)
				if err == nil && c.Data["v"] == fmt.Sprint(versions) {
					return
				}
				select {
				case <-changed:
				case <-time.After(30 * time.Second):
					t.Errorf("reader %d was not told of the last change", r)
					return
				}
			}
		})
	}
	for range readers { // others come and go
		wg.Go(func() {
			for range versions {
				s.Subscribe(func(plugins.Ref) {})()
			}
		})
	}
	wg.Wait()
}

func TestNoticeComesAfterTheChangeAndWithoutLock(t *testing.T) {
	t.Parallel()
	s := NewStore()
	told := 0
	defer s.Subscribe(func(ref plugins.Ref) {
		told++
		if ref.Name != "x" {
			return
		}
		if _, err := s.Secret(context.Background(), "ns", "x"); err != nil {
			t.Errorf("told before it could be read: %v", err)
		}
		apply(t, s, &v1.Secret{ObjectMeta: named("ns", "from within")})
		s.Subscribe(func(plugins.Ref) {})()
	})()
	apply(t, s, &v1.Secret{ObjectMeta: named("ns", "x")})
	if told != 2 {
		t.Errorf("told %d times, want 2", told)
	}
}

func TestCancelWaitsForTheCallUnderWay(t *testing.T) {
	t.Parallel()
	s := NewStore()
	began, release := make(chan struct{}), make(chan struct{})
	ended := false
	cancel := s.Subscribe(func(plugins.Ref) {
		close(began)
		<-release
		ended = true
	})
	var wg sync.WaitGroup
	wg.Go(func() { apply(t, s, &v1.Secret{ObjectMeta: named("ns", "x")}) })
	<-began
	entered := make(chan struct{})
	wg.Go(func() {
		close(entered)
		cancel()
		if !ended { // the race detector sees it too
			t.Error("cancel returned while a call was under way")
		}
	})
	<-entered
	close(release)
	wg.Wait()
	cancel() // again
	apply(t, s, &v1.Secret{ObjectMeta: named("ns", "y")})
}

func TestCancelFromWithinNotify(t *testing.T) {
	t.Parallel()
	s := NewStore()
	told := 0
	var cancel func()
	cancel = s.Subscribe(func(plugins.Ref) {
		told++
		cancel()
	})
	apply(t, s, &v1.Secret{ObjectMeta: named("ns", "x")}, &v1.Secret{ObjectMeta: named("ns", "y")})
	if told != 1 {
		t.Errorf("told %d times after the cancel, want once", told)
	}
	cancel()
}

func TestCancelFromDeepWithinNotify(t *testing.T) {
	t.Parallel()
	s := NewStore()
	var deep func(n int, f func())
	deep = func(n int, f func()) {
		if n == 0 {
			f()
			return
		}
		deep(n-1, f)
	}
	for _, depth := range []int{1, 50, 60, 61, 62, 63, 64, 65, 66, 130, 1000} {
		var cancel func()
		cancel = s.Subscribe(func(plugins.Ref) { deep(depth, cancel) })
		apply(t, s, &v1.Secret{ObjectMeta: named("ns", fmt.Sprint(depth))})
	}
}

func TestPanicInNotifyLeavesCancelUsable(t *testing.T) {
	t.Parallel()
	s := NewStore()
	cancel := s.Subscribe(func(plugins.Ref) { panic("a subscriber's mistake") })
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = s.Apply(&v1.Secret{ObjectMeta: named("ns", "x")})
	}()
	cancel()
	apply(t, s, &v1.Secret{ObjectMeta: named("ns", "y")})
}

func TestCancelledByAnotherBeforeItsTurn(t *testing.T) {
	t.Parallel()
	s := NewStore()
	var cancelSecond func()
	defer s.Subscribe(func(plugins.Ref) { cancelSecond() })()
	cancelSecond = s.Subscribe(func(plugins.Ref) { t.Error("told after its cancel had returned") })
	apply(t, s, &v1.Secret{ObjectMeta: named("ns", "x")})
}
