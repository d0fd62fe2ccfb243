package memory

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/plugins"
)

// CreateAttachment makes a VolumeAttachment, without status as in an API
// server, and tells the subscribers before it returns. The error is
// AlreadyExists if there is one of that name. It is what package csi needs to
// make its own; [Store.Apply] serves those who own the object as a whole.
func (s *Store) CreateAttachment(ctx context.Context, attachment *storagev1.VolumeAttachment) error {
	k, err := kindOf(attachment)
	if err != nil {
		return err
	}
	if attachment == nil || attachment.Name == "" {
		return plugins.Permanentf("create %s: the object has no name", k.name)
	}
	fresh := attachment.DeepCopy()
	fresh.Status, fresh.DeletionTimestamp = storagev1.VolumeAttachmentStatus{}, nil
	own, err := k.normal(fresh)
	if err != nil {
		return err
	}
	ref := k.refOf(own)
	if err := s.before(ctx, "create", ref); err != nil {
		return err
	}
	s.mu.Lock()
	_, exists := s.objects[ref]
	if !exists {
		_, err = s.enter(k, ref, own)
	}
	s.mu.Unlock()
	switch {
	case exists:
		return apierrors.NewAlreadyExists(k.resource, ref.Name)
	case err != nil:
		return err
	}
	s.tell(ref)
	return nil
}

// DeleteAttachment begins to delete a VolumeAttachment, and tells the
// subscribers before it returns: one with finalizers is marked as being deleted
// and stays until [Store.Delete], any other is gone. The error is NotFound if
// there is none.
func (s *Store) DeleteAttachment(ctx context.Context, name string) error {
	k, err := kindOf((*storagev1.VolumeAttachment)(nil))
	if err != nil {
		return err
	}
	ref := plugins.Ref{Kind: k.name, Name: name}
	if err := s.before(ctx, "delete", ref); err != nil {
		return err
	}
	return s.changeAttachment(ref, func(a *storagev1.VolumeAttachment) (keep bool) {
		if len(a.Finalizers) > 0 && a.DeletionTimestamp == nil {
			now := metav1.NewTime(s.config.Clock.Now()).Rfc3339Copy()
			a.DeletionTimestamp = &now
		}
		return len(a.Finalizers) > 0
	})
}

// SetAttachmentStatus changes the status of a VolumeAttachment, as a driver's
// attacher does, and tells the subscribers before it returns. change works on a
// copy and must not call the store. The error is NotFound if there is none.
func (s *Store) SetAttachmentStatus(name string, change func(*storagev1.VolumeAttachmentStatus)) error {
	ref := plugins.Ref{Kind: plugins.KindAttachment, Name: name}
	return s.changeAttachment(ref, func(a *storagev1.VolumeAttachment) bool {
		change(&a.Status)
		return true
	})
}

// changeAttachment replaces an object by a changed copy, or removes it.
func (s *Store) changeAttachment(ref plugins.Ref, change func(*storagev1.VolumeAttachment) (keep bool)) error {
	k, err := kindOf((*storagev1.VolumeAttachment)(nil))
	if err != nil {
		return err
	}
	changed, err := s.replaceAttachment(k, ref, change)
	if changed {
		s.tell(ref)
	}
	return err
}

func (s *Store) replaceAttachment(k kind, ref plugins.Ref, change func(*storagev1.VolumeAttachment) bool) (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, ok := s.objects[ref].(*storagev1.VolumeAttachment)
	if !ok {
		return false, apierrors.NewNotFound(k.resource, ref.Name)
	}
	after := before.DeepCopy()
	if !change(after) {
		delete(s.objects, ref)
		return true, nil
	}
	return s.enter(k, ref, after)
}
