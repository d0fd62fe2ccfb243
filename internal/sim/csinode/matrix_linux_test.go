package csinode_test

import (
	"fmt"
	"slices"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/volumekit/volumekit/csi/csitest"
	"github.com/volumekit/volumekit/internal/nstest"
)

// The calls that a pod's volume costs, for every set of capabilities that
// decides about calls, and every kind of volume: none twice, none that was not
// announced, and with staging two up and two down.
func TestCallsByCapabilities(t *testing.T) {
	for _, attach := range []bool{false, true} {
		for _, stage := range []bool{false, true} {
			for _, mode := range []csitest.Mode{csitest.ModeTmpfs, csitest.ModeBind, csitest.ModePlain, csitest.ModeLoop, csitest.ModeBlock} {
				t.Run(fmt.Sprintf("attach=%v,stage=%v,%s", attach, stage, mode), func(t *testing.T) {
					t.Parallel()
					callsOf(t, attach, stage, mode)
				})
			}
		}
	}
}

func callsOf(t *testing.T, attach, stage bool, mode csitest.Mode) {
	if (mode == csitest.ModeLoop || mode == csitest.ModeBlock) && !nstest.RealRoot() {
		t.Skip("loop devices need the root user")
	}
	claim := "data"
	if mode == csitest.ModeBlock {
		claim = "block"
	}
	r := newRig(t, settings{driver: func(c *csitest.Config) {
		c.Mode = mode
		c.Capabilities = capabilitiesFor(attach, stage)
	}})
	if mode == csitest.ModeBlock {
		r.volume(claim, block)
	} else {
		r.volume(claim)
	}
	one, two := podOf("one", claim), podOf("two", claim)
	handle := " handle-" + claim
	up, down := []string{"NodePublishVolume" + handle}, []string{"NodeUnpublishVolume" + handle}
	if stage {
		up, down = slices.Insert(up, 0, "NodeStageVolume"+handle), append(down, "NodeUnstageVolume"+handle)
	}
	if attach {
		up = slices.Insert(up, 0, "ValidateVolumeCapabilities"+handle, "ControllerPublishVolume"+handle)
		down = append(down, "ControllerUnpublishVolume"+handle)
	}
	r.up(one)
	r.want(up...)
	r.driver.ResetCalls()
	r.up(two)
	r.want("NodePublishVolume" + handle)
	r.driver.ResetCalls()
	r.down(two)
	r.want("NodeUnpublishVolume" + handle)
	r.driver.ResetCalls()
	r.down(one)
	r.released()
	r.want(down...)
}

func capabilitiesFor(attach, stage bool) csitest.Capabilities {
	c := csitest.NodeCapabilities(csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	if stage {
		c.Node = append(c.Node, csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	}
	if attach {
		c.Plugin = []csipb.PluginCapability_Service_Type{csipb.PluginCapability_Service_CONTROLLER_SERVICE}
		c.Controller = []csipb.ControllerServiceCapability_RPC_Type{
			csipb.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
			csipb.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		}
	}
	return c
}
