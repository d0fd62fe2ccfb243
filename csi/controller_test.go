package csi

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/plugins"
)

// alterLists changes the answers of ListVolumes.
func alterLists(r *directRig, change func(*csipb.ListVolumesResponse)) {
	r.driver.ClearScripts()
	r.driver.Script("ListVolumes", csitest.Fault{Alter: func(m proto.Message) {
		if res, ok := m.(*csipb.ListVolumesResponse); ok {
			change(res)
		}
	}})
}

func TestPublishedNodes(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, nil)
	name := r.driver.Name()
	if nodes, err := r.drivers.PublishedNodes(t.Context(), name); err != nil || len(nodes) > 0 {
		t.Errorf("%v, %v", nodes, err)
	}
	want := map[string][]string{}
	for i := range 5 {
		handle := fmt.Sprint("vol-", i)
		v := Attachable{Driver: name, Handle: handle, Spec: &plugins.Spec{PV: csiPV(handle, name, handle)}}
		v.Spec.PV.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
		for _, node := range []string{"node", "old-node"}[:1+i%2] {
			r.dir.change = func(d *driver) { d.info.ID = node }
			if _, err := r.Attach(t.Context(), v); err != nil {
				t.Fatal(err)
			}
			want[handle] = append(want[handle], node)
		}
	}
	if nodes, err := r.drivers.PublishedNodes(t.Context(), name); err != nil || !reflect.DeepEqual(nodes, want) {
		t.Errorf("%v, %v; want %v", nodes, err, want)
	}
	// Pages of one volume, with the last of each again in the next.
	page := 0
	alterLists(r, func(res *csipb.ListVolumesResponse) {
		all := res.GetEntries()
		if res.NextToken = ""; page < len(all)-1 {
			res.NextToken = "after:" // from the beginning
		}
		res.Entries = all[max(page-1, 0) : page+1]
		page++
	})
	// The token is the same each time: that could go on for ever.
	_, err := r.drivers.PublishedNodes(t.Context(), name)
	wantError(t, err, plugins.ClassTransient, nil, "without end")
	if page != 2 {
		t.Errorf("%d pages", page)
	}
	r.driver.ClearScripts()
	r.dir.change = func(d *driver) { d.controller = &pager{ControllerClient: d.controller, pages: 12} }
	nodes, err := publishedNodes(t.Context(), r.dir, name)
	if err != nil || len(nodes) != 12 || !reflect.DeepEqual(nodes["h3"], []string{"a", "b"}) {
		t.Errorf("%v, %v", nodes, err)
	}
	r.dir.change = func(d *driver) { d.controller = &pager{ControllerClient: d.controller, pages: maxPages + 5} }
	_, err = publishedNodes(t.Context(), r.dir, name)
	wantError(t, err, plugins.ClassTransient, nil, "without end")
}

func TestPublishedNodesBadAnswers(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, nil)
	for _, entry := range []*csipb.ListVolumesResponse_Entry{{}, {Volume: &csipb.Volume{VolumeId: "a\x00"}}} {
		alterLists(r, func(res *csipb.ListVolumesResponse) { res.Entries = append(res.Entries, entry) })
		_, err := r.drivers.PublishedNodes(t.Context(), r.driver.Name())
		if plugins.ClassOf(err) != plugins.ClassTransient {
			t.Error(err)
		}
	}
	r.driver.ClearScripts()
	r.driver.Script("ListVolumes", csitest.Fault{Code: codes.Aborted})
	if _, err := r.drivers.PublishedNodes(t.Context(), r.driver.Name()); plugins.ClassOf(err) != plugins.ClassTransient || answered(err) != codes.Aborted {
		t.Error(err)
	}
}

// pager lists one volume on each page.
type pager struct {
	csipb.ControllerClient
	pages int
}

// ListVolumes implements the controller service.
func (p *pager) ListVolumes(_ context.Context, req *csipb.ListVolumesRequest, _ ...grpc.CallOption) (*csipb.ListVolumesResponse, error) {
	page, _ := strconv.Atoi(req.GetStartingToken())
	res := &csipb.ListVolumesResponse{Entries: []*csipb.ListVolumesResponse_Entry{{
		Volume: &csipb.Volume{VolumeId: fmt.Sprint("h", page)},
		Status: &csipb.ListVolumesResponse_VolumeStatus{PublishedNodeIds: []string{"b", "a", "b"}},
	}}}
	if page++; page < p.pages {
		res.NextToken = strconv.Itoa(page)
	}
	return res, nil
}
