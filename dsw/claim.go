package dsw

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/plugins"
)

// protection is the finalizer that keeps a claim while pods use it.
const protection = "kubernetes.io/pvc-protection"

// claimed reads the claim of a volume and the persistent volume behind it.
func (r *Resolver) claimed(ctx context.Context, pod *v1.Pod, vol *v1.Volume, res *Resolution) (*plugins.Spec, error) {
	name, readOnly := pod.Name+"-"+vol.Name, false
	if source := vol.PersistentVolumeClaim; source != nil {
		if name, readOnly = source.ClaimName, source.ReadOnly; name == "" {
			return nil, plugins.Permanent(errors.New("the volume names no claim"))
		}
	}
	ref := plugins.Ref{Kind: plugins.KindClaim, Namespace: pod.Namespace, Name: name}
	res.SpecRefs = append(res.SpecRefs, ref)
	claim, err := r.Host.Claim(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, readError(ref, err)
	}
	// Names of generic ephemeral claims can collide with others': only the
	// owner tells (KEP-1698).
	if vol.PersistentVolumeClaim == nil && !metav1.IsControlledBy(claim, pod) {
		return nil, plugins.Permanentf("%s was not made for pod %s/%s (the pod is not its controller)", ref, pod.Namespace, pod.Name)
	}
	if err := checkClaim(ref, claim); err != nil {
		return nil, err
	}
	pv, err := r.bound(ctx, ref, claim, res)
	if err != nil {
		return nil, err
	}
	return &plugins.Spec{PV: plugins.DefaultPV(pv), Claim: claim, ReadOnly: readOnly}, nil
}

func checkClaim(ref plugins.Ref, claim *v1.PersistentVolumeClaim) error {
	switch {
	case claim.DeletionTimestamp != nil && !slices.Contains(claim.Finalizers, protection):
		return plugins.Permanentf("%s is being deleted", ref)
	case claim.Status.Phase != v1.ClaimBound:
		return plugins.WaitFor(ref, fmt.Errorf("the claim is not bound (phase %q)", claim.Status.Phase))
	case claim.Spec.VolumeName == "":
		return plugins.WaitFor(ref, errors.New("the claim is bound but names no volume yet"))
	}
	return nil
}

// bound reads the persistent volume of a claim.
func (r *Resolver) bound(ctx context.Context, ref plugins.Ref, claim *v1.PersistentVolumeClaim, res *Resolution) (*v1.PersistentVolume, error) {
	pvRef := plugins.Ref{Kind: plugins.KindPersistentVolume, Name: claim.Spec.VolumeName}
	res.SpecRefs = append(res.SpecRefs, pvRef)
	pv, err := r.Host.PersistentVolume(ctx, pvRef.Name)
	if err != nil {
		return nil, readError(pvRef, err)
	}
	owner := pv.Spec.ClaimRef
	named := owner != nil && owner.Namespace == ref.Namespace && owner.Name == ref.Name
	switch {
	case owner == nil, named && owner.UID == "" && claim.UID != "":
		return nil, plugins.WaitFor(pvRef, fmt.Errorf("it is not bound to %s yet", ref))
	case !named || owner.UID != claim.UID:
		return nil, plugins.Permanentf("%s is bound to claim %s/%s (UID %q), not to %s (UID %q)",
			pvRef, owner.Namespace, owner.Name, owner.UID, ref, claim.UID)
	case pv.Status.Phase == v1.VolumeReleased || pv.Status.Phase == v1.VolumeFailed:
		return nil, plugins.WaitFor(pvRef, fmt.Errorf("its phase is %s", pv.Status.Phase))
	}
	return pv, nil
}
