package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/volumekit/volumekit/plugins"
)

// WaitOptions are options of [WaitAttach]. The zero value is for most clusters.
type WaitOptions struct {
	// GateOnNodeStatus also waits until the control plane has entered the volume
	// into status.volumesAttached of this node's object, as the kubelet does.
	// It takes a volume out of there before it begins to detach it, so that a
	// volume that is about to go is not mistaken for one that is there. It needs
	// VolumeHost.Node, and wakes with that source.
	GateOnNodeStatus bool
}

// waitAttach is the attacher of [WaitAttach].
type waitAttach struct {
	attachments
	options WaitOptions
}

// WaitAttach waits until a control plane, an attach/detach controller with the
// driver's external-attacher, has attached the volume. It reads the
// VolumeAttachment object through host, which needs Attachments; if that source
// notifies, the object's event ends the wait.
//
// Detach does nothing: the control plane detaches once the node reports the
// volume no longer in use (status.volumesInUse), which is not before this call.
// To wait here for that would let every volume of a control plane that is away,
// or wants the volume to stay for the next pod, look as if it were in use.
func WaitAttach(host *plugins.VolumeHost, o WaitOptions) Attacher {
	return &waitAttach{attachments{host}, o}
}

// Attach implements [Attacher].
func (w *waitAttach) Attach(ctx context.Context, v Attachable) (Attached, error) {
	if err := w.check(&v); err != nil {
		return Attached{}, err
	}
	ref := attachmentRef(&v)
	object, err := w.host.Attachment(ctx, ref.Name)
	if err != nil {
		return Attached{}, awaited(ref, err)
	}
	got, err := w.judge(ctx, &v, object)
	if err == nil && w.options.GateOnNodeStatus {
		err = w.listed(ctx, &v)
	}
	if err != nil {
		return Attached{}, err
	}
	return got, nil
}

// Detach implements [Attacher].
func (w *waitAttach) Detach(context.Context, Attachable) error { return nil }

// listed waits until the node's status has the volume.
func (w *waitAttach) listed(ctx context.Context, v *Attachable) error {
	ref := plugins.Ref{Kind: plugins.KindNode, Name: string(v.Node)}
	node, err := w.host.NodeObject(ctx)
	if err != nil {
		return awaited(ref, err)
	}
	name := v1.UniqueVolumeName(Name + "/" + storageName(v.Driver, v.Handle))
	if slices.ContainsFunc(node.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == name }) {
		return nil
	}
	return plugins.WaitFor(ref, fmt.Errorf("%s is not among status.volumesAttached", textOf(v)))
}

// attachments reads VolumeAttachment objects.
type attachments struct{ host *plugins.VolumeHost }

func attachmentRef(v *Attachable) plugins.Ref {
	return plugins.Ref{Kind: plugins.KindAttachment, Name: AttachmentName(v.Driver, v.Handle, v.Node)}
}

// textOf names a volume for people.
func textOf(v *Attachable) string {
	return fmt.Sprintf("volume %s of CSI driver %s", shorten(v.Handle, 128), v.Driver)
}

// attachable refuses what cannot be attached.
func attachable(v *Attachable) error {
	s, err := sourceOf(v.Spec, "")
	switch {
	case err != nil:
		return err
	case s.ephemeral:
		return plugins.Permanentf("inline volume %s of CSI driver %s is not attached: it comes into being when it is published", v.Spec.Name(), s.driver)
	case s.driver != v.Driver || s.handle != v.Handle:
		return plugins.Permanentf("the spec of %s is that of another one", textOf(v))
	}
	return checkHandle(v.Handle)
}

// check refuses what cannot have a VolumeAttachment.
func (a attachments) check(v *Attachable) error {
	if v.Node == "" {
		return &plugins.MissingError{Field: "NodeName", Need: "the VolumeAttachment of " + textOf(v)}
	}
	return attachable(v)
}

// judge tells from the object whether the volume is attached. What is not yet
// is waited for, with what is known of the reasons.
func (a attachments) judge(ctx context.Context, v *Attachable, object *storagev1.VolumeAttachment) (Attached, error) {
	ref := attachmentRef(v)
	if err := a.matches(ctx, v, object); err != nil {
		return Attached{}, err
	}
	status := &object.Status
	switch {
	case object.DeletionTimestamp != nil:
		return Attached{}, plugins.WaitFor(ref, fmt.Errorf("%s is being detached", textOf(v)))
	case status.Attached:
		if err := checkContext(status.AttachmentMetadata); err != nil {
			return Attached{}, plugins.Permanent(plugins.WaitFor(ref, fmt.Errorf("status.attachmentMetadata: %w", err)))
		}
		return Attached{PublishContext: maps.Clone(status.AttachmentMetadata)}, nil
	case status.AttachError != nil:
		return Attached{}, plugins.WaitFor(ref, reported("attach", v, status.AttachError))
	}
	return Attached{}, plugins.WaitFor(ref, fmt.Errorf("%s is not attached yet", textOf(v)))
}

// reported makes an error of one in an object's status.
func reported(what string, v *Attachable, e *storagev1.VolumeError) error {
	err := fmt.Errorf("the control plane cannot %s %s: %s", what, textOf(v), clean(e.Message, maxMessage))
	if e.ErrorCode != nil && codes.Code(*e.ErrorCode) == codes.ResourceExhausted { //nolint:gosec // a code that is none equals none
		return &fullError{err}
	}
	return err
}

// fullError is another error that is also [ErrNodeFull].
type fullError struct{ error }

func (e *fullError) Unwrap() error { return e.error }

// Is matches [ErrNodeFull].
func (e *fullError) Is(target error) bool { return target == ErrNodeFull }

// belongs reports whether an object of the volume's name is about its driver
// and node. The name is a digest of handle, driver and node one after another:
// if these two fit, the handle does too.
func belongs(v *Attachable, object *storagev1.VolumeAttachment) bool {
	return object.Spec.Attacher == v.Driver && object.Spec.NodeName == string(v.Node)
}

// errOther says that a VolumeAttachment is about another volume.
var errOther = errors.New("it is about another volume")

// matches reports with an error that the object is about something else. Its
// next change ends that.
func (a attachments) matches(ctx context.Context, v *Attachable, object *storagev1.VolumeAttachment) error {
	var err error
	if belongs(v, object) {
		err = a.sourceMatches(ctx, v, &object.Spec.Source)
	} else {
		err = fmt.Errorf("%w: driver %q and node %q, where %q and %q are meant", errOther,
			shorten(object.Spec.Attacher, 64), shorten(object.Spec.NodeName, 64), v.Driver, v.Node)
	}
	if errors.Is(err, errOther) {
		return plugins.Permanent(plugins.WaitFor(attachmentRef(v), err))
	}
	return err
}

// sourceMatches compares the source. Several persistent volumes, and inline
// volumes that were translated, may stand for one volume; the object names the
// one for which it was made.
func (a attachments) sourceMatches(ctx context.Context, v *Attachable, source *storagev1.VolumeAttachmentSource) error {
	if spec := source.InlineVolumeSpec; spec != nil {
		return sameVolume(v, spec.CSI)
	}
	if source.PersistentVolumeName == nil {
		return errOther
	}
	name := *source.PersistentVolumeName
	if !inlineInTree(v.Spec) && name == v.Spec.PV.Name {
		return nil
	}
	pv, err := a.host.PersistentVolume(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: persistent volume %s, which does not exist", errOther, shorten(name, 64))
	case err != nil:
		return classed(plugins.Transient, fmt.Errorf("read persistent volume %s: %w", shorten(name, 64), err))
	case pv.Spec.CSI == nil: // in-tree: what it is translated to, the object's name says
		return nil
	}
	return sameVolume(v, pv.Spec.CSI)
}

func sameVolume(v *Attachable, s *v1.CSIPersistentVolumeSource) error {
	if s == nil || s.Driver != v.Driver || s.VolumeHandle != v.Handle {
		return errOther
	}
	return nil
}

// inlineInTree reports whether a spec was made of a pod's in-tree volume, for
// which there is no PersistentVolume object.
func inlineInTree(spec *plugins.Spec) bool { return spec.Migrated && spec.Volume != nil }

// maxContext bounds a publish context and a volume context. The spec says
// 4 KiB for each, and not all drivers keep to that.
const maxContext = 64 << 10

// checkContext refuses a map that cannot go on to a driver, or into a record.
func checkContext(m map[string]string) error {
	size := 0
	for key, value := range m {
		size += len(key) + len(value)
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return errors.New("it holds text that is not UTF-8")
		}
	}
	if size > maxContext {
		return fmt.Errorf("it has %d bytes, more than %d", size, maxContext)
	}
	return nil
}
