package csi

import (
	"context"
	"errors"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/plugins"
)

// AttachmentWriter makes and deletes VolumeAttachment objects. Its errors tell
// AlreadyExists and NotFound apart from the rest as those of client-go do.
type AttachmentWriter interface {
	// CreateAttachment makes an object that must not exist yet. It may keep the
	// object that it is given.
	CreateAttachment(ctx context.Context, object *storagev1.VolumeAttachment) error
	// DeleteAttachment begins to delete one. It is gone when nobody has a
	// finalizer on it any more.
	DeleteAttachment(ctx context.Context, name string) error
}

// ownAttach is the attacher of [OwnAttach].
type ownAttach struct {
	attachments
	writer AttachmentWriter
}

// OwnAttach makes the VolumeAttachment itself, and the driver's
// external-attacher attaches: for clusters without an attach/detach controller,
// or nodes that it leaves alone. Beside such a controller, that does not know of
// the pods here, it must not be used: the controller deletes what it did not
// expect.
//
// Detach deletes the object, also one that was there before, and is done when
// it is gone. Both read through host, which needs Attachments; if that source
// notifies, the object's event ends the wait.
func OwnAttach(host *plugins.VolumeHost, writer AttachmentWriter) Attacher {
	if writer == nil {
		writer = noWriter{}
	}
	return &ownAttach{attachments{host}, writer}
}

// noWriter stands for a writer that the embedder forgot.
type noWriter struct{}

var errNoWriter = plugins.Unsupported(errors.New("OwnAttach was given nobody who writes VolumeAttachments"))

// CreateAttachment implements [AttachmentWriter].
func (noWriter) CreateAttachment(context.Context, *storagev1.VolumeAttachment) error {
	return errNoWriter
}

// DeleteAttachment implements [AttachmentWriter].
func (noWriter) DeleteAttachment(context.Context, string) error { return errNoWriter }

// Attach implements [Attacher].
func (o *ownAttach) Attach(ctx context.Context, v Attachable) (Attached, error) {
	if err := o.check(&v); err != nil {
		return Attached{}, err
	}
	ref := attachmentRef(&v)
	object, err := o.host.Attachment(ctx, ref.Name)
	if apierrors.IsNotFound(err) {
		err = o.create(ctx, &v)
		if !apierrors.IsAlreadyExists(err) {
			return Attached{}, err
		}
		object, err = o.host.Attachment(ctx, ref.Name)
	}
	if apierrors.IsNotFound(err) { // it is there, and the source lags behind
		return Attached{}, begun(plugins.WaitFor(ref, fmt.Errorf("%s is not attached yet", textOf(&v))))
	}
	if err != nil {
		return Attached{}, classed(plugins.Transient, fmt.Errorf("read %s: %w", ref, err))
	}
	got, err := o.judge(ctx, &v, object)
	if err != nil && object.DeletionTimestamp == nil && !errors.Is(err, errOther) {
		err = begun(err)
	}
	return got, err
}

// create makes the object. It returns an error in any case: what there is to
// wait for, unless it did not come to that.
func (o *ownAttach) create(ctx context.Context, v *Attachable) error {
	ref := attachmentRef(v)
	object := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: ref.Name},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: v.Driver, NodeName: string(v.Node)},
	}
	if inlineInTree(v.Spec) {
		object.Spec.Source.InlineVolumeSpec = v.Spec.PV.Spec.DeepCopy()
	} else {
		name := v.Spec.PV.Name
		object.Spec.Source.PersistentVolumeName = &name
	}
	err := o.writer.CreateAttachment(ctx, object)
	switch {
	case err == nil:
		return begun(plugins.WaitFor(ref, fmt.Errorf("%s is not attached yet", textOf(v))))
	case apierrors.IsAlreadyExists(err):
		return err
	case rejected(err):
		return plugins.Paced(slow, plugins.Transient(fmt.Errorf("create %s: %w", ref, err)))
	}
	return fmt.Errorf("create %s: %w", ref, err)
}

// rejected reports whether an API server said that it did nothing.
func rejected(err error) bool {
	for _, is := range []func(error) bool{
		apierrors.IsForbidden, apierrors.IsInvalid, apierrors.IsBadRequest, apierrors.IsUnauthorized, apierrors.IsNotFound,
		apierrors.IsMethodNotSupported, apierrors.IsTooManyRequests, apierrors.IsRequestEntityTooLargeError,
	} {
		if is(err) {
			return true
		}
	}
	return false
}

// begun is the error of an attach under way: the object is there, and is to be
// deleted if nobody wants the volume any more. It wakes with the object, so that
// time need not bring the next try soon.
func begun(err error) error { return plugins.Paced(slow, plugins.Uncertain(err)) }

// Detach implements [Attacher].
func (o *ownAttach) Detach(ctx context.Context, v Attachable) error {
	if v.Node == "" {
		return &plugins.MissingError{Field: "NodeName", Need: "the VolumeAttachment of " + textOf(&v)}
	}
	ref := attachmentRef(&v)
	object, err := o.host.Attachment(ctx, ref.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return classed(plugins.Transient, fmt.Errorf("read %s: %w", ref, err))
	}
	if err == nil && !belongs(&v, object) {
		return nil // ours cannot be there beside it
	}
	if err != nil || object.DeletionTimestamp == nil {
		// The source may lag behind: whether there is something to delete, the
		// deletion says.
		if err := o.writer.DeleteAttachment(ctx, ref.Name); err != nil && !apierrors.IsNotFound(err) {
			return classed(plugins.Transient, fmt.Errorf("delete %s: %w", ref, err))
		}
	}
	return o.gone(ctx, &v)
}

// gone waits until the object is no more.
func (o *ownAttach) gone(ctx context.Context, v *Attachable) error {
	ref := attachmentRef(v)
	object, err := o.host.Attachment(ctx, ref.Name)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return classed(plugins.Transient, fmt.Errorf("read %s: %w", ref, err))
	case !belongs(v, object):
		return nil
	case object.Status.DetachError != nil:
		return plugins.WaitFor(ref, reported("detach", v, object.Status.DetachError))
	}
	return plugins.WaitFor(ref, errors.New(textOf(v)+" is not detached yet"))
}
