package csi

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/memory"
)

// attachDirectory changes what another directory finds.
type attachDirectory struct {
	controllers
	noController, noNode error
	change               func(*driver)
}

func (d *attachDirectory) found(of func(context.Context, string) (*driver, error), ctx context.Context, name string, missing error) (*driver, error) { //nolint:revive // of(ctx, name)
	if missing != nil {
		return nil, missing
	}
	got, err := of(ctx, name)
	if err != nil || d.change == nil {
		return got, err
	}
	other := *got
	d.change(&other)
	return &other, nil
}

func (d *attachDirectory) driver(ctx context.Context, name string) (*driver, error) {
	return d.found(d.controllers.driver, ctx, name, d.noNode)
}

func (d *attachDirectory) controllerOf(ctx context.Context, name string) (*driver, error) {
	return d.found(d.controllers.controllerOf, ctx, name, d.noController)
}

// directRig is a real driver, and an attacher that calls it.
type directRig struct {
	*directAttach
	t       *testing.T
	driver  *csitest.Driver
	drivers *Drivers
	dir     *attachDirectory
	store   *memory.Store
}

func newDirectRig(t *testing.T, config func(*csitest.Config)) *directRig {
	t.Helper()
	c := csitest.Config{
		Dir: filepath.Join(t.TempDir(), "d"), Capabilities: csitest.AllCapabilities(), AutoCreate: true, Mode: csitest.ModePlain,
		OtherNodes: []string{"other-node", "old-node"},
	}
	if config != nil {
		config(&c)
	}
	d, err := csitest.New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	endpoint := Endpoint{Name: d.Name(), Node: d.Endpoint()}
	drivers := NewDrivers(DriversConfig{Endpoints: []Endpoint{endpoint}})
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = drivers.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		all.Wait()
		_ = d.Stop()
	})
	r := &directRig{t: t, driver: d, drivers: drivers, dir: &attachDirectory{controllers: drivers}, store: memory.NewStore()}
	r.directAttach = &directAttach{
		drivers: r.dir, host: r.store.Host(plugins.Layout{Root: t.TempDir()}, nil),
	}
	r.ready()
	return r
}

// ready waits until the driver has introduced itself.
func (r *directRig) ready() {
	r.t.Helper()
	notices := make(chan struct{}, 1)
	cancel := r.drivers.Subscribe(func(plugins.Ref) {
		select {
		case notices <- struct{}{}:
		default:
		}
	})
	defer cancel()
	ctx, stop := context.WithTimeout(r.t.Context(), 30*time.Second)
	defer stop()
	for {
		_, err := r.drivers.driver(ctx, r.driver.Name())
		if err == nil {
			return
		}
		select {
		case <-notices:
		case <-ctx.Done():
			r.t.Fatal(err)
		}
	}
}

func (r *directRig) volume(change func(*v1.PersistentVolume)) Attachable {
	pv := csiPV("pv", r.driver.Name(), "vol")
	if change != nil {
		change(pv)
	}
	return Attachable{Driver: r.driver.Name(), Handle: "vol", Node: "node-1", Spec: &plugins.Spec{PV: pv}}
}

// last is the latest request of a method.
func (r *directRig) last(method string) proto.Message {
	r.t.Helper()
	for _, c := range slices.Backward(r.driver.Calls()) {
		if c.Method == method {
			return c.Request
		}
	}
	r.t.Errorf("no call of %s", method)
	return nil
}

func (r *directRig) attachedTo() []string {
	v, _ := r.driver.Volume("vol")
	nodes := make([]string, 0, len(v.Attached))
	for _, a := range v.Attached {
		nodes = append(nodes, a.NodeID)
	}
	return nodes
}

const (
	publishCall   = "ControllerPublishVolume"
	unpublishCall = "ControllerUnpublishVolume"
	validateCall  = "ValidateVolumeCapabilities"
)
