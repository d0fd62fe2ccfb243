package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

// check adds what an API server adds, and refuses what it would refuse, as far
// as volumes are concerned.
func (d document) check(o *object, at path) (faults []*fault) {
	wrong := func(where string, err error) {
		faults = append(faults, d.wrong(append(slices.Clone(at), parsePath(where)...), err)...)
	}
	switch name := o.meta.GetName(); {
	case name == "" && o.meta.GetGenerateName() != "":
		wrong("metadata.generateName", errors.New("only an API server makes names; give metadata.name"))
	case name == "":
		wrong("metadata.name", errors.New("this is missing"))
	default:
		for _, why := range validation.NameIsDNSSubdomain(name, false) {
			wrong("metadata.name", fmt.Errorf("%s: %s", quoted(name), why))
		}
	}
	if o.kind == "PersistentVolume" {
		o.meta.SetNamespace("")
	} else {
		o.meta.SetNamespace(cmp.Or(o.meta.GetNamespace(), metav1.NamespaceDefault))
		for _, why := range validation.ValidateNamespaceName(o.meta.GetNamespace(), false) {
			wrong("metadata.namespace", fmt.Errorf("%s: %s", quoted(o.meta.GetNamespace()), why))
		}
	}
	pod, isPod := o.Object.(*v1.Pod)
	if o.meta.GetUID() == "" {
		o.meta.SetUID(uidOf(o, pod))
	}
	if isPod && len(faults) == 0 {
		checkPod(pod, wrong)
	}
	return faults
}

// uidOf makes a UID that is the same in every run. A pod whose spec is edited
// is another pod, as with the kubelet's static pods: nobody can change the
// volumes of a pod that runs.
func uidOf(o *object, pod *v1.Pod) types.UID {
	text := o.key()
	if pod != nil {
		spec, _ := json.Marshal(pod.Spec)
		text += string(spec)
	}
	sum := sha256.Sum256([]byte(text))
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]))
}

// checkPod finds what would keep a pod's volumes from ever being used.
func checkPod(pod *v1.Pod, wrong func(where string, err error)) {
	if err := plugins.ValidatePod(pod); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			where, why, ok := strings.Cut(line, ": ")
			if !ok || strings.Contains(where, " ") {
				where, why = "spec", line
			}
			wrong(where, errors.New(why))
		}
	}
	if len(pod.Spec.Containers) == 0 {
		wrong("spec.containers", errors.New("at least one is needed"))
	}
	known := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		known[v.Name] = true
	}
	containers := func(list string, all []v1.Container) {
		for i, c := range all {
			at := fmt.Sprintf("spec.%s[%d].", list, i)
			targets := map[string]bool{}
			for j, m := range c.VolumeMounts {
				here := fmt.Sprintf("%svolumeMounts[%d].", at, j)
				switch {
				case !known[m.Name]:
					wrong(here+"name", fmt.Errorf("the pod has no volume %s", quoted(m.Name)))
				case m.MountPath == "":
					wrong(here+"mountPath", errors.New("this is missing"))
				case targets[m.MountPath]:
					wrong(here+"mountPath", fmt.Errorf("the container mounts another volume at %s", m.MountPath))
				}
				targets[m.MountPath] = true
			}
			for j, m := range c.VolumeDevices {
				if !known[m.Name] {
					wrong(fmt.Sprintf("%svolumeDevices[%d].name", at, j), fmt.Errorf("the pod has no volume %s", quoted(m.Name)))
				}
			}
		}
	}
	containers("initContainers", pod.Spec.InitContainers)
	containers("containers", pod.Spec.Containers)
}

// bind joins claims to the volumes that they name, which a control plane's
// binder would do. It returns copies, so that each reading begins afresh.
func bind(read map[string]object) (bound map[string]object, faults []error) {
	bound = map[string]object{}
	volumes := map[string]*v1.PersistentVolume{}
	for _, key := range ordered(read) { // volumes come before claims
		o := read[key]
		switch original := o.Object.(type) {
		case *v1.PersistentVolume:
			pv := original.DeepCopy()
			o.Object, o.meta = pv, pv
			volumes[pv.Name] = pv
			pv.Status.Phase = v1.VolumeAvailable
			if pv.Spec.ClaimRef != nil {
				pv.Spec.ClaimRef.UID = "" // of a claim that was there before
			}
		case *v1.PersistentVolumeClaim:
			claim := original.DeepCopy()
			o.Object, o.meta = claim, claim
			if err := bindClaim(claim, volumes); err != nil {
				faults = append(faults, &fault{o.file, o.line, fmt.Errorf("%s: %w", o.key(), err)})
			}
		}
		bound[key] = o
	}
	return bound, faults
}

// bindClaim binds a claim to the volume that it names, or that names it. A
// volume that is not there yet is no fault: it may still come.
func bindClaim(claim *v1.PersistentVolumeClaim, volumes map[string]*v1.PersistentVolume) error {
	claim.Status.Phase = v1.ClaimPending
	names := func(ref *v1.ObjectReference) bool {
		return ref != nil && ref.Namespace == claim.Namespace && ref.Name == claim.Name
	}
	if claim.Spec.VolumeName == "" {
		for name, pv := range volumes {
			if names(pv.Spec.ClaimRef) && (claim.Spec.VolumeName == "" || name < claim.Spec.VolumeName) {
				claim.Spec.VolumeName = name
			}
		}
	}
	if claim.Spec.VolumeName == "" {
		return errors.New("no controller chooses a volume here: set spec.volumeName")
	}
	pv := volumes[claim.Spec.VolumeName]
	if pv == nil {
		return nil
	}
	if ref := pv.Spec.ClaimRef; ref != nil && !names(ref) {
		return fmt.Errorf("volume %s belongs to claim %s/%s", pv.Name, ref.Namespace, ref.Name)
	}
	pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	pv.Status.Phase, claim.Status.Phase = v1.VolumeBound, v1.ClaimBound
	claim.Status.Capacity = pv.Spec.Capacity
	return nil
}
