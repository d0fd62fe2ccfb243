package projection

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/volumekit/volumekit/plugins"
)

// A process that finds the volumes of an earlier one goes on with the tokens
// that it finds there, as long as they are good: a restart with many pods asks
// for no token and rewrites no file.

// maxTokenSize bounds what is read of a token file.
const maxTokenSize = 64 << 10

// adopt gives the cache the token that an earlier process wrote at path, if it
// says of itself that it is the one that would be asked for now.
func (j *job) adopt(key TokenKey, path string, req plugins.TokenRequest) {
	if !j.req.Again || j.tokens.knows(key, req) {
		return
	}
	// Whatever this leads to, only a token of this very pod is taken.
	name := filepath.Join(j.req.Path, "..data", filepath.FromSlash(path))
	file, err := os.OpenFile(name, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxTokenSize {
		return // a pipe, say, which would be read for ever
	}
	text := make([]byte, info.Size())
	if _, err := io.ReadFull(file, text); err != nil {
		return
	}
	if token, ok := readToken(string(text), req); ok {
		j.tokens.adopt(key, req, token)
	}
}

// tokenClaims are the claims by which the API server's tokens tell whose they
// are.
type tokenClaims struct {
	Audience   audiences `json:"aud"`
	Expires    int64     `json:"exp"`
	IssuedAt   int64     `json:"iat"`
	Subject    string    `json:"sub"`
	Kubernetes struct {
		Pod struct {
			UID string `json:"uid"`
		} `json:"pod"`
	} `json:"kubernetes.io"`
}

// audiences is a list that may be written as a single string (RFC 7519,
// section 4.1.3).
type audiences []string

// UnmarshalJSON implements json.Unmarshaler.
func (a *audiences) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*a = audiences{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(a))
}

// readToken reads the claims of a token. Its signature is not checked, which
// whoever is shown the token does: it stays the one that stands in the file, or
// it is replaced.
func readToken(text string, req plugins.TokenRequest) (plugins.Token, bool) {
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return plugins.Token{}, false // not a JWT: nothing is known about it
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return plugins.Token{}, false
	}
	var c tokenClaims
	if json.Unmarshal(payload, &c) != nil || c.IssuedAt <= 0 || c.Expires <= c.IssuedAt {
		return plugins.Token{}, false
	}
	if c.Subject != "system:serviceaccount:"+req.Namespace+":"+req.ServiceAccount || c.Kubernetes.Pod.UID != string(req.Pod.UID) {
		return plugins.Token{}, false
	}
	for _, wanted := range req.Audiences {
		if !slices.Contains(c.Audience, wanted) {
			return plugins.Token{}, false
		}
	}
	issued, expires := time.Unix(c.IssuedAt, 0), time.Unix(c.Expires, 0)
	// An API server may let a token live longer than it tells its requester,
	// who is to renew it as if it did not.
	if told := issued.Add(req.Lifetime); told.Before(expires) {
		expires = told
	}
	return plugins.Token{Value: text, Issued: issued, Expires: expires}, true
}

// knows reports whether there is an entry for a use.
func (c *TokenCache) knows(key TokenKey, req plugins.TokenRequest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries[key.Volume][useOf(key, req)] != nil
}

// adopt enters a token for a use that has none, unless it is due for renewal.
func (c *TokenCache) adopt(key TokenKey, req plugins.TokenRequest, token plugins.Token) {
	now := c.host.Time().Now()
	if token.Issued.After(now) {
		return // the clock was set back
	}
	life := token.Expires.Sub(token.Issued)
	due := earlier(token.Issued.Add(life/5*4), token.Issued.Add(maxTokenAge))
	if !now.Before(due) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if use := useOf(key, req); c.entries[key.Volume][use] == nil {
		c.enter(key.Volume, use, &tokenEntry{token: token, got: now, due: due})
	}
}
