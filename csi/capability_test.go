package csi

import (
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
)

func TestAccessModes(t *testing.T) {
	t.Parallel()
	const (
		o, p, r, w = v1.ReadWriteOnce, v1.ReadWriteOncePod, v1.ReadOnlyMany, v1.ReadWriteMany
		single     = csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
		several    = csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		alone      = csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		readers    = csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
		writers    = csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		refused    = csipb.VolumeCapability_AccessMode_UNKNOWN
	)
	type mode = v1.PersistentVolumeAccessMode
	for _, c := range []struct {
		modes         []mode
		without, with csipb.VolumeCapability_AccessMode_Mode
	}{
		{nil, single, several}, // also what an inline volume has
		{[]mode{o}, single, several},
		{[]mode{o, o}, single, several},
		{[]mode{p}, single, alone},
		{[]mode{p, p}, single, alone},
		{[]mode{r}, readers, readers},
		{[]mode{w}, writers, writers},
		{[]mode{o, w}, writers, writers},
		{[]mode{r, w}, writers, writers},
		{[]mode{o, r, w}, writers, writers},
		{[]mode{o, r}, refused, refused},
		{[]mode{o, p}, refused, refused},
		{[]mode{p, r}, refused, refused},
		{[]mode{p, w}, refused, refused},
		{[]mode{o, p, r, w}, refused, refused},
		{[]mode{"ReadWriteTwice"}, refused, refused},
		{[]mode{w, "ReadWriteTwice"}, refused, refused},
		{[]mode{""}, refused, refused},
	} {
		reversed := slices.Clone(c.modes)
		slices.Reverse(reversed)
		for _, modes := range [][]mode{c.modes, reversed} {
			for can, want := range map[bool]csipb.VolumeCapability_AccessMode_Mode{false: c.without, true: c.with} {
				got, err := accessModeOf(modes, can)
				if got != want || (err != nil) != (want == refused) {
					t.Errorf("%v, multi writer %v: %v, %v; want %v", modes, can, got, err, want)
				}
				if err != nil && plugins.ClassOf(err) != plugins.ClassPermanent {
					t.Errorf("%v: class %v", modes, plugins.ClassOf(err))
				}
			}
		}
	}
	if _, err := accessModeOf([]mode{r, o}, false); !strings.Contains(err.Error(), "keep ReadWriteOnce or ReadOnlyMany alone") {
		t.Errorf("it does not say what to change: %v", err)
	}
	if _, err := accessModeOf([]mode{mode(strings.Repeat("x", 10_000))}, false); len(err.Error()) > 300 {
		t.Errorf("%d bytes", len(err.Error()))
	}
}

func TestCapabilities(t *testing.T) {
	t.Parallel()
	const mode = csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	access := &csipb.VolumeCapability_AccessMode{Mode: mode}
	block := v1.PersistentVolumeBlock
	raw := &plugins.Spec{PV: &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{VolumeMode: &block}}}
	flags := []string{"noatime"}
	for name, c := range map[string]struct{ got, want *csipb.VolumeCapability }{
		"block": {capabilityOf(raw, "ext4", mode, flags, "5"), &csipb.VolumeCapability{
			AccessMode: access, AccessType: &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}},
		}},
		"mount": {capabilityOf(&plugins.Spec{PV: &v1.PersistentVolume{}}, "EXT4 ", mode, flags, "5"), &csipb.VolumeCapability{
			AccessMode: access, AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{
				FsType: "EXT4 ", MountFlags: []string{"noatime"}, VolumeMountGroup: "5",
			}},
		}},
		"inline, of the driver's choice": {capabilityOf(&plugins.Spec{Volume: &v1.Volume{}}, "", mode, nil, ""), &csipb.VolumeCapability{
			AccessMode: access, AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}},
		}},
	} {
		if !proto.Equal(c.got, c.want) {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	got := capabilityOf(&plugins.Spec{}, "", mode, flags, "")
	if got.GetMount().GetMountFlags()[0] = "changed"; flags[0] != "noatime" {
		t.Error("the spec's mount options are shared")
	}
}
