package projection

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/volumekit/volumekit/plugins"
)

func jwt(t testing.TB, claims map[string]any) string {
	t.Helper()
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	return "e30." + base64.RawURLEncoding.EncodeToString(payload) + ".sig"
}

func TestReadToken(t *testing.T) {
	req := plugins.TokenRequest{
		Namespace: "ns", ServiceAccount: "sa", Audiences: []string{"vault"}, Lifetime: time.Hour,
		Pod: plugins.PodRef{UID: "uid"},
	}
	good := func() map[string]any {
		return map[string]any{
			"aud": []string{"vault"}, "iat": 1000, "exp": 1000 + 365*24*3600, "sub": "system:serviceaccount:ns:sa",
			"kubernetes.io": map[string]any{"pod": map[string]any{"uid": "uid"}},
		}
	}
	token, ok := readToken(jwt(t, good()), req)
	if !ok || token.Issued.Unix() != 1000 || token.Expires.Unix() != 1000+3600 {
		t.Errorf("a good token: %v, %v", token, ok)
	}
	single := good()
	single["aud"] = "vault"
	if _, ok := readToken(jwt(t, single), req); !ok {
		t.Error("a single audience is refused")
	}
	for name, spoil := range map[string]func(map[string]any){
		"another audience":   func(c map[string]any) { c["aud"] = []string{"other"} },
		"no audience":        func(c map[string]any) { delete(c, "aud") },
		"another account":    func(c map[string]any) { c["sub"] = "system:serviceaccount:ns:admin" },
		"another pod":        func(c map[string]any) { c["kubernetes.io"] = map[string]any{"pod": map[string]any{"uid": "x"}} },
		"no pod":             func(c map[string]any) { delete(c, "kubernetes.io") },
		"no expiry":          func(c map[string]any) { delete(c, "exp") },
		"expiry before that": func(c map[string]any) { c["exp"] = 999 },
		"expiry is text":     func(c map[string]any) { c["exp"] = "soon" },
	} {
		claims := good()
		spoil(claims)
		if token, ok := readToken(jwt(t, claims), req); ok {
			t.Errorf("%s: taken as %v", name, token)
		}
	}
	for _, text := range []string{"", "opaque", "a.b", "a.!.c", "a.e30.c", strings.Repeat(".", 100)} {
		if token, ok := readToken(text, req); ok {
			t.Errorf("%q: taken as %v", text, token)
		}
	}
}

func FuzzReadToken(f *testing.F) {
	f.Add("e30.e30.x")
	f.Add(jwt(f, map[string]any{"iat": 1, "exp": 2, "sub": "system:serviceaccount::"}))
	f.Fuzz(func(t *testing.T, text string) {
		token, ok := readToken(text, plugins.TokenRequest{Lifetime: time.Hour})
		if ok && (token.Value != text || !token.Expires.After(token.Issued) || token.Expires.Sub(token.Issued) > time.Hour) {
			t.Errorf("%q: %v", text, token)
		}
	})
}
