package memory

import (
	"context"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/volumekit/volumekit/plugins"
)

// UpdateClaimStatus changes the status of a claim, and tells the subscribers of
// that before it returns; it is what csi.ClaimUpdater asks for. change gets a
// copy of the claim as it is, with no lock held, and is called again if another
// change came between. Only the status is taken over. What change leaves as it
// was is no change, and an error of it is returned as it is. The error is
// NotFound if there is no such claim.
func (s *Store) UpdateClaimStatus(ctx context.Context, namespace, name string, change func(*v1.PersistentVolumeClaim) error) error {
	for {
		now, err := s.Claim(ctx, namespace, name)
		if err != nil {
			return err
		}
		next := now.DeepCopy()
		if err := change(next); err != nil {
			return err
		}
		done, err := s.replaceClaimStatus(now, next.Status)
		if err != nil || done {
			return err
		}
	}
}

// replaceClaimStatus sets the status of a claim that is still the one that was
// read, and says whether it was.
func (s *Store) replaceClaimStatus(was *v1.PersistentVolumeClaim, status v1.PersistentVolumeClaimStatus) (done bool, err error) {
	k, err := kindOf(was)
	if err != nil {
		return false, err
	}
	ref := plugins.Ref{Kind: k.name, Namespace: was.Namespace, Name: was.Name}
	s.mu.Lock()
	now, ok := s.objects[ref].(*v1.PersistentVolumeClaim)
	if !ok {
		s.mu.Unlock()
		return false, apierrors.NewNotFound(k.resource, was.Name)
	}
	if now.UID != was.UID || now.ResourceVersion != was.ResourceVersion {
		s.mu.Unlock()
		return false, nil
	}
	next := was.DeepCopy()
	next.Status = status
	changed, err := s.enter(k, ref, next)
	s.mu.Unlock()
	if err == nil && changed {
		s.tell(ref)
	}
	return err == nil, err
}
