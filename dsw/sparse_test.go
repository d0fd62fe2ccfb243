package dsw

import (
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

// sparse fills a value at random: pointers are often nil, lists often empty.
func sparse(r *rand.Rand, v reflect.Value, depth int) {
	switch v.Interface().(type) {
	case metav1.Time:
		v.Set(reflect.ValueOf(metav1.Unix(r.Int64N(3), 0)))
		return
	case resource.Quantity:
		v.Set(reflect.ValueOf(*resource.NewQuantity(r.Int64N(3), resource.BinarySI)))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if depth > 0 && r.IntN(3) == 0 {
			v.Set(reflect.New(v.Type().Elem()))
			sparse(r, v.Elem(), depth-1)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				sparse(r, v.Field(i), depth)
			}
		}
	case reflect.Slice:
		if n := r.IntN(3); depth > 0 && n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				sparse(r, v.Index(i), depth-1)
			}
		}
	case reflect.Map:
		if depth > 0 && r.IntN(2) == 0 {
			v.Set(reflect.MakeMap(v.Type()))
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			sparse(r, key, depth-1)
			sparse(r, value, depth-1)
			v.SetMapIndex(key, value)
		}
	case reflect.String:
		v.SetString([]string{"", "a", "b", "ns", "Bound", "Block", "metadata.labels", "In", "../x"}[r.IntN(9)])
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int32, reflect.Int64:
		v.SetInt(r.Int64N(3))
	}
}

func filled[T any](r *rand.Rand) *T {
	object := new(T)
	sparse(r, reflect.ValueOf(object).Elem(), 6)
	return object
}

func runSparse(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	a := newAPI()
	resolver := a.resolver(t)
	w := New(Options{AllVolumes: r.IntN(2) == 0})
	for range 20 {
		pod := filled[v1.Pod](r)
		pod.UID = types.UID([]string{"", "u1", "u2"}[r.IntN(3)])
		for _, name := range []string{"a", "b", "", "ns", "Bound"} {
			a.claims[pod.Namespace+"/"+name] = filled[v1.PersistentVolumeClaim](r)
			if c := a.claims[pod.Namespace+"/"+name]; r.IntN(3) > 0 {
				c.Status.Phase, c.Spec.VolumeName = v1.ClaimBound, "a"
			}
			pv := filled[v1.PersistentVolume](r)
			if c := a.claims[pod.Namespace+"/a"]; r.IntN(3) > 0 {
				pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: pod.Namespace, Name: name, UID: c.UID}
			}
			a.pvs[name] = pv
		}
		a.node = filled[v1.Node](r)
		for todo := w.SetPod(pod).Resolve; len(todo) > 0; todo = todo[1:] {
			task, ok := w.Begin(todo[0])
			if !ok {
				t.Fatalf("%v cannot be begun", todo[0])
			}
			res, err := resolver.Resolve(t.Context(), task.Pod, task.Name)
			switch class := plugins.ClassOf(err); {
			case err == nil:
				if res.Spec == nil || res.ID == "" || res.Volume.Check() != nil {
					t.Fatalf("resolution: %+v", res)
				}
				w.SetResolved(task, res)
			case class == plugins.ClassUncertain:
				t.Fatalf("error without class: %v", err)
			default:
				w.SetFailed(task, err, res.SpecRefs)
			}
			w.Pod(task.Pod.UID)
		}
		w.Touch(plugins.Ref{Kind: plugins.KindConfigMap})
		for id := range w.Volumes() {
			w.Wish(id, []plugins.PodVolume{{}})
		}
		w.consistent(t)
	}
}

func TestSparseObjects(t *testing.T) {
	for seed := range uint64(20) {
		runSparse(t, seed)
	}
}

func FuzzSparseObjects(f *testing.F) {
	f.Add(uint64(1 << 40))
	f.Fuzz(runSparse)
}

func TestConcurrentUse(t *testing.T) {
	g := newRig(t)
	g.api.bind("c1", "pv1", "h")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			uid := []string{"u1", "u2"}[i%2] // two goroutines each fight for one pod
			for n := range 100 {
				pod := podOf(uid, configMap("a", "x"), claim("b", "c1"))
				if n%3 == 0 {
					pod.Spec.Volumes[0] = configMap("a", "y")
				}
				for _, u := range g.SetPod(pod).Resolve {
					g.resolve(u)
				}
				g.Touch(configMapRef("ns", "x"))
				for _, u := range g.Touch(claimRef("c1")).Resolve {
					g.resolve(u)
				}
				wish := g.Wish(stagedID("h"), []plugins.PodVolume{stagedVolume("u1", "pv1"), stagedVolume("u3", "pv1")})
				for _, p := range wish.Pods {
					if p.State == Wanted && (len(p.Names) != 1 || p.Spec == nil || p.Pod == nil) {
						t.Errorf("torn wish: %+v", p)
					}
				}
				if n%10 == 0 {
					g.BeginList()
					g.EndList()
					g.RemovePod(types.UID(uid))
				}
				for id := range g.Volumes() {
					g.Wish(id, nil)
				}
				g.Pod("u1")
			}
		})
	}
	wg.Wait()
	g.consistent(t)
}
