package csi

import (
	"context"
	"fmt"
	"slices"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/volumekit/volumekit/plugins"
)

// DriverInfo is what a CSIDriver object says about a driver, with the defaults
// that an API server would have filled in.
type DriverInfo struct {
	// Name is the driver's name.
	Name string
	// Known is false if there is no CSIDriver object.
	Known bool
	// AttachRequired is true if volumes have to be attached to the node first.
	AttachRequired bool
	// PodInfoOnMount adds the pod's name, namespace, UID and service account to
	// the volume context of a publish.
	PodInfoOnMount bool
	// FSGroupPolicy says whether files are given to the pod's fsGroup.
	FSGroupPolicy storagev1.FSGroupPolicy
	// Persistent and Ephemeral are the lifecycle modes that the driver has
	// opted into.
	Persistent, Ephemeral bool
	// RequiresRepublish asks for a publish again and again, so that the driver
	// can renew what is in the volume.
	RequiresRepublish bool
	// SELinuxMount is true if the driver passes on a context mount option.
	SELinuxMount bool
	// Tokens are the service account tokens that go with a publish.
	Tokens []TokenWish
	// TokensInSecrets moves them from the volume context to the secrets.
	TokensInSecrets bool
	// AllocatableUpdatePeriod is how often the node's limit is asked for anew;
	// zero means never.
	AllocatableUpdatePeriod time.Duration
}

// TokenWish is one service account token that a driver asks for.
type TokenWish struct {
	// Audience is empty for the API server's own.
	Audience string
	// Lifetime is how long it should live.
	Lifetime time.Duration
}

const (
	// defaultTokenLifetime and minTokenLifetime are those of the TokenRequest
	// API; minUpdatePeriod is that of CSIDriver.
	defaultTokenLifetime = time.Hour
	minTokenLifetime     = 10 * time.Minute
	minUpdatePeriod      = 10 * time.Second
)

// DriverInfoOf reads a CSIDriver object, which may be sparse or nil. Without an
// object volumes have to be attached, are persistent only, and get neither pod
// info nor tokens.
func DriverInfoOf(name string, object *storagev1.CSIDriver) DriverInfo {
	info := DriverInfo{
		Name: name, AttachRequired: true, Persistent: true,
		FSGroupPolicy: storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy,
	}
	if object == nil {
		return info
	}
	spec := &object.Spec
	info.Known = true
	set(&info.AttachRequired, spec.AttachRequired)
	set(&info.PodInfoOnMount, spec.PodInfoOnMount)
	set(&info.FSGroupPolicy, spec.FSGroupPolicy)
	set(&info.RequiresRepublish, spec.RequiresRepublish)
	set(&info.SELinuxMount, spec.SELinuxMount)
	set(&info.TokensInSecrets, spec.ServiceAccountTokenInSecrets)
	if modes := spec.VolumeLifecycleModes; len(modes) > 0 {
		info.Persistent = slices.Contains(modes, storagev1.VolumeLifecyclePersistent)
		info.Ephemeral = slices.Contains(modes, storagev1.VolumeLifecycleEphemeral)
	}
	for _, t := range spec.TokenRequests {
		wish := TokenWish{Audience: t.Audience, Lifetime: defaultTokenLifetime}
		if t.ExpirationSeconds != nil {
			wish.Lifetime = max(minTokenLifetime, seconds(*t.ExpirationSeconds))
		}
		info.Tokens = append(info.Tokens, wish)
	}
	if p := spec.NodeAllocatableUpdatePeriodSeconds; p != nil && *p > 0 {
		info.AllocatableUpdatePeriod = max(minUpdatePeriod, seconds(*p))
	}
	return info
}

// seconds guards against numbers that a duration cannot hold.
func seconds(n int64) time.Duration {
	const most = int64(1 << 32) // what the API allows
	return time.Duration(min(max(n, 0), most)) * time.Second
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// driverInfo reads the CSIDriver object of a driver. A host without a source of
// them has none.
func driverInfo(ctx context.Context, host *plugins.VolumeHost, name string) (DriverInfo, error) {
	if host.CSIDrivers == nil {
		return DriverInfoOf(name, nil), nil
	}
	object, err := host.CSIDriver(ctx, name)
	if err != nil && !apierrors.IsNotFound(err) {
		return DriverInfo{}, classed(plugins.Transient, fmt.Errorf("read CSIDriver %s: %w", name, err))
	}
	if err != nil {
		object = nil
	}
	return DriverInfoOf(name, object), nil
}

// classed gives err a class if it has none.
func classed(as func(error) error, err error) error {
	if plugins.ClassOf(err) == plugins.ClassUncertain {
		return as(err)
	}
	return err
}
