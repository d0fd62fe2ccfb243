package hostmount_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	mountutils "k8s.io/mount-utils"
	utilexec "k8s.io/utils/exec"
	testingexec "k8s.io/utils/exec/testing"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
)

// program puts a shell script in the place of a program of the system.
func program(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func nfs(target string) mount.Mount {
	return mount.Mount{Source: "server:/export", Target: target, FSType: "nfs", Options: mount.Options{
		ReadOnly: true, Data: []string{"vers=4.1"}, Sensitive: []string{"password=geheim"},
	}}
}

func TestHelperRunsMount(t *testing.T) {
	dir := nstest.Dir(t)
	m := hostmount.New(hostmount.Options{})
	target := mkdir(t, dir, "a")
	args := filepath.Join(dir, "args")
	program(t, "mount", `echo "$@" >`+args+"\nexit 0\n")
	must(t, m.Mount(t.Context(), nfs(target)))
	text, err := os.ReadFile(args)
	must(t, err)
	if want := "-t nfs -o vers=4.1,ro,password=geheim server:/export " + target; strings.TrimSpace(string(text)) != want {
		t.Errorf("arguments %q, want %q", text, want)
	}
}

func TestHelperHidesSecrets(t *testing.T) {
	dir := nstest.Dir(t)
	m := hostmount.New(hostmount.Options{})
	program(t, "mount", "echo \"mount: refused $*\"\nexit 32\n")
	err := m.Mount(t.Context(), nfs(mkdir(t, dir, "a")))
	if err == nil || strings.Contains(err.Error(), "geheim") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("error %v", err)
	}
	bad := nfs(filepath.Join(dir, "a"))
	bad.Options.Sensitive = []string{"password=a,exec"}
	err = m.Mount(t.Context(), bad)
	wantErr(t, err, mount.ErrBadOption)
	if strings.Contains(err.Error(), "a,exec") {
		t.Errorf("error %v", err)
	}
}

func TestHelperEndsWithItsContextAndLeavesNothing(t *testing.T) {
	dir := nstest.Dir(t)
	m := hostmount.New(hostmount.Options{})
	target := mkdir(t, dir, "a")
	fifo := filepath.Join(dir, "fifo")
	must(t, unix.Mkfifo(fifo, 0o600))
	real, err := filepath.EvalSymlinks("/bin/mount")
	if err != nil {
		t.Skipf("no mount(8): %v", err)
	}
	// It mounts something, says so, and then its child hangs.
	program(t, "mount", real+" -t tmpfs x "+target+"\necho >"+fifo+"\nsleep 1000\n")
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan error, 1)
	go func() { end <- m.Mount(ctx, nfs(target)) }()
	_, err = os.ReadFile(fifo)
	must(t, err)
	if !inspect(t, m, target).Mounted {
		t.Fatal("the script has mounted nothing")
	}
	cancel()
	select {
	case err := <-end:
		wantErr(t, err, context.Canceled)
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end")
	}
	if inspect(t, m, target).Mounted {
		t.Error("something is mounted although Mount failed")
	}
}

func TestInjectedHelper(t *testing.T) {
	dir := nstest.Dir(t)
	fake := mountutils.NewFakeMounter(nil)
	m := hostmount.New(hostmount.Options{Helper: fake})
	target := mkdir(t, dir, "a")
	must(t, m.Mount(t.Context(), nfs(target)))
	must(t, m.Mount(t.Context(), tmpfs(mkdir(t, dir, "b")))) // needs none
	if log := fake.GetLog(); len(log) != 1 || log[0].Target != target || log[0].FSType != "nfs" {
		t.Errorf("the helper was asked for %+v", log)
	}
}

func TestFromMountUtilsReal(t *testing.T) {
	dir := nstest.Dir(t)
	var m mount.Mounter = hostmount.FromMountUtils(mountutils.NewWithoutSystemd(""))
	a, b, c := mkdir(t, dir, "a"), mkdir(t, dir, "b"), mkdir(t, dir, "c")
	must(t, m.Mount(t.Context(), tmpfs(a, "size=65536")))
	must(t, m.Mount(t.Context(), tmpfs(mkdir(t, a, "in"))))
	for target, recursive := range map[string]bool{b: false, c: true} {
		must(t, m.Mount(t.Context(), mount.Mount{
			Source: a, Target: target, Options: mount.Options{Bind: true, Recursive: recursive, ReadOnly: true},
		}))
		p, err := m.Inspect(t.Context(), target)
		if err != nil || !p.Mounted || !p.ReadOnly || !p.IsDir || p.FSType != "tmpfs" {
			t.Errorf("%s: %+v, %v", target, p, err)
		}
		in, err := m.Inspect(t.Context(), filepath.Join(target, "in"))
		if err != nil || in.Mounted != recursive {
			t.Errorf("%s: below is %+v, %v", target, in, err)
		}
	}
	wantErr(t, m.RemoveAll(t.Context(), dir+"/b"), mount.ErrCrossesMount)
	wantErr(t, m.Unmount(t.Context(), b, mount.UnmountOptions{Lazy: true}), mount.ErrUnsupported)
	must(t, m.Unmount(t.Context(), b, mount.UnmountOptions{Force: true}))
	wantErr(t, m.Unmount(t.Context(), b, mount.UnmountOptions{}), mount.ErrNotMounted)
	must(t, m.RemoveAll(t.Context(), b))
	if p, err := m.Inspect(t.Context(), b); err != nil || p.Exists {
		t.Errorf("%+v, %v", p, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantErr(t, m.Mount(ctx, tmpfs(a)), context.Canceled)
}

func TestFromMountUtilsKeepsWhatItsMounterKnows(t *testing.T) {
	dir := nstest.Dir(t)
	inner := mountutils.NewFakeMounter([]mountutils.MountPoint{{Path: mkdir(t, dir, "top/in")}})
	m := hostmount.FromMountUtils(inner)
	write(t, dir, "top/in/file")
	wantErr(t, m.RemoveAll(t.Context(), filepath.Join(dir, "top")), mount.ErrCrossesMount)
	kept(t, filepath.Join(dir, "top/in/file"))
	if m.Unwrap() != mountutils.Interface(inner) {
		t.Error("Unwrap returns something else")
	}
}

func TestToMountUtils(t *testing.T) {
	dir := nstest.Dir(t)
	m := hostmount.New(hostmount.Options{})
	u := hostmount.ToMountUtils(t.Context, m)
	a, b := mkdir(t, dir, "a"), mkdir(t, dir, "b")
	must(t, u.Mount("x", a, "tmpfs", []string{"size=65536", "nosuid,defaults"}))
	must(t, u.MountSensitiveWithoutSystemd(a, b, "ignored", []string{"bind", "ro"}, nil))
	must(t, os.Symlink(b, filepath.Join(dir, "link")))
	for path, want := range map[string]bool{a: true, b: true, dir + "/link": true, "/proc/self": false} {
		if got, err := u.IsMountPoint(path); err != nil || got != want {
			t.Errorf("%s: %v, %v", path, got, err)
		}
		if not, err := u.IsLikelyNotMountPoint(path); err != nil || not == want {
			t.Errorf("%s: not: %v, %v", path, not, err)
		}
	}
	if _, err := u.IsMountPoint(dir + "/no"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is not there: %v", err)
	}
	refs, err := u.GetMountRefs(a)
	if err != nil || !slices.Equal(refs, []string{b}) {
		t.Errorf("refs %q, %v", refs, err)
	}
	if refs, err := u.GetMountRefs(mkdir(t, a, "sub")); err != nil || len(refs) != 0 {
		t.Errorf("refs of no mount %q, %v", refs, err)
	}
	list, err := u.List()
	must(t, err)
	i := slices.IndexFunc(list, func(p mountutils.MountPoint) bool { return p.Path == b })
	if i < 0 || list[i].Type != "tmpfs" || list[i].Opts[0] != "ro" || list[i].Device != "x" {
		t.Errorf("list has %+v", list)
	}
	wantErr(t, u.Mount(a, b, "", []string{"bind", "remount", "ro"}), mount.ErrUnsupported)
	wantErr(t, u.Mount(a, b, "", []string{"ro", "rw"}), mount.ErrBadOption)
	wantErr(t, u.MountSensitiveWithoutSystemdWithMountFlags("x", b, "tmpfs", nil, nil, []string{"-n"}), mount.ErrUnsupported)
	must(t, u.Unmount(b))
	wantErr(t, u.Unmount(b), mount.ErrNotMounted)
	// It serves mount-utils' own functions.
	must(t, mountutils.CleanupMountPoint(a, u, true))
	gone(t, a)
}

// scripted answers blkid and mkfs.
func scripted(outputs map[string]func(args []string) ([]byte, error)) (*testingexec.FakeExec, *[]string) {
	var ran []string
	e := &testingexec.FakeExec{}
	command := func(cmd string, args ...string) utilexec.Cmd {
		ran = append(ran, cmd)
		action := func() ([]byte, []byte, error) {
			out, err := outputs[cmd](args)
			return out, nil, err
		}
		return testingexec.InitFakeCmd(&testingexec.FakeCmd{CombinedOutputScript: []testingexec.FakeAction{action}}, cmd, args...)
	}
	for range 10 {
		e.CommandScript = append(e.CommandScript, command)
	}
	return e, &ran
}

func TestFormatAndMount(t *testing.T) {
	dir := nstest.Dir(t)
	ok := func([]string) ([]byte, error) { return nil, nil }
	for name, c := range map[string]struct {
		blkid  func([]string) ([]byte, error)
		ro     bool
		ran    []string
		wanted error
	}{
		"empty": {
			blkid: func([]string) ([]byte, error) { return nil, &testingexec.FakeExitError{Status: 2} },
			ran:   []string{"blkid", "mkfs.tmpfs"},
		},
		"formatted": {
			blkid: func([]string) ([]byte, error) { return []byte("DEVNAME=x\nTYPE=tmpfs\n"), nil },
			ran:   []string{"blkid", "fsck"},
		},
		"formatted, read-only": {
			blkid: func([]string) ([]byte, error) { return []byte("DEVNAME=x\nTYPE=tmpfs\n"), nil },
			ran:   []string{"blkid"}, ro: true,
		},
		"not understood": {
			blkid:  func([]string) ([]byte, error) { return nil, &testingexec.FakeExitError{Status: 4} },
			ran:    []string{"blkid"},
			wanted: errAny,
		},
	} {
		t.Run(name, func(t *testing.T) {
			exec, ran := scripted(map[string]func([]string) ([]byte, error){"blkid": c.blkid, "fsck": ok, "mkfs.tmpfs": ok})
			m := hostmount.New(hostmount.Options{Exec: exec})
			mt := tmpfs(mkdir(t, dir, name))
			mt.Source, mt.Options.ReadOnly = "/dev/none", c.ro
			err := m.FormatAndMount(t.Context(), mt)
			if (err != nil) != (c.wanted != nil) {
				t.Errorf("error %v", err)
			}
			if !slices.Equal(*ran, c.ran) {
				t.Errorf("ran %q, want %q", *ran, c.ran)
			}
			if p := inspect(t, m, mt.Target); p.Mounted != (c.wanted == nil) || p.ReadOnly != c.ro {
				t.Errorf("%+v", p)
			}
		})
	}
}

var errAny = errors.New("any")

func TestFormatAndMountKeepsTheClass(t *testing.T) {
	dir := nstest.Dir(t)
	exec, _ := scripted(map[string]func([]string) ([]byte, error){
		"blkid": func([]string) ([]byte, error) { return []byte("DEVNAME=x\nTYPE=tmpfs\n"), nil },
	})
	m := hostmount.New(hostmount.Options{Exec: exec})
	mt := tmpfs(mkdir(t, dir, "a"), "nonsense=1")
	mt.Options.ReadOnly = true
	wantErr(t, m.FormatAndMount(t.Context(), mt), mount.ErrBadOption)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantErr(t, m.FormatAndMount(ctx, mt), context.Canceled)
}

// TestFormatAndMountForReal makes a file system on a loop device.
func TestFormatAndMountForReal(t *testing.T) {
	if !nstest.RealRoot() {
		t.Skip("only root has block devices")
	}
	dir := nstest.Dir(t)
	image := write(t, dir, "image")
	must(t, os.Truncate(image, 16<<20))
	out, err := utilexec.New().Command("losetup", "-f", "--show", image).CombinedOutput()
	if err != nil {
		t.Skipf("losetup: %v: %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := utilexec.New().Command("losetup", "-d", device).CombinedOutput(); err != nil {
			t.Errorf("losetup -d: %v: %s", err, out)
		}
	})
	if _, err := utilexec.New().LookPath("mkfs.ext4"); err != nil {
		t.Skipf("mkfs.ext4: %v", err)
	}
	m := hostmount.New(hostmount.Options{})
	target := mkdir(t, dir, "a")
	mt := mount.Mount{Source: device, Target: target, FSType: "ext4", Options: mount.Options{NoSuid: true}}
	for range 2 { // the second time it is not formatted again
		must(t, m.FormatAndMount(t.Context(), mt))
		p := inspect(t, m, target)
		if !p.Mounted || p.FSType != "ext4" {
			t.Errorf("%+v", p)
		}
		if _, err := os.Stat(filepath.Join(target, "kept")); err == nil {
			unmount(t, m, target)
			return
		}
		write(t, target, "kept")
		unmount(t, m, target)
	}
	t.Error("what was written is lost")
}
