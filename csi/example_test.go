package csi_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/csi"
	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/csi/registration"
	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/builtin"
	"github.com/volumekit/volumekit/plugins/memory"
	"github.com/volumekit/volumekit/volumemanager"
)

// A node with a CSI driver and no control plane: the driver registers in the
// folder for that, a pod's claim leads to one of its volumes.
func Example() {
	dir, err := os.MkdirTemp("", "csi-example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := runNode(context.Background(), dir); err != nil {
		fmt.Println(err)
	}
	// Output:
	// the pod finds its volume
	// the volume is gone
}

func runNode(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	store := memory.NewStore()
	host := store.Host(plugins.Layout{Root: filepath.Join(dir, "root")}, mounttest.New(mounttest.Options{Dir: dir}))
	host.NodeName = "node"

	// The directory of drivers, and how they come into it.
	drivers := csi.NewDrivers(csi.DriversConfig{})
	watcher, err := registration.New(registration.Config{
		Dir: host.Layout.RegistryDir(), Create: true,
		Handlers: map[string]registration.Handler{registration.CSIPlugin: drivers},
	})
	if err != nil {
		return err
	}
	plugin, err := csi.New(csi.Config{
		Host: host, Drivers: drivers, Background: []plugins.Runner{watcher},
		// Without a control plane the driver's controller is called from here.
		Attacher: csi.DirectAttach(drivers, host, csi.DirectOptions{}),
	})
	if err != nil {
		return err
	}
	registry, err := plugins.NewRegistry(append(builtin.New(host, builtin.Options{}), plugin)...)
	if err != nil {
		return err
	}
	m, err := volumemanager.New(volumemanager.Config{Host: host, Plugins: registry, Pods: store.Pods(), Root: volumemanager.MakeShared})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- m.Run(running) }()
	defer func() {
		stop()
		<-ended
	}()

	// A driver, as it would run beside the agent.
	driver, err := csitest.New(csitest.Config{
		Dir: filepath.Join(dir, "driver"), Name: "disks.example.com", Mode: csitest.ModePlain, AutoCreate: true,
		Sockets: csitest.Sockets{Registration: filepath.Join(host.Layout.RegistryDir(), "disks-reg.sock")},
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(host.Layout.RegistryDir(), 0o750); err != nil {
		return err
	}
	if err := driver.Start(ctx); err != nil {
		return err
	}
	defer func() { _ = driver.Stop() }()

	pod := claimedBy(store, "disks.example.com")
	if err := store.Pods().Set(pod); err != nil {
		return err
	}
	store.Pods().MarkSynced()
	if err := m.WaitForAttachAndMount(ctx, pod); err != nil {
		return err
	}
	if _, err := os.Stat(m.MountedVolumes(pod)["data"].Path); err == nil {
		fmt.Println("the pod finds its volume")
	}
	store.Pods().Remove(pod.UID)
	if err := m.WaitForUnmount(ctx, pod); err != nil {
		return err
	}
	fmt.Println("the volume is gone")
	return nil
}

// claimedBy stores a volume of the driver with its claim, and returns a pod that
// uses it.
func claimedBy(store *memory.Store, driver string) *v1.Pod {
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	_ = store.Apply(&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: modes, ClaimRef: &v1.ObjectReference{Namespace: "default", Name: "claim", UID: "claim-uid"},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "disk-1"}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	})
	_ = store.Apply(&v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim", UID: "claim-uid"},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "pv", AccessModes: modes},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	})
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod", UID: "pod-uid"},
		Spec: v1.PodSpec{
			Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"},
			}}},
			Containers: []v1.Container{{Name: "main", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
		},
	}
}
