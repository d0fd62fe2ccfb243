package plugins

import (
	"errors"
	"fmt"
	"math"

	v1 "k8s.io/api/core/v1"
)

// ErrBadID says that a number cannot be that of a user or a group.
var ErrBadID = errors.New("not the number of a user or group")

// CheckID accepts the number of a user or a group: 0 to 2^31-1, as the API
// server does. The kernel has 32 bits for one, so whoever passed on a larger
// number would give a file to somebody else, 2^32 to root.
func CheckID(id int64) error {
	if id < 0 || id > math.MaxInt32 {
		return fmt.Errorf("%w: %d is not within 0 and 2147483647", ErrBadID, id)
	}
	return nil
}

// idFaults collects what [CheckID] says about the fields of an object.
type idFaults []error

func (f *idFaults) check(id *int64, format string, args ...any) {
	if id == nil {
		return
	}
	if err := CheckID(*id); err != nil {
		*f = append(*f, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err))
	}
}

// podIDs checks the users and groups that a pod names, outside of its volumes.
func podIDs(pod *v1.Pod) []error {
	var f idFaults
	if sc := pod.Spec.SecurityContext; sc != nil {
		f.check(sc.FSGroup, "spec.securityContext.fsGroup")
		f.check(sc.RunAsUser, "spec.securityContext.runAsUser")
		f.check(sc.RunAsGroup, "spec.securityContext.runAsGroup")
		for i := range sc.SupplementalGroups {
			f.check(&sc.SupplementalGroups[i], "spec.securityContext.supplementalGroups[%d]", i)
		}
	}
	container := func(list string, i int, sc *v1.SecurityContext) {
		if sc != nil {
			f.check(sc.RunAsUser, "spec.%s[%d].securityContext.runAsUser", list, i)
			f.check(sc.RunAsGroup, "spec.%s[%d].securityContext.runAsGroup", list, i)
		}
	}
	for i := range pod.Spec.Containers {
		container("containers", i, pod.Spec.Containers[i].SecurityContext)
	}
	for i := range pod.Spec.InitContainers {
		container("initContainers", i, pod.Spec.InitContainers[i].SecurityContext)
	}
	for i := range pod.Spec.EphemeralContainers {
		container("ephemeralContainers", i, pod.Spec.EphemeralContainers[i].SecurityContext)
	}
	return f
}

// volumeIDs checks the users that a volume's files are to have.
func volumeIDs(at string, v *v1.VolumeSource) []error {
	var f idFaults
	if s := v.ConfigMap; s != nil {
		f.check(s.DefaultUser, "%s.configMap.defaultUser", at)
		f.keys(at+".configMap", s.Items)
	}
	if s := v.Secret; s != nil {
		f.check(s.DefaultUser, "%s.secret.defaultUser", at)
		f.keys(at+".secret", s.Items)
	}
	if s := v.DownwardAPI; s != nil {
		f.check(s.DefaultUser, "%s.downwardAPI.defaultUser", at)
		f.fields(at+".downwardAPI", s.Items)
	}
	if s := v.Projected; s != nil {
		f.check(s.DefaultUser, "%s.projected.defaultUser", at)
		for i := range s.Sources {
			f.projection(at, i, &s.Sources[i])
		}
	}
	return f
}

func (f *idFaults) projection(at string, i int, s *v1.VolumeProjection) {
	name := func(kind string) string { return fmt.Sprintf("%s.projected.sources[%d].%s", at, i, kind) }
	if s.ConfigMap != nil {
		f.keys(name("configMap"), s.ConfigMap.Items)
	}
	if s.Secret != nil {
		f.keys(name("secret"), s.Secret.Items)
	}
	if s.DownwardAPI != nil {
		f.fields(name("downwardAPI"), s.DownwardAPI.Items)
	}
	if s.ServiceAccountToken != nil {
		f.check(s.ServiceAccountToken.User, "%s.user", name("serviceAccountToken"))
	}
	if s.ClusterTrustBundle != nil {
		f.check(s.ClusterTrustBundle.User, "%s.user", name("clusterTrustBundle"))
	}
	if s.PodCertificate != nil {
		f.check(s.PodCertificate.User, "%s.user", name("podCertificate"))
	}
}

func (f *idFaults) keys(at string, items []v1.KeyToPath) {
	for i := range items {
		f.check(items[i].User, "%s.items[%d].user", at, i)
	}
}

func (f *idFaults) fields(at string, items []v1.DownwardAPIVolumeFile) {
	for i := range items {
		f.check(items[i].User, "%s.items[%d].user", at, i)
	}
}
