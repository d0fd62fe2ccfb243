package steps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/plugins"
)

// setUp makes one volume ready for one pod.
func (e *Executor) setUp(ctx context.Context, j *job) error {
	if err := j.wish.Volume.Check(); err != nil {
		return plugins.Permanent(err)
	}
	give, err := e.takePath(j)
	if err != nil {
		return err
	}
	defer give()
	entry, err := e.begin(ctx, j)
	if err != nil {
		return err
	}
	target := e.Host.Layout.Target(j.step.Volume, j.pod)
	done, err := e.makeReady(ctx, j, target, entry)
	if err == nil {
		done.State, done.Since = asw.Present, e.now()
		return e.Actual.SetPodVolume(done)
	}
	if j.entry.State != asw.Absent || !leavesNothing(err) {
		return err
	}
	return joinUnless(err, e.forget(ctx, j))
}

// believe returns the error of a plugin's set-up. Where that says that nothing
// is left of a new volume, it has to be so as far as that can be seen.
func (e *Executor) believe(ctx context.Context, j *job, err error) error {
	if j.entry.State == asw.Absent && leavesNothing(err) {
		return joinUnless(err, e.nothingAt(ctx, e.place(j)))
	}
	return err
}

// place is where the pod finds the volume, unless the plugin says another
// place.
func (e *Executor) place(j *job) string {
	if j.wish.Block {
		return e.Host.Layout.PodDevice(j.step.Volume)
	}
	return e.Host.Layout.PodVolume(j.step.Volume)
}

// begin records the volume and enters it as uncertain. When it fails, nothing
// else has happened, and for a new volume the record is taken back.
func (e *Executor) begin(ctx context.Context, j *job) (asw.PodVolume, error) {
	if there, ok := e.Actual.PodVolume(j.step.Volume); ok && there.ID != j.step.ID {
		return asw.PodVolume{}, errTaken(j.step.Volume, there.ID)
	}
	rec, w := j.record(), j.wish
	entry := j.entry // keeps what a live volume looks like until the call returns
	entry.Volume, entry.ID, entry.Pod, entry.Names = w.Volume, j.step.ID, j.pod, w.Names
	entry.Spec, entry.Undo, entry.Block, entry.Params = w.Spec, rec.Undo, w.Block, w.Params
	if entry.State != asw.Uncertain {
		entry.State, entry.Since = asw.Uncertain, e.now()
	}
	if entry.Path == "" {
		entry.Path = e.place(j)
	}
	err := e.put(ctx, rec)
	if err == nil {
		err = plugins.Transient(e.Host.Faults.At(FaultRecorded))
	}
	if err == nil {
		if err = plugins.Transient(e.Actual.SetPodVolume(entry)); err == nil {
			e.Actual.SetIdentity(j.step.ID, j.identity(), w.Spec)
			return entry, nil
		}
	}
	if j.entry.State != asw.Absent {
		return entry, err
	}
	// A failed Put may have left the record all the same.
	if undo := e.unrecord(ctx, rec.Key, rec.Durable); undo != nil {
		_ = e.Actual.SetPodVolume(entry) // so that the record goes with a teardown
		return entry, errors.Join(err, undo)
	}
	return entry, err
}

// makeReady hands the volume to the plugin and checks what it promised.
func (e *Executor) makeReady(ctx context.Context, j *job, target plugins.Target, entry asw.PodVolume) (asw.PodVolume, error) {
	leave, err := e.folders.enter(ctx, string(target.Volume.Pod))
	if err != nil {
		return entry, plugins.Transient(fmt.Errorf("wait for the removal of the pod's old folders: %w", err))
	}
	defer leave()
	whole, err := e.confined(ctx, target.Path)
	if err == nil && !whole {
		err = makeParent(target.Path)
	}
	if err != nil {
		return entry, err
	}
	if err := e.Host.Faults.At(FaultBegun); err != nil {
		return entry, plugins.Uncertain(err)
	}
	req := j.request(target)
	entry.Params, entry.Generation, entry.Found = j.wish.Params, j.wish.Generation, false
	if j.wish.Block {
		return e.mapDevice(ctx, j, req, entry)
	}
	got, err := j.plugin.SetUp(ctx, req)
	if err != nil {
		return entry, e.believe(ctx, j, err)
	}
	if err := e.Host.Faults.At(FaultDone); err != nil {
		return entry, plugins.Uncertain(err)
	}
	if err := e.verify(ctx, target, got, &entry); err != nil {
		return entry, err
	}
	e.publish(j, got.Content)
	return entry, nil
}

// verify checks what a set-up promised and enters it.
func (e *Executor) verify(ctx context.Context, target plugins.Target, got plugins.SetUpResult, entry *asw.PodVolume) error {
	entry.Path, entry.Mounted, entry.MountID = got.Path, got.Mounted, 0
	if entry.Path == "" {
		entry.Path = target.Path
	}
	if !filepath.IsAbs(entry.Path) {
		return plugins.Uncertain(fmt.Errorf("the plugin gave the relative path %q", entry.Path))
	}
	if !got.Mounted && (entry.Path == target.Path || inside(target.Path, entry.Path)) {
		if _, err := os.Lstat(entry.Path); err != nil {
			return plugins.Uncertain(fmt.Errorf("the plugin reported the volume ready: %w", err))
		}
	}
	if got.Mounted {
		if !inside(target.Path, entry.Path) {
			return plugins.Uncertain(fmt.Errorf("the plugin mounted outside of %s", target.Path))
		}
		id, err := e.mountAt(ctx, entry.Path)
		if err != nil {
			return err
		}
		entry.MountID = id
	}
	entry.Attributes = got.Attributes
	entry.ContentVersion, entry.RefreshAt = got.Content.Version, got.Content.RefreshAt
	if got.Size != nil {
		entry.Params.Size = got.Size
	}
	return nil
}

func (j *job) request(target plugins.Target) plugins.SetUpRequest {
	return plugins.SetUpRequest{
		Target: target, Spec: j.wish.Spec, Object: j.wish.Pod,
		Again:      j.entry.State != asw.Absent,
		DevicePath: j.fact.DevicePath, DeviceMountPath: j.fact.DeviceMountPath,
		Params: j.wish.Params, Undo: j.undo(),
	}
}

// refresh renews the content of a live volume. What was there stays if it
// fails, and so does the entry, unless the volume turns out to be lost: then
// it is set up again.
func (e *Executor) refresh(ctx context.Context, j *job) error {
	if j.can.Refresher == nil {
		// What cannot be renewed is never out of date.
		return e.update(j, func(now *asw.PodVolume) {
			now.Generation, now.RefreshAt = j.wish.Generation, time.Time{}
		})
	}
	content, err := j.can.Refresher.Refresh(ctx, j.request(e.Host.Layout.Target(j.step.Volume, j.pod)))
	if err != nil {
		if !leavesNothing(err) && e.lost(ctx, j) {
			return errors.Join(err, e.update(j, func(now *asw.PodVolume) { now.State, now.Since = asw.Uncertain, e.now() }))
		}
		return err
	}
	e.publish(j, content)
	id := j.entry.MountID
	if j.entry.Mounted {
		if at, err := e.mountAt(ctx, j.entry.Path); err == nil {
			id = at // a driver may have mounted anew
		}
	}
	return e.update(j, func(now *asw.PodVolume) {
		now.ContentVersion, now.RefreshAt, now.Generation = content.Version, content.RefreshAt, j.wish.Generation
		now.Names, now.MountID = j.wish.Names, id
	})
}

// lost reports whether a volume that was ready is certainly not there any
// more.
func (e *Executor) lost(ctx context.Context, j *job) bool {
	point, err := e.Host.Mounter.Inspect(ctx, j.entry.Path)
	if err != nil {
		return false
	}
	return !point.Exists || j.entry.Mounted && (!point.Mounted || point.Corrupt != nil)
}

// update changes the entry of a live volume, if it is still there.
func (e *Executor) update(j *job, change func(*asw.PodVolume)) error {
	now, ok := e.Actual.PodVolume(j.step.Volume)
	if !ok || now.ID != j.step.ID {
		return nil
	}
	change(&now)
	return e.Actual.SetPodVolume(now)
}

// expand enlarges a live volume.
func (e *Executor) expand(ctx context.Context, j *job) error {
	if j.can.Expander == nil {
		return errLacks(j.plugin.Name(), "expand volumes")
	}
	size, err := j.can.Expander.Expand(ctx, j.request(e.Host.Layout.Target(j.step.Volume, j.pod)))
	if err != nil {
		return err
	}
	if size.IsZero() && j.wish.Params.Size != nil {
		size, j.idle = j.wish.Params.Size.DeepCopy(), true
	}
	if err := e.update(j, func(now *asw.PodVolume) { now.Params.Size = &size }); err != nil {
		return err
	}
	if wished := j.wish.Params.Size; wished != nil && size.Cmp(*wished) < 0 {
		return plugins.Transientf("the volume has %s after its expansion to %s", size.String(), wished.String())
	}
	return nil
}

// makeParent makes the folder for path's parent, as the kubelet does: 0750.
func makeParent(path string) error {
	if err := makeFolders(filepath.Dir(path)); err != nil {
		return plugins.Transient(fmt.Errorf("make the folder for the volume: %w", err))
	}
	return nil
}

// makeFolders makes a folder and those above it that are missing. It costs less
// to try than to look first.
func makeFolders(path string) error {
	err := os.Mkdir(path, 0o750)
	if errors.Is(err, fs.ErrNotExist) && path != filepath.Dir(path) {
		if err := makeFolders(filepath.Dir(path)); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o750)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
