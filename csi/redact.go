package csi

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// tokensKey is the key of service account tokens in a volume context or among
// the secrets of a publish.
const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// hidden stands for a secret.
const hidden = "***stripped***"

// Redact is a CSI message as text fit for a log: fields that the spec marks as
// secret (option csi_secret) and service account tokens in a volume context
// show their keys alone.
func Redact(message proto.Message) string {
	if message == nil || !message.ProtoReflect().IsValid() {
		return "{}"
	}
	safe := proto.Clone(message)
	redact(safe.ProtoReflect())
	text, err := protojson.Marshal(safe)
	if err != nil {
		return "{unreadable}"
	}
	return string(text)
}

// redact hides what is secret in a message and in those within it.
func redact(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case isSecret(field):
			hide(m, field, value)
		case field.IsMap():
			hideTokens(field, value.Map())
		case field.IsList() && field.Message() != nil:
			for i := range value.List().Len() {
				redact(value.List().Get(i).Message())
			}
		case field.Message() != nil:
			redact(value.Message())
		}
		return true
	})
}

func hide(m protoreflect.Message, field protoreflect.FieldDescriptor, value protoreflect.Value) {
	if !field.IsMap() || field.MapValue().Kind() != protoreflect.StringKind {
		m.Clear(field)
		return
	}
	for _, key := range keysOf(value.Map()) {
		value.Map().Set(key, protoreflect.ValueOfString(hidden))
	}
}

func hideTokens(field protoreflect.FieldDescriptor, values protoreflect.Map) {
	if field.MapValue().Kind() != protoreflect.StringKind {
		values.Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
			if field.MapValue().Message() != nil {
				redact(v.Message())
			}
			return true
		})
		return
	}
	if key := protoreflect.ValueOfString(tokensKey).MapKey(); values.Has(key) {
		values.Set(key, protoreflect.ValueOfString(hidden))
	}
}

func keysOf(m protoreflect.Map) []protoreflect.MapKey {
	keys := make([]protoreflect.MapKey, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	return keys
}

// isSecret reports whether the spec marks a field as secret.
func isSecret(field protoreflect.FieldDescriptor) bool {
	options, ok := field.Options().(*descriptorpb.FieldOptions)
	if !ok {
		return false
	}
	secret, _ := proto.GetExtension(options, csipb.E_CsiSecret).(bool)
	return secret
}

// minSecret is the shortest text that is looked for in answers: a shorter one
// would be found in any.
const minSecret = 4

// minLine is the same for one line of a secret of several.
const minLine = 8

// longestFirst sorts texts so that none is found before one that holds it.
func longestFirst(list []string) []string {
	slices.SortFunc(list, func(a, b string) int {
		return cmp.Or(len(b)-len(a), strings.Compare(a, b))
	})
	return slices.Compact(list)
}

// secretsOf finds what is secret in a message and in those within it; all: all
// of it is.
func secretsOf(m protoreflect.Message, all bool, add func(string)) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		secret := all || isSecret(field)
		switch {
		case field.IsMap():
			value.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				token := k.String() == tokensKey
				if text, ok := v.Interface().(string); ok && token {
					tokensIn(text, add)
				}
				secretsOfValue(v, secret || token, add)
				return true
			})
		case field.IsList():
			for i := range value.List().Len() {
				secretsOfValue(value.List().Get(i), secret, add)
			}
		default:
			secretsOfValue(value, secret, add)
		}
		return true
	})
}

func secretsOfValue(value protoreflect.Value, secret bool, add func(string)) {
	switch v := value.Interface().(type) {
	case protoreflect.Message:
		secretsOf(v, secret, add)
	case string:
		if secret {
			add(v)
		}
	case []byte:
		if secret {
			add(string(v))
		}
	}
}

// shapes are the texts as which a secret may appear: as it is, quoted as Go and
// JSON do it, in a URL, as numbers in base64, hexadecimal or decimal, alone or
// within something longer, and each of its lines.
func shapes(s string) []string {
	var list []string
	add := func(text string, least int) {
		if len(text) >= least {
			list = append(list, text)
		}
	}
	add(s, minSecret)
	if list == nil {
		return nil
	}
	quoted := strconv.Quote(s)
	add(quoted[1:len(quoted)-1], minSecret)
	add(strings.TrimSpace(s), minSecret)
	if text, err := json.Marshal(s); err == nil {
		add(string(text[1:len(text)-1]), minSecret)
	}
	add(url.QueryEscape(s), minSecret)
	add(url.PathEscape(s), minSecret)
	add(base64.StdEncoding.EncodeToString([]byte(s)), minSecret)
	add(base64.RawURLEncoding.EncodeToString([]byte(s)), minSecret)
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 {
			add(inner(enc, s, before), minLine)
		}
	}
	add(hex.EncodeToString([]byte(s)), minSecret)
	add(strings.ToUpper(hex.EncodeToString([]byte(s))), minSecret)
	add(decimal(s), minSecret)
	for line := range strings.Lines(s) {
		add(strings.TrimSpace(line), minLine)
	}
	return list
}

// decimal is what fmt prints of the bytes.
func decimal(s string) string {
	var text []byte
	for i := range len(s) {
		if i > 0 {
			text = append(text, ' ')
		}
		text = strconv.AppendUint(text, uint64(s[i]), 10)
	}
	return string(text)
}

// inner is the part of an encoding that s alone decides when so many bytes stand
// before it, and others may follow.
func inner(enc *base64.Encoding, s string, before int) string {
	text := enc.EncodeToString(append(make([]byte, before), s...))
	first := (before*8 + 5) / 6       // characters that hold something of what is before
	last := (before + len(s)) * 8 / 6 // and those that hold nothing of what follows
	if first >= last {
		return ""
	}
	return text[first:last]
}

// secretMemory keeps the secrets that went to a driver lately, so that they are known
// when it tells them in its answer to another call.
type secretMemory struct {
	mu   sync.Mutex
	list []string // the oldest first
}

// maxRemembered bounds a [secretMemory].
const maxRemembered = 256

func (m *secretMemory) remember(message proto.Message) {
	r := message.ProtoReflect()
	if !r.IsValid() {
		return
	}
	secretsOf(r, false, func(s string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(s) < minSecret || slices.Contains(m.list, s) {
			return
		}
		if len(m.list) == maxRemembered {
			m.list = slices.Delete(m.list, 0, 1)
		}
		m.list = append(m.list, s)
	})
}

// shapes are those of all that is remembered.
func (m *secretMemory) shapes() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]string, 0, 16*len(m.list))
	for _, s := range m.list {
		list = append(list, shapes(s)...)
	}
	return longestFirst(list)
}

// tokenValue is one token as drivers get it.
type tokenValue struct {
	Token               string `json:"token"`
	ExpirationTimestamp string `json:"expirationTimestamp"`
}

func tokensIn(text string, add func(string)) {
	var tokens map[string]tokenValue
	if json.Unmarshal([]byte(text), &tokens) == nil {
		for _, t := range tokens {
			add(t.Token)
		}
	}
}
