package csi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"unicode/utf8"
)

// volData is the kubelet's vol_data.json: a flat object of strings beside each
// staging and target path. It is a help for those who look at the disk, and a
// second source where the journal lacks a record.
type volData struct {
	// SpecName is the name of the persistent volume, or of the pod's volume.
	SpecName string
	Handle   string
	Driver   string
	Node     string
	// Attachment is the name of the VolumeAttachment.
	Attachment string
	// Lifecycle is "Persistent" or "Ephemeral"; empty in files of old kubelets,
	// which had persistent volumes only, and in those beside a staging path.
	Lifecycle string
	// SELinux is the label that the volume is mounted with.
	SELinux string
	// FSType, DevicePath, Group and Flags are not the kubelet's, which ignores
	// them. Group is the volume_mount_group that went with the staging, Flags are
	// the mount flags as a JSON list, "null" for none.
	FSType, DevicePath, Group, Flags string
	// others are keys that are not known here; they are kept.
	others map[string]string
}

const (
	lifecyclePersistent = "Persistent"
	lifecycleEphemeral  = "Ephemeral"
)

// errDamaged says that a vol_data.json cannot be used.
var errDamaged = errors.New("damaged")

// maxDataFile is more than a sound vol_data.json can have.
const maxDataFile = 256 << 10

// fields names the members in the file.
func (v *volData) fields() map[string]*string {
	return map[string]*string{
		"specVolID": &v.SpecName, "volumeHandle": &v.Handle, "driverName": &v.Driver, "nodeName": &v.Node,
		"attachmentID": &v.Attachment, "volumeLifecycleMode": &v.Lifecycle, "seLinuxMountContext": &v.SELinux,
		"fsType": &v.FSType, "devicePath": &v.DevicePath, "volumeMountGroup": &v.Group,
		"mountFlags": &v.Flags,
	}
}

// flags are the mount flags that Flags holds.
func (v *volData) flags() []string {
	var list []string
	_ = json.Unmarshal([]byte(v.Flags), &list) // nothing, if somebody has damaged it
	return list
}

func (v *volData) setFlags(list []string) {
	if list == nil {
		list = []string{}
	}
	text, _ := json.Marshal(list) // strings always can be
	v.Flags = string(text)
}

func (v *volData) ephemeral() bool { return v.Lifecycle == lifecycleEphemeral }

// encode is the file's text: keys sorted, empty values left out.
func (v *volData) encode() ([]byte, error) {
	flat := make(map[string]string, len(v.others)+8)
	for key, value := range v.others {
		flat[key] = value
	}
	for key, value := range v.fields() {
		if *value != "" {
			flat[key] = *value
		}
	}
	text, err := json.Marshal(flat)
	if err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

// nestedData is another form of the file that is read but not written.
type nestedData struct {
	Spec struct {
		VolumeSource struct {
			CSI struct {
				Driver       string `json:"driver"`
				VolumeHandle string `json:"volumeHandle"`
				FSType       string `json:"fsType"`
			} `json:"csi"`
		} `json:"volumeSource"`
	} `json:"spec"`
	AttachmentMetadata struct {
		DevicePath string `json:"devicePath"`
	} `json:"attachmentMetadata"`
}

// parseVolData reads a file's text. What it returns names a driver that can be
// a folder, and a handle.
func parseVolData(text []byte) (volData, error) {
	var v volData
	if !utf8.Valid(text) {
		return v, fmt.Errorf("%w: it is not UTF-8", errDamaged)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return v, fmt.Errorf("%w: it is no JSON object", errDamaged)
	}
	if _, nested := members["spec"]; nested {
		var n nestedData
		if err := json.Unmarshal(text, &n); err != nil {
			return v, fmt.Errorf("%w: its spec cannot be read", errDamaged)
		}
		source := n.Spec.VolumeSource.CSI
		v.Driver, v.Handle, v.FSType, v.DevicePath = source.Driver, source.VolumeHandle, source.FSType, n.AttachmentMetadata.DevicePath
		return v, v.check()
	}
	fields := v.fields()
	for key, raw := range members {
		var value string
		if err := json.Unmarshal(raw, &value); err != nil {
			if fields[key] == nil {
				continue // of a later version
			}
			return v, fmt.Errorf("%w: %s is no text", errDamaged, key)
		}
		if field := fields[key]; field != nil {
			*field = value
			continue
		}
		if v.others == nil {
			v.others = map[string]string{}
		}
		v.others[key] = value
	}
	return v, v.check()
}

func (v *volData) check() error {
	switch {
	case v.Driver == "" || CheckDriverName(v.Driver) != nil:
		return fmt.Errorf("%w: driverName %q is not that of a driver", errDamaged, shorten(v.Driver, maxDriverName))
	case v.Handle == "":
		return fmt.Errorf("%w: volumeHandle is missing", errDamaged)
	case checkHandle(v.Handle) != nil:
		return fmt.Errorf("%w: volumeHandle %q is not one", errDamaged, shorten(v.Handle, 128))
	}
	return nil
}

// readVolData reads the file in a folder. That there is none is
// [fs.ErrNotExist].
func readVolData(dir string) (volData, error) {
	text, err := readDataFile(dir)
	if err != nil {
		return volData{}, err
	}
	v, err := parseVolData(text)
	if err != nil {
		return v, fmt.Errorf("%s: %w", filepath.Join(dir, dataFile), err)
	}
	return v, nil
}

// readDataFile follows neither links nor pipes.
func readDataFile(dir string) ([]byte, error) {
	path := filepath.Join(dir, dataFile)
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|noFollow, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: %w: it is no file", path, errDamaged)
	case info.Size() > maxDataFile:
		return nil, fmt.Errorf("%s: %w: it is too large", path, errDamaged)
	}
	return io.ReadAll(io.LimitReader(f, maxDataFile))
}

// write puts the file into a folder, by rename. One that says the same already
// is left alone, and keys of other programs are kept. The journal is what has
// to survive a power cut; the file has not.
func (v volData) write(dir string) error {
	old, _ := readDataFile(dir)
	if known, err := parseVolData(old); err == nil && v.others == nil {
		v.others = known.others
	}
	text, err := v.encode()
	if err != nil || bytes.Equal(old, text) {
		return err
	}
	return replaceFile(filepath.Join(dir, dataFile), text)
}

// replaceFile writes a file beside its place and renames it into it.
func replaceFile(path string, text []byte) error {
	next := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".next")
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL|noFollow, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		_ = os.Remove(next)
	}
	return err
}

// removeVolData removes the file of a folder and what an interrupted write has
// left.
func removeVolData(dir string) error {
	for _, name := range []string{"." + dataFile + ".next", dataFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
