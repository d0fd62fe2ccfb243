package steps

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
)

// The node-wide steps: attach and device mount, done once for all pods of a
// volume.

// deviceRequest builds the request of a node-wide step: what is made, for the
// pod that leads the plan; what is undone, as it was made.
func (e *Executor) deviceRequest(j *job) plugins.DeviceRequest {
	req := plugins.DeviceRequest{
		ID: j.step.ID, Spec: j.fact.Spec, DevicePath: j.fact.DevicePath, Path: j.fact.DeviceMountPath,
		Used: len(j.fact.Pods) > 0, Params: j.fact.DeviceParams, Undo: j.undo(), Lazy: j.step.Lazy,
	}
	if lead, ok := j.lead(); ok && !j.step.Kind.Undoes() {
		req.Spec, req.Params = lead.Spec, lead.Params
	}
	req.Block = req.Spec != nil && req.Spec.Mode() == v1.PersistentVolumeBlock
	for i := range j.wishes {
		if w := &j.wishes[i]; w.State == dsw.Wanted && w.Pod != nil {
			req.Pods = append(req.Pods, plugins.PodRef{Namespace: w.Pod.Namespace, Name: w.Pod.Name, UID: w.Pod.UID})
		}
	}
	return req
}

// keep leaves in the journal what is still to be undone: the record without
// what is gone, or nothing.
func (e *Executor) keep(ctx context.Context, rec journal.Record) error {
	if !rec.Attach && !rec.Device {
		return e.unrecord(ctx, rec.Key, rec.Durable)
	}
	if err := e.put(context.WithoutCancel(ctx), rec); err != nil {
		return plugins.Uncertain(err)
	}
	return nil
}

// beginNode records a node-wide step and enters it as uncertain. When it fails
// nothing else has happened, and for a new one the record is as it was before.
func (e *Executor) beginNode(ctx context.Context, j *job, rec journal.Record, fresh bool, enter func() error) error {
	err := e.put(ctx, rec)
	if err == nil {
		err = plugins.Transient(e.Host.Faults.At(FaultRecorded))
	}
	if err == nil {
		if err = plugins.Transient(enter()); err == nil {
			return plugins.Uncertain(e.Host.Faults.At(FaultBegun))
		}
	}
	if !fresh {
		return err
	}
	if undo := e.keep(ctx, j.record()); undo != nil {
		_ = enter() // so that the record goes when the step is undone
		return errors.Join(err, undo)
	}
	return err
}

func (e *Executor) attach(ctx context.Context, j *job) error {
	if j.can.Attacher == nil {
		return errLacks(j.plugin.Name(), "attach volumes")
	}
	req, rec, fresh := e.deviceRequest(j), j.record(), !there(&j.fact)
	rec.Attach = true
	change := asw.Attachment{State: asw.Uncertain, DevicePath: req.DevicePath, Identity: j.identity(), Spec: req.Spec, Undo: req.Undo}
	if err := e.beginNode(ctx, j, rec, fresh, func() error { return e.Actual.SetAttachment(j.step.ID, change) }); err != nil {
		return err
	}
	got, err := j.can.Attacher.Attach(ctx, req)
	if err != nil {
		if fresh && leavesNothing(err) {
			return joinUnless(err, e.dropAttachment(ctx, j))
		}
		return err
	}
	if err := e.Host.Faults.At(FaultDone); err != nil {
		return plugins.Uncertain(err)
	}
	change.State, change.Undo = asw.Present, merged(req.Undo, got.Undo)
	if got.DevicePath != "" {
		change.DevicePath = got.DevicePath
	}
	rec.Undo, rec.DevicePath = change.Undo, change.DevicePath
	if err := e.keep(ctx, rec); err != nil {
		return err
	}
	return e.Actual.SetAttachment(j.step.ID, change)
}

// dropAttachment forgets an attachment of which nothing is left.
func (e *Executor) dropAttachment(ctx context.Context, j *job) error {
	rec := j.record()
	rec.Attach, rec.DevicePath = false, ""
	if err := e.keep(ctx, rec); err != nil {
		return err
	}
	return e.Actual.SetAttachment(j.step.ID, asw.Attachment{State: asw.Absent})
}

func (e *Executor) detach(ctx context.Context, j *job) error {
	if j.can.Attacher == nil {
		return errLacks(j.plugin.Name(), "detach volumes")
	}
	req := e.deviceRequest(j)
	if err := e.Actual.SetAttachment(j.step.ID, asw.Attachment{State: asw.Uncertain}); err != nil {
		return plugins.Transient(err)
	}
	if err := e.Host.Faults.At(FaultBegun); err != nil {
		return plugins.Uncertain(err)
	}
	if err := j.can.Attacher.Detach(ctx, req); err != nil {
		return err
	}
	if err := e.Host.Faults.At(FaultUndone); err != nil {
		return plugins.Uncertain(err)
	}
	return e.dropAttachment(ctx, j)
}

func (e *Executor) mountDevice(ctx context.Context, j *job) error {
	if j.can.DeviceMounter == nil {
		return errLacks(j.plugin.Name(), "mount devices")
	}
	req := e.deviceRequest(j)
	path, err := e.deviceMountPath(j, req)
	if err != nil {
		return err
	}
	req.Path = path
	rec, fresh := j.record(), j.fact.Device == asw.Absent && len(j.fact.Pods) == 0 // pods that were found may use it
	rec.Device, rec.DeviceMountPath = true, path
	change := asw.Device{State: asw.Uncertain, Path: path, Params: req.Params, DevicePath: req.DevicePath,
		Identity: j.identity(), Spec: req.Spec, Undo: req.Undo}
	if err := e.beginNode(ctx, j, rec, fresh, func() error { return e.Actual.SetDevice(j.step.ID, change) }); err != nil {
		return err
	}
	got, err := j.can.DeviceMounter.MountDevice(ctx, req)
	if err != nil {
		if !fresh || !leavesNothing(err) {
			return err
		}
		if left := e.noMountAt(ctx, path); left != nil {
			return errors.Join(err, left)
		}
		return joinUnless(err, e.dropDevice(ctx, j))
	}
	if err := e.Host.Faults.At(FaultDone); err != nil {
		return plugins.Uncertain(err)
	}
	if got.Mounted {
		if _, err := e.mountAt(ctx, path); err != nil {
			return err
		}
	}
	change.State, change.Undo = asw.Present, merged(req.Undo, got.Undo)
	if got.DevicePath != "" {
		change.DevicePath = got.DevicePath
	}
	if got.Size != nil {
		change.Params.Size = got.Size
	}
	rec.Undo, rec.DevicePath = change.Undo, change.DevicePath
	if err := e.keep(ctx, rec); err != nil {
		return err
	}
	return e.Actual.SetDevice(j.step.ID, change)
}

// deviceMountPath says where the device is or will be mounted. What is staged
// stays where it was staged.
func (e *Executor) deviceMountPath(j *job, req plugins.DeviceRequest) (string, error) {
	path := ""
	if j.fact.Device != asw.Absent {
		path = j.fact.DeviceMountPath
	}
	if path == "" {
		if req.Spec == nil {
			return "", nil // of an earlier process, which recorded none
		}
		var err error
		if path, err = j.can.DeviceMounter.DeviceMountPath(req.Spec); err != nil {
			if leavesNothing(err) {
				return "", err
			}
			return "", plugins.Permanent(err)
		}
	}
	// Built from names of objects, or read from a record.
	l := e.Host.Layout
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == l.Root || !inside(l.Root, path) ||
		inside(l.PodsDir(), path) || inside(l.StateDir(), path) {
		return "", plugins.Permanentf("the device mount path %q is not a place for devices under %s", path, l.Root)
	}
	return path, nil
}

func (e *Executor) unmountDevice(ctx context.Context, j *job) error {
	if j.can.DeviceMounter == nil {
		return errLacks(j.plugin.Name(), "unmount devices")
	}
	req := e.deviceRequest(j)
	path, err := e.deviceMountPath(j, req)
	if err != nil {
		return err
	}
	req.Path = path
	// An empty path keeps the known one and the parameters.
	if err := e.Actual.SetDevice(j.step.ID, asw.Device{State: asw.Uncertain}); err != nil {
		return plugins.Transient(err)
	}
	if err := e.Host.Faults.At(FaultBegun); err != nil {
		return plugins.Uncertain(err)
	}
	if err := j.can.DeviceMounter.UnmountDevice(ctx, req); err != nil {
		return err
	}
	if path != "" {
		if err := e.noMountAt(ctx, path); err != nil {
			return fmt.Errorf("unmount the device: %w", err)
		}
	}
	if err := e.Host.Faults.At(FaultUndone); err != nil {
		return plugins.Uncertain(err)
	}
	return e.dropDevice(ctx, j)
}

// dropDevice forgets a device mount of which nothing is left. The record goes
// too, unless the attachment still needs it.
func (e *Executor) dropDevice(ctx context.Context, j *job) error {
	rec := j.record()
	rec.Device, rec.DeviceMountPath = false, ""
	if err := e.keep(ctx, rec); err != nil {
		return err
	}
	return e.Actual.SetDevice(j.step.ID, asw.Device{State: asw.Absent})
}
