package csitest_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/internal/nstest"
)

// fileModes are the modes with mount access.
var fileModes = []struct {
	name   string
	mode   csitest.Mode
	fsType string
	magic  int64
	root   bool
	// keeps is whether content outlives the last mount.
	keeps bool
}{
	{name: "tmpfs", mode: csitest.ModeTmpfs, magic: unix.TMPFS_MAGIC},
	{name: "bind", mode: csitest.ModeBind, magic: unix.TMPFS_MAGIC, keeps: true},
	{name: "ext4", mode: csitest.ModeLoop, fsType: "ext4", magic: unix.EXT4_SUPER_MAGIC, root: true, keeps: true},
	{name: "xfs", mode: csitest.ModeLoop, fsType: "xfs", magic: unix.XFS_SUPER_MAGIC, root: true, keeps: true},
}

func needRoot(t *testing.T, need bool) {
	t.Helper()
	if need && !nstest.RealRoot() {
		t.Skip("loop devices need the machine's root")
	}
}

func TestStageAndPublishMount(t *testing.T) {
	for _, m := range fileModes {
		t.Run(m.name, func(t *testing.T) {
			needRoot(t, m.root)
			b := start(t, staging(m.mode))
			c := mountCapability(writers, m.fsType)
			s, one, two := b.staging("stage"), b.path("pods/1/target"), b.path("pods/2/target")
			for round := range 2 {
				b.must(b.stage("v", s, c), b.stage("v", s, c))
				var st unix.Statfs_t
				b.must(unix.Statfs(s, &st))
				if int64(st.Type) != m.magic { //nolint:unconvert // not int64 everywhere
					t.Errorf("file system of the stage is %x, want %x", st.Type, m.magic)
				}
				b.must(b.publish("v", s, one, c), b.publish("v", s, two, c), b.publish("v", s, two, c))
				if round == 1 && m.keeps {
					b.read(filepath.Join(one, "kept"), "from the first round")
				}
				b.write(filepath.Join(one, "kept"), "from the first round")
				b.read(filepath.Join(two, "kept"), "from the first round")
				if v := b.volume("v"); v.Staged == nil || !v.Staged.Complete || len(v.Published) != 2 {
					t.Errorf("the table has %+v", v)
				}
				b.must(b.unpublish("v", one), b.unpublish("v", one), b.unpublish("v", two), b.unstage("v", s), b.unstage("v", s))
				b.gone(one)
				b.gone(two)
				b.nothingLeft()
			}
		})
	}
}

func TestPublishWithoutStage(t *testing.T) {
	for _, m := range fileModes {
		t.Run(m.name, func(t *testing.T) {
			needRoot(t, m.root)
			b := start(t, csitest.Config{Mode: m.mode, AutoCreate: true})
			c := mountCapability(writers, m.fsType)
			one, two := b.path("pods/1/target"), b.path("pods/2/target")
			b.want(b.stage("v", b.staging("stage"), c), codes.Unimplemented)
			b.must(b.publish("v", "", one, c), b.publish("v", "", two, c))
			b.write(filepath.Join(one, "file"), "shared")
			// The second has the volume even when the first, which brought it, is gone.
			b.must(b.unpublish("v", one))
			b.read(filepath.Join(two, "file"), "shared")
			b.must(b.unpublish("v", two))
			b.nothingLeft()
		})
	}
}

func TestPlainMountsNothing(t *testing.T) {
	b := start(t, staging(csitest.ModePlain))
	c := mountCapability(writers, "")
	s, target := b.staging("stage"), b.path("pods/1/target")
	b.must(b.stage("v", s, c), b.publish("v", s, target, c))
	b.read(filepath.Join(target, "volume"), "v")
	b.nothingLeft()
	b.must(b.unpublish("v", target), b.unstage("v", s))
	b.gone(target)
}

func TestReadOnly(t *testing.T) {
	for _, m := range fileModes {
		t.Run(m.name, func(t *testing.T) {
			needRoot(t, m.root)
			b := start(t, staging(m.mode))
			c := mountCapability(writers, m.fsType)
			s, ro, rw := b.staging("stage"), b.path("pods/1/target"), b.path("pods/2/target")
			b.must(b.stage("v", s, c), b.publish("v", s, rw, c))
			_, err := b.NodePublishVolume(b.ctx, &csi.NodePublishVolumeRequest{
				VolumeId: "v", StagingTargetPath: s, TargetPath: ro, VolumeCapability: c, Readonly: true,
			})
			b.must(err)
			b.write(filepath.Join(rw, "file"), "x")
			b.read(filepath.Join(ro, "file"), "x")
			if err := os.WriteFile(filepath.Join(ro, "file"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
				t.Errorf("write to a read-only publish: %v", err)
			}
		})
	}
}

func TestReaderModeIsReadOnly(t *testing.T) {
	b := start(t, staging(csitest.ModeBind))
	c := mountCapability(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, "")
	s, target := b.staging("stage"), b.path("pods/1/target")
	b.must(b.stage("v", s, c), b.publish("v", s, target, c))
	if err := os.WriteFile(filepath.Join(target, "file"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write: %v", err)
	}
}

func TestMountFlagsAndGroup(t *testing.T) {
	b := start(t, staging(csitest.ModeTmpfs, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP))
	c := mountCapability(writer, "", "noexec", "nosuid", "nr_inodes=100")
	c.GetMount().VolumeMountGroup = "0"
	s, target := b.staging("stage"), b.path("pods/1/target")
	b.must(b.stage("v", s, c), b.publish("v", s, target, c))
	var st unix.Statfs_t
	b.must(unix.Statfs(target, &st))
	if want := int64(unix.ST_NOEXEC | unix.ST_NOSUID); int64(st.Flags)&want != want { //nolint:unconvert // narrower on other architectures
		t.Errorf("flags of the mount are %x", st.Flags)
	}
	if st.Files != 100 {
		t.Errorf("%d inodes, want 100", st.Files)
	}
	info, err := os.Stat(target)
	b.must(err)
	if info.Mode()&fs.ModeSetgid == 0 || info.Mode()&0o070 != 0o070 {
		t.Errorf("mode is %v, the group cannot write", info.Mode())
	}
}

func TestBlock(t *testing.T) {
	needRoot(t, true)
	for _, nodes := range []bool{false, true} {
		config := staging(csitest.ModeBlock)
		config.DeviceNodes, config.DefaultBytes = nodes, 8<<20
		b := start(t, config)
		c := blockCapability(writers)
		s, rw, ro := b.staging("stage"), b.path("pods/1/target"), b.path("pods/2/target")
		b.must(b.stage("v", s, c))
		if n := devices(t, b.dir); len(n) != 1 {
			t.Fatalf("devices of the stage: %q", n)
		}
		b.must(b.publish("v", s, rw, c), b.publish("v", s, rw, c))
		_, err := b.NodePublishVolume(b.ctx, &csi.NodePublishVolumeRequest{VolumeId: "v", StagingTargetPath: s, TargetPath: ro, VolumeCapability: c, Readonly: true})
		b.must(err)
		st, err := os.Stat(rw)
		if err != nil || st.Mode().Type() != fs.ModeDevice {
			t.Fatalf("target is %v, %v, no block device", st.Mode(), err)
		}
		device, err := os.OpenFile(rw, os.O_RDWR|syscall.O_SYNC, 0)
		b.must(err)
		_, err = device.WriteAt([]byte("content"), 4096)
		b.must(err)
		if end, err := device.Seek(0, 2); err != nil || end != 8<<20 {
			t.Errorf("the device has %d bytes, %v", end, err)
		}
		b.must(device.Close())
		if f, err := os.OpenFile(ro, os.O_WRONLY, 0); err == nil {
			_, err = f.Write([]byte("x"))
			f.Close()
			if err == nil {
				t.Error("a read-only device was written")
			}
		}
		b.must(b.unpublish("v", ro), b.unpublish("v", rw), b.unstage("v", s))
		b.gone(rw)
		b.nothingLeft()
	}
}

func TestExpand(t *testing.T) {
	for _, m := range fileModes {
		t.Run(m.name, func(t *testing.T) {
			needRoot(t, m.root)
			config := staging(m.mode, csi.NodeServiceCapability_RPC_EXPAND_VOLUME, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS)
			config.DefaultBytes = 64 << 20
			if m.fsType == "xfs" {
				config.DefaultBytes = 320 << 20
			}
			b := start(t, config)
			c := mountCapability(writer, m.fsType)
			s, target := b.staging("stage"), b.path("pods/1/target")
			b.must(b.stage("v", s, c), b.publish("v", s, target, c))
			if m.fsType == "ext4" && !mayResize(t) {
				t.Skip("a mounted ext4 is grown by CAP_SYS_RESOURCE only")
			}
			b.write(filepath.Join(target, "file"), "x")
			before := b.total("v", target)
			reply, err := b.NodeExpandVolume(b.ctx, &csi.NodeExpandVolumeRequest{
				VolumeId: "v", VolumePath: target, StagingTargetPath: s, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * config.DefaultBytes},
			})
			b.must(err)
			if reply.GetCapacityBytes() != 2*config.DefaultBytes || b.volume("v").NodeBytes != 2*config.DefaultBytes {
				t.Errorf("reply is %v, table %+v", reply, b.volume("v"))
			}
			if after := b.total("v", target); m.mode != csitest.ModeBind && after < before*3/2 {
				t.Errorf("total was %d and is %d", before, after)
			}
			b.read(filepath.Join(target, "file"), "x")
		})
	}
}

// mayResize reports whether the process has CAP_SYS_RESOURCE.
func mayResize(t *testing.T) bool {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func (b *bench) total(id, path string) int64 {
	b.Helper()
	reply, err := b.NodeGetVolumeStats(b.ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
	b.must(err)
	return reply.GetUsage()[0].GetTotal()
}

func TestExpandBlock(t *testing.T) {
	needRoot(t, true)
	config := staging(csitest.ModeLoop, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	config.DefaultBytes = 8 << 20
	b := start(t, config)
	c := blockCapability(writer)
	s, target := b.staging("stage"), b.path("pods/1/target")
	b.must(b.stage("v", s, c), b.publish("v", s, target, c))
	_, err := b.NodeExpandVolume(b.ctx, &csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: target, CapacityRange: &csi.CapacityRange{RequiredBytes: 16 << 20}})
	b.must(err)
	f, err := os.Open(target)
	b.must(err)
	defer f.Close()
	if end, err := f.Seek(0, 2); err != nil || end != 16<<20 {
		t.Errorf("the device has %d bytes, %v", end, err)
	}
	_, err = b.NodeExpandVolume(b.ctx, &csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: target, CapacityRange: &csi.CapacityRange{LimitBytes: 8 << 20}})
	b.want(err, codes.OutOfRange)
}

func TestBusyMountStays(t *testing.T) {
	b := start(t, staging(csitest.ModeTmpfs))
	c := mountCapability(writer, "")
	s, target := b.staging("stage"), b.path("pods/1/target")
	b.must(b.stage("v", s, c), b.publish("v", s, target, c))
	f, err := os.Create(filepath.Join(target, "open"))
	b.must(err)
	err = b.unpublish("v", target)
	b.want(err, codes.Internal)
	if err != nil && !strings.Contains(err.Error(), "busy") {
		t.Errorf("error is %v", err)
	}
	if v := b.volume("v"); len(v.Published) != 1 {
		t.Error("the table has forgotten a publish that is still there")
	}
	b.must(f.Close(), b.unpublish("v", target))
}

func TestTargetsOfOthersAreLeftAlone(t *testing.T) {
	b := start(t, staging(csitest.ModeTmpfs))
	c := mountCapability(writer, "")
	s, target := b.staging("stage"), b.path("pods/1/target")
	b.must(b.stage("v", s, c), os.Mkdir(target, 0o755))
	b.write(filepath.Join(target, "precious"), "x")
	b.want(b.publish("v", s, target, c), codes.FailedPrecondition)
	b.must(b.unpublish("v", target)) // of which the driver knows nothing
	b.read(filepath.Join(target, "precious"), "x")
}

func TestResizeOfTmpfsLeavesMountsAsTheyAre(t *testing.T) {
	b := start(t, staging(csitest.ModeTmpfs, csi.NodeServiceCapability_RPC_EXPAND_VOLUME))
	c := mountCapability(writers, "", "noexec")
	s, ro := b.staging("stage"), b.path("pods/1/target")
	b.must(b.stage("v", s, c))
	_, err := b.NodePublishVolume(b.ctx, &csi.NodePublishVolumeRequest{VolumeId: "v", StagingTargetPath: s, TargetPath: ro, VolumeCapability: c, Readonly: true})
	b.must(err)
	_, err = b.NodeExpandVolume(b.ctx, &csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: ro, CapacityRange: &csi.CapacityRange{RequiredBytes: 128 << 20}})
	b.must(err)
	b.write(filepath.Join(s, "file"), "the staged mount can still be written")
	if err := os.WriteFile(filepath.Join(ro, "file"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write: %v", err)
	}
	var st unix.Statfs_t
	b.must(unix.Statfs(s, &st))
	if st.Flags&unix.ST_NOEXEC == 0 || st.Blocks*uint64(st.Bsize) != 128<<20 {
		t.Errorf("flags %x, %d blocks", st.Flags, st.Blocks)
	}
}

// image is the image file of the only volume.
func (b *bench) image() string {
	b.Helper()
	files, err := filepath.Glob(filepath.Join(b.dir, "driver", "data", "*", "image"))
	if err != nil || len(files) != 1 {
		b.Fatalf("images are %q, %v", files, err)
	}
	return files[0]
}

func TestOnlyEmptyImagesAreFormatted(t *testing.T) {
	needRoot(t, true)
	b := start(t, staging(csitest.ModeLoop))
	s := b.staging("stage")
	ext4 := mountCapability(writer, "ext4")
	// Data that came by block access is nobody's to overwrite.
	b.must(b.stage("v", s, blockCapability(writer)))
	f, err := os.OpenFile(devices(t, b.dir)[0], os.O_WRONLY|syscall.O_SYNC, 0)
	b.must(err)
	_, err = f.WriteString("precious")
	b.must(err, f.Close(), b.unstage("v", s))
	b.want(b.stage("v", s, ext4), codes.FailedPrecondition)
	// A file system that came so is mounted.
	b.must(os.Truncate(b.image(), 0), os.Truncate(b.image(), 64<<20))
	if out, err := exec.CommandContext(b.ctx, "mkfs.ext4", "-q", "-L", "label", b.image()).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	b.want(b.stage("v", s, mountCapability(writer, "xfs")), codes.FailedPrecondition)
	b.must(b.stage("v", s, ext4), b.unstage("v", s))
	if v := b.volume("v"); v.FSType != "ext4" {
		t.Errorf("volume is %+v", v)
	}
}

func TestKilledFormattingIsDoneAgain(t *testing.T) {
	needRoot(t, true)
	b := start(t, staging(csitest.ModeLoop))
	s, c := b.staging("stage"), mountCapability(writer, "ext4")
	b.must(b.stage("v", s, c), b.unstage("v", s), b.d.Kill())
	text, err := os.ReadFile(tableFile(b, "v"))
	b.must(err)
	b.must(os.WriteFile(tableFile(b, "v"), []byte(strings.Replace(string(text), `"FSType": "ext4"`, `"Formatting": true`, 1)), 0o600))
	b.must(os.WriteFile(b.image(), []byte("half a file system"), 0o600))
	b.must(b.d.Start(b.ctx))
	b.must(b.retry(func() error { return b.stage("v", s, c) }))
}

func TestFileSystemOfTheConfig(t *testing.T) {
	needRoot(t, true)
	config := staging(csitest.ModeLoop)
	config.FSType = "xfs"
	b := start(t, config)
	s := b.staging("stage")
	b.must(b.stage("v", s, mountCapability(writer, "")))
	var st unix.Statfs_t
	b.must(unix.Statfs(s, &st))
	if st.Type != unix.XFS_SUPER_MAGIC {
		t.Errorf("file system is %x", st.Type)
	}
	if v := b.volume("v"); v.Bytes < 300<<20 {
		t.Errorf("the volume has %d bytes, too few for xfs", v.Bytes)
	}
}
