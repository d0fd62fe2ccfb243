package memory_test

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/memory"
)

func settings(mode string) *v1.ConfigMap {
	return &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "settings"},
		Data:       map[string]string{"mode": mode},
	}
}

// A store takes objects and serves them to plugins, with notice of changes.
func ExampleStore() {
	ctx := context.Background()
	store := memory.NewStore()
	cancel := store.Subscribe(func(changed plugins.Ref) { fmt.Println("changed:", changed) })
	defer cancel()

	host := store.Host(plugins.Layout{Root: "/var/lib/volumekit"}, nil)
	_, err := host.ConfigMap(ctx, "shop", "settings")
	fmt.Println("not found:", apierrors.IsNotFound(err))

	for _, mode := range []string{"slow", "fast", "fast"} {
		if err := store.Apply(settings(mode)); err != nil {
			fmt.Println(err)
		}
	}
	read, err := host.ConfigMap(ctx, "shop", "settings")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(read.Data["mode"], "at version", read.ResourceVersion)
	// Output:
	// not found: true
	// changed: ConfigMap shop/settings
	// changed: ConfigMap shop/settings
	// fast at version 2
}

// Tests make single reads fail.
func ExampleStore_SetFault() {
	store := memory.NewStore()
	if err := store.Apply(settings("slow")); err != nil {
		fmt.Println(err)
	}
	store.SetFault(func(_ context.Context, verb string, ref plugins.Ref) error {
		if ref.Kind == plugins.KindConfigMap {
			return plugins.Transient(errors.New("connection refused"))
		}
		return nil
	})
	_, err := store.ConfigMap(context.Background(), "shop", "settings")
	fmt.Println(err)
	store.SetFault(nil)
	_, err = store.ConfigMap(context.Background(), "shop", "settings")
	fmt.Println(err)
	// Output:
	// connection refused
	// <nil>
}

// printer is a sink that says what it is told, and ends the watch when it knows
// all pods.
type printer struct{ done context.CancelFunc }

func (printer) SetPod(pod *v1.Pod)      { fmt.Println("pod", pod.Name) }
func (printer) RemovePod(uid types.UID) { fmt.Println("gone", uid) }
func (p printer) Synced()               { fmt.Println("these are all"); p.done() }

// Pods are told to whoever watches; nothing is taken away before MarkSynced.
func ExamplePods() {
	pods := memory.NewPods()
	for _, name := range []string{"web", "db"} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}}
		if err := pods.Set(pod); err != nil {
			fmt.Println(err)
		}
	}
	pods.MarkSynced()
	ctx, cancel := context.WithCancel(context.Background())
	fmt.Println(pods.WatchPods(ctx, printer{cancel}))
	// Output:
	// pod db
	// pod web
	// these are all
	// context canceled
}

// A recorder keeps the latest events and can be waited on.
func ExampleRecorder() {
	recorder := memory.NewRecorder(100)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	recorder.Event(pod, v1.EventTypeWarning, "FailedMount", "the server does not answer")
	recorder.Event(pod, v1.EventTypeNormal, "SuccessfulMountVolume", "volume data")
	event, err := recorder.WaitFor(context.Background(), func(e memory.Event) bool { return e.Type == v1.EventTypeNormal })
	fmt.Println(event, err)
	// Output:
	// Normal SuccessfulMountVolume Pod shop/web: volume data <nil>
}
