package plugins

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"
)

// reads calls every method that reads from a source, by the source's field.
func reads(h *VolumeHost) map[string]func() error {
	ctx := context.Background()
	return map[string]func() error{
		"Secrets":           func() error { _, err := h.Secret(ctx, "ns", "x"); return err },
		"ConfigMaps":        func() error { _, err := h.ConfigMap(ctx, "ns", "x"); return err },
		"Claims":            func() error { _, err := h.Claim(ctx, "ns", "x"); return err },
		"PersistentVolumes": func() error { _, err := h.PersistentVolume(ctx, "x"); return err },
		"TrustBundles":      func() error { _, err := h.TrustBundle(ctx, "x"); return err },
		"CSIDrivers":        func() error { _, err := h.CSIDriver(ctx, "x"); return err },
		"Attachments":       func() error { _, err := h.Attachment(ctx, "x"); return err },
		"Node":              func() error { _, err := h.NodeObject(ctx); return err },
		"Tokens": func() error {
			_, err := h.Token(ctx, TokenRequest{Namespace: "ns", ServiceAccount: "x"})
			return err
		},
		"PodCertificates": func() error {
			_, err := h.PodCertificate(ctx, PodCertificateRequest{SignerName: "x"})
			return err
		},
	}
}

func TestMissingSourceNamesItsField(t *testing.T) {
	t.Parallel()
	h := &VolumeHost{}
	check := func(field string, err error) {
		t.Helper()
		var missing *MissingError
		if !errors.As(err, &missing) || missing.Field != field {
			t.Errorf("%s: %v", field, err)
			return
		}
		if ClassOf(err) != ClassUnsupported || !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: class %v", field, ClassOf(err))
		}
		if text := err.Error(); !strings.Contains(text, "VolumeHost."+field+" ") || strings.HasSuffix(text, ": ") {
			t.Errorf("%s: text %q", field, text)
		}
	}
	for field, read := range reads(h) {
		check(field, read())
	}
	_, err := h.TrustBundlesOf(context.Background(), "example.com/s", labels.Everything())
	check("TrustBundles", err)
	h.Event(&v1.Pod{}, "Normal", "Reason", "message") // nobody listens: nothing happens
}

// everything is one source for all, which returns what it is told.
type everything struct{ err error }

func (s *everything) Secret(context.Context, string, string) (*v1.Secret, error) { return nil, s.err }
func (s *everything) ConfigMap(context.Context, string, string) (*v1.ConfigMap, error) {
	return nil, s.err
}
func (s *everything) Claim(context.Context, string, string) (*v1.PersistentVolumeClaim, error) {
	return nil, s.err
}
func (s *everything) PersistentVolume(context.Context, string) (*v1.PersistentVolume, error) {
	return nil, s.err
}
func (s *everything) Token(context.Context, TokenRequest) (Token, error) { return Token{}, s.err }
func (s *everything) TrustBundle(context.Context, string) (*certificatesv1.ClusterTrustBundle, error) {
	return nil, s.err
}
func (s *everything) TrustBundles(context.Context, string, labels.Selector) ([]*certificatesv1.ClusterTrustBundle, error) {
	return nil, s.err
}
func (s *everything) PodCertificate(context.Context, PodCertificateRequest) (PodCertificate, error) {
	return PodCertificate{}, s.err
}
func (s *everything) CSIDriver(context.Context, string) (*storagev1.CSIDriver, error) {
	return nil, s.err
}
func (s *everything) Attachment(context.Context, string) (*storagev1.VolumeAttachment, error) {
	return nil, s.err
}
func (s *everything) Node(context.Context) (*v1.Node, error) { return nil, s.err }

func hostOf(s *everything) *VolumeHost {
	return &VolumeHost{
		Secrets: s, ConfigMaps: s, Claims: s, PersistentVolumes: s, Tokens: s, TrustBundles: s,
		PodCertificates: s, CSIDrivers: s, Attachments: s, Node: s,
	}
}

func TestHostPassesErrorsOn(t *testing.T) {
	t.Parallel()
	for field, read := range reads(hostOf(&everything{errCause})) {
		if err := read(); !errors.Is(err, errCause) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestSourceThatReturnsNothing(t *testing.T) {
	t.Parallel()
	for field, read := range reads(hostOf(&everything{})) {
		values := field == "Tokens" || field == "PodCertificates"
		if err := read(); (err == nil) != values {
			t.Errorf("%s: no object and the error %v", field, err)
		}
	}
}

// uncomparable is a source that cannot be compared with another.
type uncomparable struct {
	everything
	_ []string
}

func (uncomparable) Secret(context.Context, string, string) (*v1.Secret, error) { return nil, nil }

func (uncomparable) ConfigMap(context.Context, string, string) (*v1.ConfigMap, error) {
	return nil, nil
}

func TestSourcesOnce(t *testing.T) {
	t.Parallel()
	if list := (&VolumeHost{}).Sources(); len(list) != 0 {
		t.Errorf("an empty host has sources: %v", list)
	}
	s := &everything{}
	if list := hostOf(s).Sources(); len(list) != 1 || list[0] != any(s) {
		t.Errorf("%v", list)
	}
	h := hostOf(s)
	other := &everything{}
	h.Node = other
	if list := h.Sources(); len(list) != 2 || list[0] != any(s) || list[1] != any(other) {
		t.Errorf("%v", list)
	}
	twice := &VolumeHost{Secrets: uncomparable{}, ConfigMaps: uncomparable{}}
	if list := twice.Sources(); len(list) != 2 {
		t.Errorf("%v", list)
	}
}

// notifying can say that it changed.
type notifying struct{ *everything }

func (notifying) Subscribe(func(Ref)) func() { return func() {} }

func TestRefreshAfter(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	h := &VolumeHost{}
	if got := h.RefreshAfter(now, h.Secrets); !got.IsZero() {
		t.Errorf("no source: %v", got)
	}
	if got := h.RefreshAfter(now, notifying{}); !got.IsZero() {
		t.Errorf("a source that notifies: %v", got)
	}
	if got := h.RefreshAfter(now, &everything{}); got != now.Add(DefaultRefreshInterval) {
		t.Errorf("the default: %v", got)
	}
	h.RefreshInterval = time.Second
	if got := h.RefreshAfter(now, &everything{}); got != now.Add(time.Second) {
		t.Errorf("an interval: %v", got)
	}
}

func TestHostTime(t *testing.T) {
	t.Parallel()
	then := time.Unix(1_000_000, 0)
	if got := (&VolumeHost{Clock: clocktesting.NewFakeClock(then)}).Time().Now(); got != then {
		t.Errorf("%v, want %v", got, then)
	}
	if got := (&VolumeHost{}).Time().Since(time.Now()); got > time.Hour || got < -time.Hour {
		t.Errorf("the real clock is off by %v", got)
	}
}

type events []string

func (e *events) Event(_ runtime.Object, eventtype, reason, message string) {
	*e = append(*e, eventtype+" "+reason+" "+message)
}

func TestHostEvent(t *testing.T) {
	t.Parallel()
	var seen events
	h := &VolumeHost{Events: &seen}
	h.Event(&v1.Pod{}, "Normal", "Reason", "message")
	h.Event(nil, "Normal", "Reason", "about nothing")
	if len(seen) != 1 || seen[0] != "Normal Reason message" {
		t.Errorf("%q", seen)
	}
}

// TestTokenHidesItsValue tries the ways in which a token may come to light by
// accident, alone and inside of something.
func TestTokenHidesItsValue(t *testing.T) {
	t.Parallel()
	const value = "eyJhbGciOi-very-secret"
	token := Token{Value: value, Expires: time.Unix(1_000_000, 0)}
	holder := struct {
		Token   Token
		Pointer *Token
		List    []Token
		Map     map[string]Token
		Any     any
	}{token, &token, []Token{token}, map[string]Token{"a": token}, token}
	var shown []string
	for _, v := range []any{token, &token, holder, &holder, []any{token}} {
		for _, verb := range strings.Split("v +v #v s q x X d t b o c U e f g T", " ") {
			shown = append(shown, fmt.Sprintf("%"+verb, v)) //nolint:govet // wrong verbs on purpose
		}
		shown = append(shown, fmt.Sprint(v), fmt.Errorf("x: %v", v).Error())
		for _, marshal := range []func(any) ([]byte, error){json.Marshal, yaml.Marshal} {
			b, err := marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			shown = append(shown, string(b))
		}
	}
	b, err := xml.Marshal(token)
	if err != nil {
		t.Fatal(err)
	}
	hex := fmt.Sprintf("%x", value)
	for _, text := range append(shown, string(b)) {
		if strings.Contains(text, "secret") || strings.Contains(strings.ToLower(text), hex) {
			t.Errorf("the token shows: %s", text)
		}
	}
	if got, want := token.String(), "token until "+token.Expires.Format(time.RFC3339); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
