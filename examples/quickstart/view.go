package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/volumemanager"
)

// console prints lines, and on a terminal a last line that is written over.
type console struct {
	mu     sync.Mutex
	out    io.Writer
	live   bool
	status string
}

func newConsole(f *os.File) *console {
	return &console{out: f, live: term.IsTerminal(int(f.Fd()))}
}

// line prints a line for good.
func (c *console) line(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.erase()
	fmt.Fprintf(c.out, format+"\n", args...)
	c.draw()
}

// progress replaces the last line on a terminal, or prints a plain line when
// it is new.
func (c *console) progress(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if text == c.status {
		return
	}
	c.erase()
	c.status = text
	if !c.live && text != "" {
		fmt.Fprintln(c.out, text)
	}
	c.draw()
}

func (c *console) clear() { c.progress("") }

func (c *console) erase() {
	if c.live && c.status != "" {
		fmt.Fprint(c.out, "\r\x1b[K")
	}
}

func (c *console) draw() {
	if c.live && c.status != "" {
		fmt.Fprint(c.out, c.status)
	}
}

// progress shows how far the pods are until ctx ends or all are ready.
func (a *agent) progress(ctx context.Context, pods []*v1.Pod) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ready, waiting := 0, []string{}
		for _, pod := range pods {
			status, _ := a.manager.Status(pod)
			if status.Ready {
				ready++
				continue
			}
			for _, v := range status.Volumes {
				if !v.Ready {
					waiting = append(waiting, pod.Name+"/"+v.Name+" "+string(v.Phase))
				}
			}
		}
		text := fmt.Sprintf("%d/%d pods ready", ready, len(pods))
		if len(waiting) > 0 {
			text += "; " + strings.Join(waiting[:min(len(waiting), 3)], ", ")
		}
		a.out.progress(text)
	}
}

// onlyUnsupported reports whether nothing but what this user or kernel cannot
// mount keeps the pod from being ready.
func onlyUnsupported(status volumemanager.PodStatus) bool {
	missing := 0
	for _, v := range status.Volumes {
		if v.Ready {
			continue
		}
		if v.Class != plugins.ClassUnsupported {
			return false
		}
		missing++
	}
	return missing > 0
}

// tree prints what the pod's containers would see.
func (a *agent) tree(pod *v1.Pod) {
	status, _ := a.manager.Status(pod)
	mounted := a.manager.MountedVolumes(pod)
	a.out.line("")
	a.out.line("pod %s/%s", pod.Namespace, pod.Name)
	for _, c := range pod.Spec.Containers {
		for _, m := range c.VolumeMounts {
			a.volume(pod, m, mounted[m.Name], status)
		}
	}
	if status.Message != "" {
		a.out.line("  %s", status.Message)
	}
}

func (a *agent) volume(pod *v1.Pod, m v1.VolumeMount, v volumemanager.MountedVolume, status volumemanager.PodStatus) {
	kind := kindOf(pod, m.Name)
	if v.Path == "" {
		i := slices.IndexFunc(status.Volumes, func(s volumemanager.VolumeStatus) bool { return s.Name == m.Name })
		word, why := "missing", ""
		if i >= 0 {
			why = status.Volumes[i].Message
			if status.Volumes[i].Class == plugins.ClassUnsupported {
				word = "skipped"
			}
		}
		a.out.line("  %-40s %-12s %s: %s", m.MountPath, kind, word, why)
		return
	}
	point, err := a.mounter.Inspect(context.Background(), v.Path)
	access := "rw"
	if v.ReadOnly || m.ReadOnly {
		access = "ro"
	}
	a.out.line("  %-40s %-12s %-4s %s", m.MountPath, kind, access, describe(v.Path, point, err))
	if kind == "hostPath" || kind == "persistentVolumeClaim" {
		return // the node's own files are no news
	}
	for _, name := range files(v.Path) {
		info, err := os.Stat(filepath.Join(v.Path, name))
		if err != nil {
			continue
		}
		a.out.line("    %-38s %-12s %6d B", name, info.Mode(), info.Size())
	}
}

// describe says what is at the volume's path.
func describe(path string, point mount.Point, err error) string {
	info, statErr := os.Stat(path)
	switch {
	case err != nil:
		return err.Error()
	case statErr != nil:
		return statErr.Error()
	case point.Mounted:
		return fmt.Sprintf("%s %s, %s", info.Mode(), cmp.Or(point.FSType, "mount"), size(path))
	}
	return info.Mode().String()
}

// files lists the files of a volume as a container sees them, without the
// parts that serve its atomic updates.
func files(root string) []string {
	var list []string
	const enough = 20
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			return
		}
		for _, e := range entries {
			name := filepath.Join(dir, e.Name())
			if dir == "" && strings.HasPrefix(e.Name(), "..") || len(list) >= enough {
				continue
			}
			info, err := os.Stat(filepath.Join(root, name))
			if err == nil && info.IsDir() {
				walk(name)
			} else if err == nil || !os.IsNotExist(err) {
				list = append(list, name)
			}
		}
	}
	walk("")
	return list
}

func kindOf(pod *v1.Pod, name string) string {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Name == name {
			if v.PersistentVolumeClaim != nil {
				return "persistentVolumeClaim"
			}
			return (&plugins.Spec{Volume: v}).Kind()
		}
	}
	return "?"
}

func sortPods(list []*v1.Pod) {
	slices.SortFunc(list, func(a, b *v1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}
