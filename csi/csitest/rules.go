package csitest

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Limits of the specification, section Size Limits.
const (
	maxString = 128
	maxNodeID = 256
	maxMap    = 4 << 10
)

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

func precondition(format string, args ...any) error {
	return status.Errorf(codes.FailedPrecondition, format, args...)
}

// required refuses the first of pairs of field name and value that is empty.
func required(pairs ...string) error {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			return invalid("%s is missing", pairs[i])
		}
	}
	return nil
}

// checkSizes holds a request's fields against the size limits.
func checkSizes(req any) error {
	m, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	return checkMessage(m.ProtoReflect())
}

func checkMessage(m protoreflect.Message) (err error) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			err = checkMap(f, v.Map())
		case f.IsList():
			err = checkList(f, v.List())
		case f.Kind() == protoreflect.MessageKind:
			err = checkMessage(v.Message())
		case f.Kind() == protoreflect.StringKind:
			err = checkString(f, v.String())
		}
		return err == nil
	})
	return err
}

func checkString(f protoreflect.FieldDescriptor, s string) error {
	limit := maxString
	switch name := string(f.Name()); {
	case strings.HasSuffix(name, "_path"):
		return nil // as long as the file system allows
	case name == "node_id":
		limit = maxNodeID
	}
	if len(s) > limit {
		return invalid("%s has %d bytes, more than %d", f.Name(), len(s), limit)
	}
	return nil
}

func checkMap(f protoreflect.FieldDescriptor, m protoreflect.Map) error {
	if f.MapValue().Kind() != protoreflect.StringKind {
		return nil
	}
	sum := 0
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if k.String() != tokensKey { // Kubernetes puts tokens of any size there
			sum += len(k.String()) + len(v.String())
		}
		return true
	})
	if sum > maxMap {
		return invalid("%s has %d bytes, more than %d", f.Name(), sum, maxMap)
	}
	return nil
}

func checkList(f protoreflect.FieldDescriptor, l protoreflect.List) error {
	sum := 0
	for i := range l.Len() {
		switch f.Kind() {
		case protoreflect.MessageKind:
			if err := checkMessage(l.Get(i).Message()); err != nil {
				return err
			}
		case protoreflect.StringKind:
			sum += len(l.Get(i).String())
		}
	}
	if f.Name() == "mount_flags" && sum > maxMap {
		return invalid("mount_flags have %d bytes, more than %d", sum, maxMap)
	}
	return nil
}

// checkCapability refuses a capability that is missing or that the driver does
// not support at all.
func checkCapability(c *csi.VolumeCapability, writers bool) error {
	if c == nil || c.GetAccessType() == nil || c.GetAccessMode() == nil {
		return invalid("volume_capability, its access_type or its access_mode is missing")
	}
	switch m := c.GetAccessMode().GetMode(); m {
	case csi.VolumeCapability_AccessMode_UNKNOWN:
		return invalid("access_mode is UNKNOWN")
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		if !writers {
			return invalid("access_mode %s without the capability SINGLE_NODE_MULTI_WRITER", m)
		}
	default:
		if m < 0 || m > csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER {
			return invalid("access_mode %d is unknown", m)
		}
	}
	return nil
}

// fits refuses a capability that a volume of this mode cannot have.
func (m Mode) fits(c Capability) error {
	switch {
	case c.Block && !m.image():
		return invalid("a volume of mode %s has no block access", m)
	case !c.Block && m == ModeBlock:
		return invalid("a volume of mode %s has block access only", m)
	case !c.Block && m == ModeLoop && !slices.Contains([]string{"", "ext4", "xfs"}, c.FSType):
		return invalid("fs_type %q is not supported", c.FSType)
	}
	return nil
}

// absolute refuses a path that is not one, or has elements to be resolved.
func absolute(field, path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return invalid("%s is not a clean absolute path", field)
	}
	return nil
}

// ownContext is a volume context without what Kubernetes adds.
func ownContext(m map[string]string) map[string]string { return withoutPrefix(m, kubernetesPrefix) }

// lasting is a volume context without the tokens, which may change from one
// publish of a volume to the next.
func lasting(m map[string]string) map[string]string { return withoutPrefix(m, tokensKey) }

func withoutPrefix(m map[string]string, prefix string) map[string]string {
	m = maps.Clone(m)
	maps.DeleteFunc(m, func(k, _ string) bool { return strings.HasPrefix(k, prefix) })
	if len(m) == 0 {
		return nil
	}
	return m
}

// several reports whether a volume with this access mode may be published at
// several target paths of a node.
func several(mode string, writers bool) bool {
	return strings.HasPrefix(mode, "MULTI_NODE_") || writers && mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER.String()
}
