//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/plugins"
)

// run runs the steps. Each goes on with what the one before it has left.
func (s *show) run(ctx context.Context) error {
	fmt.Printf("mode %s; paths are below %s, which only this program's processes see\n", s.mode, s.dir)
	steps := []struct {
		title string
		do    func(ctx context.Context)
	}{
		{"start a CSI driver, and an agent in whose folder plugins_registry it registers", s.begin},
		{"create a volume by the driver's controller and give it to two pods", s.use},
		{"let the claim request more", s.expand},
		{"kill the agent while the driver publishes the volume to a third pod", s.killDuringPublish},
		{"kill the driver when it has staged another volume and not yet said so", s.killAfterStage},
		{"remove all pods, kill the agent between unpublish and unstage", s.killBeforeUnstage},
		{"use the first volume again", s.useAgain},
		{"delete the volumes, stop agent and driver, look what is left", s.finish},
	}
	for i, step := range steps {
		fmt.Printf("[%d/%d] %s\n", i+1, len(steps), step.title)
		if step.do(ctx); s.err != nil {
			return fmt.Errorf("step %d (%s): %w", i+1, step.title, s.err)
		}
	}
	return nil
}

func (s *show) begin(ctx context.Context) {
	registry := plugins.Layout{Root: rootDir(s.dir)}.RegistryDir()
	s.fail(errors.Join(os.MkdirAll(registry, 0o750), os.Mkdir(driverDir(s.dir), 0o750)))
	s.startDriver(ctx)
	s.startAgent(ctx)
}

func (s *show) use(context.Context) {
	s.create("first")
	s.add("writer", "first")
	s.add("reader", "first")
	s.ready("writer", "reader")
	s.calls("CreateVolume", "ValidateVolumeCapabilities", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "NodePublishVolume")
	s.write("writer")
	s.read("reader")
}

func (s *show) expand(context.Context) {
	before := s.size("first", "writer")
	s.grow("first")
	s.calls("ControllerExpandVolume", "NodeExpandVolume")
	if after := s.size("first", "writer"); after <= before && s.mode != "bind" {
		s.fail(errors.New("the volume has not grown"))
	}
	s.read("reader")
}

// killDuringPublish: the driver goes on when the agent is dead, and mounts
// something for nobody. The next agent makes all calls of this volume again, with
// the same arguments: that confirms what is there and makes what is not.
func (s *show) killDuringPublish(ctx context.Context) {
	before := s.mounts(ctx, "writer", "reader")
	s.ask(s.driver, request{Do: "hang", Name: "NodePublishVolume"})
	s.add("third", "first")
	s.killAgent("the driver hangs in NodePublishVolume")
	s.startAgent(ctx)
	s.ask(s.driver, request{Do: "release"})
	s.ready("writer", "reader", "third")
	s.calls("NodePublishVolume", // of the killed one
		"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "NodePublishVolume", "NodePublishVolume")
	if after := s.mounts(ctx, "writer", "reader"); !slices.Equal(before, after) {
		s.fail(fmt.Errorf("the mounts of running pods have changed: %v, %v", before, after))
	}
	s.say("that the new agent repeated calls changed nothing: pods writer and reader have the mounts that they had (ids %v)", before)
	s.read("writer", "reader", "third")
}

// killAfterStage: the answer is lost, so that the agent cannot know what was
// done. It asks again when the driver is back.
func (s *show) killAfterStage(ctx context.Context) {
	s.create("second")
	s.ask(s.driver, request{Do: "hang", Name: "NodeStageVolume", After: true})
	s.add("other", "second")
	s.ask(s.driver, request{Do: "reached"})
	s.calls("CreateVolume", "ValidateVolumeCapabilities", "ControllerPublishVolume", "NodeStageVolume (no answer)")
	s.killDriver("the driver hangs at the end of NodeStageVolume")
	s.say("of pod other the agent says: %s", s.ask(s.agent, request{Do: "failing", Pod: s.pods["other"].Pod}).Text)
	s.read("reader") // mounts do not need the driver
	s.startDriver(ctx)
	s.ready("other")
	s.calls("NodeStageVolume", "NodePublishVolume")
}

// killBeforeUnstage: the next agent knows from the journal what is left, though
// no pod wants it.
func (s *show) killBeforeUnstage(ctx context.Context) {
	s.remove("other")
	s.released("second")
	s.calls("NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume")
	s.ask(s.driver, request{Do: "block", Name: "NodeUnstageVolume"})
	s.remove("writer", "reader", "third")
	s.killAgent("the driver blocks NodeUnstageVolume")
	s.startAgent(ctx)
	s.released("first")
	s.calls("NodeUnpublishVolume", "NodeUnpublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume (Canceled)",
		"NodeUnstageVolume", "ControllerUnpublishVolume")
}

func (s *show) useAgain(context.Context) {
	s.add("late", "first")
	s.ready("late")
	if s.mode == "tmpfs" {
		s.say("what was in it has gone with its last mount, for it is a tmpfs")
	} else {
		s.read("late")
	}
	s.size("first", "late")
	s.remove("late")
	s.released("first")
	s.calls("ValidateVolumeCapabilities", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume",
		"NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume")
}

func (s *show) finish(ctx context.Context) {
	for _, name := range slices.Sorted(maps.Keys(s.volumes)) {
		s.ask(s.agent, request{Do: "delete", PV: s.volumes[name].pv})
	}
	s.calls("DeleteVolume", "DeleteVolume")
	if s.err != nil {
		return
	}
	s.fail(errors.Join(s.agent.stop(), s.driver.stop()))
	s.agent, s.driver = nil, nil
	left, err := leftovers(ctx, s.dir)
	s.fail(err)
	if len(left) > 0 {
		s.fail(fmt.Errorf("left: %s", strings.Join(left, ", ")))
	}
	s.say("left: no mount, no loop device, no record in the journal, no file in the root, no volume of the driver")
	s.say("CSI calls in all: %s", counts(s.totals))
}

func counts(totals map[string]int) string {
	list := make([]string, 0, len(totals))
	for _, method := range slices.Sorted(maps.Keys(totals)) {
		list = append(list, fmt.Sprintf("%s %d", method, totals[method]))
	}
	return strings.Join(list, ", ")
}

// mounts are the kernel's numbers of pods' mounts.
func (s *show) mounts(ctx context.Context, names ...string) (ids []uint64) {
	table, err := hostmount.New(hostmount.Options{}).Table(ctx)
	s.fail(err)
	for _, name := range names {
		entry, mounted := table.At(s.pods[name].path)
		if !mounted {
			s.fail(fmt.Errorf("nothing is mounted for pod %s", name))
		}
		ids = append(ids, entry.ID)
	}
	return ids
}

// leftovers looks for what should not be there when all volumes are gone.
func leftovers(ctx context.Context, dir string) (left []string, err error) {
	table, err := hostmount.New(hostmount.Options{}).Table(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range table.Below(dir) {
		left = append(left, "mount "+m.Target)
	}
	devices, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, d := range devices {
		if text, err := os.ReadFile(d); err == nil && strings.HasPrefix(string(text), dir) {
			left = append(left, "loop device "+strings.Split(d, "/")[3])
		}
	}
	layout := plugins.Layout{Root: rootDir(dir)}
	records, err := journal.Read(layout.StateDir())
	if err != nil {
		return nil, err
	}
	for _, r := range records.Records {
		left = append(left, fmt.Sprintf("record of %s", r.ID))
	}
	volumes, err := csitest.ReadState(driverDir(dir))
	if err != nil {
		return nil, err
	}
	for _, v := range volumes {
		left = append(left, "volume "+v.ID)
	}
	// Folders that belong to no volume stay, and the state folder with the
	// journal.
	err = filepath.WalkDir(layout.Root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == layout.StateDir():
			return fs.SkipDir
		case !d.IsDir():
			left = append(left, path)
		}
		return nil
	})
	return left, err
}
