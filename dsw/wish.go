// Package dsw is the desired state of the world: which volumes the pods of
// this node should have, as far as that is known. [World] is a pure cache;
// [Resolver] turns a pod's volume into a wish by way of claims and persistent
// volumes.
//
// A wish has three values. That a volume is not asked for is known only when
// the pod source has told all its pods and every volume of the pod has been
// resolved; until then it is unknown, and what is unknown is neither made nor
// taken away.
package dsw

import (
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
)

// State says what is known about a wish.
type State uint8

const (
	// Unknown: nobody can say yet. Nothing is made, taken down or forgotten.
	Unknown State = iota
	// Wanted: a pod asks for it.
	Wanted
	// Unwanted: certainly nobody asks for it.
	Unwanted
)

// String is the state in one word.
func (s State) String() string {
	switch s {
	case Wanted:
		return "wanted"
	case Unwanted:
		return "unwanted"
	default:
		return "unknown"
	}
}

// PodWish is the wish for one volume of one pod.
type PodWish struct {
	// Volume names it.
	Volume plugins.PodVolume
	// State says whether it is asked for. Only a wanted one has more than
	// Volume, State and Why.
	State State
	// Why explains for people why it is unknown or unwanted.
	Why string
	// Names are the names in the pod's spec that lead to it, sorted.
	Names []string
	// Pod is the pod as it was told last.
	Pod *v1.Pod
	// Spec is what the volume is.
	Spec *plugins.Spec
	// Identity is what the plugin says of Spec.
	Identity plugins.Identity
	// Block is true if the containers use it as a raw device.
	Block bool
	// Params are the properties it should have.
	Params plugins.Params
	// Generation grows with each known change of what the content is made of,
	// also across removal and return of the pod. A volume whose content was
	// made at a lower generation is out of date.
	Generation uint64
}

// Wish is all that is wished of one volume.
type Wish struct {
	// ID names the volume.
	ID plugins.VolumeID
	// Pods are the wishes of pods, sorted by Volume.String().
	Pods []PodWish
}
