package steps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/plugins"
)

// tearDown takes a pod's volume away.
func (e *Executor) tearDown(ctx context.Context, j *job) error {
	if err := j.step.Volume.Check(); err != nil {
		return plugins.Permanent(err)
	}
	give, err := e.takePath(j)
	if err != nil {
		return err
	}
	defer give()
	entry := j.entry
	if entry.State == asw.Present {
		entry.State, entry.Since = asw.Uncertain, e.now()
		if err := e.Actual.SetPodVolume(entry); err != nil {
			return plugins.Transient(err)
		}
	}
	if err := e.Host.Faults.At(FaultBegun); err != nil {
		return plugins.Uncertain(err)
	}
	req := plugins.TearDownRequest{
		Target: e.Host.Layout.Target(j.step.Volume, j.pod), Undo: merged(entry.Undo, j.fact.Undo), Block: entry.Block,
		DeviceMountPath: j.fact.DeviceMountPath, Lazy: j.step.Lazy,
	}
	if err := e.callTearDown(ctx, j, req); err != nil {
		return err
	}
	if err := e.Host.Faults.At(FaultUndone); err != nil {
		return plugins.Uncertain(err)
	}
	return e.forget(ctx, j)
}

func (e *Executor) callTearDown(ctx context.Context, j *job, req plugins.TearDownRequest) error {
	if req.Block {
		return e.unmapDevice(ctx, j, req)
	}
	if _, err := e.confined(ctx, req.Path); err != nil {
		return err
	}
	if err := j.plugin.TearDown(ctx, req); err != nil {
		return err
	}
	return e.nothingAt(ctx, req.Path) // the plugin's word counts as far as it can be seen
}

// forget drops the record, the entry and the pod's empty folders. The volume
// is gone, so the end of ctx is no reason to leave the books wrong. An entry
// whose record cannot be dropped stays, so that it is tried again.
func (e *Executor) forget(ctx context.Context, j *job) error {
	r := j.record()
	if err := e.unrecord(ctx, r.Key, r.Durable); err != nil {
		return err
	}
	// Not RemovePodVolume: a late call must not remove the entry of a volume
	// that has taken this one's place.
	if err := e.Actual.SetPodVolume(asw.PodVolume{Volume: j.step.Volume, ID: j.step.ID, State: asw.Absent}); err != nil {
		return plugins.Transient(err)
	}
	e.RemovePodFolder(j.step.Volume.Pod)
	return nil
}

// removeFile removes a file or link; that it is gone is no error.
func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return plugins.Uncertain(fmt.Errorf("remove the link to the device: %w", err))
	}
	return nil
}
