package dsw

import (
	"fmt"
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

func fourVolumes(uid string) *v1.Pod {
	secret := v1.Volume{Name: "secret", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}}
	return podOf(uid, configMap("config", "own-"+uid), secret, downward("info", "metadata.labels"), emptyDir("tmp"))
}

// populated returns a rig with n pods of four volumes.
func populated(b *testing.B, n int, pod func(i int) *v1.Pod) *rig {
	b.Helper()
	g := newRig(b)
	g.sync()
	for i := range n {
		g.run(g.SetPod(pod(i)))
	}
	return g
}

func ownMaps(i int) *v1.Pod { return fourVolumes("u" + strconv.Itoa(i)) }

func sharedMap(i int) *v1.Pod {
	pod := ownMaps(i)
	pod.Spec.Volumes[0] = configMap("config", "shared")
	return pod
}

// The cost must not grow with the pods that are there.
func BenchmarkPod(b *testing.B) {
	for _, n := range []int{10, 5000} {
		g := populated(b, n, ownMaps)
		pod := fourVolumes("new")
		b.Run(fmt.Sprintf("addResolveRemove/pods=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for _, u := range g.SetPod(pod).Resolve {
					g.resolve(u)
				}
				g.RemovePod("new")
			}
		})
		known := g.pods["u5"].pod
		versions := []*v1.Pod{edit(known, func(p *v1.Pod) { p.Status.Phase = v1.PodPending }), known}
		b.Run(fmt.Sprintf("update/pods=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				g.SetPod(versions[i%2])
			}
		})
		there := []plugins.PodVolume{plainVolume("u5", "config")}
		id := plainID("u5", "config")
		b.Run(fmt.Sprintf("wish/pods=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				g.Wish(id, there)
			}
		})
		list, cursor := make([]plugins.VolumeID, 0, 100), 0
		b.Run(fmt.Sprintf("slice100/pods=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				list, cursor = g.Slice(list[:0], cursor, 100)
			}
		})
	}
}

func BenchmarkTouch(b *testing.B) {
	one, all := populated(b, 5000, ownMaps), populated(b, 5000, sharedMap)
	for _, bm := range []struct {
		name string
		g    *rig
		ref  plugins.Ref
	}{
		{"one", one, configMapRef("ns", "own-u77")},
		{"none", one, configMapRef("ns", "absent")},
		{"all", all, configMapRef("ns", "shared")},
		{"kind", one, configMapRef("", "")},
	} {
		b.Run(bm.name+"/pods=5000", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				bm.g.Touch(bm.ref)
			}
		})
	}
}

// Removing one of many pods that refer to the same object.
func BenchmarkRemoveShared(b *testing.B) {
	g := populated(b, 5000, sharedMap)
	pod := sharedMap(2500)
	b.ReportAllocs()
	for b.Loop() {
		g.RemovePod(types.UID("u2500"))
		for _, u := range g.SetPod(pod).Resolve {
			g.resolve(u)
		}
	}
}
