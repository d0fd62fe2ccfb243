package hostmount_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/mount/hostmount"
)

func itoa(n int) string { return strconv.Itoa(n) }

func build(t *testing.T, m *hostmount.Mounter, mt mount.Mount) mount.Detached {
	t.Helper()
	d, err := m.Build(t.Context(), mt)
	if errors.Is(err, mount.ErrUnsupported) {
		t.Skipf("this kernel: %v", err)
	}
	must(t, err)
	return d
}

func TestBuildFillsBeforeItIsSeen(t *testing.T) {
	dir := nstest.Dir(t)
	m := hostmount.New(hostmount.Options{})
	target := mkdir(t, dir, "a")
	mt := tmpfs("", "mode=0755", "noswap", "size=65536")
	mt.Options.ReadOnly, mt.Options.NoSuid = true, true
	d := build(t, m, mt)
	defer func() { _ = d.Close() }()
	root, err := d.Root()
	must(t, err)
	must(t, root.WriteFile("f", []byte("content"), 0o600))
	f, err := root.Create("open")
	must(t, err)
	if p := inspect(t, m, target); p.Mounted {
		t.Error("seen before it is attached")
	}
	wantErr(t, d.Attach(t.Context(), target), mount.ErrBusy) // cannot become read-only now
	must(t, f.Close())
	must(t, d.Attach(t.Context(), target))
	if p := inspect(t, m, target); !p.Mounted || !p.ReadOnly || p.FSType != "tmpfs" {
		t.Errorf("%+v", p)
	}
	if text, err := os.ReadFile(filepath.Join(target, "f")); err != nil || string(text) != "content" {
		t.Errorf("%q, %v", text, err)
	}
	must(t, d.Close())
	must(t, d.Close())
	unmount(t, m, target)
	wantErr(t, d.Attach(t.Context(), target), os.ErrClosed)
}

func TestBuildThatIsNotAttachedIsGone(t *testing.T) {
	dir := nstest.Dir(t)
	m := hostmount.New(hostmount.Options{})
	d := build(t, m, tmpfs(""))
	wantErr(t, d.Attach(t.Context(), filepath.Join(dir, "no")), unix.ENOENT)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantErr(t, d.Attach(ctx, dir), context.Canceled)
	before, err := m.Table(t.Context())
	must(t, err)
	must(t, d.Close())
	after, err := m.Table(t.Context())
	must(t, err)
	if len(after) != len(before) {
		t.Errorf("%d mounts, then %d", len(before), len(after))
	}
}

func TestAttachOnTopOfANewerMount(t *testing.T) {
	dir := nstest.Dir(t)
	m := hostmount.New(hostmount.Options{})
	target := mkdir(t, dir, "a")
	d := build(t, m, tmpfs("", "size=65536"))
	newer := tmpfs(target)
	newer.Source = "newer"
	must(t, m.Mount(t.Context(), newer))
	must(t, d.Attach(t.Context(), target))
	must(t, d.Close())
	table, err := m.Table(t.Context())
	must(t, err)
	if e, _ := table.At(target); e.Source != "test" {
		t.Errorf("topmost is %+v", e)
	}
	if below := table.Below(dir); len(below) != 2 || below[0].Source != "test" {
		t.Errorf("below are %+v", below)
	}
}

func TestBuildUnsupported(t *testing.T) {
	dir := nstest.Dir(t)
	_, err := hostmount.New(hostmount.Options{Classic: true}).Build(t.Context(), tmpfs(""))
	wantErr(t, err, mount.ErrUnsupported)
	m := hostmount.New(hostmount.Options{})
	_, err = m.Build(t.Context(), mount.Mount{Source: dir, Options: mount.Options{Bind: true}})
	wantErr(t, err, mount.ErrUnsupported)
	_, err = m.Build(t.Context(), mount.Mount{Source: "s:/", FSType: "nfs"})
	wantErr(t, err, mount.ErrUnsupported)
}
