package memory

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/volumekit/volumekit/plugins"
)

func attachmentOf(name string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: named("", name), Spec: storagev1.VolumeAttachmentSpec{Attacher: "d", NodeName: "n"},
		Status: storagev1.VolumeAttachmentStatus{Attached: true},
	}
}

func TestAttachmentsAreMadeAndDeleted(t *testing.T) {
	t.Parallel()
	s := NewStore()
	notices := 0
	defer s.Subscribe(func(ref plugins.Ref) {
		if ref != (plugins.Ref{Kind: plugins.KindAttachment, Name: "a"}) {
			t.Errorf("notice about %v", ref)
		}
		notices++
	})()
	object := attachmentOf("a")
	if err := s.CreateAttachment(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	if err := s.CreateAttachment(t.Context(), object); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a second one: %v", err)
	}
	got, err := s.Attachment(t.Context(), "a")
	if err != nil || got.Status.Attached || got.UID == "" || got.ResourceVersion == "" || !object.Status.Attached {
		t.Errorf("%+v, %v", got, err)
	}
	attached := func(status *storagev1.VolumeAttachmentStatus) { status.Attached = true }
	if err := s.SetAttachmentStatus("a", attached); err != nil {
		t.Error(err)
	}
	if err := s.SetAttachmentStatus("a", attached); err != nil {
		t.Error(err) // no change, no notice
	}
	if now, err := s.Attachment(t.Context(), "a"); err != nil || !now.Status.Attached || got.Status.Attached {
		t.Errorf("%+v, %v; what was read before changed: %v", now, err, got.Status.Attached)
	}
	if err := s.DeleteAttachment(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if _, err := s.Attachment(t.Context(), "a"); !apierrors.IsNotFound(err) {
		t.Errorf("it is still there: %v", err)
	}
	if notices != 3 {
		t.Errorf("%d notices", notices)
	}
	for what, err := range map[string]error{
		"delete": s.DeleteAttachment(t.Context(), "a"), "status": s.SetAttachmentStatus("a", attached),
	} {
		if !apierrors.IsNotFound(err) {
			t.Errorf("%s of none: %v", what, err)
		}
	}
}

func TestAttachmentWithFinalizerStays(t *testing.T) {
	t.Parallel()
	s := NewStore()
	object := attachmentOf("a")
	object.Finalizers = []string{"external-attacher/d"}
	apply(t, s, object)
	for range 2 {
		if err := s.DeleteAttachment(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Attachment(t.Context(), "a"); err != nil || got.DeletionTimestamp == nil {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if err := s.CreateAttachment(t.Context(), object); !apierrors.IsAlreadyExists(err) {
		t.Errorf("made beside one that is being deleted: %v", err)
	}
	if err := s.Delete(object); err != nil {
		t.Error(err)
	}
}

func TestOneOfManyMakesTheAttachment(t *testing.T) {
	t.Parallel()
	s := NewStore()
	var made atomic.Int32
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			switch err := s.CreateAttachment(t.Context(), attachmentOf("a")); {
			case err == nil:
				made.Add(1)
			case !apierrors.IsAlreadyExists(err):
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made.Load() != 1 {
		t.Errorf("%d made it", made.Load())
	}
}

func TestAttachmentFaults(t *testing.T) {
	t.Parallel()
	s := NewStore()
	var verbs []string
	s.SetFault(func(_ context.Context, verb string, ref plugins.Ref) error {
		verbs = append(verbs, verb+" "+ref.String())
		return errFault
	})
	for _, err := range []error{s.CreateAttachment(t.Context(), attachmentOf("a")), s.DeleteAttachment(t.Context(), "a")} {
		if !errors.Is(err, errFault) {
			t.Error(err)
		}
	}
	if len(verbs) != 2 || verbs[0] != "create VolumeAttachment a" || verbs[1] != "delete VolumeAttachment a" {
		t.Error(verbs)
	}
	for _, bad := range []*storagev1.VolumeAttachment{nil, {}} {
		if err := s.CreateAttachment(t.Context(), bad); plugins.ClassOf(err) != plugins.ClassPermanent {
			t.Error(err)
		}
	}
}
