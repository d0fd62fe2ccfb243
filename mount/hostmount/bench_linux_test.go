package hostmount

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/mount"
)

// BenchmarkFloorTmpfs is what BenchmarkTmpfsMountUnmount is compared with.
func BenchmarkFloorTmpfs(b *testing.B) {
	dir := folder(b, nstest.Dir(b), "a")
	for b.Loop() {
		try(b, unix.Mount("x", dir, "tmpfs", unix.MS_NOSUID, "size=1048576,mode=0755"), unix.Unmount(dir, unix.UMOUNT_NOFOLLOW))
	}
}

func BenchmarkTmpfsMountUnmount(b *testing.B) {
	for _, classic := range []bool{false, true} {
		b.Run(fmt.Sprintf("classic=%v", classic), func(b *testing.B) {
			m := New(Options{Classic: classic})
			mt := small(folder(b, nstest.Dir(b), "a"))
			mt.Options = mount.Options{NoSuid: true, Data: []string{"size=1048576", "mode=0755"}}
			for b.Loop() {
				try(b, m.Mount(b.Context(), mt), m.Unmount(b.Context(), mt.Target, mount.UnmountOptions{}))
			}
		})
	}
}

func BenchmarkBindMountUnmount(b *testing.B) {
	for _, readOnly := range []bool{false, true} {
		b.Run(fmt.Sprintf("ro=%v", readOnly), func(b *testing.B) {
			m := New(Options{})
			dir := nstest.Dir(b)
			mt := mount.Mount{Source: folder(b, dir, "s"), Target: folder(b, dir, "t")}
			mt.Options = mount.Options{Bind: true, ReadOnly: readOnly}
			for b.Loop() {
				try(b, m.Mount(b.Context(), mt), m.Unmount(b.Context(), mt.Target, mount.UnmountOptions{}))
			}
		})
	}
}

func BenchmarkInspect(b *testing.B) {
	m := New(Options{})
	dir := nstest.Dir(b)
	for name, path := range map[string]string{"mount": dir, "folder": folder(b, dir, "a")} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if p, err := m.Inspect(b.Context(), path); err != nil || p.Mounted != (path == dir) {
					b.Fatal(p, err)
				}
			}
		})
	}
}

// BenchmarkFloorInspect is the least that tells what Inspect does.
func BenchmarkFloorInspect(b *testing.B) {
	dir := nstest.Dir(b)
	for b.Loop() {
		var st unix.Statx_t
		var fs unix.Statfs_t
		try(b, unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st), unix.Statfs(dir, &fs))
	}
}

// BenchmarkFloorBind makes a bind mount without flags by mount(2).
func BenchmarkFloorBind(b *testing.B) {
	dir := nstest.Dir(b)
	source, target := folder(b, dir, "s"), folder(b, dir, "t")
	for b.Loop() {
		try(b, unix.Mount(source, target, "", unix.MS_BIND, ""), unix.Unmount(target, 0))
	}
}

// tree makes what a configMap volume leaves behind.
func tree(b *testing.B, dir string) string {
	top := filepath.Join(dir, "top")
	data := folder(b, top, "..2026_01_01")
	for i := range 4 {
		name := fmt.Sprint("key", i)
		try(b, os.WriteFile(filepath.Join(data, name), nil, 0o600), os.Symlink("..data/"+name, filepath.Join(top, name)))
	}
	try(b, os.Symlink("..2026_01_01", filepath.Join(top, "..data")))
	return top
}

func benchmarkRemove(b *testing.B, remove func(string) error) {
	dir := nstest.Dir(b)
	for b.Loop() {
		b.StopTimer()
		top := tree(b, dir)
		b.StartTimer()
		try(b, remove(top))
	}
}

func BenchmarkRemoveSmallTree(b *testing.B) {
	m := New(Options{})
	benchmarkRemove(b, func(path string) error { return m.RemoveAll(b.Context(), path) })
}

func BenchmarkFloorRemoveSmallTree(b *testing.B) { benchmarkRemove(b, os.RemoveAll) }

func BenchmarkParseMountinfo(b *testing.B) {
	var text strings.Builder
	for i := range 10_000 {
		_, _ = fmt.Fprintf(&text, "%d 25 0:%d / /var/lib/kubelet/pods/0f7c1c52-8f4d-4c62-9d58-%012d/volumes/kubernetes.io~secret/token "+
			"rw,nosuid,nodev,relatime shared:%d - tmpfs tmpfs rw,size=65536k,mode=755,inode64\n", 100+i, i, i, i)
	}
	for b.Loop() {
		table, err := parseMountinfo(text.String())
		if err != nil || len(table) != 10_000 {
			b.Fatal(len(table), err)
		}
	}
}

// BenchmarkTable reads the table of 10,000 real mounts.
func BenchmarkTable(b *testing.B) {
	dir := nstest.Dir(b)
	many := folder(b, dir, "many")
	try(b, unix.Mount("x", many, "tmpfs", 0, ""), unix.Mount("", many, "", unix.MS_PRIVATE, ""))
	for i := range 10_000 {
		path := folder(b, many, fmt.Sprint(i))
		try(b, unix.Mount(path, path, "", unix.MS_BIND, ""))
	}
	target := folder(b, dir, "one")
	for _, classic := range []bool{false, true} {
		m := New(Options{Classic: classic})
		b.Run(fmt.Sprintf("whole/classic=%v", classic), func(b *testing.B) {
			for b.Loop() {
				_, err := m.snapshot(b.Context(), true)
				try(b, err)
			}
		})
		if classic {
			b.Run("floor: the text alone", func(b *testing.B) {
				for b.Loop() {
					text, err := os.ReadFile(mountinfoPath)
					if err != nil || len(text) < 10_000 {
						b.Fatal(err)
					}
				}
			})
		}
		b.Run(fmt.Sprintf("unchanged/classic=%v", classic), func(b *testing.B) {
			for b.Loop() {
				_, err := m.Table(b.Context())
				try(b, err)
			}
		})
		b.Run(fmt.Sprintf("after one mount/classic=%v", classic), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				try(b, m.Mount(b.Context(), small(target)))
				b.StartTimer()
				_, err := m.Table(b.Context())
				try(b, err)
				b.StopTimer()
				try(b, m.Unmount(b.Context(), target, mount.UnmountOptions{}))
				b.StartTimer()
			}
		})
	}
}
