package sim

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/csi"
	"github.com/volumekit/volumekit/csi/registration"
	"github.com/volumekit/volumekit/plugins"
)

// CSI is how an agent finds and uses CSI drivers.
type CSI struct {
	// Endpoints are drivers that are known without registration. Drivers may
	// register in the root's folder for that in any case.
	Endpoints []csi.Endpoint
	// Attach is "none", "wait" or "direct".
	Attach string
	// Timeout is how long a driver may take for one call; zero means the
	// default.
	Timeout time.Duration
	// Parallel lets publishes of one volume overlap.
	Parallel bool
	// Republish is the period of publishes for drivers that require them.
	Republish time.Duration
	// Expand lets the agent enlarge storage through drivers' controllers.
	Expand bool
}

// plugin builds the plugin that the settings describe.
func (c *CSI) plugin(host *plugins.VolumeHost) (*csi.Plugin, error) {
	drivers := csi.NewDrivers(csi.DriversConfig{
		Log: host.Log, Endpoints: c.Endpoints,
		Timeout:  func(string, string) time.Duration { return c.Timeout },
		Parallel: func(string) bool { return c.Parallel },
	})
	watcher, err := registration.New(registration.Config{
		Dir: host.Layout.RegistryDir(), Log: host.Log,
		Handlers: map[string]registration.Handler{registration.CSIPlugin: drivers},
	})
	if err != nil {
		return nil, err
	}
	var attacher csi.Attacher
	switch c.Attach {
	case "none":
		attacher = csi.NoAttach()
	case "wait":
		attacher = csi.WaitAttach(host, csi.WaitOptions{})
	case "direct":
		attacher = csi.DirectAttach(drivers, host, csi.DirectOptions{})
	default:
		return nil, fmt.Errorf("there is no way %q to attach", c.Attach)
	}
	return csi.New(csi.Config{
		Host: host, Drivers: drivers, Attacher: attacher, Background: []plugins.Runner{watcher},
		Parallel: func(string) bool { return c.Parallel }, RepublishPeriod: c.Republish,
		Expansion: csi.Expansion{Controller: c.Expand},
	})
}

// ClaimedCSI builds a persistent volume of a driver, and a claim that is bound
// to it.
func ClaimedCSI(name, driver, handle string) (*v1.PersistentVolume, *v1.PersistentVolumeClaim) {
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("64Mi")}
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("claim-" + name)},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name, AccessModes: modes},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: size},
	}
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
		Spec: v1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes,
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}},
			ClaimRef:               &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: name, UID: claim.UID},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}
	return pv, claim
}
