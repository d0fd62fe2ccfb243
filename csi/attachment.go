package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/volumekit/volumekit/plugins"
)

// Attach implements [plugins.Attacher].
func (p *Plugin) Attach(ctx context.Context, req plugins.DeviceRequest) (plugins.DeviceResult, error) {
	s, err := sourceOf(req.Spec, "")
	if err != nil {
		return plugins.DeviceResult{}, err
	}
	info, err := driverInfo(ctx, p.host, s.driver)
	if err != nil {
		return plugins.DeviceResult{}, err
	}
	if !info.AttachRequired {
		return plugins.DeviceResult{Undo: plugins.Undo{undoAttached: attachedNot}}, nil
	}
	got, err := p.attacher.Attach(ctx, p.attachable(req, s.driver, s.handle, info))
	if err != nil {
		if errors.Is(err, ErrNodeFull) {
			p.askLimit(ctx, s.driver)
		}
		return plugins.DeviceResult{}, err
	}
	undo := plugins.Undo{undoAttached: attachWay(p.attacher, s.driver)}
	for key, value := range got.Undo {
		undo[undoAttach+key] = value
	}
	text, err := json.Marshal(got.PublishContext)
	if err != nil {
		return plugins.DeviceResult{}, plugins.Uncertain(err)
	}
	undo[undoContext] = string(text)
	return plugins.DeviceResult{DevicePath: got.PublishContext["devicePath"], Undo: undo}, nil
}

// askLimit asks a driver anew how many volumes the node may have: it has just
// turned out to be fewer than was thought.
func (p *Plugin) askLimit(ctx context.Context, driver string) {
	if err := p.config.Drivers.refreshNodeInfo(ctx, driver); err != nil {
		p.host.Log.V(1).Info("the node's limit could not be asked for anew", "driver", driver, "reason", err.Error())
	}
}

// undoAttached says in which way the volume was attached.
const undoAttached = "attached"

// Ways to attach.
const (
	attachedNot      = "none"
	attachedByOthers = "wait"
	attachedByObject = "own"
	attachedDirectly = "direct"
)

// attachWay names the way in which an attacher attaches the volumes of a driver.
func attachWay(a Attacher, driver string) string {
	switch a := a.(type) {
	case noAttach:
		return attachedNot
	case *waitAttach:
		return attachedByOthers
	case *ownAttach:
		return attachedByObject
	case *directAttach:
		return attachedDirectly
	case *byDriver:
		if one, err := a.pick(driver); err == nil {
			return attachWay(one, driver)
		}
	}
	return fmt.Sprintf("%T", a)
}

// Detach implements [plugins.Attacher].
func (p *Plugin) Detach(ctx context.Context, req plugins.DeviceRequest) error {
	driver, handle, err := p.stagedVolume(req)
	if err != nil {
		return err
	}
	info, err := driverInfo(ctx, p.host, driver)
	if err != nil {
		return err
	}
	way, today := req.Undo[undoAttached], attachWay(p.attacher, driver)
	switch {
	case way == "" && !info.AttachRequired:
		return nil
	case way == attachedNot, way == attachedByOthers:
		return nil // nobody here attached it
	case way != "" && way != today:
		return plugins.Paced(slow, plugins.Uncertain(fmt.Errorf(
			"the volume was attached in the way %q, and this program attaches volumes of driver %s in the way %q: only one that attaches them as before can detach it",
			way, driver, today)))
	}
	return p.attacher.Detach(ctx, p.attachable(req, driver, handle, info))
}

func (p *Plugin) attachable(req plugins.DeviceRequest, driver, handle string, info DriverInfo) Attachable {
	undo := plugins.Undo{}
	for key, value := range req.Undo {
		if own, ok := strings.CutPrefix(key, undoAttach); ok {
			undo[own] = value
		}
	}
	return Attachable{
		Driver: driver, Handle: handle, Node: p.host.NodeName, Spec: req.Spec, Info: info, Undo: undo, Pods: req.Pods,
	}
}
