package plugins

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Layout names every place on disk. It is the kubelet's tree, so that either
// program can take over the other's root. All methods are pure. They do not
// check the names that they are given: [PodVolume] Check, [CheckPlugin] and
// [CheckName] do, and come first.
//
//	<root>/pods/<uid>/volumes/<plugin~name>/<volume>        volume of a pod
//	<root>/pods/<uid>/volumeDevices/<plugin~name>/<volume>  link to a block device
//	<root>/pods/<uid>/plugins/<plugin~name>/<volume>        a plugin's own files
//	<root>/pods/<uid>/volume-subpaths/<volume>/<container>/<index>
//	<root>/plugins/<plugin/name>                            node-wide, by plugin
//	<root>/plugins_registry                                 driver sockets
//	<root>/volumekit                                        journal and lock
type Layout struct {
	// Root is the absolute root folder, free of symbolic links once the
	// manager runs (it resolves them at start).
	Root string
}

// ErrBadName says that a name from a pod, a claim or the disk cannot become a
// folder's name.
var ErrBadName = errors.New("name cannot be used as a folder")

// CheckName accepts what may become one element of a path: not empty, not "."
// or "..", at most 255 bytes of valid UTF-8 (a record in JSON must name the same
// file), without slash, backslash and control characters. The API server's own
// rules for names are stricter.
func CheckName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > 255 || !utf8.ValidString(name) ||
		strings.ContainsAny(name, "/\\") || strings.ContainsFunc(name, unicode.IsControl) {
		return fmt.Errorf("%w: %q", ErrBadName, name)
	}
	return nil
}

// CheckPlugin accepts the name of a plugin: a qualified name with exactly one
// slash, "example.com/volume", that fits into one folder name. Two names that
// it accepts never share a folder.
func CheckPlugin(name string) error {
	if plainlyQualified(name) {
		return nil
	}
	wrong := validation.IsQualifiedName(name)
	if strings.Count(name, "/") != 1 {
		wrong = append(wrong, "must have exactly one slash")
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%w: plugin %q: %s", ErrBadName, name, strings.Join(wrong, "; "))
	}
	return CheckName(EscapePlugin(name))
}

// plainlyQualified recognises almost every good name without the cost of the
// full check, which runs for each step of each volume.
func plainlyQualified(name string) bool {
	prefix, rest, ok := strings.Cut(name, "/")
	if !ok || len(prefix) > 100 || len(rest) > 63 || !plainLabel(rest) {
		return false
	}
	for label := range strings.SplitSeq(prefix, ".") {
		if len(label) > 63 || !plainLabel(label) {
			return false
		}
	}
	return true
}

// plainLabel accepts lower-case letters and digits, and dashes between them.
func plainLabel(s string) bool {
	for i, c := range []byte(s) {
		if letter := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'; !letter && (c != '-' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return s != ""
}

// EscapePlugin turns a plugin's name into a folder's name.
func EscapePlugin(name string) string { return strings.ReplaceAll(name, "/", "~") }

// UnescapePlugin undoes [EscapePlugin].
func UnescapePlugin(folder string) string { return strings.ReplaceAll(folder, "~", "/") }

// PodsDir holds a folder for each pod.
func (l Layout) PodsDir() string { return filepath.Join(l.Root, "pods") }

// PodDir is the folder of one pod.
func (l Layout) PodDir(uid types.UID) string { return filepath.Join(l.Root, "pods", string(uid)) }

// PodVolumesDir holds a folder for each plugin with volumes of the pod.
func (l Layout) PodVolumesDir(uid types.UID) string { return filepath.Join(l.PodDir(uid), "volumes") }

// PodVolumesOf holds the volumes of the pod that a plugin provides.
func (l Layout) PodVolumesOf(uid types.UID, plugin string) string {
	return filepath.Join(l.PodVolumesDir(uid), EscapePlugin(plugin))
}

// PodVolume is where a pod finds a volume.
func (l Layout) PodVolume(v PodVolume) string {
	return filepath.Join(l.Root, "pods", string(v.Pod), "volumes", EscapePlugin(v.Plugin), v.Name)
}

// PodDevicesDir holds a folder for each plugin with block volumes of the pod.
func (l Layout) PodDevicesDir(uid types.UID) string {
	return filepath.Join(l.PodDir(uid), "volumeDevices")
}

// PodDevice is the link to a pod's block device.
func (l Layout) PodDevice(v PodVolume) string {
	return filepath.Join(l.PodDevicesDir(v.Pod), EscapePlugin(v.Plugin), v.Name)
}

// PodPluginsDir holds a folder for each plugin with files about the pod.
func (l Layout) PodPluginsDir(uid types.UID) string { return filepath.Join(l.PodDir(uid), "plugins") }

// PodPrivate is a plugin's own folder about one volume of a pod.
func (l Layout) PodPrivate(v PodVolume) string {
	return filepath.Join(l.Root, "pods", string(v.Pod), "plugins", EscapePlugin(v.Plugin), v.Name)
}

// PodSubpathsDir holds the prepared subpaths of a pod.
func (l Layout) PodSubpathsDir(uid types.UID) string {
	return filepath.Join(l.PodDir(uid), "volume-subpaths")
}

// PluginDir is a plugin's node-wide folder. The slash in its name makes two
// folders, as in the kubelet's tree.
func (l Layout) PluginDir(plugin string) string {
	return filepath.Join(l.Root, "plugins", filepath.FromSlash(plugin))
}

// RegistryDir is where drivers put their registration sockets.
func (l Layout) RegistryDir() string { return filepath.Join(l.Root, "plugins_registry") }

// StateDir is the library's own folder: journal and lock.
func (l Layout) StateDir() string { return filepath.Join(l.Root, "volumekit") }

// Target fills the paths of a request.
func (l Layout) Target(v PodVolume, pod PodRef) Target {
	pod.UID = v.Pod
	return Target{Volume: v, Pod: pod, Path: l.PodVolume(v), PrivateDir: l.PodPrivate(v)}
}

// Check accepts a pod volume whose names can become folders.
func (v PodVolume) Check() error {
	pod, plugin, name := CheckName(string(v.Pod)), CheckPlugin(v.Plugin), CheckName(v.Name)
	if pod == nil && plugin == nil && name == nil {
		return nil
	}
	return errors.Join(pod, plugin, name)
}
