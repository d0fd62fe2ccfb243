package mount_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/volumekit/volumekit/mount"
)

func TestParseOptions(t *testing.T) {
	for _, c := range []struct {
		list []string
		want mount.Options
		bad  bool
	}{
		{list: nil},
		{list: []string{"", "defaults", " , "}},
		{list: []string{"ro,nosuid", "nodev"}, want: mount.Options{ReadOnly: true, NoSuid: true, NoDev: true}},
		{list: []string{"ro", "ro"}, want: mount.Options{ReadOnly: true}},
		{list: []string{"rw", "exec"}},
		{list: []string{"bind"}, want: mount.Options{Bind: true}},
		{list: []string{"rbind"}, want: mount.Options{Bind: true, Recursive: true}},
		{list: []string{"noexec,noatime,nosymfollow"}, want: mount.Options{NoExec: true, NoAtime: true, NoSymfollow: true}},
		{list: []string{"vers=4.1", "hard,size=1m"}, want: mount.Options{Data: []string{"vers=4.1", "hard", "size=1m"}}},
		{list: []string{`context="a:b:c1,c2",ro`}, want: mount.Options{ReadOnly: true, Data: []string{`context="a:b:c1,c2"`}}},
		{list: []string{"ro,rw"}, bad: true},
		{list: []string{"suid", "nosuid"}, bad: true},
		{list: []string{"a b"}, bad: true},
		{list: []string{"a\x00"}, bad: true},
		{list: []string{"a\nb"}, bad: true},
		{list: []string{`context="a`}, bad: true},
	} {
		got, err := mount.ParseOptions(c.list)
		if c.bad {
			if !errors.Is(err, mount.ErrBadOption) {
				t.Errorf("%q: error %v, want a bad option", c.list, err)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %+v, %v, want %+v", c.list, got, err, c.want)
		}
	}
}

func TestWithKeepsWhatTheSystemDemands(t *testing.T) {
	user, err := mount.ParseOptions([]string{"rw,suid,dev,exec", "a"})
	if err != nil {
		t.Fatal(err)
	}
	system := mount.Options{
		Bind: true, Recursive: true, ReadOnly: true, NoSuid: true, NoDev: true, NoExec: true,
		NoAtime: true, NoSymfollow: true, Data: []string{"b"}, Sensitive: []string{"c"},
	}
	got := user.With(system)
	want := system
	want.Data = []string{"a", "b"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%#v, want %#v", got, want)
	}
	if !slices.Equal(user.Data, []string{"a"}) {
		t.Errorf("With changed what it was called on: %v", user)
	}
}

func TestNoVerbShowsASecret(t *testing.T) {
	o := mount.Options{ReadOnly: true, Data: []string{"a=1"}, Sensitive: []string{"password=geheim"}}
	m := mount.Mount{Source: "s", Target: "/t", Options: o}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, v := range []any{o, &o, m} {
			if s := fmt.Sprintf(verb, v); strings.Contains(s, "geheim") {
				t.Errorf("%s of %T shows it: %s", verb, v, s)
			}
		}
	}
	if b, err := json.Marshal(m); err != nil || strings.Contains(string(b), "geheim") {
		t.Errorf("JSON shows it: %s, %v", b, err)
	}
	if got, want := o.String(), "a=1,ro (1 hidden)"; got != want {
		t.Errorf("String is %q, want %q", got, want)
	}
}

func FuzzParseOptions(f *testing.F) {
	for _, s := range []string{"", "ro,rw", "bind,ro", "rbind", `context="a,b",x`, "a=b,,c", `"`, "size=1m,nosuid"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		o, err := mount.ParseOptions([]string{s})
		if err != nil {
			if !errors.Is(err, mount.ErrBadOption) {
				t.Fatalf("error of no class: %v", err)
			}
			return
		}
		for _, word := range o.Data {
			if word == "" || strings.ContainsAny(word, "\x00\n\t ") {
				t.Fatalf("%q let %q through", s, word)
			}
			if strings.Count(word, `"`) == 0 && strings.Contains(word, ",") {
				t.Fatalf("%q made %q, which is two options", s, word)
			}
		}
		// What is written can be read again and means the same.
		again, err := mount.ParseOptions([]string{strings.Join(o.Strings(), ",")})
		if err != nil || !reflect.DeepEqual(o, again) {
			t.Fatalf("%q became %#v, then %#v, %v", s, o, again, err)
		}
	})
}
