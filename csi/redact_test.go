package csi

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

const theSecret = "hunter22-very-secret"

// fill puts the secret into every field of a message that is secret, and tokens
// into every map. It returns how many fields are secret.
func fill(m protoreflect.Message, depth int) (secret int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		value := protoreflect.ValueOfString("plain")
		if isSecret(f) {
			secret++
			value = protoreflect.ValueOfString(theSecret)
		}
		switch {
		case f.IsMap() && f.MapValue().Kind() == protoreflect.StringKind:
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("key").MapKey(), value)
			m.Mutable(f).Map().Set(protoreflect.ValueOfString(tokensKey).MapKey(),
				protoreflect.ValueOfString(`{"aud":{"token":"`+theSecret+`-token"}}`))
		case f.IsMap(), depth == 0:
		case f.IsList() && f.Message() != nil:
			secret += fill(m.Mutable(f).List().AppendMutable().Message(), depth-1)
		case f.IsList():
		case f.Message() != nil:
			secret += fill(m.Mutable(f).Message(), depth-1)
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, value)
		}
	}
	return secret
}

// TestNoSecretOfTheSpecIsShown goes through all messages of the spec: what is
// marked as secret, and tokens in any map, are in no text made of them.
func TestNoSecretOfTheSpecIsShown(t *testing.T) {
	t.Parallel()
	messages := csipb.File_csi_proto.Messages()
	with := 0
	for i := range messages.Len() {
		d := messages.Get(i)
		known, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []protoreflect.Message{known.New(), dynamicpb.NewMessage(d)} {
			n := fill(m, 3)
			text := Redact(m.Interface())
			if strings.Contains(text, theSecret) || n > 0 && !strings.Contains(text, hidden) {
				t.Errorf("%s: %s", d.Name(), text)
			}
			said := plain(m.Interface())
			if n > 0 && !strings.Contains(said, theSecret) {
				t.Fatalf("%s was not filled: %s", d.Name(), said)
			}
			failure := failed(fakeName, nodeStage, status.Error(codes.Internal, said), secretsIn(m.Interface()))
			if strings.Contains(failure.Error(), theSecret) {
				t.Errorf("%s: %v", d.Name(), failure)
			}
			with += min(n, 1)
		}
	}
	if with < 20 {
		t.Errorf("only %d messages were found to have secrets", with)
	}
}

// plain is a message with all that it holds.
func plain(m proto.Message) string {
	b, err := protojson.Marshal(m)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func TestRedact(t *testing.T) {
	t.Parallel()
	req := &csipb.NodePublishVolumeRequest{
		VolumeId: "vol", Secrets: map[string]string{"user": "u", "password": theSecret},
		VolumeContext:  map[string]string{"a": "b", tokensKey: theSecret},
		PublishContext: map[string]string{"p": "q"},
	}
	before := proto.Clone(req)
	text := Redact(req)
	if !proto.Equal(req, before) {
		t.Error("the message was changed")
	}
	for _, part := range []string{"vol", "password", "user", tokensKey, `"b"`, `"q"`} {
		if !strings.Contains(text, part) {
			t.Errorf("%s lacks %s", text, part)
		}
	}
	if strings.Contains(text, theSecret) || strings.Contains(text, `"u"`) {
		t.Error(text)
	}
	var none *csipb.NodePublishVolumeRequest
	if Redact(nil) != "{}" || Redact(none) != "{}" || Redact(&csipb.ProbeRequest{}) != "{}" {
		t.Error("what is empty")
	}
	if len(secretsIn(none)) > 0 {
		t.Error("secrets of nothing")
	}
}

// future is a message that no version of the spec has: with secrets in a
// string, in bytes, in a list, in maps of texts and of messages, and in a
// message within.
func future(t *testing.T) *dynamicpb.Message {
	t.Helper()
	options := &descriptorpb.FieldOptions{}
	proto.SetExtension(options, csipb.E_CsiSecret, true)
	field := func(name string, number int32, label descriptorpb.FieldDescriptorProto_Label, kind descriptorpb.FieldDescriptorProto_Type, message string) *descriptorpb.FieldDescriptorProto {
		f := &descriptorpb.FieldDescriptorProto{Name: &name, Number: &number, Label: &label, Type: &kind, JsonName: &name}
		if message != "" {
			f.TypeName = &message
		}
		return f
	}
	secret := func(f *descriptorpb.FieldDescriptorProto) *descriptorpb.FieldDescriptorProto {
		f.Options = options
		return f
	}
	const (
		one  = descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL
		many = descriptorpb.FieldDescriptorProto_LABEL_REPEATED
		text = descriptorpb.FieldDescriptorProto_TYPE_STRING
		raw  = descriptorpb.FieldDescriptorProto_TYPE_BYTES
		msg  = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
	)
	entry := func(name string, value *descriptorpb.FieldDescriptorProto) *descriptorpb.DescriptorProto {
		return &descriptorpb.DescriptorProto{
			Name: &name, Options: &descriptorpb.MessageOptions{MapEntry: proto.Bool(true)},
			Field: []*descriptorpb.FieldDescriptorProto{field("key", 1, one, text, ""), value},
		}
	}
	file := &descriptorpb.FileDescriptorProto{
		Name: proto.String("future.proto"), Package: proto.String("future"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: proto.String("Inner"), Field: []*descriptorpb.FieldDescriptorProto{
				secret(field("password", 1, one, text, "")), field("name", 2, one, text, ""),
			}},
			{
				Name: proto.String("Request"),
				Field: []*descriptorpb.FieldDescriptorProto{
					secret(field("token", 1, one, text, "")), secret(field("blob", 2, one, raw, "")),
					secret(field("list", 3, many, text, "")), secret(field("whole", 4, one, msg, ".future.Inner")),
					field("inner", 5, one, msg, ".future.Inner"), field("inners", 6, many, msg, ".future.Inner"),
					field("by_name", 7, many, msg, ".future.Request.ByNameEntry"),
					secret(field("texts", 8, many, msg, ".future.Request.TextsEntry")),
				},
				NestedType: []*descriptorpb.DescriptorProto{
					entry("ByNameEntry", field("value", 2, one, msg, ".future.Inner")),
					entry("TextsEntry", field("value", 2, one, text, "")),
				},
			},
		},
	}
	fd, err := protodesc.NewFile(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := dynamicpb.NewMessage(fd.Messages().ByName("Request"))
	f := func(name protoreflect.Name) protoreflect.FieldDescriptor { return m.Descriptor().Fields().ByName(name) }
	value := func(n int) string { return fmt.Sprintf("%s-%d", theSecret, n) }
	inner := func(to protoreflect.Message, n int) {
		to.Set(to.Descriptor().Fields().ByName("password"), protoreflect.ValueOfString(value(n)))
		to.Set(to.Descriptor().Fields().ByName("name"), protoreflect.ValueOfString("name"))
	}
	m.Set(f("token"), protoreflect.ValueOfString(value(1)))
	m.Set(f("blob"), protoreflect.ValueOfBytes([]byte(value(2))))
	m.Mutable(f("list")).List().Append(protoreflect.ValueOfString(value(3)))
	inner(m.Mutable(f("whole")).Message(), 4)
	inner(m.Mutable(f("inner")).Message(), 5)
	inner(m.Mutable(f("inners")).List().AppendMutable().Message(), 6)
	inner(m.Mutable(f("by_name")).Map().Mutable(protoreflect.ValueOfString("k").MapKey()).Message(), 7)
	m.Mutable(f("texts")).Map().Set(protoreflect.ValueOfString("shown").MapKey(), protoreflect.ValueOfString(value(8)))
	return m
}

func TestSecretsOfFutureMessages(t *testing.T) {
	t.Parallel()
	m := future(t)
	raw := plain(m)
	blob := base64.StdEncoding.EncodeToString([]byte(theSecret + "-2"))
	if strings.Count(raw, theSecret) != 7 || !strings.Contains(raw, blob) {
		t.Fatalf("the message does not hold its secrets: %s", raw)
	}
	text := Redact(m)
	if strings.Contains(text, theSecret) || strings.Contains(text, blob) || !strings.Contains(text, "shown") || !strings.Contains(text, "name") {
		t.Error(text)
	}
	err := failed(fakeName, nodeStage, status.Error(codes.Internal, raw), secretsIn(m))
	if strings.Contains(err.Error(), theSecret) || strings.Contains(err.Error(), blob) || !strings.Contains(err.Error(), "***") {
		t.Error(err)
	}
}

// TestSecretsInErrors has drivers repeat secrets in the shapes in which programs
// print them.
func TestSecretsInErrors(t *testing.T) {
	t.Parallel()
	const key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END KEY-----\n"
	req := &csipb.NodePublishVolumeRequest{
		Secrets: map[string]string{"password": theSecret, "longer": theSecret + "-and-more", "key": key, "short": "no"},
		VolumeContext: map[string]string{
			"plain": "visible", tokensKey: `{"aud":{"token":"abc.def.ghi","expirationTimestamp":"2030-01-01T00:00:00Z"}}`,
		},
	}
	secrets := secretsIn(req)
	for _, said := range []string{
		theSecret, theSecret + "-and-more", key, fmt.Sprintf("%q", key), strings.TrimSpace(key), "kqhkiG9w0BAQEF", "bad token abc.def.ghi",
		base64.StdEncoding.EncodeToString([]byte(key)), plain(req),
	} {
		text := failed(fakeName, nodePublish, status.Error(codes.Internal, "cannot: "+said), secrets).Error()
		for _, leak := range []string{theSecret, "and-more", "kqhkiG9w0BAQEF", "MIIEvQIBADANBg", "abc.def.ghi", "LS0tLS1CRUdJTiBLRVk"} {
			if strings.Contains(text, leak) {
				t.Errorf("%q holds %q", text, leak)
			}
		}
		if !strings.Contains(text, "cannot: ") {
			t.Errorf("nothing is left of the message: %q", text)
		}
	}
	if text := failed(fakeName, nodePublish, status.Error(codes.Internal, "visible, no"), secrets).Error(); !strings.Contains(text, "visible, no") {
		t.Error(text)
	}
}

// secretsIn are the shapes of the secrets of one request.
func secretsIn(message proto.Message) []string {
	var m secretMemory
	m.remember(message)
	return m.shapes()
}
