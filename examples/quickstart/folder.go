package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/volumekit/volumekit/plugins/memory"
)

// folder keeps the store at what the manifests say.
type folder struct {
	dir   string
	store *memory.Store
	out   *console

	mu      sync.Mutex
	asRead  map[string]object // as read, by key
	applied map[string]object // as the store has them, by key
	faults  []error           // of the last reading

	edited atomic.Pointer[time.Time] // when the change that was read last was noticed
}

func newFolder(dir string, store *memory.Store, out *console) *folder {
	return &folder{dir: dir, store: store, out: out}
}

// change is an object that came, changed or went. The pods are nil for what was
// or is no pod.
type change struct {
	name     string // with its kind
	how      string
	was, now *v1.Pod
}

// read brings the store to what the folder says now.
func (f *folder) read() []change {
	objects, faults := readFolder(f.dir)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asRead = withKept(objects, f.asRead, faults)
	bound, unbound := bind(f.asRead)
	faults = append(faults, unbound...)
	changes, refused := f.apply(bound)
	f.tell(append(faults, refused...))
	return changes
}

// withKept adds the objects that were read before from files that cannot be
// read now: a mistake takes nothing away.
func withKept(objects []object, before map[string]object, faults []error) map[string]object {
	now := map[string]object{}
	for _, o := range objects {
		now[o.key()] = o
	}
	bad := map[string]bool{}
	for _, err := range faults {
		var f *fault
		if !errors.As(err, &f) {
			return merge(before, now) // the folder itself
		}
		bad[f.file] = true
	}
	kept := map[string]object{}
	for key, o := range before {
		if bad[o.file] {
			kept[key] = o
		}
	}
	return merge(kept, now)
}

func merge(a, b map[string]object) map[string]object {
	all := map[string]object{}
	for key, o := range a {
		all[key] = o
	}
	for key, o := range b {
		all[key] = o
	}
	return all
}

// apply tells the store what is different now: what pods refer to before the
// pods, and the other way round on the way out.
func (f *folder) apply(now map[string]object) (changes []change, faults []error) {
	before := f.applied
	f.applied = map[string]object{}
	for _, key := range ordered(now) {
		o, old := now[key], before[key]
		if old.Object != nil && equality.Semantic.DeepEqual(old.Object, o.Object) {
			f.applied[key] = o
			continue
		}
		was, _ := old.Object.(*v1.Pod)
		pod, _ := o.Object.(*v1.Pod)
		if err := f.store.Apply(o.Object); err != nil {
			faults = append(faults, &fault{file: o.file, line: o.line, err: fmt.Errorf("%s: %w", o.key(), err)})
			if old.Object != nil {
				f.applied[key] = old
			}
			continue
		}
		if was != nil && was.UID != pod.UID {
			f.store.Pods().Remove(was.UID)
		}
		f.applied[key] = o
		c := change{name: o.name(), how: "has changed", was: was, now: pod}
		if old.Object == nil {
			c.how = "is new"
		}
		changes = append(changes, c)
	}
	gone := ordered(before)
	slices.Reverse(gone)
	for _, key := range gone {
		if _, still := now[key]; still {
			continue
		}
		o := before[key]
		if err := f.store.Delete(o.Object); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", o.key(), err))
		}
		was, _ := o.Object.(*v1.Pod)
		changes = append(changes, change{name: o.name(), how: "is gone", was: was})
	}
	return changes, faults
}

// tell prints the faults that are new, and when all are gone.
func (f *folder) tell(faults []error) {
	told := map[string]bool{}
	for _, err := range f.faults {
		told[err.Error()] = true
	}
	slices.SortStableFunc(faults, byPlace)
	for _, err := range faults {
		if !told[err.Error()] {
			f.out.fault("bad manifest: %v", err)
		}
	}
	if len(faults) == 0 && len(f.faults) > 0 {
		f.out.event("all manifests are good now")
	}
	f.faults = faults
}

// noticed says when the change that is about to be read was noticed.
func (f *folder) noticed(at time.Time) {
	f.edited.Store(&at)
}

// sinceEdit tells how long ago the last edit was, unless that was so long ago
// that something else must have been the cause.
func (f *folder) sinceEdit() string {
	at := f.edited.Load()
	if at == nil || time.Since(*at) > 10*time.Second {
		return ""
	}
	return fmt.Sprintf(", %v after the edit", round(time.Since(*at)))
}

// good reports whether the last reading found no fault.
func (f *folder) good() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.faults) == 0
}

// pods lists the pods by name.
func (f *folder) pods() []*v1.Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*v1.Pod
	for _, key := range ordered(f.applied) {
		if pod, ok := f.applied[key].Object.(*v1.Pod); ok {
			list = append(list, pod)
		}
	}
	return list
}
