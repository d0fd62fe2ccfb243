package steps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/volumekit/volumekit/asw"
	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/plugins"
)

// setUp makes one volume ready for one pod.
func (e *Executor) setUp(ctx context.Context, j *job) error {
	target := e.Host.Layout.Target(j.step.Volume, j.pod)
	fresh := j.entry.State == asw.Absent
	begun, err := e.begin(ctx, j)
	if err != nil {
		return err
	}
	leave, err := e.folders.enter(ctx, string(target.Volume.Pod))
	if err == nil {
		err = makeParent(target.Path)
		if err == nil {
			err = e.Host.Faults.At("step.begun")
		}
		var done asw.PodVolume
		if err == nil {
			done, err = e.callSetUp(ctx, j, target, begun)
		}
		leave()
		if err == nil {
			done.Since = e.now()
			return e.Actual.SetPodVolume(done)
		}
	}
	if fresh && plugins.ClassOf(err) != plugins.ClassUncertain {
		return joinUnless(err, e.forget(ctx, j)) // the plugin says that nothing is left
	}
	return err
}

// begin records the volume and enters it as uncertain. When it fails, nothing
// else has happened.
func (e *Executor) begin(ctx context.Context, j *job) (asw.PodVolume, error) {
	w, id := j.wish, j.wish.Identity
	if err := w.Volume.Check(); err != nil {
		return asw.PodVolume{}, plugins.Permanent(err)
	}
	if there, ok := e.Actual.PodVolume(w.Volume); ok && there.ID != j.step.ID {
		// One path, two volumes: the persistent volume was made anew, say.
		return asw.PodVolume{}, plugins.Transientf("volume %s is still at this path", there.ID)
	}
	undo := merged(id.Undo, j.fact.Undo)
	err := e.Journal.Put(ctx, journal.Record{
		Key: journal.Key{ID: j.step.ID, Volume: w.Volume},
		Pod: j.pod, Names: w.Names, Block: w.Block,
		Attach: id.Attach, Device: id.Device, Durable: id.Durable, Parallel: id.Parallel, Storage: id.Storage,
		DeviceMountPath: j.fact.DeviceMountPath, Undo: undo,
	})
	if err != nil {
		return asw.PodVolume{}, plugins.Transient(fmt.Errorf("record what undoing will need: %w", err))
	}
	if err := e.Host.Faults.At("step.recorded"); err != nil {
		return asw.PodVolume{}, err
	}
	entry := j.entry // keeps what a live volume looks like until the call returns
	entry.Volume, entry.ID, entry.Pod, entry.Names = w.Volume, j.step.ID, j.pod, w.Names
	entry.Spec, entry.Undo, entry.Block, entry.Params = w.Spec, undo, w.Block, w.Params
	if entry.State != asw.Uncertain {
		entry.State, entry.Since = asw.Uncertain, e.now()
	}
	if err := e.Actual.SetPodVolume(entry); err != nil {
		return entry, plugins.Transient(err)
	}
	e.Actual.SetIdentity(j.step.ID, id, w.Spec)
	return entry, nil
}

// callSetUp hands the volume to the plugin and checks what it promised.
func (e *Executor) callSetUp(ctx context.Context, j *job, target plugins.Target, entry asw.PodVolume) (asw.PodVolume, error) {
	w := j.wish
	req := e.request(j, target)
	entry.Params, entry.Generation, entry.Found = w.Params, w.Generation, false
	if w.Block {
		return e.mapDevice(ctx, j, req, entry)
	}
	got, err := j.plugin.SetUp(ctx, req)
	if err != nil {
		return entry, err
	}
	if err := e.Host.Faults.At("step.done"); err != nil {
		return entry, plugins.Uncertain(err)
	}
	entry.Path, entry.Mounted, entry.MountID = got.Path, got.Mounted, 0
	if entry.Path == "" {
		entry.Path = target.Path
	}
	if got.Mounted {
		if entry.Path != target.Path && !strings.HasPrefix(entry.Path, target.Path+string(filepath.Separator)) {
			return entry, plugins.Uncertain(fmt.Errorf("the plugin mounted outside of %s", target.Path))
		}
		if entry.MountID, err = e.mountAt(ctx, entry.Path); err != nil {
			return entry, err
		}
	}
	entry.Attributes = got.Attributes
	entry.ContentVersion, entry.RefreshAt = got.Content.Version, got.Content.RefreshAt
	e.publish(j, got.Content)
	entry.State = asw.Present
	return entry, nil
}

// mountAt returns the id of the mount at path, or an error if there is none
// that works.
func (e *Executor) mountAt(ctx context.Context, path string) (uint64, error) {
	point, err := e.Host.Mounter.Inspect(ctx, path)
	switch {
	case err != nil:
		return 0, plugins.Uncertain(fmt.Errorf("check the mount: %w", err))
	case point.Corrupt != nil:
		return 0, plugins.Uncertain(fmt.Errorf("the mount at %s is dead: %w", path, point.Corrupt))
	case !point.Mounted:
		return 0, plugins.Uncertain(fmt.Errorf("%w: %s", errNoMount, path))
	}
	return point.MountID, nil
}

func (e *Executor) request(j *job, target plugins.Target) plugins.SetUpRequest {
	return plugins.SetUpRequest{
		Target: target, Spec: j.wish.Spec, Object: j.wish.Pod,
		Again:      j.entry.State != asw.Absent,
		DevicePath: j.fact.DevicePath, DeviceMountPath: j.fact.DeviceMountPath,
		Params: j.wish.Params, Undo: merged(j.wish.Identity.Undo, j.fact.Undo),
	}
}

// mapDevice makes a raw block device ready and links it where the pod's
// runtime looks for it.
func (e *Executor) mapDevice(ctx context.Context, j *job, req plugins.SetUpRequest, entry asw.PodVolume) (asw.PodVolume, error) {
	if j.can.BlockMapper == nil {
		return entry, errLacks(j.plugin.Name(), "hand out block devices")
	}
	got, err := j.can.BlockMapper.MapDevice(ctx, req)
	if err != nil {
		return entry, err
	}
	link := e.Host.Layout.PodDevice(j.step.Volume)
	if err := makeParent(link); err != nil {
		return entry, plugins.Uncertain(err)
	}
	if old, err := os.Readlink(link); err != nil || old != got.DevicePath {
		next := link + ".next"
		_ = os.Remove(next)
		if err := errors.Join(os.Symlink(got.DevicePath, next), os.Rename(next, link)); err != nil {
			return entry, plugins.Uncertain(fmt.Errorf("link the device: %w", err))
		}
	}
	entry.Path, entry.Attributes, entry.State = link, got.Attributes, asw.Present
	return entry, nil
}

// refresh renews the content of a live volume. What was there stays if it
// fails, and so does the entry.
func (e *Executor) refresh(ctx context.Context, j *job) error {
	if j.can.Refresher == nil {
		return errLacks(j.plugin.Name(), "refresh content")
	}
	content, err := j.can.Refresher.Refresh(ctx, e.request(j, e.Host.Layout.Target(j.step.Volume, j.pod)))
	if err != nil {
		return err
	}
	e.publish(j, content)
	now, ok := e.Actual.PodVolume(j.step.Volume)
	if !ok {
		return nil
	}
	now.ContentVersion, now.RefreshAt, now.Generation = content.Version, content.RefreshAt, j.wish.Generation
	now.Names = j.wish.Names
	return e.Actual.SetPodVolume(now)
}

// expand enlarges a live volume.
func (e *Executor) expand(ctx context.Context, j *job) error {
	if j.can.Expander == nil {
		return errLacks(j.plugin.Name(), "expand volumes")
	}
	size, err := j.can.Expander.Expand(ctx, e.request(j, e.Host.Layout.Target(j.step.Volume, j.pod)))
	if err != nil {
		return err
	}
	now, ok := e.Actual.PodVolume(j.step.Volume)
	if !ok {
		return nil
	}
	now.Params.Size = &size
	return e.Actual.SetPodVolume(now)
}

// tearDown takes a pod's volume away.
func (e *Executor) tearDown(ctx context.Context, j *job) error {
	target := e.Host.Layout.Target(j.step.Volume, j.pod)
	if err := target.Volume.Check(); err != nil {
		return plugins.Permanent(err)
	}
	entry := j.entry
	if entry.State == asw.Present {
		entry.State, entry.Since = asw.Uncertain, e.now()
		if err := e.Actual.SetPodVolume(entry); err != nil {
			return err
		}
	}
	req := plugins.TearDownRequest{
		Target: target, Undo: entry.Undo, Block: entry.Block,
		DeviceMountPath: j.fact.DeviceMountPath, Lazy: j.step.Lazy,
	}
	if err := e.callTearDown(ctx, j, req); err != nil {
		return err
	}
	if err := e.Host.Faults.At("step.undone"); err != nil {
		return plugins.Uncertain(err)
	}
	return e.forget(ctx, j)
}

func (e *Executor) callTearDown(ctx context.Context, j *job, req plugins.TearDownRequest) error {
	if req.Block {
		if j.can.BlockMapper == nil {
			return errLacks(j.plugin.Name(), "give back block devices")
		}
		if err := os.Remove(e.Host.Layout.PodDevice(j.step.Volume)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return plugins.Uncertain(fmt.Errorf("remove the link to the device: %w", err))
		}
		return j.can.BlockMapper.UnmapDevice(ctx, req)
	}
	if err := j.plugin.TearDown(ctx, req); err != nil {
		return err
	}
	// Trust the plugin's word only as far as it can be seen.
	point, err := e.Host.Mounter.Inspect(ctx, req.Path)
	if err != nil {
		return plugins.Uncertain(fmt.Errorf("check that the volume is gone: %w", err))
	}
	if point.Mounted {
		return plugins.Uncertain(fmt.Errorf("the plugin reported the volume gone, but a mount is still at %s", req.Path))
	}
	return nil
}

// forget drops the record, the entry and the pod's empty folders. The volume
// is gone, so the end of ctx is no reason to leave the books wrong.
func (e *Executor) forget(ctx context.Context, j *job) error {
	ctx = context.WithoutCancel(ctx)
	key := journal.Key{ID: j.step.ID, Volume: j.step.Volume}
	durable := j.fact.Identity.Durable || j.wish.Identity.Durable
	if err := e.Journal.Delete(ctx, key, durable); err != nil {
		return plugins.Uncertain(fmt.Errorf("drop the record: %w", err))
	}
	e.Actual.RemovePodVolume(j.step.Volume)
	if other, ok := e.Desired.IDOf(j.step.Volume); ok && other != j.step.ID && e.Wake != nil {
		e.Wake(other)
	}
	e.RemovePodFolder(j.step.Volume.Pod)
	return nil
}

// makeParent makes the folder for path's parent, as the kubelet does: 0750.
func makeParent(path string) error {
	parent := filepath.Dir(path)
	if info, err := os.Lstat(parent); err == nil && info.IsDir() {
		return nil // to look costs less than to try to make what exists
	}
	err := os.Mkdir(parent, 0o750)
	switch {
	case err == nil || errors.Is(err, fs.ErrExist):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		err = os.MkdirAll(parent, 0o750)
	}
	if err != nil {
		return plugins.Transient(fmt.Errorf("make the folder for the volume: %w", err))
	}
	return nil
}

func merged(a, b plugins.Undo) plugins.Undo {
	if len(b) == 0 {
		return a
	}
	m := maps.Clone(a)
	if m == nil {
		m = plugins.Undo{}
	}
	maps.Copy(m, b)
	return m
}

// rmdir removes an empty folder and nothing else.
func rmdir(path string) error { return syscall.Rmdir(path) }
