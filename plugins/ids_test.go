package plugins

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestCheckID(t *testing.T) {
	t.Parallel()
	for id, good := range map[int64]bool{
		0: true, 1000: true, math.MaxInt32: true,
		-1: false, math.MaxInt32 + 1: false, math.MaxUint32: false, 1 << 32: false, 1<<32 + 5: false,
		math.MaxInt64: false, math.MinInt64: false,
	} {
		if err := CheckID(id); (err == nil) != good || err != nil && !errors.Is(err, ErrBadID) {
			t.Errorf("%d: %v", id, err)
		}
	}
}

// TestValidatePodIDs gives a bad number to each field of a pod that says whose
// something is, in turn, found by its name: one that the API gains later fails
// here until it is checked.
func TestValidatePodIDs(t *testing.T) {
	t.Parallel()
	const text = `
metadata: {name: p, uid: u}
spec:
  securityContext: {supplementalGroups: [1]}
  containers: [{name: a, securityContext: {}}]
  initContainers: [{name: b, securityContext: {}}]
  ephemeralContainers: [{name: c, securityContext: {}}]
  volumes:
  - {name: a, configMap: {items: [{}]}}
  - {name: b, secret: {items: [{}]}}
  - {name: c, downwardAPI: {items: [{}]}}
  - name: d
    projected:
      sources:
      - {configMap: {items: [{}]}}
      - {secret: {items: [{}]}}
      - {downwardAPI: {items: [{}]}}
      - {serviceAccountToken: {}}
      - {clusterTrustBundle: {}}
      - {podCertificate: {}}
`
	if err := ValidatePod(parse[v1.Pod](t, text)); err != nil {
		t.Fatal(err)
	}
	n := len(idFields("spec", reflect.ValueOf(&parse[v1.Pod](t, text).Spec)))
	if n < 23 {
		t.Fatalf("%d fields", n)
	}
	for i := range n {
		for _, id := range []int64{-1, math.MaxInt32 + 1, 1 << 32, 1<<32 + 5} {
			pod := parse[v1.Pod](t, text)
			field := idFields("spec", reflect.ValueOf(&pod.Spec))[i]
			field.set(id)
			err := ValidatePod(pod)
			if ClassOf(err) != ClassPermanent || !errors.Is(err, ErrBadID) ||
				!strings.Contains(err.Error(), field.name) || !strings.Contains(err.Error(), fmt.Sprint(id)) {
				t.Errorf("%s %d: %v", field.name, id, err)
			}
			field.set(math.MaxInt32)
			if err := ValidatePod(pod); err != nil {
				t.Errorf("%s: %v", field.name, err)
			}
		}
	}
}

// idField is a field that holds an id, by its path in the API's words.
type idField struct {
	name string
	set  func(int64)
}

func idFields(at string, v reflect.Value) (fields []idField) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return idFields(at, v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			fields = append(fields, idFields(fmt.Sprintf("%s[%d]", at, i), v.Index(i))...)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			below := at + "." + name
			if name == "" { // embedded
				below = at
			}
			f := v.Field(i)
			switch name {
			case "fsGroup", "runAsUser", "runAsGroup", "user", "defaultUser":
				if f.Type() == reflect.TypeFor[*int64]() {
					fields = append(fields, idField{below, func(id int64) { f.Set(reflect.ValueOf(&id)) }})
				}
			case "supplementalGroups":
				if f.Len() > 0 {
					fields = append(fields, idField{below, func(id int64) { f.Index(0).SetInt(id) }})
				}
			default:
				fields = append(fields, idFields(below, f)...)
			}
		}
	}
	return fields
}
