package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/volumekit/volumekit/asw/journal"
	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

func TestMain(m *testing.M) { nstest.Main(m) }

var here = mount.Namespace{BootID: "boot-1", MountNS: "mnt:[1]"}

// record makes the n-th record of a pod volume.
func record(n int) journal.Record {
	v := plugins.PodVolume{Pod: "0d3f5a0e-5a3c-4b52-9d0c-8a1f3c7e6b00", Plugin: "kubernetes.io/empty-dir", Name: fmt.Sprintf("volume-%d", n)}
	return journal.Record{
		Key:   journal.Key{ID: plugins.VolumeIDOf(v.Plugin, plugins.Identity{}, nil, v.Pod) + plugins.VolumeID(v.Name), Volume: v},
		Pod:   plugins.PodRef{Namespace: "default", Name: "web-0", UID: v.Pod},
		Names: []string{"data", "more"},
		Undo:  plugins.Undo{"medium": "Memory", "path": "/var/lib/x"},
	}
}

func durable(n int) journal.Record {
	rec := record(n)
	rec.Durable = true
	return rec
}

func open(t testing.TB, dir string, o journal.Options) *journal.Journal {
	t.Helper()
	if o.Namespace == (mount.Namespace{}) {
		o.Namespace = here
	}
	j, err := journal.Open(t.Context(), dir, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func names(records []journal.Record) string {
	var list []string
	for _, r := range records {
		list = append(list, strings.TrimPrefix(r.Volume.Name, "volume-"))
	}
	return strings.Join(list, " ")
}

func logFile(dir string) string { return filepath.Join(dir, "journal") }

func read(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	return text
}

func TestRecordsComeBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "state")
	j := open(t, dir, journal.Options{})
	if c := j.Contents(); len(c.Records) > 0 || len(c.Damaged) > 0 || c.Namespace != (mount.Namespace{}) {
		t.Errorf("a new journal holds %+v", c)
	}
	node := journal.Record{
		Key: journal.Key{ID: "kubernetes.io/csi/driver^handle"}, Attach: true, Device: true, Durable: true, Parallel: true,
		Storage: "driver^handle", DevicePath: "/dev/sda", DeviceMountPath: "/var/lib/kubelet/plugins/x", Undo: plugins.Undo{"a": "<&>\u2028\n"},
	}
	block := record(2)
	block.Block = true
	for _, rec := range []journal.Record{record(1), node, block} {
		must(t, j.Put(t.Context(), rec))
	}
	changed := record(1)
	changed.Names = []string{"other"}
	must(t, j.Put(t.Context(), changed))
	must(t, j.Put(t.Context(), record(3)))
	must(t, j.Delete(t.Context(), record(3).Key, false))
	if got, ok := j.Get(node.Key); !ok || !reflect.DeepEqual(got, node) {
		t.Errorf("Get: %+v, %v", got, ok)
	}
	if _, ok := j.Get(record(3).Key); ok {
		t.Error("a deleted record is there")
	}
	want := []journal.Record{changed, node, block}
	if got := j.All(); !reflect.DeepEqual(got, want) {
		t.Errorf("All:\n%+v\nwant\n%+v", got, want)
	}
	c, err := journal.Read(dir)
	must(t, err)
	if !reflect.DeepEqual(c, journal.Contents{Namespace: here, Records: want}) {
		t.Errorf("Read of a live journal: %+v", c)
	}
	must(t, j.Close())
	must(t, j.Close())
	if err := j.Put(t.Context(), record(9)); !errors.Is(err, journal.ErrClosed) {
		t.Errorf("Put after Close: %v", err)
	}
	there := mount.Namespace{BootID: "boot-2"}
	j = open(t, dir, journal.Options{Namespace: there})
	if c := j.Contents(); !reflect.DeepEqual(c, journal.Contents{Namespace: here, Records: want}) {
		t.Errorf("after reopening: %+v", c)
	}
	must(t, j.Close())
	if c := open(t, dir, journal.Options{Namespace: there}).Contents(); c.Namespace != there {
		t.Errorf("the new namespace was not recorded: %+v", c.Namespace)
	}
}

func TestFilesAreForTheOwnerAlone(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has other permissions")
	}
	dir := filepath.Join(t.TempDir(), "state")
	j := open(t, dir, journal.Options{CompactAt: 1})
	for range 20 {
		must(t, j.Put(t.Context(), record(1)))
		must(t, j.Delete(t.Context(), record(1).Key, false))
	}
	for name, want := range map[string]fs.FileMode{"": 0o700, "journal": 0o600, "lock": 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		if info.Mode().Perm() != want {
			t.Errorf("%q has mode %v, want %v", name, info.Mode(), want)
		}
	}
}

func TestUnchangedWritesNothing(t *testing.T) {
	dir := t.TempDir()
	var points []string
	j := open(t, dir, journal.Options{Faults: func(p string) error { points = append(points, p); return nil }})
	must(t, j.Put(t.Context(), durable(1)))
	size := len(read(t, logFile(dir)))
	points = nil
	must(t, j.Put(t.Context(), durable(1)))
	must(t, j.Delete(t.Context(), record(2).Key, true))
	if got := len(read(t, logFile(dir))); got != size || len(points) > 0 {
		t.Errorf("grew from %d to %d bytes, points %v", size, got, points)
	}
	// In a new process it is there but may never have reached the disk.
	must(t, j.Close())
	points = nil
	j = open(t, dir, journal.Options{Faults: func(p string) error { points = append(points, p); return nil }})
	must(t, j.Put(t.Context(), durable(1)))
	must(t, j.Put(t.Context(), durable(1)))
	if got := strings.Join(points, " "); got != "journal.sync" {
		t.Errorf("points %q, want one sync", got)
	}
}

func TestCallersKeepTheirValues(t *testing.T) {
	j := open(t, t.TempDir(), journal.Options{})
	rec := record(1)
	must(t, j.Put(t.Context(), rec))
	rec.Names[0], rec.Undo["medium"] = "changed", "changed"
	if got, _ := j.Get(rec.Key); !reflect.DeepEqual(got, record(1)) {
		t.Errorf("the record changed with the caller's: %+v", got)
	}
	must(t, j.Put(t.Context(), rec))
	if got, _ := j.Get(rec.Key); got.Names[0] != "changed" {
		t.Error("a change through shared memory was taken for none")
	}
}

func TestPutRefuses(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, journal.Options{})
	before := read(t, logFile(dir))
	edit := func(f func(*journal.Record)) journal.Record { r := record(1); f(&r); return r }
	for name, rec := range map[string]journal.Record{
		"no id":        edit(func(r *journal.Record) { r.ID = "" }),
		"dotdot":       edit(func(r *journal.Record) { r.Volume.Name = ".." }),
		"slash in uid": edit(func(r *journal.Record) { r.Volume.Pod = "a/b" }),
		"no plugin":    edit(func(r *journal.Record) { r.Volume.Plugin = "" }),
		"not UTF-8":    edit(func(r *journal.Record) { r.Volume.Name = "a\xff" }),
		"undo":         edit(func(r *journal.Record) { r.Undo["x"] = "\xff" }),
		"names":        edit(func(r *journal.Record) { r.Names = []string{"\xff"} }),
		"huge":         edit(func(r *journal.Record) { r.Undo["x"] = strings.Repeat("x", 300_000) }),
	} {
		if err := j.Put(t.Context(), rec); plugins.ClassOf(err) != plugins.ClassPermanent {
			t.Errorf("%s: %v (%v)", name, err, plugins.ClassOf(err))
		}
	}
	if !bytes.Equal(before, read(t, logFile(dir))) {
		t.Error("something was written")
	}
}

// TestCutAnywhere cuts a log at every byte: exactly the records of the lines
// that are whole must be there, nothing counts as damage, and the log goes on.
func TestCutAnywhere(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, journal.Options{})
	type point struct {
		size int
		want string
	}
	points := []point{{len(read(t, logFile(dir))), ""}}
	step := func(err error) {
		must(t, err)
		points = append(points, point{len(read(t, logFile(dir))), names(j.All())})
	}
	short := func(n int) journal.Record {
		v := plugins.PodVolume{Pod: "u", Plugin: "p/x", Name: fmt.Sprint(n)}
		return journal.Record{Key: journal.Key{ID: "v", Volume: v}, Undo: plugins.Undo{"k": "Ü"}}
	}
	for n := range 3 {
		step(j.Put(t.Context(), short(n)))
	}
	step(j.Delete(t.Context(), short(1).Key, false))
	changed := short(2)
	changed.Durable = true
	step(j.Put(t.Context(), changed))
	step(j.Put(t.Context(), short(1)))
	must(t, j.Close())
	whole := read(t, logFile(dir))
	for cut := range len(whole) + 1 {
		must(t, os.Remove(logFile(dir))) // truncating it would make ext4 wait for the disk
		must(t, os.WriteFile(logFile(dir), whole[:cut], 0o600))
		want := ""
		for _, p := range points {
			if p.size <= cut {
				want = p.want
			}
		}
		seen, err := journal.Read(dir)
		must(t, err)
		j := open(t, dir, journal.Options{})
		c := j.Contents()
		if names(c.Records) != want || names(seen.Records) != want || len(c.Damaged)+len(seen.Damaged) > 0 {
			t.Fatalf("cut at %d of %d: records %q and %q, want %q; damage %v", cut, len(whole), names(c.Records), names(seen.Records), want, c.Damaged)
		}
		must(t, j.Put(t.Context(), record(7)))
		must(t, j.Close())
		seen, err = journal.Read(dir)
		must(t, err)
		if got := names(seen.Records); got != strings.TrimSpace(want+" 7") || len(seen.Damaged) > 0 {
			t.Fatalf("cut at %d, then went on: %q, damage %v", cut, got, seen.Damaged)
		}
	}
}

func TestDamageCostsOneRecord(t *testing.T) {
	for name, tc := range map[string]struct {
		harm   func(line []byte) []byte
		key    bool
		reason string
	}{
		"flipped in value": {func(l []byte) []byte { return bytes.Replace(l, []byte("Memory"), []byte("memory"), 1) }, true, "checksum"},
		"flipped in sum":   {func(l []byte) []byte { l[0] ^= 1; return l }, true, "checksum"},
		"zeros":            {func(l []byte) []byte { return append(make([]byte, len(l)-1), '\n') }, false, "not a checksum"},
		"empty":            {func([]byte) []byte { return []byte("\n") }, false, "not a checksum"},
		"syntax":           {func(l []byte) []byte { l[10] = 'x'; return l }, false, "checksum"},
		"long":             {func([]byte) []byte { return append(bytes.Repeat([]byte("x"), 700_000), '\n') }, false, "too long"},
		"not UTF-8":        {func(l []byte) []byte { l[len(l)-10] = 0xff; return l }, false, "checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			j := open(t, dir, journal.Options{})
			for n := range 3 {
				must(t, j.Put(t.Context(), record(n)))
			}
			must(t, j.Close())
			lines := bytes.SplitAfter(read(t, logFile(dir)), []byte("\n"))
			lines[2] = tc.harm(lines[2])
			must(t, os.WriteFile(logFile(dir), bytes.Join(lines, nil), 0o600))

			seen, err := journal.Read(dir)
			must(t, err)
			j = open(t, dir, journal.Options{})
			c := j.Contents()
			if names(c.Records) != "0 2" || names(seen.Records) != "0 2" {
				t.Errorf("records %q, %q", names(c.Records), names(seen.Records))
			}
			if len(c.Damaged) != 1 || c.Damaged[0].Line != 3 || !strings.Contains(c.Damaged[0].Reason, tc.reason) {
				t.Fatalf("damage %+v", c.Damaged)
			}
			if key := c.Damaged[0].Key; (key != nil) != tc.key || key != nil && *key != record(1).Key {
				t.Errorf("key %v", key)
			}
			if !bytes.Equal(read(t, c.Damaged[0].File), bytes.Join(lines, nil)) {
				t.Error("the damaged file is not where the report says")
			}
			must(t, j.Close())
			if c := open(t, dir, journal.Options{}).Contents(); names(c.Records) != "0 2" || len(c.Damaged) > 0 || c.Namespace != here {
				t.Errorf("after the repair: %+v", c)
			}
		})
	}
}

func TestForeignLines(t *testing.T) {
	head := `{"op":"head","version":1,"namespace":{"bootID":"boot-1","mountNS":"mnt:[1]"}}`
	for name, tc := range map[string]struct {
		text    string
		records int
		damages int
		err     error
	}{
		"newer version":    {`{"op":"head","version":2}`, 0, 0, journal.ErrVersion},
		"negative version": {`{"op":"head","version":-1}`, 0, 0, journal.ErrVersion},
		"no version":       {`{"op":"head"}`, 0, 0, journal.ErrVersion},
		"unknown field":    {head + "\n" + `{"op":"put","id":"p/x/y","future":{"a":[1]},"undo":{"k":"v"}}`, 1, 0, nil},
		"unknown op":       {head + "\n" + `{"op":"move","id":"p/x/y"}`, 0, 1, nil},
		"path as name":     {head + "\n" + `{"op":"put","id":"p/x/y","volume":{"pod":"u","plugin":"p/x","name":"../../etc"}}`, 0, 1, nil},
		"path as uid":      {head + "\n" + `{"op":"put","id":"p/x/y","volume":{"pod":"..","plugin":"p/x","name":"a"}}`, 0, 1, nil},
		"half a volume":    {head + "\n" + `{"op":"put","id":"p/x/y","volume":{"pod":"u"}}`, 0, 1, nil},
		"no id":            {head + "\n" + `{"op":"put","undo":{"k":"v"}}`, 0, 1, nil},
		"wrong type":       {head + "\n" + `{"op":"put","id":"p/x/y","undo":["a"]}`, 0, 1, nil},
		"array":            {head + "\n" + `[]`, 0, 1, nil},
		"bad UTF-8":        {head + "\n" + "{\"op\":\"put\",\"id\":\"p/x/\xff\"}", 0, 1, nil},
		"no header":        {`{"op":"put","id":"p/x/y"}`, 1, 0, nil},
		"del of nothing":   {head + "\n" + `{"op":"del","id":"p/x/y"}`, 0, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var file bytes.Buffer
			for line := range strings.SplitSeq(tc.text, "\n") {
				file.WriteString(journal.Sum(line) + " " + line + "\n")
			}
			must(t, os.WriteFile(logFile(dir), file.Bytes(), 0o600))
			c, err := journal.Read(dir)
			j, oerr := journal.Open(t.Context(), dir, journal.Options{Namespace: here})
			if oerr == nil {
				defer func() { _ = j.Close() }()
			}
			if !errors.Is(err, tc.err) || !errors.Is(oerr, tc.err) {
				t.Fatalf("errors %v and %v, want %v", err, oerr, tc.err)
			}
			if tc.err != nil {
				if !bytes.Equal(read(t, logFile(dir)), file.Bytes()) {
					t.Error("a journal that was refused has changed")
				}
				return
			}
			if len(c.Records) != tc.records || len(c.Damaged) != tc.damages {
				t.Errorf("%+v", c)
			}
		})
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir, journal.Options{})
	_, err := journal.Open(t.Context(), dir, journal.Options{})
	if !errors.Is(err, journal.ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("second Open: %v", err)
	}
	must(t, j.Put(t.Context(), record(1)))
	must(t, j.Close())
	if got := names(open(t, dir, journal.Options{}).All()); got != "1" {
		t.Errorf("records %q", got)
	}
}

func TestOpenRefuses(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	if _, err := journal.Open(ended, dir, journal.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
	must(t, open(t, dir, journal.Options{}).Close()) // and the lock was given back
	if _, err := journal.Read(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read without a journal: %v", err)
	}
	if runtime.GOOS == "windows" {
		return
	}
	target := filepath.Join(t.TempDir(), "target")
	must(t, os.WriteFile(target, []byte("kept"), 0o600))
	dir = t.TempDir()
	must(t, os.Symlink(target, logFile(dir)))
	if _, err := journal.Open(t.Context(), dir, journal.Options{}); err == nil {
		t.Error("a symbolic link was opened")
	}
	if string(read(t, target)) != "kept" {
		t.Error("the link's target was written")
	}
}
