package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/reconciler/steps"
	"github.com/volumekit/volumekit/volumemanager"
)

// row is a line of the tree: a volume or a file in it, or instead of what it
// is, why it is not there.
type row struct {
	path, kind, size, mode, mount string
	why                           string
}

// The widths of all columns but the first and the last.
const (
	kindWidth = 11
	sizeWidth = 8
	modeWidth = 10
	// mountWidth is what the last column should have on a terminal.
	mountWidth = 20
)

// trees prints what the containers of all pods see.
func (a *agent) trees(pods []*v1.Pod) {
	width := 0
	all := make([][]row, len(pods))
	for i, pod := range pods {
		all[i] = a.rows(pod)
		width = max(width, widest(all[i]))
	}
	head := row{path: "  CONTAINER PATH", kind: "KIND", size: "SIZE", mode: "MODE", mount: "MOUNT"}
	width = a.fit(max(width, len(head.path)))
	for i, pod := range pods {
		text := fmt.Sprintf("\npod %s/%s\n%s", pod.Namespace, pod.Name, a.lines(all[i], width))
		if i == 0 {
			text = "\n" + head.text(width, 0) + text
		}
		a.out.line("%s", text)
	}
}

// tree prints what the containers of one pod see.
func (a *agent) tree(pod *v1.Pod) {
	rows := a.rows(pod)
	a.out.line("%s", a.lines(rows, a.fit(widest(rows))))
}

func widest(rows []row) (width int) {
	for _, r := range rows {
		width = max(width, len([]rune(r.path)))
	}
	return width
}

// fit is how wide the first column may be on a terminal.
func (a *agent) fit(width int) int {
	columns := a.out.width()
	if columns == 0 {
		return width
	}
	return min(width, max(20, columns-kindWidth-sizeWidth-modeWidth-mountWidth-8))
}

func (a *agent) lines(rows []row, width int) string {
	lines := make([]string, len(rows))
	for i, r := range rows {
		lines[i] = r.text(width, a.out.width())
	}
	return strings.Join(lines, "\n")
}

// text is the row as a line, with another before it where the path is longer
// than its column, and others after it that say why the volume is not there.
func (r row) text(width, columns int) string {
	head := fmt.Sprintf("%-*s", width, r.path)
	if len([]rune(r.path)) > width {
		head = r.path + "\n" + strings.Repeat(" ", width)
	}
	line := strings.TrimRight(fmt.Sprintf("%s  %-*s  %*s  %-*s  %s", head,
		kindWidth, r.kind, sizeWidth, r.size, modeWidth, r.mode, r.mount), " ")
	if r.why != "" {
		const indent = 4
		line += "\n" + strings.Repeat(" ", indent) + wrap(r.why, columns, indent)
	}
	return line
}

// rows are the lines of one pod.
func (a *agent) rows(pod *v1.Pod) (list []row) {
	status, _ := a.manager.Status(pod)
	mounted := a.manager.MountedVolumes(pod)
	used := map[string]bool{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		prefix := "  "
		if len(pod.Spec.InitContainers)+len(pod.Spec.Containers) > 1 {
			prefix += c.Name + ":"
		}
		for _, m := range c.VolumeMounts {
			r := row{path: prefix + m.MountPath, kind: kindOf(pod, m.Name)}
			list = append(list, a.volume(r, m, mounted[m.Name], status)...)
			used[m.Name] = true
		}
		for _, d := range c.VolumeDevices {
			r := row{path: prefix + d.DevicePath, kind: kindOf(pod, d.Name)}
			list = append(list, a.volume(r, v1.VolumeMount{Name: d.Name}, mounted[d.Name], status)...)
			used[d.Name] = true
		}
	}
	for _, v := range pod.Spec.Volumes {
		if !used[v.Name] {
			list = append(list, row{path: "  (" + v.Name + ")", kind: kindOf(pod, v.Name), why: "no container mounts it, so it is not made"})
		}
	}
	if status.Message != "" {
		list = append(list, row{path: "  (the pod)", why: status.Message})
	}
	if len(list) == 0 {
		list = append(list, row{path: "  (no volumes)"})
	}
	return list
}

// volume is the row for a volume that a container mounts, and those of the
// files in it.
func (a *agent) volume(r row, m v1.VolumeMount, v volumemanager.MountedVolume, status volumemanager.PodStatus) []row {
	if v.Path == "" {
		r.why = whyNot(m.Name, status)
		return []row{r}
	}
	info, err := os.Stat(v.Path)
	point, inspectErr := a.mounter.Inspect(context.Background(), v.Path)
	if err = errors.Join(err, inspectErr); err != nil {
		r.why = err.Error()
		return []row{r}
	}
	r.mount = "rw "
	if v.ReadOnly || m.ReadOnly {
		r.mount = "ro "
	}
	ours := mount.Inside(a.root, v.Path)
	r.mode = modeText(info.Mode())
	switch {
	case !ours:
		r.mount += "node:" + v.Path
	case point.Mounted:
		r.mount += cmp.Or(point.FSType, "mount")
		r.size = bytesText(size(v.Path))
	case info.IsDir():
		r.mount += "folder"
	default:
		r.mount += "file"
	}
	list := []row{r}
	if !ours {
		return list // the node's own files are no news
	}
	names, more := files(v.Path)
	for _, name := range names {
		if info, err := os.Stat(filepath.Join(v.Path, name)); err == nil {
			list = append(list, row{path: "    " + name, size: bytesText(info.Size()), mode: modeText(info.Mode())})
		}
	}
	if more {
		list = append(list, row{path: "    ..."})
	}
	return list
}

// whyNot says why a volume is not ready.
func whyNot(name string, status volumemanager.PodStatus) string {
	i := slices.IndexFunc(status.Volumes, func(s volumemanager.VolumeStatus) bool { return s.Name == name })
	if i < 0 {
		return "not ready"
	}
	v := status.Volumes[i]
	word := strings.ToLower(string(cmp.Or(v.Code, volumemanager.Code(v.Phase))))
	switch {
	case v.Class == plugins.ClassUnsupported:
		word = "skipped"
	case v.Class == plugins.ClassPermanent:
		word = "failed"
	case v.Err != nil && !v.NextTry.IsZero():
		word = "failed, is tried again"
	}
	var waiting *plugins.WaitingError
	if errors.As(v.Err, &waiting) {
		if apierrors.IsNotFound(waiting.Err) {
			return fmt.Sprintf("waiting for %s: there is none", waiting.For)
		}
		return waiting.Error()
	}
	why := v.Message
	// The row says which volume of which pod it is.
	var step *steps.Error
	if errors.As(v.Err, &step) {
		why = step.Err.Error()
	}
	return strings.TrimSuffix(word+": "+why, ": ")
}

// files lists the files of a volume as a container sees them, without the
// parts that serve its atomic updates.
func files(root string) (list []string, more bool) {
	const enough = 20
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			return
		}
		for _, e := range entries {
			name := filepath.Join(dir, e.Name())
			if dir == "" && strings.HasPrefix(e.Name(), "..") {
				continue
			}
			if len(list) >= enough {
				more = true
				return
			}
			info, err := os.Stat(filepath.Join(root, name))
			if err == nil && info.IsDir() {
				walk(name)
			} else if err == nil || !errors.Is(err, fs.ErrNotExist) {
				list = append(list, name)
			}
		}
	}
	walk("")
	return list, more
}

func kindOf(pod *v1.Pod, name string) string {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Name == name {
			if v.PersistentVolumeClaim != nil {
				return "claim"
			}
			return (&plugins.Spec{Volume: v}).Kind()
		}
	}
	return "?"
}

// modeText writes a mode as ls does.
func modeText(m fs.FileMode) string {
	kind := byte('-')
	switch {
	case m.IsDir():
		kind = 'd'
	case m&fs.ModeCharDevice != 0:
		kind = 'c'
	case m&fs.ModeDevice != 0:
		kind = 'b'
	case m&fs.ModeNamedPipe != 0:
		kind = 'p'
	case m&fs.ModeSocket != 0:
		kind = 's'
	case m&fs.ModeSymlink != 0:
		kind = 'l'
	}
	text := []byte(m.Perm().String())
	text[0] = kind
	for _, special := range []struct {
		bit  fs.FileMode
		at   int
		with string // with the right to execute, and without
	}{{fs.ModeSetuid, 3, "sS"}, {fs.ModeSetgid, 6, "sS"}, {fs.ModeSticky, 9, "tT"}} {
		switch {
		case m&special.bit == 0:
		case text[special.at] == 'x':
			text[special.at] = special.with[0]
		default:
			text[special.at] = special.with[1]
		}
	}
	return string(text)
}
