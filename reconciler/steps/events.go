package steps

import (
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

var errStillMounted = errors.New("still mounted")

// Reasons of the events about a pod's volumes. They are the kubelet's.
const (
	ReasonMounted      = "SuccessfulMountVolume"
	ReasonMountFailed  = "FailedMount"
	ReasonMapFailed    = "FailedMapVolume"
	ReasonUnmount      = "FailedUnMount"
	ReasonAttached     = "SuccessfulAttachVolume"
	ReasonAttachFailed = "FailedAttachVolume"
	ReasonDetachFailed = "FailedDetachVolume"
	ReasonResized      = "FileSystemResizeSuccessful"
	ReasonResizeFailed = "VolumeResizeFailed"
)

// eventFilter remembers, by pod, the last failure that was told of a step, so
// that an event is sent once per change and not once per try.
type eventFilter struct {
	mu   sync.Mutex
	pods map[types.UID]map[reconciler.Key]string
}

// changed reports whether text is news for the step; an empty text clears it.
func (f *eventFilter) changed(key reconciler.Key, text string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	uid := key.Volume.Pod
	told := f.pods[uid]
	if text == "" {
		delete(told, key)
		if len(told) == 0 {
			delete(f.pods, uid)
		}
		return true
	}
	if told[key] == text {
		return false
	}
	if told == nil {
		told = map[reconciler.Key]string{}
		f.pods[uid] = told
	}
	told[key] = text
	return true
}

func (f *eventFilter) forget(uid types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.pods, uid)
}

// event tells the pods concerned how the step went, if that is news.
func (e *Executor) event(j *job, err error) {
	kind, reason, message := v1.EventTypeWarning, failureReason(j), ""
	if err != nil {
		message = err.Error()
		if !e.events.changed(j.step.Key, message) {
			return
		}
	} else {
		e.events.changed(j.step.Key, "")
		kind = v1.EventTypeNormal
		if reason, message = e.success(j); reason == "" {
			return
		}
	}
	for _, object := range j.audience() {
		e.Host.Event(object, kind, reason, message)
	}
}

func failureReason(j *job) string {
	switch j.step.Kind {
	case reconciler.Attach:
		return ReasonAttachFailed
	case reconciler.Detach:
		return ReasonDetachFailed
	case reconciler.TearDown, reconciler.UnmountDevice:
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
	case j.step.Kind == reconciler.Attach:
		return ReasonAttached, fmt.Sprintf("Volume %q is attached", j.step.ID)
	case j.step.Kind == reconciler.Expand:
		return ReasonResized, fmt.Sprintf("Volume %q has been expanded on node %s", j.step.Volume.Name, e.Host.NodeName)
	}
	return "", ""
}

// audience lists the objects that an event of the step is about.
func (j *job) audience() []runtime.Object {
	if j.step.Volume.Name != "" {
		if j.wish.Pod != nil {
			return []runtime.Object{j.wish.Pod}
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
		e.ContentChanged(j.step.Volume, j.pod, content)
	}
}

func joinUnless(err, other error) error {
	if other == nil {
		return err
	}
	return errors.Join(err, other)
}

func orErr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}
