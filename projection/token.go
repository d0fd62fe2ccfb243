package projection

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
)

// token adds a service account token that is bound to the pod.
func (j *job) token(ctx context.Context, index int, s *v1.ServiceAccountTokenProjection) error {
	seconds := int64(defaultLifetime)
	if s.ExpirationSeconds != nil {
		seconds = *s.ExpirationSeconds
	}
	if seconds < minimumLifetime || seconds > 1<<32 {
		return plugins.Permanentf("%sexpirationSeconds %d is not within %d and 2^32", j.from, seconds, minimumLifetime)
	}
	pod := j.req.Object
	req := plugins.TokenRequest{
		Namespace:      pod.Namespace,
		ServiceAccount: pod.Spec.ServiceAccountName,
		Lifetime:       time.Duration(seconds) * time.Second,
		Pod:            plugins.PodRef{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
	}
	if req.ServiceAccount == "" {
		req.ServiceAccount = defaultAccount
	}
	if s.Audience != "" {
		req.Audiences = []string{s.Audience}
	}
	key := TokenKey{Volume: j.req.Volume, Source: index}
	j.adopt(key, s.Path, req)
	token, due, err := j.tokens.Token(ctx, key, req)
	if err != nil {
		return fmt.Errorf("%s%w", j.from, err)
	}
	j.before(due)
	mode, uid := j.personal(s.User)
	source := fmt.Sprintf("%stoken of serviceAccount %s/%s", j.from, req.Namespace, req.ServiceAccount)
	return j.tree.Add(s.Path, File{Data: []byte(token.Value), Mode: mode, UID: uid, Source: source})
}

const (
	// maxTokenAge is when a token is renewed at the latest, however long it lives.
	maxTokenAge = 24 * time.Hour
	// tokenRetry is how soon a failed renewal is tried again.
	tokenRetry = 10 * time.Second
)

// TokenKey names one use of a token.
type TokenKey struct {
	// Volume is the pod's volume that shows the token.
	Volume plugins.PodVolume
	// Source tells the tokens of one volume apart.
	Source int
}

// TokenCache keeps service account tokens in memory until they are due, each
// for one use, and asks for one at a time for each use. It never returns an
// expired token. It is safe for concurrent use.
type TokenCache struct {
	host *plugins.VolumeHost

	mu      sync.Mutex
	entries map[plugins.PodVolume]map[tokenUse]*tokenEntry
}

// tokenUse is a source of a volume together with what is asked for.
type tokenUse struct {
	source                        int
	namespace, account, audiences string
	lifetime                      time.Duration
}

func useOf(key TokenKey, req plugins.TokenRequest) tokenUse {
	return tokenUse{key.Source, req.Namespace, req.ServiceAccount, strings.Join(req.Audiences, "\x00"), req.Lifetime}
}

// tokenEntry is guarded by the cache's mu.
type tokenEntry struct {
	token plugins.Token
	got   time.Time     // when; zero as long as there is none
	due   time.Time     // when to renew
	busy  chan struct{} // closed when the call that is under way ends
}

// NewTokenCache returns an empty cache over host's token source and clock.
func NewTokenCache(host *plugins.VolumeHost) *TokenCache {
	return &TokenCache{host: host, entries: map[plugins.PodVolume]map[tokenUse]*tokenEntry{}}
}

// Token returns a token for one use and when it has to be asked for again:
// when 80 % of its life are over, or after 24 hours. If renewal fails while
// the old token is valid, that one is returned, due again soon. The error is
// unsupported without a token source, else transient unless the source says
// more. It blocks while the source does.
func (c *TokenCache) Token(ctx context.Context, key TokenKey, req plugins.TokenRequest) (plugins.Token, time.Time, error) {
	use := useOf(key, req)
	for {
		entry, wait := c.claim(key.Volume, use)
		switch {
		case wait != nil:
			select {
			case <-wait:
			case <-ctx.Done():
				return plugins.Token{}, time.Time{}, plugins.Transient(ctx.Err())
			}
		case entry.busy == nil:
			return entry.token, entry.due, nil
		default:
			return c.fetch(ctx, key, entry, req)
		}
	}
}

// claim returns a copy of the entry if its token is good, the channel of the
// call that is under way, or else an entry that the caller has to fetch for.
func (c *TokenCache) claim(volume plugins.PodVolume, use tokenUse) (tokenEntry, <-chan struct{}) {
	now := c.host.Time().Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	entry := c.entries[volume][use]
	if entry == nil {
		entry = &tokenEntry{}
		c.enter(volume, use, entry)
	}
	if entry.busy != nil {
		return tokenEntry{}, entry.busy
	}
	// A clock that was set back says nothing about the token's age.
	if !entry.got.IsZero() && !now.Before(entry.got) && now.Before(entry.due) && now.Before(entry.token.Expires) {
		return *entry, nil
	}
	entry.busy = make(chan struct{})
	return *entry, nil
}

// fetch renews the token of an entry that claim has made busy. It frees the
// entry in every case, also where the source panics or ends the goroutine.
func (c *TokenCache) fetch(ctx context.Context, key TokenKey, old tokenEntry, req plugins.TokenRequest) (plugins.Token, time.Time, error) {
	next := old // what stays if the source never answers
	defer func() { c.free(key, old, req, next) }()
	token, err := c.host.Token(ctx, req)
	fresh := tokenEntry{token: token, got: c.host.Time().Now()}
	if err == nil {
		err = fresh.schedule(req.Lifetime)
	}
	if err == nil {
		next = fresh
		return next.token, next.due, nil
	}
	left := old.token.Expires.Sub(fresh.got)
	if old.got.IsZero() || left <= 0 {
		next = tokenEntry{}
		return plugins.Token{}, time.Time{}, failing(fmt.Errorf("token of serviceAccount %s/%s: %w", req.Namespace, req.ServiceAccount, err))
	}
	next = tokenEntry{token: old.token, got: fresh.got, due: fresh.got.Add(min(tokenRetry, left))}
	c.host.Log.Error(err, "token renewal", "pod", req.Pod.String(), "volume", key.Volume.Name)
	return next.token, next.due, nil
}

// free stores how a call ended and lets the next one ask.
func (c *TokenCache) free(key TokenKey, old tokenEntry, req plugins.TokenRequest, next tokenEntry) {
	next.busy = nil
	c.mu.Lock()
	defer c.mu.Unlock()
	use := useOf(key, req)
	if kept := c.entries[key.Volume][use]; kept != nil && kept.busy == old.busy {
		if *kept = next; next.got.IsZero() {
			delete(c.entries[key.Volume], use)
		}
	}
	close(old.busy)
}

// schedule sets when a new token is due.
func (e *tokenEntry) schedule(asked time.Duration) error {
	if e.token.Value == "" {
		return errors.New("the source gave an empty token")
	}
	if e.token.Expires.IsZero() {
		e.token.Expires = e.got.Add(asked)
	}
	issued := e.token.Issued
	if issued.IsZero() || issued.After(e.got) {
		issued = e.got
	}
	life, left := e.token.Expires.Sub(issued), e.token.Expires.Sub(e.got)
	if left <= 0 {
		return fmt.Errorf("the source gave a token that expired at %s", e.token.Expires.UTC().Format(time.RFC3339))
	}
	e.due = earlier(issued.Add(life/5*4), issued.Add(maxTokenAge))
	if !e.due.After(e.got) { // an old one, from a cache of the source's own
		e.due = e.got.Add(min(tokenRetry, left))
	}
	return nil
}

// enter keeps an entry. The caller holds mu.
func (c *TokenCache) enter(volume plugins.PodVolume, use tokenUse, entry *tokenEntry) {
	if c.entries[volume] == nil {
		c.entries[volume] = map[tokenUse]*tokenEntry{}
	}
	c.entries[volume][use] = entry
}

// Forget drops the tokens of a volume.
func (c *TokenCache) Forget(volume plugins.PodVolume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.entries, volume)
}
