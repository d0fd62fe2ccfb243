package steps

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/dsw"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler"
)

// The node-wide steps: attach and device mount, done once for all pods of a
// volume.

// deviceRequest builds the request of a node-wide step from the pod that leads
// the plan, or from what is known of a volume that nobody wants.
func (e *Executor) deviceRequest(j *job) plugins.DeviceRequest {
	req := plugins.DeviceRequest{
		ID: j.step.ID, DevicePath: j.fact.DevicePath, Path: j.fact.DeviceMountPath,
		Undo: j.fact.Undo, Lazy: j.step.Lazy,
	}
	if lead, ok := j.lead(); ok {
		req.Spec, req.Params = lead.Spec, lead.Params
		req.Undo = merged(lead.Identity.Undo, j.fact.Undo)
	}
	for _, w := range j.wishes {
		if w.State == dsw.Wanted && w.Pod != nil {
			req.Pods = append(req.Pods, plugins.PodRef{Namespace: w.Pod.Namespace, Name: w.Pod.Name, UID: w.Pod.UID})
		}
	}
	return req
}

// identity is what is known about how the volume is handled: by its wish, or
// by its record.
func (j *job) identity() plugins.Identity {
	if lead, ok := j.lead(); ok {
		return lead.Identity
	}
	return j.fact.Identity
}

// lead is the wish on whose behalf the node-wide steps are planned.
func (j *job) lead() (dsw.PodWish, bool) {
	return reconciler.Lead(dsw.Wish{ID: j.step.ID, Pods: j.wishes}, j.fact)
}

// record writes the node-wide record. Nothing else happened if it fails.
func (e *Executor) record(ctx context.Context, j *job, req plugins.DeviceRequest) error {
	id := j.identity()
	err := e.Journal.Put(ctx, journal.Record{
		Key: journal.Key{ID: j.step.ID}, Attach: id.Attach, Device: id.Device, Durable: id.Durable,
		Parallel: id.Parallel, Storage: id.Storage,
		DevicePath: req.DevicePath, DeviceMountPath: req.Path, Undo: req.Undo,
	})
	if err != nil {
		return plugins.Transient(fmt.Errorf("record what undoing will need: %w", err))
	}
	return e.Host.Faults.At("step.recorded")
}

func (e *Executor) attach(ctx context.Context, j *job) error {
	if j.can.Attacher == nil {
		return errLacks(j.plugin.Name(), "attach volumes")
	}
	req := e.deviceRequest(j)
	if err := e.record(ctx, j, req); err != nil {
		return err
	}
	change := asw.Attachment{State: asw.Uncertain, DevicePath: req.DevicePath, Identity: j.identity(), Spec: req.Spec, Undo: req.Undo}
	if err := e.Actual.SetAttachment(j.step.ID, change); err != nil {
		return err
	}
	got, err := j.can.Attacher.Attach(ctx, req)
	if err != nil {
		if j.fact.Attachment == asw.Absent && j.fact.Device == asw.Absent && len(j.fact.Pods) == 0 && plugins.ClassOf(err) != plugins.ClassUncertain {
			return joinUnless(err, e.dropAttachment(ctx, j))
		}
		return err
	}
	change.State, change.Undo = asw.Present, merged(req.Undo, got.Undo)
	if got.DevicePath != "" {
		change.DevicePath = got.DevicePath
	}
	req.Undo, req.DevicePath = change.Undo, change.DevicePath
	if err := e.record(context.WithoutCancel(ctx), j, req); err != nil {
		return plugins.Uncertain(err)
	}
	return e.Actual.SetAttachment(j.step.ID, change)
}

// dropAttachment forgets an attachment of which nothing is left.
func (e *Executor) dropAttachment(ctx context.Context, j *job) error {
	ctx = context.WithoutCancel(ctx)
	if err := e.Journal.Delete(ctx, journal.Key{ID: j.step.ID}, j.identity().Durable); err != nil {
		return plugins.Uncertain(fmt.Errorf("drop the record: %w", err))
	}
	return e.Actual.SetAttachment(j.step.ID, asw.Attachment{State: asw.Absent, Identity: j.identity()})
}

func (e *Executor) detach(ctx context.Context, j *job) error {
	if j.can.Attacher == nil {
		return errLacks(j.plugin.Name(), "detach volumes")
	}
	req := e.deviceRequest(j)
	uncertain := asw.Attachment{State: asw.Uncertain, DevicePath: req.DevicePath, Identity: j.identity(), Undo: req.Undo}
	if err := e.Actual.SetAttachment(j.step.ID, uncertain); err != nil {
		return err
	}
	if err := j.can.Attacher.Detach(ctx, req); err != nil {
		return err
	}
	if err := e.Host.Faults.At("step.undone"); err != nil {
		return plugins.Uncertain(err)
	}
	return e.dropAttachment(ctx, j)
}

func (e *Executor) mountDevice(ctx context.Context, j *job) error {
	if j.can.DeviceMounter == nil {
		return errLacks(j.plugin.Name(), "mount devices")
	}
	req := e.deviceRequest(j)
	path, err := j.can.DeviceMounter.DeviceMountPath(req.Spec)
	if err != nil {
		return plugins.Permanent(err)
	}
	if j.fact.Device != asw.Absent && j.fact.DeviceMountPath != "" {
		path = j.fact.DeviceMountPath // what is staged stays where it was staged
	}
	req.Path = path
	if err := e.record(ctx, j, req); err != nil {
		return err
	}
	change := asw.Device{State: asw.Uncertain, Path: path, Params: req.Params, DevicePath: req.DevicePath,
		Identity: j.identity(), Spec: req.Spec, Undo: req.Undo}
	if err := e.Actual.SetDevice(j.step.ID, change); err != nil {
		return err
	}
	got, err := j.can.DeviceMounter.MountDevice(ctx, req)
	if err != nil {
		// Pods that an earlier process left may still use the device.
		if j.fact.Device == asw.Absent && len(j.fact.Pods) == 0 && plugins.ClassOf(err) != plugins.ClassUncertain {
			return joinUnless(err, e.dropDevice(ctx, j, req))
		}
		return err
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
	req.Undo, req.DevicePath = change.Undo, change.DevicePath
	if err := e.record(context.WithoutCancel(ctx), j, req); err != nil {
		return plugins.Uncertain(err)
	}
	return e.Actual.SetDevice(j.step.ID, change)
}

func (e *Executor) unmountDevice(ctx context.Context, j *job) error {
	if j.can.DeviceMounter == nil {
		return errLacks(j.plugin.Name(), "unmount devices")
	}
	req := e.deviceRequest(j)
	uncertain := asw.Device{State: asw.Uncertain, Path: req.Path, Params: j.fact.DeviceParams, DevicePath: req.DevicePath,
		Identity: j.identity(), Undo: req.Undo}
	if err := e.Actual.SetDevice(j.step.ID, uncertain); err != nil {
		return err
	}
	if err := j.can.DeviceMounter.UnmountDevice(ctx, req); err != nil {
		return err
	}
	if point, err := e.Host.Mounter.Inspect(ctx, req.Path); req.Path != "" && (err != nil || point.Mounted) {
		return plugins.Uncertain(fmt.Errorf("the plugin reported the device unmounted, but %s cannot be seen to be free (%w)", req.Path, orErr(err, errStillMounted)))
	}
	if err := e.Host.Faults.At("step.undone"); err != nil {
		return plugins.Uncertain(err)
	}
	return e.dropDevice(ctx, j, req)
}

// dropDevice forgets a device mount of which nothing is left. The record goes
// too, unless the attachment still needs it.
func (e *Executor) dropDevice(ctx context.Context, j *job, req plugins.DeviceRequest) error {
	ctx = context.WithoutCancel(ctx)
	if j.fact.Attachment == asw.Absent {
		if err := e.Journal.Delete(ctx, journal.Key{ID: j.step.ID}, j.identity().Durable); err != nil {
			return plugins.Uncertain(fmt.Errorf("drop the record: %w", err))
		}
	} else {
		req.Path = ""
		if err := e.record(ctx, j, req); err != nil {
			return plugins.Uncertain(err)
		}
	}
	return e.Actual.SetDevice(j.step.ID, asw.Device{State: asw.Absent, Identity: j.identity(), DevicePath: req.DevicePath, Undo: req.Undo})
}
