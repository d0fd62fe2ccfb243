//go:build linux

package sim_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/sim"
	"github.com/volumekit/volumekit/plugins"
)

// Somebody puts a link or a mount in the way to a volume that is to be taken
// down: what lies behind it stays, and the volume goes when the way is free.
func TestTeardownThroughNothingForeign(t *testing.T) {
	layers := map[string]func(n *sim.Node, pod *v1.Pod) string{
		"pods":    func(n *sim.Node, _ *v1.Pod) string { return n.Layout.PodsDir() },
		"pod":     func(n *sim.Node, pod *v1.Pod) string { return n.Layout.PodDir(pod.UID) },
		"volumes": func(n *sim.Node, pod *v1.Pod) string { return n.Layout.PodVolumesDir(pod.UID) },
		"plugin": func(n *sim.Node, pod *v1.Pod) string {
			return filepath.Join(n.Layout.PodVolumesDir(pod.UID), plugins.EscapePlugin("kubernetes.io/empty-dir"))
		},
	}
	obstacles := map[string]struct {
		put, take func(at, precious string) error
	}{
		"mount": {
			put:  func(at, precious string) error { return unix.Mount(precious, at, "", unix.MS_BIND, "") },
			take: func(at, _ string) error { return unix.Unmount(at, unix.MNT_DETACH) },
		},
		"link": {
			put: func(at, precious string) error {
				return errors.Join(os.Rename(at, at+".aside"), os.Symlink(precious, at))
			},
			take: func(at, _ string) error { return errors.Join(os.Remove(at), os.Rename(at+".aside", at)) },
		},
	}
	for layer, place := range layers {
		for kind, obstacle := range obstacles {
			if layer == "pods" && kind == "link" {
				continue // the mount on it would have to be moved with it
			}
			t.Run(layer+" "+kind, func(t *testing.T) {
				n := sim.New(t)
				pod := sim.Pod("pod", emptyDir("scratch"))
				n.Apply(pod)
				n.Start()
				n.AwaitReady(pod)
				// What lies behind has the same names as what is to be removed.
				at, precious := place(n, pod), filepath.Join(n.Dir, "precious")
				rest, err := filepath.Rel(at, n.Path(pod, "kubernetes.io/empty-dir", "scratch"))
				if err != nil {
					t.Fatal(err)
				}
				kept := filepath.Join(precious, rest, "kept")
				if err := errors.Join(os.MkdirAll(filepath.Dir(kept), 0o755), os.WriteFile(kept, []byte("precious"), 0o644), obstacle.put(at, precious)); err != nil {
					t.Fatal(err)
				}
				n.Delete(pod)
				n.Await("the teardown is refused", func(s sim.State) bool {
					v := s.Volume(pod, "scratch")
					return v.Attempts > 0 && v.Message != ""
				})
				if got := read(t, kept); got != "precious" {
					t.Errorf("behind the %s: %q", kind, got)
				}
				if err := obstacle.take(at, precious); err != nil {
					t.Fatal(err)
				}
				n.AwaitGone(pod)
				if got := read(t, kept); got != "precious" {
					t.Errorf("behind the %s, afterwards: %q", kind, got)
				}
			})
		}
	}
}
