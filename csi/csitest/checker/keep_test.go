package checker_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volumekit/volumekit/csi/csitest/checker"
)

// What is reported shows no secrets, wherever the orchestrator put them.
func TestReportsHideSecrets(t *testing.T) {
	const secret = "very-secret-value"
	c := checker.New(checker.Options{Canaries: []string{"canary-bird"}})
	begin := func(id, target string) {
		c.Begin(t.Context(), csi.Node_NodePublishVolume_FullMethodName, &csi.NodePublishVolumeRequest{
			VolumeId: id, TargetPath: target, Secrets: map[string]string{"p": secret},
		}).End(nil, nil)
	}
	begin("volume-"+secret, "/a")
	begin("other", "/pods/"+secret)
	begin("third", "pods/canary-bird")
	if n := len(c.Violations()); n < 6 {
		t.Errorf("%d violations", n)
	}
	for _, v := range append(c.Violations(), c.Leftovers()...) {
		if s := v.String(); strings.Contains(s, secret) || strings.Contains(s, "canary-bird") {
			t.Errorf("shows a secret: %s", s)
		}
	}
}

// A volume that is gone is forgotten, and memories are bounded.
func TestMemoryIsBounded(t *testing.T) {
	c := checker.New(checker.Options{})
	size := func() int { return footprint(reflect.ValueOf(c)) }
	var after int
	for i := range 6000 {
		id := fmt.Sprintf("vol-%07d", i)
		target := "/pods/" + id
		call := func(method string, req, resp any) { c.Begin(t.Context(), method, req).End(resp, nil) }
		call(csi.Controller_CreateVolume_FullMethodName, &csi.CreateVolumeRequest{Name: id}, &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: id}})
		call(csi.Node_NodePublishVolume_FullMethodName, &csi.NodePublishVolumeRequest{VolumeId: id, TargetPath: target, Secrets: map[string]string{"s": target}}, &csi.NodePublishVolumeResponse{})
		call(csi.Node_NodeUnpublishVolume_FullMethodName, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target}, &csi.NodeUnpublishVolumeResponse{})
		if i == 4500 {
			after = size()
		}
	}
	if got := size(); got > after {
		t.Errorf("grew from %d to %d entries", after, got)
	}
}

// footprint counts the entries of all maps and slices within a value.
func footprint(v reflect.Value) int {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() || v.Kind() == reflect.Interface {
			return 0
		}
		return footprint(v.Elem())
	case reflect.Struct:
		n := 0
		for i := range v.NumField() {
			n += footprint(v.Field(i))
		}
		return n
	case reflect.Map, reflect.Slice:
		return v.Len()
	}
	return 0
}
