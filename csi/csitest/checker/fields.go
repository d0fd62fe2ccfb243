package checker

import (
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Size limits of the specification, section "Size Limits" and the fields that
// override it.
const (
	maxString     = 128
	maxNodeID     = 256
	maxMap        = 4 << 10
	maxMountFlags = 4 << 10
)

// required names the fields that must be set, by RPC.
func required(method string) []protoreflect.Name {
	switch method {
	case "CreateVolume":
		return []protoreflect.Name{"name", "volume_capabilities"}
	case "DeleteVolume", "ControllerUnpublishVolume", "ControllerGetVolume", "ControllerGetVolumeHealth", "NodeGetVolumeHealth":
		return []protoreflect.Name{"volume_id"}
	case "ControllerPublishVolume":
		return []protoreflect.Name{"volume_id", "node_id", "volume_capability"}
	case "ValidateVolumeCapabilities":
		return []protoreflect.Name{"volume_id", "volume_capabilities"}
	case "ControllerExpandVolume":
		return []protoreflect.Name{"volume_id", "capacity_range"}
	case "ControllerModifyVolume":
		return []protoreflect.Name{"volume_id", "mutable_parameters"}
	case "CreateSnapshot":
		return []protoreflect.Name{"source_volume_id", "name"}
	case "DeleteSnapshot", "GetSnapshot":
		return []protoreflect.Name{"snapshot_id"}
	case "CreateVolumeGroupSnapshot":
		return []protoreflect.Name{"name", "source_volume_ids"}
	case "DeleteVolumeGroupSnapshot", "GetVolumeGroupSnapshot":
		return []protoreflect.Name{"group_snapshot_id", "snapshot_ids"}
	case "NodeStageVolume":
		return []protoreflect.Name{"volume_id", "staging_target_path", "volume_capability"}
	case "NodeUnstageVolume":
		return []protoreflect.Name{"volume_id", "staging_target_path"}
	case "NodePublishVolume":
		return []protoreflect.Name{"volume_id", "target_path", "volume_capability"}
	case "NodeUnpublishVolume":
		return []protoreflect.Name{"volume_id", "target_path"}
	case "NodeGetVolumeStats", "NodeExpandVolume":
		return []protoreflect.Name{"volume_id", "volume_path"}
	}
	return nil
}

// checkFields judges a request by itself.
func (c *Checker) checkFields(k *Call) {
	m := k.req.ProtoReflect()
	for _, name := range required(k.method) {
		if fd := m.Descriptor().Fields().ByName(name); fd != nil && !m.Has(fd) {
			c.report(k, RequiredField, "%s is empty; set it", name)
		}
	}
	c.checkMessage(k, m, "")
}

// checkMessage judges a message and those within it. It runs before the state
// is touched, so that each text names the field by its path.
func (c *Checker) checkMessage(k *Call, m protoreflect.Message, prefix string) {
	c.checkKnown(k, m.Interface(), strings.TrimSuffix(prefix, "."))
	m.Range(func(fd protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name := prefix + string(fd.Name())
		switch {
		case fd.IsMap():
			c.checkMap(k, fd, name, value.Map())
		case fd.IsList():
			c.checkList(k, fd, name, value.List())
		case fd.Message() != nil:
			c.checkMessage(k, value.Message(), name+".")
		case fd.Kind() == protoreflect.StringKind:
			c.checkString(k, fd, name, value.String())
		case fd.Kind() == protoreflect.EnumKind:
			if fd.Enum().Values().ByNumber(value.Enum()) == nil {
				c.report(k, InvalidField, "%s is %d, which the specification does not define", name, value.Enum())
			}
		}
		return true
	})
}

// checkKnown judges messages whose fields depend on one another.
func (c *Checker) checkKnown(k *Call, msg proto.Message, name string) {
	switch r := msg.(type) {
	case *csi.VolumeCapability:
		if r.GetAccessType() == nil {
			c.report(k, RequiredField, "%s has neither block nor mount; set one", name)
		}
		if r.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_UNKNOWN {
			c.report(k, RequiredField, "%s has no access mode; set it", name)
		}
	case *csi.CapacityRange:
		low, high := r.GetRequiredBytes(), r.GetLimitBytes()
		switch {
		case low < 0 || high < 0 || high > 0 && low > high:
			c.report(k, InvalidField, "%s is %d to %d; neither may be negative, nor the limit below what is required", name, low, high)
		case low == 0 && high == 0:
			c.report(k, RequiredField, "%s has neither required_bytes nor limit_bytes; set one, or leave it out where it is optional", name)
		}
	case *csi.VolumeContentSource:
		if r.GetType() == nil || r.GetSnapshot().GetSnapshotId() == "" && r.GetVolume().GetVolumeId() == "" {
			c.report(k, RequiredField, "%s names neither a snapshot nor a volume; set one", name)
		}
	case *csi.TopologyRequirement:
		c.checkTopology(k, r, name)
	case interface{ GetMaxEntries() int32 }:
		if r.GetMaxEntries() < 0 {
			c.report(k, InvalidField, "max_entries is negative")
		}
	}
}

func (c *Checker) checkTopology(k *Call, r *csi.TopologyRequirement, name string) {
	if len(r.GetRequisite())+len(r.GetPreferred()) == 0 {
		c.report(k, RequiredField, "%s has neither requisite nor preferred; set one, or leave it out", name)
	}
	for _, want := range r.GetPreferred() {
		if len(r.GetRequisite()) > 0 && !slices.ContainsFunc(r.GetRequisite(), func(o *csi.Topology) bool { return proto.Equal(o, want) }) {
			c.report(k, InvalidField, "%s prefers a topology that is not requisite", name)
		}
	}
}

func (c *Checker) checkMap(k *Call, fd protoreflect.FieldDescriptor, name string, m protoreflect.Map) {
	size, secret := 0, isSecret(fd)
	m.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		size += len(key.String()) + len(value.String())
		switch {
		case secret:
			if s := key.String(); s != ServiceAccountTokens && !secretKey(s) {
				c.report(k, SecretKey, "a key in %s is empty or has characters other than alphanumerics, '-', '_' and '.'", name)
			}
		case c.mayHoldSecret(fd, key.String()):
		default:
			c.checkLeak(k, name, key.String())
			c.checkLeak(k, name, value.String())
		}
		return true
	})
	if size > maxMap {
		c.report(k, SizeLimit, "%s has %d bytes; the limit is %d", name, size, maxMap)
	}
}

// mayHoldSecret tells whether an entry of a plain map may hold a secret: the
// tokens of service accounts, and what the driver itself put into
// publish_context and is judged by its own rule.
func (c *Checker) mayHoldSecret(fd protoreflect.FieldDescriptor, key string) bool {
	switch fd.Name() {
	case "volume_context":
		return key == ServiceAccountTokens
	case "publish_context":
		return !c.opts.AttachUnseen
	}
	return false
}

func secretKey(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
	})
}

func (c *Checker) checkList(k *Call, fd protoreflect.FieldDescriptor, name string, list protoreflect.List) {
	size := 0
	for i := range list.Len() {
		switch {
		case fd.Message() != nil:
			c.checkMessage(k, list.Get(i).Message(), name+".")
		case fd.Kind() == protoreflect.StringKind:
			s := list.Get(i).String()
			size += len(s)
			c.checkLeak(k, name, s)
			if fd.Name() != "mount_flags" && len(s) > maxString {
				c.report(k, SizeLimit, "an entry of %s has %d bytes; the limit is %d", name, len(s), maxString)
			}
		}
	}
	if fd.Name() == "mount_flags" && size > maxMountFlags {
		c.report(k, SizeLimit, "%s has %d bytes; the limit is %d", name, size, maxMountFlags)
	}
}

func (c *Checker) checkString(k *Call, fd protoreflect.FieldDescriptor, name, s string) {
	if isSecret(fd) {
		return
	}
	c.checkLeak(k, name, s)
	limit := maxString
	switch fd.Name() {
	case "staging_target_path", "target_path", "volume_path", "volume_publish_path":
		if !absolute(s) {
			c.report(k, InvalidField, "%s %q is no absolute path", name, s)
		}
		return
	case "node_id":
		limit = maxNodeID
	case "name":
		if strings.ContainsFunc(s, bannedInName) {
			c.report(k, InvalidField, "%s holds control characters", name)
		}
	}
	if len(s) > limit {
		c.report(k, SizeLimit, "%s has %d bytes; the limit is %d", name, len(s), limit)
	}
}

// absolute accepts the absolute paths of Unix and of Windows, whichever the
// checker itself runs on.
func absolute(s string) bool {
	if strings.ContainsRune(s, 0) {
		return false
	}
	drive := len(s) > 2 && s[1] == ':' && (s[2] == '\\' || s[2] == '/')
	return drive || strings.HasPrefix(s, "/") || strings.HasPrefix(s, `\\`)
}

// bannedInName tells whether the specification forbids the character in names.
func bannedInName(r rune) bool {
	return r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r >= 0x7f && r <= 0x9f
}
