package plugins

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Notifier is implemented by plugins and host sources that can say that
// something changed. What cannot notify is read again by interval.
type Notifier interface {
	// Subscribe calls notify for each change from now on, until cancel is
	// called; cancel returns when no call is under way any more and may be
	// called more than once. Do not call it from within notify, unless the
	// implementation says what it does then. notify never blocks for long and
	// may be called from several goroutines, which hold no lock that reading the
	// source needs. What a notice is about can be read before it is sent. A
	// notice may come too often; it must not be missed: after a gap (a broken
	// watch), send one with an empty Name.
	Subscribe(notify func(Ref)) (cancel func())
}

// Runner is implemented by plugins and host sources that have work of their
// own in the background. The manager owns it.
type Runner interface {
	// Run blocks until ctx ends and all that it started has ended. An error
	// before that is logged and the work is started again after a pause.
	Run(ctx context.Context) error
}

// PodSource is where pods come from, static ones and those of an API server
// alike.
type PodSource interface {
	// WatchPods tells sink which pods this node has, and every change, until
	// ctx ends. It returns ctx.Err then. An error before that makes the
	// manager call it again after a pause; the pods that are known stay. A
	// call starts with the whole list: what was told before and is not
	// repeated by the time of Synced is gone, in the sense of RemovePod: a list
	// therefore holds every pod of which a container may still run, deleted ones
	// included, and a source that cannot list all of them does not say Synced.
	WatchPods(ctx context.Context, sink PodSink) error
}

// PodSink takes what a [PodSource] tells. Its methods do not block for long,
// keep the objects they get, and are safe for concurrent use.
type PodSink interface {
	// SetPod adds a pod or replaces it by a newer version of itself. The pod
	// must not be changed afterwards.
	SetPod(pod *v1.Pod)
	// RemovePod says that no container of the pod runs any more, nor will one
	// start: its volumes may be taken away. A deleted pod whose containers are
	// still ending has not been removed in this sense.
	RemovePod(uid types.UID)
	// Synced says that all pods that exist now have been told. Until the first
	// call nothing is ever taken away.
	Synced()
}
