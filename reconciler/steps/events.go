package steps

import (
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"unicode"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

// Reasons of the events about a pod's volumes. They are the kubelet's.
const (
	ReasonMounted      = "SuccessfulMountVolume"
	ReasonMountFailed  = "FailedMount"
	ReasonMapFailed    = "FailedMapVolume"
	ReasonUnmount      = "FailedUnMount"
	ReasonUnmapFailed  = "FailedUnmapDevice"
	ReasonAttached     = "SuccessfulAttachVolume"
	ReasonAttachFailed = "FailedAttachVolume"
	ReasonDetachFailed = "FailedDetachVolume"
	ReasonResized      = "FileSystemResizeSuccessful"
	ReasonResizeFailed = "VolumeResizeFailed"
)

// eventFilter remembers the last failure that was told of each step, so that
// an event is sent once per change and not once per try.
type eventFilter struct {
	seed maphash.Seed

	mu   sync.Mutex
	told notes[uint64] // hashes of the texts
}

func newEventFilter() eventFilter {
	return eventFilter{seed: maphash.MakeSeed(), told: newNotes[uint64]()}
}

// failed reports whether text is news for the step. Numbers are none: a time,
// a counter or a temporary name differs at every try.
func (f *eventFilter) failed(key *reconciler.Key, text string) bool {
	hash := maphash.String(f.seed, strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, text))
	f.mu.Lock()
	defer f.mu.Unlock()
	if old, told := f.told.get(key); told && old == hash {
		return false
	}
	f.told.set(key, hash)
	return true
}

// succeeded says that the next failure of the step is news.
func (f *eventFilter) succeeded(key *reconciler.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told.remove(key)
}

func (f *eventFilter) forget(s scope) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told.forget(s)
}

func (f *eventFilter) has(s scope) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.told.scopes[s] != nil
}

func (f *eventFilter) due() []scope {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.told.due()
}

// event tells the pods concerned how the step went, if that is news.
func (e *Executor) event(j *job, err error) {
	kind, reason, message := v1.EventTypeWarning, failureReason(j), ""
	if err != nil {
		message = err.Error()
		if !e.events.failed(&j.step.Key, message) {
			return
		}
	} else {
		e.events.succeeded(&j.step.Key)
		kind = v1.EventTypeNormal
		if reason, message = e.success(j); reason == "" {
			return
		}
	}
	for _, object := range j.audience() {
		e.tell("event recorder", func() { e.Host.Event(object, kind, reason, message) })
	}
}

func failureReason(j *job) string {
	switch j.step.Kind {
	case reconciler.Attach:
		return ReasonAttachFailed
	case reconciler.Detach:
		return ReasonDetachFailed
	case reconciler.TearDown, reconciler.UnmountDevice:
		if j.entry.Block {
			return ReasonUnmapFailed
		}
		return ReasonUnmount
	case reconciler.Expand:
		return ReasonResizeFailed
	}
	if j.wish.Block {
		return ReasonMapFailed
	}
	return ReasonMountFailed
}

// success returns the event of a step that went well, if there is one. A volume
// that was found and merely confirmed is no news.
func (e *Executor) success(j *job) (reason, message string) {
	switch {
	case j.step.Kind == reconciler.SetUp && !j.entry.Found && !e.QuietMounts:
		return ReasonMounted, fmt.Sprintf("Volume %q is ready at its path", j.step.Volume.Name)
	case j.step.Kind == reconciler.Attach && j.fact.Attachment == asw.Absent:
		return ReasonAttached, fmt.Sprintf("Volume %q is attached", j.step.ID)
	case j.step.Kind == reconciler.Expand && !j.idle:
		return ReasonResized, fmt.Sprintf("Volume %q has been expanded on node %s", j.step.Volume.Name, e.Host.NodeName)
	}
	return "", ""
}

// audience lists the objects that an event of the step is about.
func (j *job) audience() []runtime.Object {
	if !j.nodeWide() {
		if j.wish.Pod != nil {
			return []runtime.Object{j.wish.Pod}
		}
		if j.pod.Name == "" {
			return nil // nobody knows the pod by its UID alone
		}
		return []runtime.Object{&v1.ObjectReference{
			Kind: "Pod", APIVersion: "v1", Namespace: j.pod.Namespace, Name: j.pod.Name, UID: j.pod.UID,
		}}
	}
	var list []runtime.Object
	for _, w := range j.wishes {
		if w.State == dsw.Wanted && w.Pod != nil {
			list = append(list, w.Pod)
		}
	}
	return list
}

// publish tells the embedder which files of a volume changed.
func (e *Executor) publish(j *job, content plugins.Content) {
	if e.ContentChanged != nil && len(content.Changed) > 0 {
		e.tell("ContentChanged", func() { e.ContentChanged(j.step.Volume, j.pod, content) })
	}
}
