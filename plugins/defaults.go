package plugins

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// What the API server fills in and hand-made objects lack.
const (
	// DefaultFileMode is the defaultMode of projected content.
	DefaultFileMode int32 = 0o644
	// DefaultTokenSeconds is the lifetime of a projected service account token.
	DefaultTokenSeconds int64 = 3600
	// DefaultCertificateSeconds is the longest lifetime of a pod certificate.
	DefaultCertificateSeconds int32 = 86400
	// DefaultServiceAccount is the service account of a pod that names none.
	DefaultServiceAccount = "default"
)

// DefaultPod fills in what an API server would have and plugins read: the
// namespace, the service account, resource requests that follow from limits,
// and the defaults of volumes, where one without a source becomes an emptyDir.
// It returns pod itself if nothing is missing, else a copy; nil stays nil.
func DefaultPod(pod *v1.Pod) *v1.Pod {
	return defaulted(pod, pod.DeepCopy, (*filler).pod)
}

// DefaultPV is [DefaultPod] for a persistent volume.
func DefaultPV(pv *v1.PersistentVolume) *v1.PersistentVolume {
	return defaulted(pv, pv.DeepCopy, (*filler).persistentVolume)
}

// DefaultPVC is [DefaultPod] for a claim.
func DefaultPVC(claim *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim {
	return defaulted(claim, claim.DeepCopy, func(f *filler, c *v1.PersistentVolumeClaim) {
		fill(f, &c.Namespace, v1.NamespaceDefault)
		fillMode(f, &c.Spec.VolumeMode)
	})
}

// defaulted runs set twice if it must: on object, to see whether anything is
// missing, then on a copy, to fill it in.
func defaulted[T any](object *T, deepCopy func() *T, set func(*filler, *T)) *T {
	if object == nil {
		return nil
	}
	var dry filler
	if set(&dry, object); dry.missing == 0 {
		return object
	}
	filled := deepCopy()
	set(&filler{write: true}, filled)
	return filled
}

// filler counts what is missing and fills it in if it may.
type filler struct {
	write   bool
	missing int
}

// fill sets a value that is still zero.
func fill[T comparable](f *filler, field *T, value T) {
	var zero T
	if *field != zero {
		return
	}
	f.missing++
	if f.write {
		*field = value
	}
}

// fillPointer sets a pointer that is still nil, to a value of its own.
func fillPointer[T any](f *filler, field **T, value T) {
	if *field == nil {
		fill(f, field, &value)
	}
}

// fillMode also replaces a pointer to an empty mode, which the API refuses.
func fillMode(f *filler, mode **v1.PersistentVolumeMode) {
	fillPointer(f, mode, v1.PersistentVolumeFilesystem)
	if *mode != nil && **mode == "" {
		fill(f, *mode, v1.PersistentVolumeFilesystem)
	}
}

func (f *filler) pod(pod *v1.Pod) {
	fill(f, &pod.Namespace, v1.NamespaceDefault)
	if pod.Spec.DeprecatedServiceAccount == "" {
		fill(f, &pod.Spec.ServiceAccountName, DefaultServiceAccount)
	} else {
		fill(f, &pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount)
	}
	for i := range pod.Spec.InitContainers {
		f.requests(&pod.Spec.InitContainers[i].Resources)
	}
	for i := range pod.Spec.Containers {
		f.requests(&pod.Spec.Containers[i].Resources)
	}
	for i := range pod.Spec.Volumes {
		f.volume(&pod.Spec.Volumes[i])
	}
}

// requests makes each resource that has a limit alone requested up to it.
func (f *filler) requests(r *v1.ResourceRequirements) {
	for name, limit := range r.Limits {
		if _, ok := r.Requests[name]; ok {
			continue
		}
		f.missing++
		if f.write {
			if r.Requests == nil {
				r.Requests = make(v1.ResourceList, len(r.Limits))
			}
			r.Requests[name] = limit.DeepCopy()
		}
	}
}

func (f *filler) volume(v *v1.Volume) {
	if v.VolumeSource == (v1.VolumeSource{}) {
		fillPointer(f, &v.EmptyDir, v1.EmptyDirVolumeSource{})
		return
	}
	if v.Secret != nil {
		fillPointer(f, &v.Secret.DefaultMode, DefaultFileMode)
	}
	if v.ConfigMap != nil {
		fillPointer(f, &v.ConfigMap.DefaultMode, DefaultFileMode)
	}
	if v.DownwardAPI != nil {
		fillPointer(f, &v.DownwardAPI.DefaultMode, DefaultFileMode)
		f.fieldRefs(v.DownwardAPI.Items)
	}
	if v.Projected != nil {
		f.projected(v.Projected)
	}
	if v.HostPath != nil {
		fillPointer(f, &v.HostPath.Type, v1.HostPathUnset)
	}
	if v.ISCSI != nil {
		fill(f, &v.ISCSI.ISCSIInterface, "default")
	}
	if v.Image != nil {
		fill(f, &v.Image.PullPolicy, pullPolicy(v.Image.Reference))
	}
	if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
		fillMode(f, &v.Ephemeral.VolumeClaimTemplate.Spec.VolumeMode)
	}
}

func (f *filler) projected(p *v1.ProjectedVolumeSource) {
	fillPointer(f, &p.DefaultMode, DefaultFileMode)
	for i := range p.Sources {
		s := &p.Sources[i]
		if s.ServiceAccountToken != nil {
			fillPointer(f, &s.ServiceAccountToken.ExpirationSeconds, DefaultTokenSeconds)
		}
		if s.PodCertificate != nil {
			fillPointer(f, &s.PodCertificate.MaxExpirationSeconds, DefaultCertificateSeconds)
		}
		if s.DownwardAPI != nil {
			f.fieldRefs(s.DownwardAPI.Items)
		}
	}
}

func (f *filler) fieldRefs(items []v1.DownwardAPIVolumeFile) {
	for i := range items {
		if items[i].FieldRef != nil {
			fill(f, &items[i].FieldRef.APIVersion, "v1")
		}
	}
}

func (f *filler) persistentVolume(pv *v1.PersistentVolume) {
	fillMode(f, &pv.Spec.VolumeMode)
	fill(f, &pv.Spec.PersistentVolumeReclaimPolicy, v1.PersistentVolumeReclaimRetain)
	if pv.Spec.HostPath != nil {
		fillPointer(f, &pv.Spec.HostPath.Type, v1.HostPathUnset)
	}
	if pv.Spec.ISCSI != nil {
		fill(f, &pv.Spec.ISCSI.ISCSIInterface, "default")
	}
}

// pullPolicy is Always for the tag latest, which is also meant where neither
// tag nor digest is given, else IfNotPresent.
func pullPolicy(reference string) v1.PullPolicy {
	name, _, digest := strings.Cut(reference, "@")
	_, tag, tagged := strings.Cut(name[strings.LastIndexByte(name, '/')+1:], ":")
	if tag == "latest" || !tagged && !digest {
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
}

// ValidatePod refuses what an API server would not have let through and what
// would be hostile here: a pod without UID or name, names that cannot become
// folders, a volume name given twice, a volume with more than one source, the
// number of a user or group that is none. All faults are reported together, in one error of class ClassPermanent. A pod
// that it refuses is one of which nothing is known, not one that is gone.
func ValidatePod(pod *v1.Pod) error {
	if pod == nil {
		return Permanentf("the pod is nil")
	}
	var faults []error
	check := func(what, name string) {
		if err := CheckName(name); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", what, err))
		}
	}
	check("metadata.uid", string(pod.UID))
	check("metadata.name", pod.Name)
	if pod.Namespace != "" {
		check("metadata.namespace", pod.Namespace)
	}
	faults = append(faults, podIDs(pod)...)
	first := make(map[string]int, len(pod.Spec.Volumes))
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		at := fmt.Sprintf("spec.volumes[%d]", i)
		check(at+".name", v.Name)
		if before, twice := first[v.Name]; twice {
			faults = append(faults, fmt.Errorf("%s: the name %q is that of volume %d already", at, v.Name, before))
		} else {
			first[v.Name] = i
		}
		if kinds := sources(v.VolumeSource); len(kinds) > 1 {
			faults = append(faults, fmt.Errorf("%s: more than one source: %s", at, strings.Join(kinds, ", ")))
		}
		faults = append(faults, volumeIDs(at, &v.VolumeSource)...)
	}
	return Permanent(errors.Join(faults...))
}

// sources names the sources that are set in a struct of pointers to them, in
// the API's words.
func sources(of any) []string {
	var kinds []string
	fields := reflect.ValueOf(of)
	for i := range fields.NumField() {
		if f := fields.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			name, _, _ := strings.Cut(fields.Type().Field(i).Tag.Get("json"), ",")
			kinds = append(kinds, name)
		}
	}
	return kinds
}
