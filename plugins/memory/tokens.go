package memory

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/volumekit/volumekit/plugins"
)

// The issuer in the tokens of a store, and the audience that a request without
// one gets.
const Issuer = "https://volumekit.invalid"

// Limits of token lifetimes, as in the TokenRequest API.
const (
	minTokenLifetime = 10 * time.Minute
	maxTokenLifetime = time.Second << 32
)

// claims are the claims of a token, in the API server's words.
type claims struct {
	Audience   []string      `json:"aud"`
	Expires    int64         `json:"exp"`
	IssuedAt   int64         `json:"iat"`
	Issuer     string        `json:"iss"`
	ID         string        `json:"jti"`
	Kubernetes privateClaims `json:"kubernetes.io"`
	NotBefore  int64         `json:"nbf"`
	Subject    string        `json:"sub"`
}

type privateClaims struct {
	Namespace      string   `json:"namespace"`
	Pod            namedUID `json:"pod"`
	ServiceAccount namedUID `json:"serviceaccount"`
}

type namedUID struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// Token implements [plugins.TokenSource], by Config.Tokens if that is set. Else
// the token has the form and the claims of an API server's, but no signature
// (alg "none", RFC 7519 section 6): it serves to exercise rotation and mounts,
// and nobody may accept it as proof of anything. The service account need not
// exist; if it was applied, the token carries its UID. A zero lifetime means an
// hour; one outside of what the TokenRequest API allows (10 minutes to 2^32
// seconds) is refused with BadRequest.
func (s *Store) Token(ctx context.Context, req plugins.TokenRequest) (plugins.Token, error) {
	account := plugins.Ref{Kind: plugins.KindServiceAccount, Namespace: orDefault(req.Namespace), Name: req.ServiceAccount}
	if err := s.before(ctx, "create", account); err != nil {
		return plugins.Token{}, err
	}
	if s.config.Tokens != nil {
		return s.config.Tokens.Token(ctx, req)
	}
	lifetime := cmp.Or(req.Lifetime, time.Hour)
	if lifetime < minTokenLifetime || lifetime > maxTokenLifetime {
		return plugins.Token{}, apierrors.NewBadRequest(fmt.Sprintf("expirationSeconds must be in 600..2^32, not %v", lifetime))
	}
	if req.ServiceAccount == "" {
		return plugins.Token{}, apierrors.NewBadRequest("a token needs a service account")
	}
	issued := s.config.Clock.Now().Truncate(time.Second)
	token := plugins.Token{Issued: issued, Expires: issued.Add(lifetime)}
	c := claims{
		Audience: req.Audiences,
		Expires:  token.Expires.Unix(), IssuedAt: issued.Unix(), NotBefore: issued.Unix(),
		Issuer: Issuer, ID: rand.Text(),
		Subject: "system:serviceaccount:" + account.Namespace + ":" + account.Name,
		Kubernetes: privateClaims{
			Namespace:      account.Namespace,
			Pod:            namedUID{req.Pod.Name, string(req.Pod.UID)},
			ServiceAccount: namedUID{account.Name, s.uid(account)},
		},
	}
	if len(c.Audience) == 0 {
		c.Audience = []string{Issuer}
	}
	payload, err := json.Marshal(c)
	if err != nil {
		return plugins.Token{}, fmt.Errorf("encode claims: %w", err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	token.Value = encode([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + encode(payload) + "."
	return token, nil
}

// uid is the UID of an object, kept or not.
func (s *Store) uid(ref plugins.Ref) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if obj, ok := s.objects[ref]; ok {
		return string(obj.GetUID())
	}
	return string(uidOf(ref))
}
