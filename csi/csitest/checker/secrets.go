package checker

import (
	"encoding/json"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// maxSecrets bounds the values that are remembered.
	maxSecrets = 256
	// minSecret is the length under which a value says nothing.
	minSecret = 4
	// minWithin is the length from which a value is searched for within other
	// values; shorter ones occur there by chance.
	minWithin = 8
)

// secrets are values that must stand in secret fields only.
type secrets struct {
	canaries []string // for ever
	values   []string // the latest last
}

func newSecrets(canaries []string) *secrets {
	s := &secrets{}
	for _, v := range canaries {
		if len(v) >= minSecret {
			s.canaries = append(s.canaries, v)
		}
	}
	return s
}

func (s *secrets) add(v string) {
	if len(v) < minSecret || slices.Contains(s.values, v) {
		return
	}
	s.values = append(s.values, v)
	if len(s.values) > maxSecrets {
		s.values = slices.Delete(s.values, 0, 1)
	}
}

// addTokens adds the tokens in the JSON value of service account tokens.
func (s *secrets) addTokens(v string) {
	var tokens map[string]struct {
		Token string `json:"token"`
	}
	if json.Unmarshal([]byte(v), &tokens) != nil {
		return // the driver will say so
	}
	for _, t := range tokens {
		s.add(t.Token)
	}
}

// in tells whether the text holds a secret.
func (s *secrets) in(text string) bool {
	holds := func(v string) bool { return v == text || len(v) >= minWithin && strings.Contains(text, v) }
	return slices.ContainsFunc(s.canaries, holds) || slices.ContainsFunc(s.values, holds)
}

// redact returns the text without secrets.
func (s *secrets) redact(text string) string {
	for _, list := range [][]string{s.canaries, s.values} {
		for _, v := range list {
			if v == text {
				return "***"
			}
			if len(v) >= minWithin {
				text = strings.ReplaceAll(text, v, "***")
			}
		}
	}
	return text
}

// learnSecrets remembers the secrets of a request. In the specification all
// secret fields are maps.
func (c *Checker) learnSecrets(k *Call) {
	k.req.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case isSecret(fd) && fd.IsMap():
			value.Map().Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
				c.secrets.add(v.String())
				if key.String() == ServiceAccountTokens {
					c.secrets.addTokens(v.String())
				}
				return true
			})
		case fd.Name() == "volume_context" && fd.IsMap():
			tokens := value.Map().Get(protoreflect.ValueOfString(ServiceAccountTokens).MapKey())
			if tokens.IsValid() {
				c.secrets.addTokens(tokens.String())
			}
		}
		return true
	})
}

func (c *Checker) checkLeak(k *Call, name, value string) {
	if c.secrets.in(value) {
		c.report(k, SecretLeak, "%s holds a value that is secret elsewhere; pass it in secrets only", name)
	}
}
