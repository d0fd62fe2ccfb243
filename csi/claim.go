package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/plugins"
)

// errClaimMoved says that a claim is no longer what was decided upon: what it is
// now comes by notice.
var errClaimMoved = errors.New("the claim has changed meanwhile")

func claimRef(c *v1.PersistentVolumeClaim) plugins.Ref {
	return plugins.Ref{Kind: plugins.KindClaim, Namespace: c.Namespace, Name: c.Name}
}

// updateClaim changes the status of the claim, if somebody is to be told and it
// is still the same claim.
func (p *Plugin) updateClaim(ctx context.Context, e *enlargement, what string, change func(*v1.PersistentVolumeClaim) error) error {
	claim := e.req.Spec.Claim
	if p.config.Expansion.Claims == nil || claim == nil || e.plan.record == recordNothing {
		return nil
	}
	err := p.config.Expansion.Claims.UpdateClaimStatus(ctx, claim.Namespace, claim.Name, func(c *v1.PersistentVolumeClaim) error {
		if claim.UID != "" && c.UID != claim.UID {
			return errClaimMoved
		}
		return change(c)
	})
	if err != nil {
		return plugins.Transient(fmt.Errorf("write into the status of %s %s: %w", claimRef(claim), what, err))
	}
	return nil
}

// recordControllerBegins says that the controller is about to be asked.
func (p *Plugin) recordControllerBegins(ctx context.Context, e *enlargement) error {
	return p.updateClaim(ctx, e, "that its storage is being expanded", func(c *v1.PersistentVolumeClaim) error {
		if claimSize(c.Spec.Resources.Requests) != e.plan.to {
			return errClaimMoved
		}
		setAllocated(c, e.plan.to)
		setResizeStatus(c, v1.PersistentVolumeClaimControllerResizeInProgress)
		return nil
	})
}

// recordNodeBegins says that the node is about to be asked.
func (p *Plugin) recordNodeBegins(ctx context.Context, e *enlargement) error {
	if e.plan.record != recordAll {
		return nil
	}
	return p.updateClaim(ctx, e, "that its volume is being expanded", func(c *v1.PersistentVolumeClaim) error {
		if p.config.Expansion.Controller {
			setAllocated(c, e.plan.to)
		} else if claimSize(c.Status.AllocatedResources) != e.plan.to || !nodeResizes(c) {
			return errClaimMoved
		}
		setResizeStatus(c, v1.PersistentVolumeClaimNodeResizeInProgress)
		return nil
	})
}

// recordEnlarged says that it is done. A claim that is gone need not be told.
func (p *Plugin) recordEnlarged(ctx context.Context, e *enlargement) error {
	err := p.updateClaim(ctx, e, "that its volume has been expanded", func(c *v1.PersistentVolumeClaim) error {
		enlarged(c, e.plan.to)
		return nil
	})
	if apierrors.IsNotFound(err) || errors.Is(err, errClaimMoved) {
		return nil
	}
	return err
}

// expansionFailed takes in that a driver did not expand a volume, and returns
// what that means.
func (p *Plugin) expansionFailed(ctx context.Context, e *enlargement, err error) error {
	switch {
	case errors.Is(err, ErrInUse):
		err = plugins.Permanent(err)
		p.noteInUse(e.source, err)
		return err
	case !refusedSize(err):
		return err
	}
	p.noteGrowth(e.req.Volume, func(g *growth) { g.failed = e.plan.to })
	infeasible := errors.Is(err, ErrInfeasible) || e.plan.giveUp
	if infeasible && !errors.Is(err, ErrInfeasible) {
		err = plugins.Permanent(fmt.Errorf("%w, and the claim requests another size by now: %w", ErrInfeasible, err))
	}
	// The text of an error may differ each time: it is told once.
	if e.known.failed == e.plan.to && !infeasible {
		return err
	}
	p.tellFailed(e, err)
	if told := p.recordFailed(ctx, e, infeasible, err); told != nil {
		return plugins.Transient(errors.Join(err, told))
	}
	return err
}

// refusedSize reports whether a driver has answered that it did not expand the
// volume. Anything else leaves that open, or never came to ask it.
func refusedSize(err error) bool {
	var call *CallError
	if !errors.As(err, &call) {
		return false
	}
	switch call.Code {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.ResourceExhausted, codes.Unimplemented:
		return false
	}
	return true
}

// recordFailed says that a driver failed. What it says last stays in the
// condition.
func (p *Plugin) recordFailed(ctx context.Context, e *enlargement, infeasible bool, why error) error {
	if e.plan.record != recordAll {
		return nil
	}
	byController := false
	var call *CallError
	if errors.As(why, &call) {
		byController = call.Method == string(controllerExpand)
	}
	err := p.updateClaim(ctx, e, "why its volume is not expanded", func(c *v1.PersistentVolumeClaim) error {
		status, condition := v1.PersistentVolumeClaimNodeResizeInfeasible, v1.PersistentVolumeClaimNodeResizeError
		if byController {
			status, condition = v1.PersistentVolumeClaimControllerResizeInfeasible, v1.PersistentVolumeClaimControllerResizeError
		}
		if claimSize(c.Status.AllocatedResources) != e.plan.to {
			return errClaimMoved
		}
		if infeasible {
			setResizeStatus(c, status)
		}
		setResizeCondition(c, condition, why.Error(), metav1.NewTime(p.host.Time().Now()).Rfc3339Copy())
		return nil
	})
	if apierrors.IsNotFound(err) || errors.Is(err, errClaimMoved) {
		return nil
	}
	return err
}

// nodeResizes reports whether the status says that it is for the node to act.
func nodeResizes(c *v1.PersistentVolumeClaim) bool {
	status := c.Status.AllocatedResourceStatuses[storage]
	return status == v1.PersistentVolumeClaimNodeResizePending || status == v1.PersistentVolumeClaimNodeResizeInProgress
}

// setAllocated sets what is being allocated. Equal sizes keep their spelling.
func setAllocated(c *v1.PersistentVolumeClaim, bytes int64) {
	if claimSize(c.Status.AllocatedResources) != bytes {
		setSize(&c.Status.AllocatedResources, quantityOf(bytes))
	}
}

func setSize(list *v1.ResourceList, size resource.Quantity) {
	if *list == nil {
		*list = v1.ResourceList{}
	}
	(*list)[storage] = size
}

func setResizeStatus(c *v1.PersistentVolumeClaim, status v1.ClaimResourceStatus) {
	if c.Status.AllocatedResourceStatuses == nil {
		c.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{}
	}
	c.Status.AllocatedResourceStatuses[storage] = status
}

// resizeConditions are the conditions about an expansion.
var resizeConditions = [...]v1.PersistentVolumeClaimConditionType{
	v1.PersistentVolumeClaimResizing, v1.PersistentVolumeClaimFileSystemResizePending,
	v1.PersistentVolumeClaimControllerResizeError, v1.PersistentVolumeClaimNodeResizeError,
}

// enlarged says in a claim's status that its volume has a size. A state that is
// about another size by now stays.
func enlarged(c *v1.PersistentVolumeClaim, bytes int64) {
	if claimSize(c.Status.Capacity) < bytes {
		setSize(&c.Status.Capacity, quantityOf(bytes))
	}
	if allocated := claimSize(c.Status.AllocatedResources); allocated != 0 && allocated != bytes {
		return
	}
	delete(c.Status.AllocatedResourceStatuses, storage)
	if len(c.Status.AllocatedResourceStatuses) == 0 {
		c.Status.AllocatedResourceStatuses = nil
	}
	c.Status.Conditions = slices.DeleteFunc(c.Status.Conditions, func(one v1.PersistentVolumeClaimCondition) bool {
		return slices.Contains(resizeConditions[:], one.Type)
	})
}

// setResizeCondition sets a condition to true. Others stay.
func setResizeCondition(c *v1.PersistentVolumeClaim, kind v1.PersistentVolumeClaimConditionType, message string, now metav1.Time) {
	next := v1.PersistentVolumeClaimCondition{Type: kind, Status: v1.ConditionTrue, Message: message, LastTransitionTime: now}
	for i, old := range c.Status.Conditions {
		if old.Type != kind {
			continue
		}
		if old.Status != v1.ConditionTrue || old.Message != message {
			c.Status.Conditions[i] = next
		}
		return
	}
	c.Status.Conditions = append(c.Status.Conditions, next)
}

// Reasons of events about expansion. They are the kubelet's.
const (
	reasonResized      = "FileSystemResizeSuccessful"
	reasonNotResized   = "FileSystemResizeFailed"
	reasonResizeFailed = "VolumeResizeFailed"
)

// tellClaim records an event about the claim: the engine tells the pod.
func (p *Plugin) tellClaim(e *enlargement, kind, reason, message string) {
	if claim := e.req.Spec.Claim; claim != nil {
		p.host.Event(claim, kind, reason, message)
	}
}

func (p *Plugin) tellEnlarged(e *enlargement, size int64) {
	q := quantityOf(size)
	p.tellClaim(e, v1.EventTypeNormal, reasonResized,
		fmt.Sprintf("Volume %q has been expanded to %s on node %s", e.req.Volume.Name, q.String(), p.host.NodeName))
}

func (p *Plugin) tellFailed(e *enlargement, err error) {
	p.tellClaim(e, v1.EventTypeWarning, reasonResizeFailed, err.Error())
}

// tellReadOnly says why a volume stays as it is.
func (p *Plugin) tellReadOnly(e *enlargement) {
	text := fmt.Sprintf("Volume %q is used read-only on node %s and is not expanded there", e.req.Volume.Name, p.host.NodeName)
	p.tellClaim(e, v1.EventTypeWarning, reasonNotResized, text)
	if pod := e.req.Object; pod != nil {
		p.host.Event(pod, v1.EventTypeWarning, reasonNotResized, text)
	}
}
