package csi

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/memory"
)

var attachmentResource = schema.GroupResource{Group: storagev1.GroupName, Resource: "volumeattachments"}

// faultyWriter answers with errors of its own, before or after the work.
type faultyWriter struct {
	*memory.Store
	before, after error
}

func (w *faultyWriter) CreateAttachment(ctx context.Context, object *storagev1.VolumeAttachment) error {
	if w.before != nil {
		return w.before
	}
	return errors.Join(w.Store.CreateAttachment(ctx, object), w.after)
}

func (w *faultyWriter) DeleteAttachment(ctx context.Context, name string) error {
	if w.before != nil {
		return w.before
	}
	return errors.Join(w.Store.DeleteAttachment(ctx, name), w.after)
}

// scribbler writes on what it was given.
type scribbler struct{ *memory.Store }

func (s *scribbler) CreateAttachment(ctx context.Context, object *storagev1.VolumeAttachment) error {
	err := s.Store.CreateAttachment(ctx, object)
	switch source := &object.Spec.Source; {
	case source.InlineVolumeSpec != nil:
		source.InlineVolumeSpec.CSI.Driver = "scribble"
	case source.PersistentVolumeName != nil:
		*source.PersistentVolumeName = "scribble"
	}
	return err
}

func TestOwnAttachment(t *testing.T) {
	t.Parallel()
	pv := vaPV
	for name, c := range map[string]struct {
		volume Attachable
		source storagev1.VolumeAttachmentSource
	}{
		"persistent volume": {vaVolume(), storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
		"inline":            {inlineVolume(), storagev1.VolumeAttachmentSource{InlineVolumeSpec: &csiPV("", vaDriver, vaHandle).Spec}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, host := vaStore(t)
			o := OwnAttach(host, &scribbler{store})
			before := c.volume.Spec.PV.DeepCopy()
			for range 2 { // the second time it is there
				_, err := o.Attach(t.Context(), c.volume)
				// Uncertain: it is to be deleted if nobody wants it any more.
				wantError(t, err, plugins.ClassUncertain, &vaRef, "is not attached yet")
				if plugins.PaceOf(err) != plugins.PaceSlow {
					t.Errorf("pace %v", plugins.PaceOf(err))
				}
			}
			got, err := store.Attachment(t.Context(), vaRef.Name)
			if err != nil {
				t.Fatal(err)
			}
			want := storagev1.VolumeAttachmentSpec{Attacher: vaDriver, NodeName: vaNode, Source: c.source}
			if !reflect.DeepEqual(got.Spec, want) || got.ResourceVersion != "1" {
				t.Errorf("%+v, want %+v", got, want)
			}
			if !reflect.DeepEqual(before, c.volume.Spec.PV) {
				t.Error("the spec was changed")
			}
			if err := store.SetAttachmentStatus(vaRef.Name, func(s *storagev1.VolumeAttachmentStatus) {
				s.Attached, s.AttachmentMetadata = true, map[string]string{"lun": "7"}
			}); err != nil {
				t.Fatal(err)
			}
			if got, err := o.Attach(t.Context(), c.volume); err != nil || got.PublishContext["lun"] != "7" {
				t.Errorf("%+v, %v", got, err)
			}
			c.volume.Spec = nil
			if err := o.Detach(t.Context(), c.volume); err != nil {
				t.Error(err)
			}
			if _, err := store.Attachment(t.Context(), vaRef.Name); !apierrors.IsNotFound(err) {
				t.Errorf("it is still there: %v", err)
			}
			if err := o.Detach(t.Context(), c.volume); err != nil {
				t.Errorf("again: %v", err)
			}
		})
	}
}

func TestOwnAttachmentThatIsThere(t *testing.T) {
	t.Parallel()
	full := int32(8)
	for name, c := range map[string]struct {
		change   func(*storagev1.VolumeAttachment)
		class    plugins.Class
		text     string
		nodeFull bool
	}{
		"attached": {change: nil},
		"other driver": {change: func(o *storagev1.VolumeAttachment) { o.Spec.Attacher = "other" },
			class: plugins.ClassPermanent, text: "another volume"},
		"other node": {change: func(o *storagev1.VolumeAttachment) { o.Spec.NodeName = "other" },
			class: plugins.ClassPermanent, text: "another volume"},
		"other volume": {change: func(o *storagev1.VolumeAttachment) { *o.Spec.Source.PersistentVolumeName = "gone" },
			class: plugins.ClassPermanent, text: "another volume"},
		"being detached": {change: func(o *storagev1.VolumeAttachment) { o.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
			class: plugins.ClassWaiting, text: "is being detached"},
		"error": {change: func(o *storagev1.VolumeAttachment) {
			o.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "no luck"}}
		}, class: plugins.ClassUncertain, text: "no luck"},
		"node full": {change: func(o *storagev1.VolumeAttachment) {
			o.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "no room", ErrorCode: &full}}
		}, class: plugins.ClassUncertain, text: "no room", nodeFull: true},
		"bad metadata": {change: func(o *storagev1.VolumeAttachment) { o.Status.AttachmentMetadata = map[string]string{"\xff": ""} },
			class: plugins.ClassUncertain, text: "UTF-8"},
	} {
		store, host := vaStore(t, attachmentFor(c.change))
		got, err := OwnAttach(host, store).Attach(t.Context(), vaVolume())
		if c.class == plugins.ClassNone {
			if err != nil || got.PublishContext["lun"] != "7" {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
			continue
		}
		t.Log(name)
		wantError(t, err, c.class, &vaRef, c.text)
		if errors.Is(err, ErrNodeFull) != c.nodeFull {
			t.Errorf("%s: node full: %v", name, err)
		}
		if object, err := store.Attachment(t.Context(), vaRef.Name); err != nil || object.ResourceVersion != "1" {
			t.Errorf("%s: it was changed: %v, %v", name, object, err)
		}
	}
}

// The source of objects may lag behind what was written.
func TestOwnAttachmentWithALateSource(t *testing.T) {
	t.Parallel()
	store, host := vaStore(t, attachmentFor(nil))
	stale := true
	store.SetFault(func(_ context.Context, verb string, ref plugins.Ref) error {
		if stale && verb == "get" && ref == vaRef {
			return apierrors.NewNotFound(attachmentResource, ref.Name)
		}
		return nil
	})
	o := OwnAttach(host, store)
	_, err := o.Attach(t.Context(), vaVolume())
	wantError(t, err, plugins.ClassUncertain, &vaRef, "is not attached yet")
	stale = false
	if _, err := o.Attach(t.Context(), vaVolume()); err != nil {
		t.Error(err)
	}
	stale = true // it seems not to exist, and is deleted all the same
	if err := o.Detach(t.Context(), vaVolume()); err != nil {
		t.Error(err)
	}
	stale = false
	if _, err := store.Attachment(t.Context(), vaRef.Name); !apierrors.IsNotFound(err) {
		t.Errorf("it was left behind: %v", err)
	}
}

func TestOwnAttachErrors(t *testing.T) {
	t.Parallel()
	lost := errors.New("unexpected EOF")
	for name, c := range map[string]struct {
		before, after error
		class         plugins.Class
		pace          plugins.Pace
	}{
		"forbidden":    {before: apierrors.NewForbidden(attachmentResource, "x", lost), class: plugins.ClassTransient, pace: plugins.PaceSlow},
		"invalid":      {before: apierrors.NewInvalid(schema.GroupKind{}, "x", nil), class: plugins.ClassTransient, pace: plugins.PaceSlow},
		"unauthorized": {before: apierrors.NewUnauthorized("x"), class: plugins.ClassTransient, pace: plugins.PaceSlow},
		"too many":     {before: apierrors.NewTooManyRequests("x", 1), class: plugins.ClassTransient, pace: plugins.PaceSlow},
		"timeout":      {before: apierrors.NewTimeoutError("x", 1), class: plugins.ClassUncertain},
		"internal":     {before: apierrors.NewInternalError(lost), class: plugins.ClassUncertain},
		"not sent":     {before: plugins.Transient(lost), class: plugins.ClassTransient},
		"answer lost":  {after: lost, class: plugins.ClassUncertain},
	} {
		store, host := vaStore(t)
		w := &faultyWriter{store, c.before, c.after}
		_, err := OwnAttach(host, w).Attach(t.Context(), vaVolume())
		if plugins.ClassOf(err) != c.class || plugins.PaceOf(err) != c.pace {
			t.Errorf("%s: class %v, pace %v: %v", name, plugins.ClassOf(err), plugins.PaceOf(err), err)
		}
		w.before, w.after = nil, nil
		if err := OwnAttach(host, w).Detach(t.Context(), vaVolume()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := store.Attachment(t.Context(), vaRef.Name); !apierrors.IsNotFound(err) {
			t.Errorf("%s: it was left behind: %v", name, err)
		}
	}
	_, err := OwnAttach(&plugins.VolumeHost{}, &faultyWriter{}).Attach(t.Context(), vaVolume())
	wantError(t, err, plugins.ClassUnsupported, nil, "VolumeHost.Attachments")
	nameless := vaVolume()
	nameless.Node = ""
	err = OwnAttach(&plugins.VolumeHost{}, &faultyWriter{}).Detach(t.Context(), nameless)
	wantError(t, err, plugins.ClassUnsupported, nil, "VolumeHost.NodeName")
}

func TestOwnDetachWaitsUntilItIsGone(t *testing.T) {
	t.Parallel()
	object := attachmentFor(func(o *storagev1.VolumeAttachment) { o.Finalizers = []string{"external-attacher/x"} })
	store, host := vaStore(t, object)
	deletions := 0
	store.SetFault(func(_ context.Context, verb string, _ plugins.Ref) error {
		if verb == "delete" {
			deletions++
		}
		return nil
	})
	o := OwnAttach(host, store)
	for range 2 {
		wantError(t, o.Detach(t.Context(), vaVolume()), plugins.ClassWaiting, &vaRef, "is not detached yet")
	}
	if deletions != 1 {
		t.Errorf("deleted %d times", deletions)
	}
	// Nobody stages what is on its way out.
	_, err := o.Attach(t.Context(), vaVolume())
	wantError(t, err, plugins.ClassWaiting, &vaRef, "is being detached")
	if err := store.SetAttachmentStatus(vaRef.Name, func(s *storagev1.VolumeAttachmentStatus) {
		s.DetachError = &storagev1.VolumeError{Message: "still\tmounted"}
	}); err != nil {
		t.Fatal(err)
	}
	wantError(t, o.Detach(t.Context(), vaVolume()), plugins.ClassWaiting, &vaRef, "still mounted")
	if err := store.Delete(object); err != nil {
		t.Fatal(err)
	}
	if err := o.Detach(t.Context(), vaVolume()); err != nil {
		t.Error(err)
	}
}

func TestOwnDetachErrors(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection refused")
	store, host := vaStore(t, attachmentFor(nil))
	err := OwnAttach(host, &faultyWriter{store, broken, nil}).Detach(t.Context(), vaVolume())
	wantError(t, err, plugins.ClassTransient, nil, "connection refused")
	store.SetFault(func(context.Context, string, plugins.Ref) error { return broken })
	wantError(t, OwnAttach(host, store).Detach(t.Context(), vaVolume()), plugins.ClassTransient, nil, "connection refused")
	store.SetFault(nil)
	// Of another driver whose name, handle and node give the same digest.
	for _, change := range []func(*storagev1.VolumeAttachment){
		func(o *storagev1.VolumeAttachment) { o.Spec.Attacher = "other" },
		func(o *storagev1.VolumeAttachment) { o.Spec.NodeName = "other" },
	} {
		store, host := vaStore(t, attachmentFor(change))
		if err := OwnAttach(host, store).Detach(t.Context(), vaVolume()); err != nil {
			t.Error(err)
		}
		if _, err := store.Attachment(t.Context(), vaRef.Name); err != nil {
			t.Errorf("it was taken from its owner: %v", err)
		}
	}
}

// Many at once make one object, and all of them see it attached.
func TestOwnAttachAtOnce(t *testing.T) {
	t.Parallel()
	store, host := vaStore(t)
	defer store.Subscribe(func(ref plugins.Ref) { // the external-attacher
		object, err := store.Attachment(t.Context(), ref.Name)
		if err == nil && !object.Status.Attached {
			_ = store.SetAttachmentStatus(ref.Name, func(s *storagev1.VolumeAttachmentStatus) { s.Attached = true })
		}
	})()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, err := awaitAttach(ctx, store, OwnAttach(host, store), vaVolume()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
