package checker

import (
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// checkRepeat compares a repeated attach, stage or publish with the first. It
// tells whether it found a difference.
func (c *Checker) checkRepeat(k *Call, old *record) bool {
	changed := changedFields(old.req, k.req)
	if len(changed) == 0 {
		return false
	}
	c.report(k, ArgumentsChanged, "the volume is %v or may be, but %s changed; call %s first", old, strings.Join(changed, ", "), old.way())
	return true
}

// changedFields names the fields that differ, apart from secrets, service
// account tokens, and publish_context, which has its own rule.
func changedFields(before, after proto.Message) []string {
	a, b := before.ProtoReflect(), withoutSecrets(after).ProtoReflect()
	if a.Descriptor() != b.Descriptor() {
		return []string{"the message"}
	}
	var names []string
	fields := a.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if fd.Name() != "publish_context" && !a.Get(fd).Equal(b.Get(fd)) {
			names = append(names, string(fd.Name()))
		}
	}
	return names
}

// withoutSecrets returns a copy without secret fields and service account
// tokens.
func withoutSecrets(req proto.Message) proto.Message {
	req = proto.Clone(req)
	m := req.ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if fd := fields.Get(i); isSecret(fd) {
			m.Clear(fd)
		}
	}
	if r, ok := req.(interface{ GetVolumeContext() map[string]string }); ok {
		delete(r.GetVolumeContext(), ServiceAccountTokens)
	}
	return req
}

func isSecret(fd protoreflect.FieldDescriptor) bool {
	secret, _ := proto.GetExtension(fd.Options(), csi.E_CsiSecret).(bool)
	return secret
}

func sameMessage(a, b proto.Message) bool { return proto.Equal(a, b) }

func volumeCapability(req proto.Message) *csi.VolumeCapability {
	if r, ok := req.(interface {
		GetVolumeCapability() *csi.VolumeCapability
	}); ok {
		return r.GetVolumeCapability()
	}
	return nil
}

// checkPublishContext wants what ControllerPublishVolume returned or, where
// that was not seen, what the calls before had.
func (c *Checker) checkPublishContext(k *Call, v *volume, got map[string]string) {
	if attaches, known := c.caps.attaches(); known && !attaches {
		if len(got) > 0 {
			c.report(k, PublishContext, "publish_context is set, but the driver has no PUBLISH_UNPUBLISH_VOLUME; leave it empty")
		}
		return
	}
	var attachedHere bool
	for _, r := range sorted(v.attached) {
		if !c.thisNode(v, r.key) || len(r.contexts) == 0 {
			continue
		}
		attachedHere = true
		if slices.ContainsFunc(r.contexts, func(want map[string]string) bool { return maps.Equal(want, got) }) {
			return
		}
	}
	if attachedHere {
		c.report(k, PublishContext, "publish_context is not what ControllerPublishVolume returned; pass its answer unchanged")
		return
	}
	for _, r := range v.onNode() {
		if was, ok := r.req.(interface{ GetPublishContext() map[string]string }); ok && !maps.Equal(was.GetPublishContext(), got) {
			c.report(k, PublishContext, "publish_context differs from that of the call by which the volume is %v; pass the same", r)
		}
	}
}

// checkVolumeContext wants the volume context that CreateVolume returned or,
// where that was not seen, the one of the calls before.
func (c *Checker) checkVolumeContext(k *Call, v *volume, got map[string]string) {
	got = c.lasting(got)
	if want, ok := c.created.get(k.volume); ok {
		if !maps.Equal(c.lasting(want), got) {
			c.report(k, VolumeContext, "volume_context is not the one that CreateVolume returned; pass that")
		}
		return
	}
	for _, r := range v.all() {
		if was, ok := r.req.(interface{ GetVolumeContext() map[string]string }); ok && !maps.Equal(c.lasting(was.GetVolumeContext()), got) {
			c.report(k, VolumeContext, "volume_context differs from that of the call by which the volume is %v; pass the same", r)
		}
	}
}

// lasting returns the entries that belong to the volume.
func (c *Checker) lasting(m map[string]string) map[string]string {
	m = maps.Clone(m)
	maps.DeleteFunc(m, func(key, _ string) bool {
		return slices.ContainsFunc(c.opts.VolatileContext, func(p string) bool { return strings.HasPrefix(key, p) })
	})
	return m
}

// checkAccess wants access type and mode of the calls before. A capability that
// is incomplete is judged elsewhere.
func (c *Checker) checkAccess(k *Call, v *volume, vc *csi.VolumeCapability) {
	if vc.GetAccessType() == nil || vc.GetAccessMode() == nil {
		return
	}
	mode := vc.GetAccessMode().GetMode()
	for _, r := range v.all() {
		was := volumeCapability(r.req)
		if was.GetAccessType() == nil || was.GetAccessMode() == nil {
			continue
		}
		if (was.GetBlock() == nil) != (vc.GetBlock() == nil) {
			c.report(k, AccessTypeChanged, "access type %s, but the volume is %v as %s; use the same", accessType(vc), r, accessType(was))
			return
		}
		if before := was.GetAccessMode().GetMode(); !modesFit(before, mode) {
			c.report(k, AccessModeChanged, "access mode %v, but the volume is %v with %v; use the same", mode, r, before)
		}
	}
}

func accessType(vc *csi.VolumeCapability) string {
	if vc.GetBlock() != nil {
		return "block"
	}
	return "mount"
}

// modesFit tells whether two calls mean the same mode. SINGLE_NODE_WRITER is
// the older name of both precise ones, and which name is used depends on the
// capabilities of the service.
func modesFit(a, b csi.VolumeCapability_AccessMode_Mode) bool {
	const older = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	return a == b || (a == older || b == older) && singleWriter(a) && singleWriter(b)
}
