package memory

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/volumekit/volumekit/plugins"
)

// Limits of certificate lifetimes, as in the PodCertificateRequest API.
const (
	minCertificateLifetime = time.Hour
	maxCertificateLifetime = 91 * 24 * time.Hour
	caLifetime             = 10 * 365 * 24 * time.Hour
)

// authority is a certificate authority that comes into being when it is first
// used and ends with the store.
type authority struct {
	mu   sync.Mutex
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

// get returns the authority, making it if it does not exist or has expired.
func (a *authority) get(now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cert != nil && now.Add(maxCertificateLifetime).Before(a.cert.NotAfter) && !now.Before(a.cert.NotBefore) {
		return a.cert, a.key, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the authority's key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "volumekit in-memory authority"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(caLifetime),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, nil, fmt.Errorf("make the authority's certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	a.key, a.cert = key, cert
	return cert, key, nil
}

// TrustAnchor is the certificate, in PEM, of the authority that the store's pod
// certificates come from, for a ClusterTrustBundle.
func (s *Store) TrustAnchor() ([]byte, error) {
	cert, _, err := s.ca.get(s.config.Clock.Now())
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}), nil
}

// PodCertificate implements [plugins.PodCertificateSource], by
// Config.PodCertificates if that is set. Else every signer is one authority in
// memory, self-signed, which ends with the store. The certificate names pod and
// service account in a SPIFFE URI (spiffe://volumekit.invalid/ns/.../sa/...),
// is good for client and server use, and asks to be renewed at four fifths of
// its life. A zero lifetime means a day; one outside of what the
// PodCertificateRequest API allows (an hour to 91 days), and a PKCS#10 request
// that does not prove possession of its key, is refused with BadRequest.
func (s *Store) PodCertificate(ctx context.Context, req plugins.PodCertificateRequest) (plugins.PodCertificate, error) {
	var none plugins.PodCertificate
	if err := s.before(ctx, "create", plugins.Ref{Kind: plugins.KindPodCertificate, Name: req.SignerName}); err != nil {
		return none, err
	}
	if s.config.PodCertificates != nil {
		return s.config.PodCertificates.PodCertificate(ctx, req)
	}
	lifetime := cmp.Or(req.Lifetime, time.Duration(plugins.DefaultCertificateSeconds)*time.Second)
	if lifetime < minCertificateLifetime || lifetime > maxCertificateLifetime {
		return none, apierrors.NewBadRequest(fmt.Sprintf("maxExpirationSeconds must be in 3600..7862400, not %v", lifetime))
	}
	wanted, err := x509.ParseCertificateRequest(req.PKCS10)
	if err == nil {
		err = wanted.CheckSignature()
	}
	if err != nil {
		return none, apierrors.NewBadRequest("the PKCS#10 request does not prove possession of its key: " + err.Error())
	}
	return s.issue(req, wanted.PublicKey, lifetime)
}

// issue signs a certificate for the key.
func (s *Store) issue(req plugins.PodCertificateRequest, key any, lifetime time.Duration) (plugins.PodCertificate, error) {
	var none plugins.PodCertificate
	now := s.config.Clock.Now().Truncate(time.Second)
	ca, caKey, err := s.ca.get(now)
	if err != nil {
		return none, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return none, fmt.Errorf("make a serial number: %w", err)
	}
	id := &url.URL{Scheme: "spiffe", Host: "volumekit.invalid", Path: "/ns/" + orDefault(req.Pod.Namespace) + "/sa/" + req.ServiceAccount}
	template := &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(2)),
		Subject:      pkix.Name{CommonName: req.Pod.Name, Organization: []string{req.SignerName}},
		URIs:         []*url.URL{id},
		NotBefore:    now, NotAfter: now.Add(lifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, key, caKey)
	if err != nil {
		return none, fmt.Errorf("sign: %w", err)
	}
	var chain bytes.Buffer
	if err := pem.Encode(&chain, &pem.Block{Type: "CERTIFICATE", Bytes: der}); err != nil {
		return none, fmt.Errorf("encode: %w", err)
	}
	return plugins.PodCertificate{
		ChainPEM: chain.Bytes(), NotBefore: template.NotBefore,
		RefreshAt: now.Add(lifetime * 4 / 5), NotAfter: template.NotAfter,
	}, nil
}
