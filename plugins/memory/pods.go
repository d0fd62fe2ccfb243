package memory

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

// Pods is a [plugins.PodSource] that a program or a test feeds by hand. It is
// safe for concurrent use. Whoever feeds it calls MarkSynced once all pods that
// exist have been set; until then no volume is ever taken away.
type Pods struct {
	mu       sync.Mutex
	pods     map[types.UID]*v1.Pod
	synced   bool
	watchers map[*watcher]struct{}
}

// watcher is one call of WatchPods. Its fields are guarded by Pods.mu.
type watcher struct {
	queue []change
	wake  chan struct{} // of one element: the queue is no longer empty
}

// change is one thing to tell: a pod set, a pod removed, or synced if both are
// empty.
type change struct {
	set    *v1.Pod
	remove types.UID
}

func (c change) tell(sink plugins.PodSink) {
	switch {
	case c.set != nil:
		sink.SetPod(c.set)
	case c.remove != "":
		sink.RemovePod(c.remove)
	default:
		sink.Synced()
	}
}

// NewPods returns a source without pods.
func NewPods() *Pods {
	return &Pods{pods: make(map[types.UID]*v1.Pod), watchers: make(map[*watcher]struct{})}
}

// Set adds a pod or replaces the one of the same UID; one that is no different
// is no change. It keeps a copy, with the API server's defaults filled in. A pod that [plugins.ValidatePod] refuses is
// refused, and what was known of it stays.
func (p *Pods) Set(pod *v1.Pod) error {
	if err := plugins.ValidatePod(pod); err != nil {
		return fmt.Errorf("set pod: %w", err)
	}
	own := plugins.DefaultPod(pod)
	if own == pod {
		own = pod.DeepCopy()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if equality.Semantic.DeepEqual(p.pods[own.UID], own) {
		return nil
	}
	p.pods[own.UID] = own
	p.enqueue(change{set: own})
	return nil
}

// Remove says that no container of the pod runs any more, nor will one start:
// its volumes may be taken away. It reports whether the pod was known.
func (p *Pods) Remove(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.pods[uid]; !known {
		return false
	}
	delete(p.pods, uid)
	p.enqueue(change{remove: uid})
	return true
}

// MarkSynced says that all pods that exist have been set. It holds from then
// on.
func (p *Pods) MarkSynced() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.synced {
		p.synced = true
		p.enqueue(change{})
	}
}

// Get returns a pod, nil if there is none of that UID. It is shared and must
// not be changed.
func (p *Pods) Get(uid types.UID) *v1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pods[uid]
}

// List returns all pods, sorted by namespace, name and UID. They are shared and
// must not be changed.
func (p *Pods) List() []*v1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sorted()
}

func (p *Pods) sorted() []*v1.Pod {
	list := make([]*v1.Pod, 0, len(p.pods))
	for _, pod := range p.pods {
		list = append(list, pod)
	}
	slices.SortFunc(list, func(a, b *v1.Pod) int {
		return strings.Compare(a.Namespace+"\x00"+a.Name+"\x00"+string(a.UID), b.Namespace+"\x00"+b.Name+"\x00"+string(b.UID))
	})
	return list
}

// enqueue adds to every watcher's queue; p.mu is held.
func (p *Pods) enqueue(c change) {
	for w := range p.watchers {
		w.queue = append(w.queue, c)
		select {
		case w.wake <- struct{}{}:
		default: // it has been woken already
		}
	}
}

// WatchPods implements [plugins.PodSource]: it tells sink the pods that there
// are, that they are all once MarkSynced was called, and then each change in
// the order in which it was made. It does so in the calling goroutine, starts
// none, and holds no lock then, so the sink may call back. Every call is on its
// own and starts with the whole list: it may be called again after one has
// ended, and several times at once. What a slow sink has not taken yet is kept.
func (p *Pods) WatchPods(ctx context.Context, sink plugins.PodSink) error {
	w := p.watch()
	defer p.unwatch(w)
	for {
		for _, c := range p.take(w) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			c.tell(sink)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.wake:
		}
	}
}

// watch makes a watcher whose queue holds the present state.
func (p *Pods) watch() *watcher {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &watcher{wake: make(chan struct{}, 1)}
	for _, pod := range p.sorted() {
		w.queue = append(w.queue, change{set: pod})
	}
	if p.synced {
		w.queue = append(w.queue, change{})
	}
	p.watchers[w] = struct{}{}
	return w
}

func (p *Pods) unwatch(w *watcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.watchers, w)
}

func (p *Pods) take(w *watcher) []change {
	p.mu.Lock()
	defer p.mu.Unlock()
	queue := w.queue
	w.queue = nil
	return queue
}
