//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/csi/csitest"
)

const volumeName = "data" // in the pods

// show is what the steps work with. It keeps the objects, as an API server does:
// a new agent is told all of them. With the first error its methods cease to do
// anything.
type show struct {
	dir, mode     string
	died          context.CancelCauseFunc // called when a child ends unexpectedly
	err           error
	driver, agent *child
	volumes       map[string]*volume
	pods          map[string]*pod
	totals        map[string]int // calls by method
}

// volume is a persistent volume and the claim that is bound to it.
type volume struct {
	pv    *v1.PersistentVolume
	claim *v1.PersistentVolumeClaim
}

// pod is a pod and where the agent has made its volume ready.
type pod struct {
	*v1.Pod
	path string
}

func newShow(dir, mode string, died context.CancelCauseFunc) *show {
	return &show{dir: dir, mode: mode, died: died, volumes: map[string]*volume{}, pods: map[string]*pod{}, totals: map[string]int{}}
}

// end kills what still runs.
func (s *show) end() {
	for _, c := range []*child{s.agent, s.driver} {
		if c != nil {
			c.kill()
		}
	}
}

// fail takes in the first error.
func (s *show) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

func (s *show) say(format string, args ...any) {
	if s.err == nil {
		fmt.Println("      " + strings.ReplaceAll(fmt.Sprintf(format, args...), s.dir+"/", ""))
	}
}

// ask asks the agent or the driver.
func (s *show) ask(c *child, r request) (answer reply) {
	if s.err == nil {
		answer, s.err = c.ask(r)
	}
	return answer
}

func (s *show) startDriver(ctx context.Context) {
	if s.err == nil {
		s.driver, s.err = startChild(ctx, s.died, roleDriver, s.dir, s.mode)
	}
	if s.err == nil {
		s.say("driver %s: pid %d", driverName, s.driver.cmd.Process.Pid)
	}
}

// startAgent starts an agent and tells it what there is.
func (s *show) startAgent(ctx context.Context) {
	if s.err == nil {
		s.agent, s.err = startChild(ctx, s.died, roleAgent, s.dir, s.mode)
	}
	for _, v := range s.volumes {
		s.ask(s.agent, request{Do: "apply", PV: v.pv, Claim: v.claim})
	}
	for _, p := range s.pods {
		s.ask(s.agent, request{Do: "apply", Pod: p.Pod})
	}
	s.ask(s.agent, request{Do: "synced"})
	if s.err == nil {
		s.say("agent: pid %d, is told of %d pods and %d volumes, and finds the driver", s.agent.cmd.Process.Pid, len(s.pods), len(s.volumes))
	}
}

// killAgent kills the agent when the driver hangs as it was told to.
func (s *show) killAgent(when string) {
	s.ask(s.driver, request{Do: "reached"})
	if s.err != nil {
		return
	}
	s.say("%s: kill -9 %d, the agent", when, s.agent.cmd.Process.Pid)
	s.agent.kill()
	s.agent = nil
	s.ask(s.driver, request{Do: "agent restarted"})
}

// killDriver likewise kills the driver.
func (s *show) killDriver(when string) {
	s.ask(s.driver, request{Do: "reached"})
	if s.err != nil {
		return
	}
	s.say("%s: kill -9 %d, the driver", when, s.driver.cmd.Process.Pid)
	s.driver.kill()
	s.driver = nil
}

// create makes a volume, and a claim that is bound to it.
func (s *show) create(name string) {
	r := request{Do: "create", Name: name, Size: "64Mi", Mode: s.mode}
	if s.mode == "ext4" || s.mode == "xfs" {
		r.Mode, r.FSType = string(csitest.ModeLoop), s.mode
	}
	if s.mode == "xfs" {
		r.Size = "320Mi" // less is none
	}
	pv := s.ask(s.agent, r).PV
	if s.err != nil {
		return
	}
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("claim-" + name)},
		Spec: v1.PersistentVolumeClaimSpec{
			VolumeName: pv.Name, AccessModes: pv.Spec.AccessModes,
			Resources: v1.VolumeResourceRequirements{Requests: pv.Spec.Capacity.DeepCopy()},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: pv.Spec.Capacity.DeepCopy()},
	}
	pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: name, UID: claim.UID}
	pv.Status.Phase = v1.VolumeBound
	s.volumes[name] = &volume{pv, claim}
	s.say("volume %s: handle %s, %s, %s", name, pv.Spec.CSI.VolumeHandle, pv.Spec.Capacity.Storage(), s.mode)
	s.ask(s.agent, request{Do: "apply", PV: pv, Claim: claim})
}

// grow has the volume's claim request twice of what it has, and waits until it
// has that.
func (s *show) grow(name string) {
	v := s.volumes[name]
	size := v.claim.Status.Capacity.Storage().DeepCopy()
	size.Mul(2)
	v.claim.Spec.Resources.Requests[v1.ResourceStorage] = size
	s.say("volume %s: the claim requests %s", name, &size)
	s.ask(s.agent, request{Do: "apply", Claim: v.claim})
	told := s.ask(s.agent, request{Do: "expanded", Claim: v.claim}).Claim
	if s.err == nil {
		v.claim = told
		v.pv.Spec.Capacity = told.Status.Capacity.DeepCopy() // as a resize controller does
		s.ask(s.agent, request{Do: "apply", PV: v.pv})
	}
}

// add adds a pod with a volume.
func (s *show) add(name, volume string) {
	s.pods[name] = &pod{Pod: &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PodSpec{
			Containers: []v1.Container{{Name: "main", Image: "none", VolumeMounts: []v1.VolumeMount{{Name: volumeName, MountPath: "/data"}}}},
			Volumes: []v1.Volume{{Name: volumeName, VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: volume},
			}}},
		},
	}}
	s.ask(s.agent, request{Do: "apply", Pod: s.pods[name].Pod})
}

// ready waits for pods' volumes.
func (s *show) ready(names ...string) {
	for _, name := range names {
		p := s.pods[name]
		path := s.ask(s.agent, request{Do: "ready", Pod: p.Pod}).Path
		if path != p.path {
			s.say("pod %s is ready: %s", name, path)
		}
		p.path = path
	}
}

func (s *show) remove(names ...string) {
	for _, name := range names {
		s.ask(s.agent, request{Do: "remove", Pod: s.pods[name].Pod})
		delete(s.pods, name)
	}
}

// released waits until a volume is neither mounted nor attached.
func (s *show) released(name string) {
	s.ask(s.agent, request{Do: "released", PV: s.volumes[name].pv})
	s.say("volume %s is neither staged nor attached any more", name)
}

// calls prints the driver's calls since the last time and holds them against
// what they should be.
func (s *show) calls(want ...string) {
	list := s.ask(s.driver, request{Do: "calls"}).Calls
	if s.err != nil {
		return
	}
	for _, c := range list {
		method, _, _ := strings.Cut(c, " ")
		s.totals[method]++
	}
	s.say("CSI calls: %s", strings.Join(list, ", "))
	if !slices.Equal(list, want) {
		s.fail(fmt.Errorf("other CSI calls than there should be; these are %s", strings.Join(want, ", ")))
	}
}

const content = "written by the first pod"

func (s *show) write(name string) {
	if s.err == nil {
		s.say("pod %s writes %q", name, content)
		s.err = os.WriteFile(filepath.Join(s.pods[name].path, "file"), []byte(content), 0o600)
	}
}

func (s *show) read(names ...string) {
	for _, name := range names {
		if s.err != nil {
			return
		}
		text, err := os.ReadFile(filepath.Join(s.pods[name].path, "file"))
		if err == nil && string(text) != content {
			err = fmt.Errorf("pod %s reads %q, not %q", name, text, content)
		}
		if s.fail(err); err == nil {
			s.say("pod %s reads %q", name, text)
		}
	}
}

// size says how large a volume is, and returns what its pod sees of that.
func (s *show) size(name, podName string) (bytes int64) {
	if s.err != nil {
		return 0
	}
	v := s.volumes[name]
	var st syscall.Statfs_t
	if err := syscall.Statfs(s.pods[podName].path, &st); err != nil {
		s.fail(fmt.Errorf("statfs: %w", err))
	}
	bytes = int64(st.Blocks) * int64(st.Bsize) //nolint:unconvert,gosec // other types on other architectures
	what := fmt.Sprintf("its file system has %d MiB", bytes>>20)
	if s.mode == "bind" {
		what = "a bound folder has no size of its own"
	}
	s.say("volume %s: the claim has %s; %s", name, v.claim.Status.Capacity.Storage(), what)
	return bytes
}
