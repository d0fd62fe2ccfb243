package csi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The file beside a volume is written by rename, left alone if nothing changes,
// and never followed elsewhere.
func TestFileBesideTheVolume(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := volData{
		SpecName: "pv", Handle: "h \"^é", Driver: "d.example", Node: "node", Attachment: "csi-1", Lifecycle: lifecyclePersistent,
		SELinux: "u:r:t:s0", FSType: "ext4", DevicePath: "/dev/x", Group: "7",
	}
	if err := data.write(filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
	if _, err := readVolData(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	if err := data.write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := readVolData(dir)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(data) {
		t.Errorf("%+v, %v", got, err)
	}
	path := filepath.Join(dir, dataFile)
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if before.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", before.Mode())
	}
	if err := data.write(dir); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("it was written although nothing has changed: %v", err)
	}
	if err := os.WriteFile(path, []byte(`{"driverName":"d.example","volumeHandle":"old","of others":"x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := data.write(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := readVolData(dir); err != nil || got.Handle != data.Handle || got.others["of others"] != "x" {
		t.Errorf("with keys of others: %+v, %v", got, err)
	}
	if err := removeVolData(dir); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	elsewhere := t.TempDir()
	for name, make := range map[string]func() error{
		"folder": func() error { return os.Mkdir(path, 0o750) },
		"link": func() error {
			return errors.Join(data.write(elsewhere), os.Symlink(filepath.Join(elsewhere, dataFile), path))
		},
		"large": func() error { return os.WriteFile(path, []byte(strings.Repeat(" ", maxDataFile+1)), 0o600) },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		if _, err := readVolData(dir); err == nil || errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzVolData(f *testing.F) {
	for _, s := range []string{
		"", "{}", "null", "[]", `{"driverName":"d","volumeHandle":"h"}`, `{"driverName":"d","volumeHandle":"h","x":7,"y":"z"}`,
		`{"spec":{"volumeSource":{"csi":{"driver":"d","volumeHandle":"h","fsType":"xfs"}}},"attachmentMetadata":{"devicePath":"/dev/x"}}`,
		`{"spec":7}`, `{"driverName":"../..","volumeHandle":"h"}`, "{\"driverName\":\"d\",\"volumeHandle\":\"\xff\"}", `{"driverName":"d"`,
		`{"driverName":"d","volumeHandle":"h","volumeLifecycleMode":"Ephemeral"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := parseVolData(text)
		if err != nil {
			if !errors.Is(err, errDamaged) {
				t.Errorf("error %v", err)
			}
			return
		}
		if CheckDriverName(v.Driver) != nil || v.Handle == "" {
			t.Fatalf("it names no volume: %+v", v)
		}
		again, err := v.encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := parseVolData(again)
		if err != nil || fmt.Sprint(back) != fmt.Sprint(v) {
			t.Errorf("%+v became %+v, %v", v, back, err)
		}
	})
}
