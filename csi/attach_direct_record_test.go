package csi

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/plugins"
)

func TestDirectAttachSecrets(t *testing.T) {
	t.Parallel()
	const password = "hunter2-hunter2"
	r := newDirectRig(t, nil)
	v := r.volume(func(pv *v1.PersistentVolume) {
		pv.Spec.CSI.ControllerPublishSecretRef = &v1.SecretReference{Namespace: "storage", Name: "login"}
	})
	ref := plugins.Ref{Kind: plugins.KindSecret, Namespace: "storage", Name: "login"}
	_, err := r.Attach(t.Context(), v)
	wantError(t, err, plugins.ClassWaiting, &ref, "storage/login")
	secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "login"}, Data: map[string][]byte{"password": []byte(password)}}
	if err := r.store.Apply(secret); err != nil {
		t.Fatal(err)
	}
	for method, fault := range map[string]csitest.Fault{
		publishCall:  {Code: codes.Internal, Message: "bad login " + password, Times: 1},
		validateCall: {Alter: deny("bad login " + password), Times: 1},
	} {
		r.driver.Script(method, fault)
		_, err := r.Attach(t.Context(), v)
		if err == nil || strings.Contains(fmt.Sprintf("%v %+v", err, err), password) || !strings.Contains(err.Error(), "bad login ***") {
			t.Errorf("%s: %v", method, err)
		}
		r.driver.ClearScripts()
	}
	got, err := r.Attach(t.Context(), v)
	if err != nil || got.Undo[undoSecret] != "storage/login" || strings.Contains(fmt.Sprint(got), password) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, method := range []string{publishCall, validateCall} {
		if req, ok := r.last(method).(interface{ GetSecrets() map[string]string }); !ok || req.GetSecrets()["password"] != password {
			t.Errorf("%s without the secret", method)
		}
	}
	// The record suffices; where there is none the spec does.
	recorded, specOnly := v, v
	recorded.Spec, recorded.Undo = nil, got.Undo
	for name, v := range map[string]Attachable{"recorded": recorded, "spec": specOnly} {
		if err := r.store.Apply(secret); err != nil {
			t.Fatal(err)
		}
		if err := r.Detach(t.Context(), v); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if req, ok := r.last(unpublishCall).(*csipb.ControllerUnpublishVolumeRequest); !ok || req.GetSecrets()["password"] != password {
			t.Errorf("%s: unpublished without the secret", name)
		}
		if err := r.store.Delete(secret); err != nil {
			t.Fatal(err)
		}
		// One that is gone may never come back: the driver decides.
		if err := r.Detach(t.Context(), v); err != nil {
			t.Errorf("%s, without the secret: %v", name, err)
		}
	}
}

func TestDirectAttachHostileText(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, nil)
	for _, ref := range []v1.SecretReference{{Namespace: "a/b", Name: "c"}, {Name: "c"}, {Namespace: "..", Name: "c"}, {Namespace: "a", Name: "b/c"}} {
		v := r.volume(func(pv *v1.PersistentVolume) { pv.Spec.CSI.ControllerPublishSecretRef = &ref })
		if _, err := r.Attach(t.Context(), v); plugins.ClassOf(err) != plugins.ClassPermanent {
			t.Errorf("%+v: %v", ref, err)
		}
	}
	for _, undo := range []plugins.Undo{
		{undoSecret: "a"}, {undoSecret: "/"}, {undoSecret: "../x"}, {undoSecret: "a/b/c"}, {undoSecret: ""},
		{undoFormer: "x"}, {undoFormer: `[""]`}, {undoFormer: `{}`},
	} {
		v := r.volume(nil)
		v.Undo = undo
		v.Undo[undoNode] = "node"
		if err := r.Detach(t.Context(), v); plugins.ClassOf(err) != plugins.ClassPermanent {
			t.Errorf("%v: %v", undo, err)
		}
	}
	if n := r.driver.CallCounts()[unpublishCall]; n > 0 {
		t.Errorf("%d calls", n)
	}
	r.driver.Script(publishCall, csitest.Fault{Alter: func(m proto.Message) {
		if res, ok := m.(*csipb.ControllerPublishVolumeResponse); ok {
			res.PublishContext = map[string]string{"k": strings.Repeat("x", maxContext)}
		}
	}})
	_, err := r.Attach(t.Context(), r.volume(nil))
	wantError(t, err, plugins.ClassUncertain, nil, "more than")
}

// A node may get another ID: what was attached to the old one is not forgotten.
func TestDirectAttachToANodeWithANewID(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, nil)
	v := r.volume(func(pv *v1.PersistentVolume) { pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany} })
	undo := plugins.Undo{}
	for _, c := range []struct{ id, former string }{
		{"old-node", ""}, {"other-node", `["old-node"]`}, {"other-node", `["old-node"]`}, {"node", `["old-node","other-node"]`},
		{"old-node", `["node","other-node"]`}, {"node", `["old-node","other-node"]`},
	} {
		r.dir.change = func(d *driver) { d.info.ID = c.id }
		v.Undo = maps.Clone(undo)
		got, err := r.Attach(t.Context(), v)
		if err != nil || got.Undo[undoNode] != c.id || got.Undo[undoFormer] != c.former {
			t.Fatalf("%s: %+v, %v", c.id, got, err)
		}
		maps.Copy(undo, got.Undo)
	}
	v.Undo = undo
	if len(r.attachedTo()) != 3 {
		t.Fatalf("attached to %v", r.attachedTo())
	}
	if err := r.Detach(t.Context(), v); err != nil || len(r.attachedTo()) > 0 {
		t.Errorf("%v, attached to %v", err, r.attachedTo())
	}
}

// One call at a time about one volume, side by side about two.
func TestDirectAttachTakesTurns(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, func(c *csitest.Config) { c.AbortBusy = true })
	block := r.driver.Script(publishCall, csitest.Fault{Block: true, Times: 2})
	other := r.volume(func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "other" })
	other.Handle = "other"
	var all sync.WaitGroup
	for _, v := range []Attachable{r.volume(nil), other} {
		for range 5 {
			all.Go(func() {
				if _, err := r.Attach(t.Context(), v); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if err := block.Wait(t.Context(), 2); err != nil {
		t.Error(err)
	}
	block.Release()
	all.Wait()
}

// A node without room is an error of its own.
func TestDirectAttachWhenTheNodeIsFull(t *testing.T) {
	t.Parallel()
	r := newDirectRig(t, func(c *csitest.Config) { c.Node.MaxVolumes = 1 })
	a := DirectAttach(r.drivers, r.host, DirectOptions{})
	if _, err := a.Attach(t.Context(), r.volume(nil)); err != nil {
		t.Fatal(err)
	}
	other := r.volume(func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "other" })
	other.Handle = "other"
	_, err := a.Attach(t.Context(), other)
	if !errors.Is(err, ErrNodeFull) || plugins.ClassOf(err) != plugins.ClassTransient {
		t.Error(err)
	}
}
