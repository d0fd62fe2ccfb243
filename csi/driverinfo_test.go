package csi

import (
	"context"
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/plugins"
)

func ptr[T any](v T) *T { return &v }

func TestDriverInfo(t *testing.T) {
	t.Parallel()
	absent := DriverInfo{
		Name: fakeName, AttachRequired: true, Persistent: true,
		FSGroupPolicy: storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy,
	}
	sparse := absent
	sparse.Known = true
	cases := map[string]struct {
		spec *storagev1.CSIDriverSpec
		want DriverInfo
	}{
		"absent": {nil, absent},
		"sparse": {&storagev1.CSIDriverSpec{}, sparse},
		"full": {&storagev1.CSIDriverSpec{
			AttachRequired: ptr(false), PodInfoOnMount: ptr(true), FSGroupPolicy: ptr(storagev1.FileFSGroupPolicy),
			RequiresRepublish: ptr(true), SELinuxMount: ptr(true), ServiceAccountTokenInSecrets: ptr(true),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral},
			TokenRequests: []storagev1.TokenRequest{
				{Audience: "a"}, {Audience: "b", ExpirationSeconds: ptr(int64(7200))},
				{Audience: "c", ExpirationSeconds: ptr(int64(1))}, {ExpirationSeconds: ptr(int64(math.MaxInt64))},
			},
			NodeAllocatableUpdatePeriodSeconds: ptr(int64(60)),
		}, DriverInfo{
			Name: fakeName, Known: true, PodInfoOnMount: true, FSGroupPolicy: storagev1.FileFSGroupPolicy,
			RequiresRepublish: true, SELinuxMount: true, TokensInSecrets: true, Ephemeral: true,
			Tokens: []TokenWish{
				{"a", time.Hour}, {"b", 2 * time.Hour}, {"c", 10 * time.Minute}, {"", (1 << 32) * time.Second},
			},
			AllocatableUpdatePeriod: time.Minute,
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var object *storagev1.CSIDriver
			if c.spec != nil {
				object = &storagev1.CSIDriver{Spec: *c.spec}
			}
			if got := DriverInfoOf(fakeName, object); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
	for seconds, want := range map[int64]time.Duration{0: 0, -1: 0, 1: 10 * time.Second, 11: 11 * time.Second, math.MaxInt64: (1 << 32) * time.Second} {
		got := DriverInfoOf(fakeName, &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{NodeAllocatableUpdatePeriodSeconds: &seconds}})
		if got.AllocatableUpdatePeriod != want {
			t.Errorf("%d seconds are %v", seconds, got.AllocatableUpdatePeriod)
		}
	}
	both := DriverInfoOf(fakeName, &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
	}})
	if !both.Persistent || !both.Ephemeral {
		t.Errorf("%+v", both)
	}
}

// driverSource answers for CSIDriver objects.
type driverSource struct {
	object *storagev1.CSIDriver
	err    error
}

func (s driverSource) CSIDriver(context.Context, string) (*storagev1.CSIDriver, error) {
	return s.object, s.err
}

func TestWhereDriverInfoComesFrom(t *testing.T) {
	t.Parallel()
	missing := apierrors.NewNotFound(schema.GroupResource{Resource: "csidrivers"}, fakeName)
	for name, c := range map[string]struct {
		host  *plugins.VolumeHost
		known bool
		class plugins.Class
	}{
		"no source":   {host: &plugins.VolumeHost{}},
		"no object":   {host: &plugins.VolumeHost{CSIDrivers: driverSource{err: missing}}},
		"object":      {host: &plugins.VolumeHost{CSIDrivers: driverSource{object: &storagev1.CSIDriver{}}}, known: true},
		"unreachable": {host: &plugins.VolumeHost{CSIDrivers: driverSource{err: errors.New("no API server")}}, class: plugins.ClassTransient},
		"waits": {
			host:  &plugins.VolumeHost{CSIDrivers: driverSource{err: plugins.WaitFor(plugins.Ref{Kind: plugins.KindCSIDriver}, nil)}},
			class: plugins.ClassWaiting,
		},
	} {
		info, err := driverInfo(t.Context(), c.host, fakeName)
		if plugins.ClassOf(err) != c.class || err == nil && (info.Known != c.known || info.Name != fakeName) {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
	}
}
