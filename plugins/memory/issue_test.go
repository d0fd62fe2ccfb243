package memory

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/volumekit/volumekit/plugins"
)

var (
	noon    = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	podRef  = plugins.PodRef{Namespace: "ns", Name: "pod", UID: "pod-uid"}
	request = plugins.TokenRequest{Namespace: "ns", ServiceAccount: "sa", Audiences: []string{"vault"}, Pod: podRef, Lifetime: 20 * time.Minute}
)

func TestToken(t *testing.T) {
	t.Parallel()
	s := New(Config{Clock: clocktesting.NewFakeClock(noon.Add(time.Millisecond))})
	account := &v1.ServiceAccount{ObjectMeta: named("ns", "sa")}
	account.UID = "sa-uid"
	apply(t, s, account)
	token, err := s.Token(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if !token.Issued.Equal(noon) || !token.Expires.Equal(noon.Add(20*time.Minute)) {
		t.Errorf("%v to %v", token.Issued, token.Expires)
	}
	parts := strings.Split(token.Value, ".")
	if len(parts) != 3 || parts[2] != "" {
		t.Fatalf("%d parts", len(parts))
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var c claims
	if err := json.Unmarshal(payload, &c); err != nil {
		t.Fatal(err)
	}
	id := c.ID
	c.ID = ""
	got, _ := json.Marshal(c)
	want := `{"aud":["vault"],"exp":1893500400,"iat":1893499200,"iss":"https://volumekit.invalid","jti":"",` +
		`"kubernetes.io":{"namespace":"ns","pod":{"name":"pod","uid":"pod-uid"},"serviceaccount":{"name":"sa","uid":"sa-uid"}},` +
		`"nbf":1893499200,"sub":"system:serviceaccount:ns:sa"}`
	if string(got) != want || id == "" {
		t.Errorf("%s with id %q\nwant %s", got, id, want)
	}
	again, err := s.Token(t.Context(), request)
	if err != nil || again.Value == token.Value {
		t.Errorf("two tokens are one: %v", err)
	}
}

func TestTokenRequests(t *testing.T) {
	t.Parallel()
	s := New(Config{Clock: clocktesting.NewFakeClock(noon)})
	ask := func(change func(*plugins.TokenRequest)) (plugins.Token, error) {
		req := request
		change(&req)
		return s.Token(t.Context(), req)
	}
	if token, err := ask(func(r *plugins.TokenRequest) { r.Lifetime, r.Audiences = 0, nil }); err != nil || !token.Expires.Equal(noon.Add(time.Hour)) {
		t.Errorf("defaults: %v, %v", token, err)
	}
	for name, change := range map[string]func(*plugins.TokenRequest){
		"short":      func(r *plugins.TokenRequest) { r.Lifetime = 599 * time.Second },
		"negative":   func(r *plugins.TokenRequest) { r.Lifetime = -time.Hour },
		"long":       func(r *plugins.TokenRequest) { r.Lifetime = maxTokenLifetime + 1 },
		"no account": func(r *plugins.TokenRequest) { r.ServiceAccount = "" },
	} {
		if _, err := ask(change); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.SetFault(func(_ context.Context, verb string, ref plugins.Ref) error {
		if verb == "create" && ref == (plugins.Ref{Kind: "ServiceAccount", Namespace: "ns", Name: "sa"}) {
			return errFault
		}
		return nil
	})
	if _, err := s.Token(t.Context(), request); !errors.Is(err, errFault) {
		t.Error(err)
	}
}

// issuer stands for a program's own.
type issuer struct{}

func (issuer) Token(_ context.Context, req plugins.TokenRequest) (plugins.Token, error) {
	return plugins.Token{Value: "for " + req.ServiceAccount}, nil
}

func (issuer) PodCertificate(_ context.Context, req plugins.PodCertificateRequest) (plugins.PodCertificate, error) {
	return plugins.PodCertificate{ChainPEM: []byte(req.SignerName)}, nil
}

func TestOwnIssuers(t *testing.T) {
	t.Parallel()
	s := New(Config{Tokens: issuer{}, PodCertificates: issuer{}})
	if token, err := s.Token(t.Context(), request); err != nil || token.Value != "for sa" {
		t.Errorf("%v", err)
	}
	if cert, err := s.PodCertificate(t.Context(), plugins.PodCertificateRequest{SignerName: "x"}); err != nil || string(cert.ChainPEM) != "x" {
		t.Errorf("%v", err)
	}
	s.SetFault(func(context.Context, string, plugins.Ref) error { return errFault })
	if _, err := s.Token(t.Context(), request); !errors.Is(err, errFault) {
		t.Errorf("%v", err)
	}
}

func stub(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestPodCertificate(t *testing.T) {
	t.Parallel()
	ec, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := clocktesting.NewFakeClock(noon)
	s := New(Config{Clock: now})
	anchor, err := s.TrustAnchor()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(anchor) {
		t.Fatal("the anchor is no certificate")
	}
	for _, key := range []crypto.Signer{ec, ed} {
		req := plugins.PodCertificateRequest{Pod: podRef, ServiceAccount: "sa", SignerName: "example.com/s", PKCS10: stub(t, key)}
		got, err := s.PodCertificate(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if !got.NotBefore.Equal(noon) || !got.NotAfter.Equal(noon.Add(24*time.Hour)) || !got.RefreshAt.Equal(noon.Add(24*time.Hour*4/5)) {
			t.Errorf("%+v", got)
		}
		block, rest := pem.Decode(got.ChainPEM)
		if block == nil || len(rest) != 0 {
			t.Fatalf("not one PEM block: %s", got.ChainPEM)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: noon.Add(time.Hour), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Error(err)
		}
		if public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(cert.PublicKey) {
			t.Error("the certificate is for another key")
		}
		if cert.IsCA || len(cert.URIs) != 1 || cert.URIs[0].String() != "spiffe://volumekit.invalid/ns/ns/sa/sa" {
			t.Errorf("%v", cert.URIs)
		}
	}
	forged := stub(t, ec)
	forged[len(forged)-1] ^= 1
	for name, req := range map[string]plugins.PodCertificateRequest{
		"no request": {},
		"garbage":    {PKCS10: []byte("x")},
		"forged":     {PKCS10: forged},
		"short":      {PKCS10: stub(t, ec), Lifetime: time.Minute},
		"long":       {PKCS10: stub(t, ec), Lifetime: maxCertificateLifetime + 1},
	} {
		if _, err := s.PodCertificate(t.Context(), req); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	now.SetTime(noon.Add(caLifetime - time.Hour))
	if later, err := s.TrustAnchor(); err != nil || string(later) == string(anchor) {
		t.Errorf("an authority about to expire still signs: %v", err)
	}
}
