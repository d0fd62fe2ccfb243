package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

func pod(uid types.UID, label string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "pod-" + string(uid), UID: uid, Labels: map[string]string{"v": label},
	}}
}

// sink writes down what it is told, one word each.
type sink struct {
	mu   sync.Mutex
	told []string
	more chan struct{}
	each func(word string) // called without the lock
}

func newSink() *sink { return &sink{more: make(chan struct{}, 1)} }

func (s *sink) add(word string) {
	s.mu.Lock()
	s.told = append(s.told, word)
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
	if s.each != nil {
		s.each(word)
	}
}

func (s *sink) SetPod(p *v1.Pod)        { s.add(string(p.UID) + "=" + p.Labels["v"]) }
func (s *sink) RemovePod(uid types.UID) { s.add("-" + string(uid)) }
func (s *sink) Synced()                 { s.add("synced") }

// wait waits until the word is told.
func (s *sink) wait(t *testing.T, word string) {
	t.Helper()
	for {
		s.mu.Lock()
		done := slices.Contains(s.told, word)
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-s.more:
		case <-time.After(30 * time.Second):
			t.Errorf("%q was not told: %q", word, s.words())
			return
		}
	}
}

func (s *sink) words() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.told, " ")
}

// watch runs WatchPods and returns a function that ends it.
func watch(t *testing.T, p *Pods, s *sink) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.WatchPods(ctx, s) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("WatchPods returned %v", err)
		}
	})
}

func set(t *testing.T, p *Pods, list ...*v1.Pod) {
	t.Helper()
	for _, pod := range list {
		if err := p.Set(pod); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWatchPodsTellsInOrder(t *testing.T) {
	t.Parallel()
	p, s := NewPods(), newSink()
	set(t, p, pod("b", "1"), pod("a", "1"))
	stop := watch(t, p, s)
	defer stop()
	s.wait(t, "b=1")
	set(t, p, pod("c", "1"), pod("a", "2"), pod("a", "2")) // the last is no change
	p.MarkSynced()
	p.MarkSynced()
	p.Remove("b")
	p.Remove("b")
	set(t, p, pod("b", "2"))
	s.wait(t, "b=2")
	stop()
	set(t, p, pod("d", "1"))
	if got, want := s.words(), "a=1 b=1 c=1 a=2 synced -b b=2"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestWatchPodsAgainAndTwice(t *testing.T) {
	t.Parallel()
	p, first, second, third := NewPods(), newSink(), newSink(), newSink()
	set(t, p, pod("a", "1"), pod("b", "1"))
	p.MarkSynced()
	stopFirst := watch(t, p, first)
	first.wait(t, "synced")
	stopSecond := watch(t, p, second)
	defer stopSecond()
	second.wait(t, "synced")
	stopFirst()
	p.Remove("a")
	set(t, p, pod("b", "2"))
	second.wait(t, "b=2")
	stopThird := watch(t, p, third)
	defer stopThird()
	third.wait(t, "synced")
	for want, s := range map[string]*sink{
		"a=1 b=1 synced": first, "a=1 b=1 synced -a b=2": second, "b=2 synced": third,
	} {
		if got := s.words(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if stopSecond(); len(p.watchers) != 1 {
		t.Errorf("%d watchers are left, want the third alone", len(p.watchers))
	}
}

func TestWatchPodsStopsBetweenTwo(t *testing.T) {
	t.Parallel()
	p, s := NewPods(), newSink()
	set(t, p, pod("a", "1"), pod("b", "1"))
	ctx, cancel := context.WithCancel(t.Context())
	s.each = func(string) { cancel() }
	if err := p.WatchPods(ctx, s); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if got := s.words(); got != "a=1" {
		t.Errorf("told %s after the end", got)
	}
}

func TestSinkMayCallBack(t *testing.T) {
	t.Parallel()
	p, s := NewPods(), newSink()
	s.each = func(word string) {
		if word == "a=1" {
			set(t, p, pod("b", fmt.Sprint(len(p.List()))))
			p.Remove("a")
			p.MarkSynced()
		}
	}
	set(t, p, pod("a", "1"))
	stop := watch(t, p, s)
	defer stop()
	s.wait(t, "synced")
	if got, want := s.words(), "a=1 b=1 -a synced"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestSetPodKeepsACompleteCopy(t *testing.T) {
	t.Parallel()
	p := NewPods()
	mine := pod("a", "1")
	mine.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}}}
	set(t, p, mine)
	mine.Labels["v"] = "changed"
	if got := p.Get("a"); got.Labels["v"] != "1" || got.Spec.Volumes[0].Secret.DefaultMode == nil {
		t.Errorf("%+v", got)
	}
	full := p.Get("a").DeepCopy()
	full.Name = "another"
	set(t, p, full)
	full.Name = "changed"
	if got := p.Get("a"); got.Name != "another" {
		t.Errorf("a complete pod was not copied: %s", got.Name)
	}
	if p.Get("b") != nil {
		t.Error("a pod out of nothing")
	}
}

func TestSetRefusesBadPods(t *testing.T) {
	t.Parallel()
	p := NewPods()
	good := pod("a", "1")
	set(t, p, good)
	bad := pod("a", "2")
	bad.Spec.Volumes = []v1.Volume{{Name: "../x"}}
	for name, pod := range map[string]*v1.Pod{"nil": nil, "no uid": pod("", "1"), "volume": bad} {
		if err := p.Set(pod); plugins.ClassOf(err) != plugins.ClassPermanent {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list := p.List(); len(list) != 1 || list[0].Labels["v"] != "1" {
		t.Errorf("%v", list)
	}
}

func TestStoreFeedsItsPods(t *testing.T) {
	t.Parallel()
	s, k := NewStore(), newSink()
	stop := watch(t, s.Pods(), k)
	defer stop()
	nameless := pod("", "1")
	nameless.Name = "web"
	apply(t, s, pod("a", "1"), nameless)
	s.Pods().MarkSynced()
	k.wait(t, "synced")
	uid := podUID(nameless)
	if err := s.Delete(nameless); err != nil {
		t.Error(err)
	}
	if err := s.Delete(nameless); !apierrors.IsNotFound(err) {
		t.Errorf("deleted twice: %v", err)
	}
	if err := s.Delete(pod("a", "1")); err != nil {
		t.Error(err)
	}
	k.wait(t, "-a")
	if got, want := k.words(), fmt.Sprintf("a=1 %[1]s=1 synced -%[1]s -a", uid); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestPodsSideBySide has each of several watchers, which come and go, end with
// the same pods while others change them.
func TestPodsSideBySide(t *testing.T) {
	t.Parallel()
	const writers, rounds, watchers = 4, 50, 6
	p := NewPods()
	p.MarkSynced()
	var writing, watching sync.WaitGroup
	final := make(chan struct{})
	for range watchers {
		watching.Go(func() {
			for range 5 {
				watch(t, p, newSink())() // ends wherever it happens to be
			}
			s := newSink()
			stop := watch(t, p, s)
			defer stop()
			<-final
			s.wait(t, "end=1")
			s.wait(t, "synced") // a late watcher is told the rest of the list by then
			alive := map[string]bool{}
			for _, word := range strings.Fields(s.words()) {
				if uid, gone := strings.CutPrefix(word, "-"); gone {
					delete(alive, uid)
				} else if uid, _, ok := strings.Cut(word, "="); ok {
					alive[uid] = true
				}
			}
			if len(alive) != writers+1 {
				t.Errorf("alive: %v", alive)
			}
		})
	}
	for w := range writers {
		writing.Go(func() {
			for r := range rounds {
				for _, uid := range []types.UID{types.UID(fmt.Sprint("keep-", w)), types.UID(fmt.Sprint("drop-", w))} {
					if err := p.Set(pod(uid, fmt.Sprint(r))); err != nil {
						t.Error(err)
					}
				}
				p.Remove(types.UID(fmt.Sprint("drop-", w)))
			}
		})
	}
	writing.Wait()
	set(t, p, pod("end", "1"))
	close(final)
	watching.Wait()
	uids := []string{}
	for _, pod := range p.List() {
		uids = append(uids, string(pod.UID))
	}
	if want := []string{"end", "keep-0", "keep-1", "keep-2", "keep-3"}; !slices.Equal(uids, want) {
		t.Errorf("%v, want %v", uids, want)
	}
}
