//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/csi"
	"github.com/volumekit/volumekit/csi/registration"
	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/memory"
	"github.com/volumekit/volumekit/volumemanager"
)

// patience is how long a single thing may take.
const patience = 30 * time.Second

// agent is a node agent in miniature, for CSI volumes alone. What the API server
// is to a kubelet, the store is here.
type agent struct {
	store   *memory.Store
	drivers *csi.Drivers
	manager *volumemanager.Manager
}

func newAgent(root string) (*agent, error) {
	store := memory.New(memory.Config{NodeName: nodeName})
	host := store.Host(plugins.Layout{Root: root}, hostmount.New(hostmount.Options{}))
	host.NodeName = nodeName

	// Drivers register in <root>/plugins_registry, as they do with a kubelet.
	drivers := csi.NewDrivers(csi.DriversConfig{Log: host.Log})
	watcher, err := registration.New(registration.Config{
		Dir: host.Layout.RegistryDir(), Create: true, Log: host.Log,
		Handlers: map[string]registration.Handler{registration.CSIPlugin: drivers},
	})
	if err != nil {
		return nil, err
	}
	// No control plane attaches or expands: both is done here, by calls to the
	// driver's controller service.
	plugin, err := csi.New(csi.Config{
		Host: host, Drivers: drivers, Background: []plugins.Runner{watcher},
		Attacher:  csi.DirectAttach(drivers, host, csi.DirectOptions{}),
		Expansion: csi.Expansion{Controller: true, Claims: store},
	})
	if err != nil {
		return nil, err
	}
	// For other kinds of volumes: append(builtin.New(host, builtin.Options{}), plugin)...
	registry, err := plugins.NewRegistry(plugin)
	if err != nil {
		return nil, err
	}
	manager, err := volumemanager.New(volumemanager.Config{Host: host, Plugins: registry, Pods: store.Pods()})
	return &agent{store: store, drivers: drivers, manager: manager}, err
}

// runAgent is the agent's process. It ends with its input; mounts stay.
func runAgent(root string) error {
	a, err := newAgent(root)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- a.manager.Run(ctx) }()
	err = serve(func(r request) (reply, error) { return a.handle(ctx, r) })
	cancel()
	return errors.Join(err, <-ended)
}

// handle does what the parent process asks for.
func (a *agent) handle(ctx context.Context, r request) (out reply, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	switch r.Do {
	case "apply": // objects and pods
		err = a.apply(r)
	case "synced": // no other pods exist: what is there of others may be taken away
		a.store.Pods().MarkSynced()
		err = until(ctx, func() bool { return a.drivers.Installed(driverName) })
	case "create":
		out.PV, err = a.drivers.CreateVolume(ctx, csi.CreateOptions{
			Driver: driverName, Name: r.Name, Size: resource.MustParse(r.Size), FSType: r.FSType,
			Parameters: map[string]string{"mode": r.Mode}, // the driver's own, as in a StorageClass
		})
	case "delete":
		err = a.drivers.DeleteVolume(ctx, r.PV, nil)
	case "ready":
		err = a.manager.WaitForAttachAndMount(ctx, r.Pod)
		out.Path = a.manager.MountedVolumes(r.Pod)[volumeName].Path
	case "failing":
		err = until(ctx, func() bool { out.Text = a.trouble(r.Pod); return out.Text != "" })
	case "expanded":
		out.Claim, err = a.expanded(ctx, r.Claim)
	case "remove": // the pod's containers have ended
		a.store.Pods().Remove(r.Pod.UID)
	case "released": // neither mounted nor attached, for any pod
		err = until(ctx, func() bool { return !a.knows(r.PV.Spec.CSI.VolumeHandle) })
	default:
		err = fmt.Errorf("unknown request %q", r.Do)
	}
	return out, err
}

func (a *agent) apply(r request) (err error) {
	if r.PV != nil {
		err = a.store.Apply(r.PV)
	}
	if r.Claim != nil {
		err = errors.Join(err, a.store.Apply(r.Claim))
	}
	if r.Pod != nil {
		err = errors.Join(err, a.store.Apply(r.Pod))
	}
	return err
}

// expanded waits until a claim has what it requests.
func (a *agent) expanded(ctx context.Context, wish *v1.PersistentVolumeClaim) (now *v1.PersistentVolumeClaim, err error) {
	late := until(ctx, func() bool {
		now, err = a.store.Claim(ctx, wish.Namespace, wish.Name)
		return err != nil || now.Status.Capacity.Storage().Cmp(*wish.Spec.Resources.Requests.Storage()) >= 0
	})
	if late != nil && err == nil {
		err = fmt.Errorf("%w; its conditions are %v", late, now.Status.Conditions)
	}
	return now, err
}

// trouble is what the pod's volume suffers from.
func (a *agent) trouble(pod *v1.Pod) string {
	status, _ := a.manager.Status(pod)
	for _, v := range status.Volumes {
		if v.Err != nil {
			return v.Message
		}
	}
	return ""
}

func (a *agent) knows(handle string) bool {
	for _, v := range a.manager.Snapshot().Volumes {
		if strings.HasSuffix(string(v.ID), "^"+handle) {
			return true
		}
	}
	return false
}

// until waits for a condition. Programs rather subscribe to changes.
func until(ctx context.Context, holds func() bool) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not in time: %w", ctx.Err())
		}
	}
	return nil
}
