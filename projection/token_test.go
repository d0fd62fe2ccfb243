package projection

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/volumekit/volumekit/plugins"
)

// issuer numbers its tokens.
func issuer(clk *clocktesting.FakeClock) (*api, *plugins.VolumeHost) {
	source := &api{}
	n := 0
	source.issue = func(r plugins.TokenRequest) (plugins.Token, error) {
		n++
		return plugins.Token{Value: fmt.Sprint("token", n), Issued: clk.Now(), Expires: clk.Now().Add(r.Lifetime)}, nil
	}
	return source, &plugins.VolumeHost{Tokens: source, Clock: clk}
}

func (a *api) setFail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fail = err
}

func TestTokenLife(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name     string
		lifetime time.Duration
		due      time.Duration
	}{
		{"ten minutes", 10 * time.Minute, 8 * time.Minute},
		{"an hour", time.Hour, 48 * time.Minute},
		{"forty hours", 40 * time.Hour, 24 * time.Hour},
		{"a year", 8760 * time.Hour, 24 * time.Hour},
	} {
		clk := clocktesting.NewFakeClock(start)
		source, host := issuer(clk)
		cache := NewTokenCache(host)
		key := TokenKey{Volume: plugins.PodVolume{Pod: "p"}}
		get := func() (string, time.Duration) {
			token, due, err := cache.Token(context.Background(), key, plugins.TokenRequest{Lifetime: tc.lifetime})
			if err != nil {
				t.Fatalf("%s: %v", tc.name, err)
			}
			if !clk.Now().Before(token.Expires) {
				t.Errorf("%s: an expired token", tc.name)
			}
			return token.Value, due.Sub(start)
		}
		for _, step := range []struct {
			at    time.Duration
			fail  bool
			token string
			due   time.Duration
		}{
			{0, false, "token1", tc.due},
			{tc.due - time.Second, false, "token1", tc.due},
			{tc.due, true, "token1", tc.due + tokenRetry},
			{tc.due + time.Second, true, "token1", tc.due + tokenRetry}, // not asked again at once
			{tc.due + tokenRetry, true, "token1", tc.due + 2*tokenRetry},
			{tc.due + 2*tokenRetry, false, "token2", 2*tc.due + 2*tokenRetry},
		} {
			source.setFail(nil)
			if step.fail {
				source.setFail(errors.New("refused"))
			}
			clk.SetTime(start.Add(step.at))
			if token, due := get(); token != step.token || due != step.due {
				t.Errorf("%s: at %v got %s, due at %v; want %s, %v", tc.name, step.at, token, due, step.token, step.due)
			}
		}
		if n := source.calls(); n != 4 {
			t.Errorf("%s: asked %d times", tc.name, n)
		}
		// A clock that is set back makes the token's age unknown.
		clk.SetTime(start.Add(-2 * time.Hour))
		if token, _ := get(); token != "token3" {
			t.Errorf("%s: after the clock was set back: %s", tc.name, token)
		}
	}
}

func TestTokenNeverExpired(t *testing.T) {
	clk := clocktesting.NewFakeClock(time.Now())
	source, host := issuer(clk)
	cache := NewTokenCache(host)
	get := func() error {
		_, due, err := cache.Token(context.Background(), TokenKey{}, plugins.TokenRequest{Lifetime: 10 * time.Minute})
		if err == nil && !due.After(clk.Now()) {
			t.Errorf("due at once: %v", due)
		}
		return err
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}
	source.setFail(errors.New("refused"))
	clk.Step(10*time.Minute - time.Second)
	if err := get(); err != nil {
		t.Errorf("the last second: %v", err)
	}
	clk.Step(time.Second)
	if err := get(); plugins.ClassOf(err) != plugins.ClassTransient || !strings.Contains(err.Error(), "refused") {
		t.Errorf("after the end: %v of class %s", err, plugins.ClassOf(err))
	}
	source.setFail(nil)
	if err := get(); err != nil {
		t.Errorf("after the failure: %v", err)
	}
	for name, token := range map[string]plugins.Token{
		"expired": {Value: "secret", Expires: clk.Now()}, "empty": {Expires: clk.Now().Add(time.Hour)},
	} {
		source.issue = func(plugins.TokenRequest) (plugins.Token, error) { return token, nil }
		_, _, err := cache.Token(context.Background(), TokenKey{Source: 1}, plugins.TokenRequest{Lifetime: time.Hour})
		if plugins.ClassOf(err) != plugins.ClassTransient || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What a source keeps itself may come late in its life, or without times.
	source.issue = func(plugins.TokenRequest) (plugins.Token, error) {
		return plugins.Token{Value: "t", Issued: clk.Now().Add(-59 * time.Minute), Expires: clk.Now().Add(time.Minute)}, nil
	}
	if _, due, err := cache.Token(context.Background(), TokenKey{Source: 2}, plugins.TokenRequest{}); err != nil || due.Sub(clk.Now()) != tokenRetry {
		t.Errorf("late token: %v, %v", due.Sub(clk.Now()), err)
	}
	source.issue = func(plugins.TokenRequest) (plugins.Token, error) { return plugins.Token{Value: "t"}, nil }
	if _, due, err := cache.Token(context.Background(), TokenKey{Source: 3}, plugins.TokenRequest{Lifetime: time.Hour}); err != nil || due.Sub(clk.Now()) != 48*time.Minute {
		t.Errorf("token without times: %v, %v", due.Sub(clk.Now()), err)
	}
}

func TestTokenUses(t *testing.T) {
	source, host := issuer(clocktesting.NewFakeClock(time.Now()))
	cache := NewTokenCache(host)
	one, other := plugins.PodVolume{Pod: "p", Name: "one"}, plugins.PodVolume{Pod: "p", Name: "other"}
	get := func(volume plugins.PodVolume, source int, req plugins.TokenRequest) string {
		token, _, err := cache.Token(context.Background(), TokenKey{volume, source}, req)
		if err != nil {
			t.Fatal(err)
		}
		return token.Value
	}
	base := plugins.TokenRequest{Namespace: "ns", ServiceAccount: "a", Lifetime: time.Hour, Audiences: []string{"x", "y"}}
	first := get(one, 0, base)
	seen := map[string]bool{first: true}
	for _, change := range []func(*plugins.TokenRequest){
		func(r *plugins.TokenRequest) { r.Lifetime++ }, func(r *plugins.TokenRequest) { r.Audiences = []string{"xy"} },
		func(r *plugins.TokenRequest) { r.Audiences = nil }, func(r *plugins.TokenRequest) { r.ServiceAccount = "b" },
	} {
		req := base
		change(&req)
		seen[get(one, 0, req)] = true
	}
	second, sibling := get(one, 1, base), get(other, 0, base)
	seen[second], seen[sibling] = true, true
	if len(seen) != 7 {
		t.Errorf("uses share tokens: %v", seen)
	}
	if get(one, 0, base) != first || source.calls() != 7 {
		t.Errorf("asked %d times", source.calls())
	}
	cache.Forget(one)
	if get(one, 0, base) == first || get(one, 1, base) == second {
		t.Error("a token outlived its volume")
	}
	if get(other, 0, base) != sibling {
		t.Error("another volume's token was dropped")
	}
}

func TestTokenSingleFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan error)
		source := &api{}
		calls := 0
		blocked := blockingTokens(func(ctx context.Context) (plugins.Token, error) {
			calls++
			select {
			case err := <-release:
				return plugins.Token{Value: fmt.Sprint("token", calls), Expires: time.Now().Add(time.Hour)}, err
			case <-ctx.Done():
				return plugins.Token{}, ctx.Err()
			}
		})
		host := source.host()
		host.Tokens = blocked
		cache := NewTokenCache(host)
		type answer struct {
			token string
			err   error
		}
		ask := func(ctx context.Context) chan answer {
			got := make(chan answer, 1)
			go func() {
				token, _, err := cache.Token(ctx, TokenKey{}, plugins.TokenRequest{Lifetime: time.Hour})
				got <- answer{token.Value, err}
			}()
			synctest.Wait()
			return got
		}
		ctx, cancel := context.WithCancel(context.Background())
		leader := ask(ctx)
		impatientCtx, leave := context.WithCancel(context.Background())
		impatient := ask(impatientCtx)
		a, b := ask(context.Background()), ask(context.Background())
		if calls != 1 {
			t.Errorf("%d calls under way", calls)
		}
		leave()
		if got := <-impatient; !errors.Is(got.err, context.Canceled) || plugins.ClassOf(got.err) != plugins.ClassTransient {
			t.Errorf("the impatient one got %+v", got)
		}
		cancel() // the next in line takes over
		if got := <-leader; !errors.Is(got.err, context.Canceled) {
			t.Errorf("the leader got %+v", got)
		}
		synctest.Wait()
		release <- nil
		if got, other := <-a, <-b; got.token != "token2" || other.token != "token2" || calls != 2 {
			t.Errorf("got %+v and %+v after %d calls", got, other, calls)
		}
	})
}

type blockingTokens func(context.Context) (plugins.Token, error)

func (f blockingTokens) Token(ctx context.Context, _ plugins.TokenRequest) (plugins.Token, error) {
	return f(ctx)
}

// TestTokenSourceGone lets the source panic, or end the goroutine, and asks
// again: whoever comes next must not wait for the call that never ended.
func TestTokenSourceGone(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("boom") }, "goexit": runtime.Goexit} {
		for _, renewal := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, renewal %t", name, renewal), func(t *testing.T) {
				clk := clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
				source, host := issuer(clk)
				good := source.issue
				cache := NewTokenCache(host)
				ask := func() (string, error) {
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
					defer cancel()
					token, _, err := cache.Token(ctx, TokenKey{Volume: plugins.PodVolume{Pod: "p"}}, plugins.TokenRequest{Lifetime: time.Hour})
					return token.Value, err
				}
				want := "token1"
				if renewal {
					if _, err := ask(); err != nil {
						t.Fatal(err)
					}
					clk.Step(50 * time.Minute)
					want = "token2"
				}
				source.issue = func(plugins.TokenRequest) (plugins.Token, error) { end(); return plugins.Token{}, nil }
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					defer func() { _ = recover() }()
					_, _ = ask()
					t.Error("the source's end was swallowed")
				}()
				<-ended
				source.issue = good
				if got, err := ask(); err != nil || got != want {
					t.Errorf("then: %q, %v; want %q", got, err, want)
				}
			})
		}
	}
}

func certificate(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestRenderTrustBundles(t *testing.T) {
	a, b := certificate(t, "a"), certificate(t, "b")
	noise := "some text\n-----BEGIN PRIVATE KEY-----\naHVudGVyMg==\n-----END PRIVATE KEY-----\n-----BEGIN CERTIFICATE-----\naHVudGVyMg==\n-----END CERTIFICATE-----\n"
	bundle := func(signer, label, text string) *certificatesv1.ClusterTrustBundle {
		return &certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"l": label}},
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text},
		}
	}
	source := newAPI()
	source.bundles = map[string]*certificatesv1.ClusterTrustBundle{
		"one": bundle("", "", noise+a), "s1": bundle("ex.com/s", "1", a+b), "s2": bundle("ex.com/s", "2", b+a+noise), "empty": bundle("", "", noise),
	}
	both := string(certificates([]*certificatesv1.ClusterTrustBundle{source.bundles["s1"]}))
	if both != a+b && both != b+a {
		t.Fatalf("two certificates became %q", both)
	}
	ctb := func(s v1.ClusterTrustBundleProjection) v1.VolumeSource {
		s.Path = "ca.pem"
		v := projected(v1.VolumeProjection{ClusterTrustBundle: &s})
		v.Projected.DefaultMode = ptr[int32](0o444)
		return v
	}
	file := func(text string) map[string]string { return map[string]string{"ca.pem": "444 -:- " + text} }
	signer, everything := ptr("ex.com/s"), &metav1.LabelSelector{}
	for _, tc := range []renderCase{
		{name: "by name", source: ctb(v1.ClusterTrustBundleProjection{Name: ptr("one")}), want: file(a)},
		{name: "by signer", source: ctb(v1.ClusterTrustBundleProjection{SignerName: signer, LabelSelector: everything}), want: file(both)},
		{name: "by label", source: ctb(v1.ClusterTrustBundleProjection{SignerName: signer, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"l": "2"}}}), want: file(both)},
		{name: "missing", source: ctb(v1.ClusterTrustBundleProjection{Name: ptr("none")}), class: plugins.ClassWaiting, waits: plugins.Ref{Kind: plugins.KindTrustBundle, Name: "none"}},
		{name: "missing, optional", source: ctb(v1.ClusterTrustBundleProjection{Name: ptr("none"), Optional: ptr(true)}), want: file("")},
		{name: "no selector", source: ctb(v1.ClusterTrustBundleProjection{SignerName: signer}), class: plugins.ClassWaiting, waits: plugins.Ref{Kind: plugins.KindTrustBundle}},
		{name: "no selector, optional", source: ctb(v1.ClusterTrustBundleProjection{SignerName: signer, Optional: ptr(true)}), want: file("")},
		{name: "no certificates", source: ctb(v1.ClusterTrustBundleProjection{Name: ptr("empty")}), class: plugins.ClassWaiting, text: "no certificates"},
		{name: "bad selector", source: ctb(v1.ClusterTrustBundleProjection{SignerName: signer, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a b": ""}}}), class: plugins.ClassPermanent},
		{name: "long selector", source: ctb(v1.ClusterTrustBundleProjection{SignerName: signer, LabelSelector: longSelector()}), class: plugins.ClassPermanent, text: "longer than"},
		{name: "neither", source: ctb(v1.ClusterTrustBundleProjection{}), class: plugins.ClassPermanent},
		{name: "both", source: ctb(v1.ClusterTrustBundleProjection{Name: ptr("one"), SignerName: signer}), class: plugins.ClassPermanent},
		{name: "for a group", source: ctb(v1.ClusterTrustBundleProjection{Name: ptr("one"), User: ptr[int64](3)}), params: plugins.Params{FSGroup: ptr[int64](5)},
			want: map[string]string{"ca.pem": "640 3:5 " + a}},
	} {
		for range 5 { // the same bytes each time, whatever the order of the list
			tc.run(t, NewRenderer(source.host()))
		}
	}
	renderCase{name: "no source", source: ctb(v1.ClusterTrustBundleProjection{Name: ptr("one")}), class: plugins.ClassUnsupported, text: "TrustBundles"}.run(t, NewRenderer(&plugins.VolumeHost{}))
	broken := newAPI()
	broken.fail = errors.New("refused")
	renderCase{name: "broken", source: ctb(v1.ClusterTrustBundleProjection{Name: ptr("one"), Optional: ptr(true)}), class: plugins.ClassTransient}.run(t, NewRenderer(broken.host()))
}

func longSelector() *metav1.LabelSelector {
	var values []string
	for i := range 2000 {
		values = append(values, fmt.Sprintf("%060d", i))
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: metav1.LabelSelectorOpIn, Values: values}}}
}
