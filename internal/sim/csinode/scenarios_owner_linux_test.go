package csinode_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/volumekit/volumekit/csi"
	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/reconciler"
	"github.com/volumekit/volumekit/volumemanager"
)

// fakeOwner stands before a real mounter and notes who is to own what.
type fakeOwner struct {
	*hostmount.Mounter
	mu    sync.Mutex
	calls []string
	// answer is asked for each call; nil succeeds.
	answer func(ctx context.Context) error
}

// stand puts it before the host's mounter.
func (f *fakeOwner) stand(c *csi.Config) {
	if m, ok := c.Host.Mounter.(*hostmount.Mounter); ok {
		f.Mounter, c.Host.Mounter = m, f
	}
}

func (f *fakeOwner) SetGroup(ctx context.Context, root string, o mount.Ownership) error {
	f.mu.Lock()
	f.calls = append(f.calls, fmt.Sprintf("%s to %d, root alone %v", filepath.Base(filepath.Dir(root)), o.Group, o.OnRootMismatch))
	answer := f.answer
	f.mu.Unlock()
	if answer == nil {
		return nil
	}
	return answer(ctx)
}

func (f *fakeOwner) told() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func (f *fakeOwner) will(answer func(ctx context.Context) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

// grouped gives a pod an fsGroup.
func grouped(pod *v1.Pod, change ...func(*v1.PodSecurityContext)) *v1.Pod {
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr(int64(1234))}
	for _, f := range change {
		f(pod.Spec.SecurityContext)
	}
	return pod
}

// Whether the files are given to the pod's group say the driver's policy, the
// persistent volume and the pod.
func TestGroupPolicies(t *testing.T) {
	type policy = *storagev1.FSGroupPolicy
	none, file, once := ptr(storagev1.NoneFSGroupPolicy), ptr(storagev1.FileFSGroupPolicy), ptr(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	const rwo, rwop, rox, rwx = v1.ReadWriteOnce, v1.ReadWriteOncePod, v1.ReadOnlyMany, v1.ReadWriteMany
	for name, c := range map[string]struct {
		object   bool
		policy   policy
		modes    []v1.PersistentVolumeAccessMode
		fsType   string
		readOnly bool
		alone    bool // no group
		want     bool
	}{
		"default, no group":           {modes: modesOf(rwo), fsType: "ext4", alone: true},
		"default, no fs type":         {modes: modesOf(rwo)},
		"default, many writers":       {modes: modesOf(rwx), fsType: "ext4"},
		"default, many readers":       {modes: modesOf(rox), fsType: "ext4"},
		"default, read-only":          {modes: modesOf(rwo), fsType: "ext4", readOnly: true},
		"default, once":               {modes: modesOf(rwo), fsType: "ext4", want: true},
		"default, one pod":            {modes: modesOf(rwop), fsType: "ext4", want: true},
		"unset, once":                 {object: true, modes: modesOf(rwo), fsType: "ext4", want: true},
		"once, once":                  {object: true, policy: once, modes: modesOf(rwo), fsType: "ext4", want: true},
		"once, no group":              {object: true, policy: once, modes: modesOf(rwo), fsType: "ext4", alone: true},
		"once, no fs type":            {object: true, policy: once, modes: modesOf(rwo)},
		"once, read-only":             {object: true, policy: once, modes: modesOf(rwo), fsType: "ext4", readOnly: true},
		"once, many writers":          {object: true, policy: once, modes: modesOf(rwx), fsType: "ext4"},
		"none":                        {object: true, policy: none, modes: modesOf(rwo), fsType: "ext4"},
		"file, many writers, no type": {object: true, policy: file, modes: modesOf(rwx), want: true},
		"file, read-only":             {object: true, policy: file, modes: modesOf(rwo), fsType: "ext4", readOnly: true},
		"file, no group":              {object: true, policy: file, modes: modesOf(rwo), fsType: "ext4", alone: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owner := &fakeOwner{}
			r := newRig(t, settings{csi: owner.stand, driver: func(d *csitest.Config) { staged(d); d.Mode = csitest.ModeBind }})
			if c.object {
				r.csiDriver(func(s *storagev1.CSIDriverSpec) { s.FSGroupPolicy = c.policy })
			}
			r.volume("data", modes(c.modes...), func(pv *v1.PersistentVolume) { pv.Spec.CSI.FSType = c.fsType })
			pod := podOf("one", "data")
			if !c.alone {
				grouped(pod)
			}
			pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = c.readOnly
			r.up(pod)
			var want []string
			if c.want {
				want = []string{"data to 1234, root alone false"}
			}
			if got := owner.told(); !slices.Equal(got, want) {
				t.Errorf("given away: %q, want %q", got, want)
			}
			// The call said nothing of it: a driver without the capability has no group.
			if r.count("NodePublishVolume") != 1 {
				t.Errorf("calls %v", r.calls())
			}
		})
	}
}

func modesOf(list ...v1.PersistentVolumeAccessMode) []v1.PersistentVolumeAccessMode { return list }

// An inline volume of a driver whose policy is the default counts as one for a
// single node; its policy OnRootMismatch is passed on.
func TestGroupOfInlineVolumes(t *testing.T) {
	t.Parallel()
	owner := &fakeOwner{}
	r := newRig(t, settings{csi: owner.stand, checker: inlineOnly, driver: staged})
	r.csiDriver(inlineAllowed)
	with := grouped(inlined("with", func(s *v1.CSIVolumeSource) { s.FSType = ptr("ext4") }), func(c *v1.PodSecurityContext) {
		c.FSGroupChangePolicy = ptr(v1.FSGroupChangeOnRootMismatch)
	})
	r.up(with)
	r.up(grouped(inlined("without")))
	if got := owner.told(); !slices.Equal(got, []string{"scratch to 1234, root alone true"}) {
		t.Errorf("given away: %q", got)
	}
}

// The files really are the group's then, in a volume that the driver has filled.
func TestGroupOnDisk(t *testing.T) {
	t.Parallel()
	if !nstest.RealRoot() {
		t.Skip("another group's files need the root user")
	}
	r := newRig(t, settings{driver: func(d *csitest.Config) { staged(d); d.Mode = csitest.ModeBind }})
	r.volume("data")
	plain := podOf("plain", "data")
	r.up(plain)
	r.must(os.MkdirAll(r.path(plain, "data", "deep"), 0o700))
	r.must(os.WriteFile(r.path(plain, "data", "deep/file"), nil, 0o600))
	r.down(plain)
	pod := grouped(podOf("one", "data"))
	r.up(pod)
	for name, bits := range map[string]uint32{"": 0o2770, "deep": 0o2770, "deep/file": 0o660} {
		var s unix.Stat_t
		if err := unix.Stat(r.path(pod, "data", name), &s); err != nil || s.Gid != 1234 || s.Mode&bits != bits {
			t.Errorf("%q: group %d, mode %o, %v", name, s.Gid, s.Mode, err)
		}
	}
}

// A volume whose files cannot be given away is published, and is not forgotten:
// it is tried again, and undone when its pod goes.
func TestGroupThatFails(t *testing.T) {
	t.Parallel()
	owner := &fakeOwner{answer: func(context.Context) error { return errors.New("no room for that") }}
	r := newRig(t, settings{csi: owner.stand, driver: staged})
	r.volume("data")
	pod := grouped(podOf("one", "data"))
	r.add(pod)
	r.fails(pod, "give the volume to group 1234: no room for that")
	if got := r.failure(pod); !strings.HasPrefix(got, "uncertain: ") || strings.Contains(got, "nothing was left") {
		t.Error(got)
	}
	for _, path := range []string{r.path(pod, "data"), filepath.Join(filepath.Dir(r.path(pod, "data")), "vol_data.json")} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
	if n := r.count("NodeUnpublishVolume"); n > 0 {
		t.Errorf("unpublished %d times", n)
	}
	owner.will(nil)
	r.ready(pod)
	owner.will(func(context.Context) error { return errors.New("no room for that") })
	two := grouped(podOf("two", "data"))
	r.add(two)
	r.fails(two, "no room for that")
	r.driver.ResetCalls()
	r.down(two)
	r.want("NodeUnpublishVolume handle-data")
}

// A change of ownership that is broken off, by the end of the pod or of the
// manager, leaves a volume that the next one finishes or takes away.
func TestGroupWhileThePodGoes(t *testing.T) {
	for _, how := range []string{"pod", "deadline", "manager", "manager and pod"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			begun, release := make(chan struct{}, 100), make(chan struct{})
			owner := &fakeOwner{answer: func(ctx context.Context) error {
				begun <- struct{}{}
				select {
				case <-ctx.Done():
				case <-release:
					return nil
				}
				return context.Cause(ctx)
			}}
			s := settings{csi: owner.stand, driver: staged}
			if how == "deadline" {
				s.manager = func(c *volumemanager.Config) {
					c.Steps.Deadline = func(reconciler.Step) time.Duration { return time.Second }
				}
			}
			r := newRig(t, s)
			r.volume("data")
			pod := grouped(podOf("one", "data"))
			r.add(pod)
			<-begun
			if how == "pod" || how == "deadline" {
				r.pods.Remove(pod.UID)
				if how == "pod" { // a step that has begun is not broken off
					close(release)
				}
				r.down(pod)
				r.released()
				r.want("NodeStageVolume handle-data", "NodePublishVolume handle-data", "NodeUnpublishVolume handle-data", "NodeUnstageVolume handle-data")
				return
			}
			r.stop()
			owner.will(nil)
			if how == "manager and pod" {
				r.pods.Remove(pod.UID)
			}
			r.driver.ResetCalls()
			r.checker.COrestarted()
			r.start()
			if how == "manager" {
				r.ready(pod)
				if n := len(owner.told()); n != 2 {
					t.Errorf("given away %d times: %q", n, owner.told())
				}
				return
			}
			r.until("it is undone", func() bool { return slices.Contains(r.calls(), "NodeUnstageVolume handle-data") })
			r.released()
		})
	}
}

// A mounter that cannot do it says so, and nothing is mounted meanwhile that
// would have the wrong owner.
func TestGroupThatNobodyCanSet(t *testing.T) {
	t.Parallel()
	r := newRig(t, settings{driver: staged, csi: func(c *csi.Config) { c.Host.Mounter = struct{ mount.Mounter }{c.Host.Mounter} }})
	r.volume("data")
	pod := grouped(podOf("one", "data"))
	r.add(pod)
	r.fails(pod, "fsGroup")
	if got := r.failure(pod); !strings.HasPrefix(got, "unsupported: ") {
		t.Error(got)
	}
	if n := r.count("NodePublishVolume"); n > 0 {
		t.Errorf("published %d times", n)
	}
	r.down(pod)
	r.released()
}
