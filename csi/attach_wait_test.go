package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/memory"
)

// The volume of the tests.
const (
	vaDriver = "disk.example.com"
	vaHandle = "vol^1/a" // with what splits names elsewhere
	vaNode   = "node-1"
	vaPV     = "pv-1"
)

func csiPV(name, driver, handle string) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
			CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle},
		}},
	}
}

func vaVolume() Attachable {
	return Attachable{Driver: vaDriver, Handle: vaHandle, Node: vaNode, Spec: &plugins.Spec{PV: csiPV(vaPV, vaDriver, vaHandle)}}
}

// inlineVolume is one that was translated from an in-tree volume of a pod.
func inlineVolume() Attachable {
	v := vaVolume()
	v.Spec = &plugins.Spec{PV: csiPV("disk-1", vaDriver, vaHandle), Volume: &v1.Volume{Name: "data"}, Migrated: true}
	return v
}

var vaRef = plugins.Ref{Kind: plugins.KindAttachment, Name: AttachmentName(vaDriver, vaHandle, vaNode)}

// attachmentFor is the object that stands for vaVolume, attached.
func attachmentFor(change func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
	pv := vaPV
	object := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: vaRef.Name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: vaDriver, NodeName: vaNode, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
		Status: storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"lun": "7"}},
	}
	if change != nil {
		change(object)
	}
	return object
}

// vaStore is a store and a host that reads from it.
func vaStore(t *testing.T, objects ...*storagev1.VolumeAttachment) (*memory.Store, *plugins.VolumeHost) {
	t.Helper()
	store := memory.New(memory.Config{NodeName: vaNode})
	for _, object := range objects {
		if err := store.Apply(object); err != nil {
			t.Fatal(err)
		}
	}
	return store, store.Host(plugins.Layout{Root: t.TempDir()}, nil)
}

// wantError compares what matters of an error.
func wantError(t *testing.T, err error, class plugins.Class, waitsFor *plugins.Ref, text string) {
	t.Helper()
	if plugins.ClassOf(err) != class {
		t.Errorf("class %v, want %v: %v", plugins.ClassOf(err), class, err)
	}
	if refs := plugins.WaitsFor(err); waitsFor == nil && len(refs) > 0 || waitsFor != nil && !reflect.DeepEqual(refs, []plugins.Ref{*waitsFor}) {
		t.Errorf("waits for %v, want %v: %v", refs, waitsFor, err)
	}
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%v does not say %q", err, text)
	}
}

// The name is agreed upon with other programs.
func TestAttachmentName(t *testing.T) {
	t.Parallel()
	const want = "csi-fdef298eb16db6fa42906ef1ff09a93a7f3028f8290cc9d71628ff91c237bfa7" // sha256sum of handledrivernode
	if got := AttachmentName("driver", "handle", "node"); got != want {
		t.Error(got)
	}
	if AttachmentName("a", "b", "c") == AttachmentName("b", "a", "c") {
		t.Error("one name for two volumes")
	}
}

func TestWaitForAttachment(t *testing.T) {
	t.Parallel()
	full := int32(8)
	for name, c := range map[string]struct {
		change   func(*storagev1.VolumeAttachment)
		class    plugins.Class
		text     string
		nodeFull bool
	}{
		"attached": {change: nil},
		"attached in spite of an older error": {change: func(o *storagev1.VolumeAttachment) {
			o.Status.AttachError = &storagev1.VolumeError{Message: "busy"}
		}},
		"not yet": {change: func(o *storagev1.VolumeAttachment) { o.Status = storagev1.VolumeAttachmentStatus{} },
			class: plugins.ClassWaiting, text: "is not attached yet"},
		"being detached": {change: func(o *storagev1.VolumeAttachment) { o.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
			class: plugins.ClassWaiting, text: "is being detached"},
		"error": {change: func(o *storagev1.VolumeAttachment) {
			o.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "rpc error:\nno \x1b[31mluck"}}
		}, class: plugins.ClassWaiting, text: "rpc error: no  [31mluck"},
		"node full": {change: func(o *storagev1.VolumeAttachment) {
			o.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "no room", ErrorCode: &full}}
		}, class: plugins.ClassWaiting, text: "no room", nodeFull: true},
		"other driver": {change: func(o *storagev1.VolumeAttachment) { o.Spec.Attacher = "other" },
			class: plugins.ClassPermanent, text: `driver "other"`},
		"other node": {change: func(o *storagev1.VolumeAttachment) { o.Spec.NodeName = "other" },
			class: plugins.ClassPermanent, text: `node "other"`},
		"no source": {change: func(o *storagev1.VolumeAttachment) { o.Spec.Source.PersistentVolumeName = nil },
			class: plugins.ClassPermanent, text: "another volume"},
		"metadata too large": {change: func(o *storagev1.VolumeAttachment) {
			o.Status.AttachmentMetadata = map[string]string{"k": strings.Repeat("x", maxContext)}
		}, class: plugins.ClassPermanent, text: "more than"},
		"metadata not UTF-8": {change: func(o *storagev1.VolumeAttachment) {
			o.Status.AttachmentMetadata = map[string]string{"k": "\xff"}
		}, class: plugins.ClassPermanent, text: "UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			object := attachmentFor(c.change)
			_, host := vaStore(t, object)
			v := vaVolume()
			before := v.Spec.PV.DeepCopy()
			got, err := WaitAttach(host, WaitOptions{}).Attach(t.Context(), v)
			if !reflect.DeepEqual(before, v.Spec.PV) {
				t.Error("the spec was changed")
			}
			if c.class != plugins.ClassNone {
				wantError(t, err, c.class, &vaRef, c.text)
				if errors.Is(err, ErrNodeFull) != c.nodeFull {
					t.Errorf("node full: %v", err)
				}
				return
			}
			if err != nil || !maps.Equal(got.PublishContext, object.Status.AttachmentMetadata) || len(got.Undo) > 0 {
				t.Fatalf("%+v, %v", got, err)
			}
			got.PublishContext["lun"] = "8"
			stored, err := host.Attachment(t.Context(), vaRef.Name)
			if err != nil || stored.Status.AttachmentMetadata["lun"] != "7" {
				t.Errorf("the object's metadata are shared: %v, %v", stored, err)
			}
		})
	}
}

func TestWaitForMissingAttachment(t *testing.T) {
	t.Parallel()
	store, host := vaStore(t)
	// One of another volume, node and driver are others.
	for _, name := range []string{
		AttachmentName(vaDriver, "other", vaNode), AttachmentName("other", vaHandle, vaNode), AttachmentName(vaDriver, vaHandle, "other"),
	} {
		if err := store.Apply(attachmentFor(func(o *storagev1.VolumeAttachment) { o.Name = name })); err != nil {
			t.Fatal(err)
		}
	}
	w := WaitAttach(host, WaitOptions{})
	_, err := w.Attach(t.Context(), vaVolume())
	wantError(t, err, plugins.ClassWaiting, &vaRef, "not found")
	store.SetFault(func(context.Context, string, plugins.Ref) error { return errors.New("connection refused") })
	_, err = w.Attach(t.Context(), vaVolume())
	wantError(t, err, plugins.ClassTransient, nil, "connection refused")
	_, err = WaitAttach(&plugins.VolumeHost{}, WaitOptions{}).Attach(t.Context(), vaVolume())
	wantError(t, err, plugins.ClassUnsupported, nil, "VolumeHost.Attachments")
	nameless := vaVolume()
	nameless.Node = ""
	_, err = w.Attach(t.Context(), nameless)
	wantError(t, err, plugins.ClassUnsupported, nil, "VolumeHost.NodeName")
}

// What cannot be attached is refused by every attacher alike.
func TestAttachRefusesOtherSpecs(t *testing.T) {
	t.Parallel()
	store, host := vaStore(t, attachmentFor(nil))
	attachers := map[string]Attacher{
		"wait": WaitAttach(host, WaitOptions{}), "own": OwnAttach(host, store),
		"direct": &directAttach{drivers: &attachDirectory{}, host: host},
	}
	for name, change := range map[string]func(*Attachable){
		"no spec":    func(v *Attachable) { v.Spec = nil },
		"empty spec": func(v *Attachable) { v.Spec = &plugins.Spec{} },
		"inline": func(v *Attachable) {
			v.Spec = &plugins.Spec{Volume: &v1.Volume{Name: "x", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: vaDriver}}}}
		},
		"in-tree":      func(v *Attachable) { v.Spec = &plugins.Spec{PV: &v1.PersistentVolume{}} },
		"other handle": func(v *Attachable) { v.Handle = "other" },
		"other driver": func(v *Attachable) { v.Driver = "other" },
		"no handle":    func(v *Attachable) { v.Handle, v.Spec = "", &plugins.Spec{PV: csiPV("x", vaDriver, "")} },
	} {
		for kind, a := range attachers {
			v := vaVolume()
			change(&v)
			if _, err := a.Attach(t.Context(), v); plugins.ClassOf(err) != plugins.ClassPermanent {
				t.Errorf("%s, %s: %v", name, kind, err)
			}
		}
	}
	if list, err := store.Attachment(t.Context(), vaRef.Name); err != nil || list.ResourceVersion != "1" {
		t.Errorf("something was written: %v, %v", list, err)
	}
}

// Several objects may stand for one volume; the attachment names one of them.
func TestAttachmentOfTheSameVolumeByAnotherName(t *testing.T) {
	t.Parallel()
	inTree := csiPV("intree", "", "")
	inTree.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "x"}}
	named := func(name string) storagev1.VolumeAttachmentSource {
		return storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}
	}
	of := func(driver, handle string) storagev1.VolumeAttachmentSource {
		return storagev1.VolumeAttachmentSource{InlineVolumeSpec: &csiPV("", driver, handle).Spec}
	}
	for name, c := range map[string]struct {
		source storagev1.VolumeAttachmentSource
		good   bool
	}{
		"same by name":        {named(vaPV), true},
		"twin":                {named("twin"), true},
		"in-tree":             {named("intree"), true},
		"other volume":        {named("other"), false},
		"gone":                {named("gone"), false},
		"inline":              {of(vaDriver, vaHandle), true},
		"inline, other":       {of(vaDriver, "other"), false},
		"inline, driver":      {of("other", vaHandle), false},
		"inline, not CSI":     {storagev1.VolumeAttachmentSource{InlineVolumeSpec: &inTree.Spec}, false},
		"neither of the both": {storagev1.VolumeAttachmentSource{}, false},
	} {
		store, host := vaStore(t, attachmentFor(func(o *storagev1.VolumeAttachment) { o.Spec.Source = c.source }))
		for _, pv := range []*v1.PersistentVolume{inTree, csiPV("twin", vaDriver, vaHandle), csiPV("other", vaDriver, "other"), csiPV("disk-1", vaDriver, "other")} {
			if err := store.Apply(pv); err != nil {
				t.Fatal(err)
			}
		}
		_, err := WaitAttach(host, WaitOptions{}).Attach(t.Context(), vaVolume())
		if (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
		if name == "same by name" {
			continue // an inline volume has no object, whose name could be the same
		}
		if _, err = WaitAttach(host, WaitOptions{}).Attach(t.Context(), inlineVolume()); (err == nil) != c.good {
			t.Errorf("%s, for an inline volume: %v", name, err)
		}
	}
	// A foreign persistent volume that happens to have the name of the inline
	// one's.
	store, host := vaStore(t, attachmentFor(func(o *storagev1.VolumeAttachment) { o.Spec.Source = named("disk-1") }))
	if err := store.Apply(csiPV("disk-1", vaDriver, "other")); err != nil {
		t.Fatal(err)
	}
	_, err := WaitAttach(host, WaitOptions{}).Attach(t.Context(), inlineVolume())
	wantError(t, err, plugins.ClassPermanent, &vaRef, "another volume")
	store.SetFault(func(_ context.Context, _ string, ref plugins.Ref) error {
		if ref.Kind == plugins.KindPersistentVolume {
			return errors.New("connection refused")
		}
		return nil
	})
	_, err = WaitAttach(host, WaitOptions{}).Attach(t.Context(), inlineVolume())
	wantError(t, err, plugins.ClassTransient, nil, "connection refused")
}

func TestWaitForNodeStatus(t *testing.T) {
	t.Parallel()
	store, host := vaStore(t, attachmentFor(nil))
	w := WaitAttach(host, WaitOptions{GateOnNodeStatus: true})
	ref := plugins.Ref{Kind: plugins.KindNode, Name: vaNode}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: vaNode}}
	for _, listed := range []v1.UniqueVolumeName{"", "kubernetes.io/csi/" + vaDriver + "^other", vaDriver + "^" + vaHandle} {
		node.Status.VolumesAttached = []v1.AttachedVolume{{Name: listed}}
		if err := store.Apply(node); err != nil {
			t.Fatal(err)
		}
		_, err := w.Attach(t.Context(), vaVolume())
		wantError(t, err, plugins.ClassWaiting, &ref, "volumesAttached")
	}
	node.Status.VolumesAttached = append(node.Status.VolumesAttached, v1.AttachedVolume{Name: "kubernetes.io/csi/" + vaDriver + "^" + vaHandle})
	if err := store.Apply(node); err != nil {
		t.Fatal(err)
	}
	if got, err := w.Attach(t.Context(), vaVolume()); err != nil || got.PublishContext["lun"] != "7" {
		t.Errorf("%+v, %v", got, err)
	}
	host.Node = nil
	_, err := w.Attach(t.Context(), vaVolume())
	wantError(t, err, plugins.ClassUnsupported, nil, "VolumeHost.Node")
}

// The control plane detaches: there is nothing to wait for, nor to ask.
func TestWaitAttachDetachesNothing(t *testing.T) {
	t.Parallel()
	store, host := vaStore(t, attachmentFor(nil))
	store.SetFault(func(_ context.Context, verb string, ref plugins.Ref) error {
		t.Errorf("%s %v", verb, ref)
		return nil
	})
	v := vaVolume()
	v.Spec = nil
	if err := WaitAttach(host, WaitOptions{}).Detach(t.Context(), v); err != nil {
		t.Error(err)
	}
}

// awaitAttach attaches as the engine does: what waits is tried again when a
// notice came, also one that came during the try.
func awaitAttach(ctx context.Context, store *memory.Store, a Attacher, v Attachable) (Attached, error) {
	notices := make(chan plugins.Ref, 1000)
	defer store.Subscribe(func(ref plugins.Ref) { notices <- ref })()
	for {
		got, err := a.Attach(ctx, v)
		refs := plugins.WaitsFor(err)
		if err == nil || len(refs) == 0 {
			return got, err
		}
		for woken := false; !woken; {
			select {
			case ref := <-notices:
				woken = ref == refs[0]
			case <-ctx.Done():
				return got, fmt.Errorf("never woken: %w", err)
			}
		}
	}
}

// However notice and try meet, the wait ends.
func TestWaitEndsWithTheNotice(t *testing.T) {
	t.Parallel()
	for range 200 {
		store, host := vaStore(t)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		var all sync.WaitGroup
		all.Go(func() {
			object := attachmentFor(func(o *storagev1.VolumeAttachment) { o.Status = storagev1.VolumeAttachmentStatus{} })
			if err := store.Apply(object); err != nil {
				t.Error(err)
			}
			if err := store.SetAttachmentStatus(object.Name, func(s *storagev1.VolumeAttachmentStatus) {
				s.Attached, s.AttachmentMetadata = true, map[string]string{"lun": "7"}
			}); err != nil {
				t.Error(err)
			}
		})
		got, err := awaitAttach(ctx, store, WaitAttach(host, WaitOptions{}), vaVolume())
		if err != nil || got.PublishContext["lun"] != "7" {
			t.Errorf("%+v, %v", got, err)
		}
		all.Wait()
		cancel()
	}
}
