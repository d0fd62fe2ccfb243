package csi

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// NodeExpansionNotRequired is the annotation of a claim whose volume need not be
// expanded on each node that has it. Its value does not matter.
const NodeExpansionNotRequired = "volume.kubernetes.io/node-expansion-not-required"

// expansionFacts are what decides about an expansion. Sizes are in bytes, zero
// where they are not known.
type expansionFacts struct {
	// claim is nil if it is not known.
	claim *v1.PersistentVolumeClaim
	modes []v1.PersistentVolumeAccessMode
	// wished is how large the volume is to be, pv the capacity of its
	// persistent volume, here what the driver has given it on this node.
	wished, pv, here int64
	// failed is the size that the driver has failed to give it here.
	failed   int64
	readOnly bool
	// can is the node capability EXPAND_VOLUME.
	can bool
	// alone: there is no control plane that expands.
	alone bool
}

// expansionDeed is what is to be done about an expansion.
type expansionDeed int

const (
	// expandNothing: it is done, or not for this node to do.
	expandNothing expansionDeed = iota
	// expandReadOnly: it cannot be done, and is not tried again.
	expandReadOnly
	// expandLater: whoever looks after the claim has to say something first.
	expandLater
	// expandNever: the claim says that it does not work.
	expandNever
	// expandNow: the driver is to do it.
	expandNow
)

// expansionRecord is how much of an expansion the claim's status shows.
type expansionRecord int

const (
	recordNothing expansionRecord = iota
	// recordEnd: the new capacity alone, as of old.
	recordEnd
	// recordAll: each state of the recovery protocol (KEP-1790).
	recordAll
)

// expansionPlan is a decision about an expansion.
type expansionPlan struct {
	do expansionDeed
	// to is the size to ask for.
	to int64
	// controller: the driver's controller is asked first.
	controller bool
	record     expansionRecord
	// giveUp: one more failure and the claim is infeasible, so that its
	// controller turns to the size that it asks for now.
	giveUp bool
	// why is for people.
	why string
}

// decide says what is to be done about an expansion. A claim with the fields of
// the recovery protocol says itself what its state is; of others the capacity
// counts.
func decide(f expansionFacts) expansionPlan {
	switch {
	case f.readOnly:
		return expansionPlan{do: expandReadOnly}
	case f.alone && f.claim != nil && f.wished > f.pv:
		return decideAlone(f)
	case f.claim == nil:
		if f.here >= f.wished || !f.can {
			return expansionPlan{why: "done, or not supported"}
		}
		return expansionPlan{do: expandNow, to: f.wished}
	}
	_, allocated := f.claim.Status.AllocatedResources[storage]
	status, stated := f.claim.Status.AllocatedResourceStatuses[storage]
	if !allocated && !stated {
		return decideByCapacity(f)
	}
	return decideByStatus(f, status)
}

// decideByStatus follows the recovery protocol.
func decideByStatus(f expansionFacts, status v1.ClaimResourceStatus) expansionPlan {
	to := claimSize(f.claim.Status.AllocatedResources)
	if to == 0 {
		to = f.wished
	}
	switch status {
	case v1.PersistentVolumeClaimNodeResizePending, v1.PersistentVolumeClaimNodeResizeInProgress:
		if !f.can {
			return expansionPlan{why: "the driver cannot expand volumes on nodes"}
		}
		request := claimSize(f.claim.Spec.Resources.Requests)
		return expansionPlan{
			do: expandNow, to: to, record: recordAll,
			giveUp: status == v1.PersistentVolumeClaimNodeResizeInProgress && f.failed == to && request != 0 && request != to,
		}
	case v1.PersistentVolumeClaimNodeResizeInfeasible:
		return expansionPlan{do: expandNever, why: "an earlier attempt showed that; let the claim request another size"}
	case "":
		if claimSize(f.claim.Status.Capacity) >= f.wished {
			return decideDone(f)
		}
		return expansionPlan{do: expandLater, why: "its status does not say yet that the volume is to be expanded on the node"}
	}
	return expansionPlan{do: expandLater, why: "the storage is not expanded yet: its status is " + shorten(string(status), 64)}
}

// decideByCapacity is for claims without the fields of the recovery protocol.
func decideByCapacity(f expansionFacts) expansionPlan {
	switch {
	case claimSize(f.claim.Status.Capacity) >= f.wished:
		return decideDone(f)
	case !f.can:
		return expansionPlan{why: "the driver cannot expand volumes on nodes"}
	}
	return expansionPlan{do: expandNow, to: f.wished, record: recordEnd}
}

// decideDone is for a claim that has its size. A volume that several nodes may
// write to is expanded on each of them, unless its claim says that it need not
// be: somebody else has recorded it then.
func decideDone(f expansionFacts) expansionPlan {
	_, unneeded := f.claim.Annotations[NodeExpansionNotRequired]
	if unneeded || !f.can || f.here >= f.wished || !slices.Contains(f.modes, v1.ReadWriteMany) {
		return expansionPlan{why: "the claim has its size"}
	}
	return expansionPlan{do: expandNow, to: f.wished}
}

// decideAlone is for nodes that expand the storage too.
func decideAlone(f expansionFacts) expansionPlan {
	status := f.claim.Status.AllocatedResourceStatuses[storage]
	same := claimSize(f.claim.Status.AllocatedResources) == f.wished
	switch {
	case status == "" && claimSize(f.claim.Status.Capacity) >= f.wished:
		return decideDone(f)
	case same && (status == v1.PersistentVolumeClaimNodeResizeInfeasible || status == v1.PersistentVolumeClaimControllerResizeInfeasible):
		return expansionPlan{do: expandNever, why: "an earlier attempt showed that; let the claim request another size"}
	case same && f.can && (status == v1.PersistentVolumeClaimNodeResizePending || status == v1.PersistentVolumeClaimNodeResizeInProgress):
		return expansionPlan{do: expandNow, to: f.wished, record: recordAll}
	}
	return expansionPlan{do: expandNow, to: f.wished, controller: true, record: recordAll}
}

func claimSize(list v1.ResourceList) int64 { return bytesIn(list[storage]) }
