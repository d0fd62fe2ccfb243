package journal

import (
	"encoding/json"
	"reflect"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

// FuzzText holds the writer and reader of this package against encoding/json.
func FuzzText(f *testing.F) {
	f.Add("kubernetes.io/csi/driver^handle", "name", "", "", "", uint8(0))
	f.Add("p/x/y", "a", "Ünï", `quote"back\slash`, "line\nbreak\u2028<>&", uint8(0xff))
	f.Add("p/x/y", "\x7f\x1f", `","op":"del`, "}", "{", uint8(0x55))
	f.Fuzz(func(t *testing.T, id, a, b, c, d string, bits uint8) {
		r := Record{Key: Key{ID: plugins.VolumeID(id)}, Storage: b, DevicePath: c, DeviceMountPath: d}
		for i, flag := range r.flags() {
			*flag.value = bits&(1<<i) != 0
		}
		if bits&32 != 0 {
			r.Volume = plugins.PodVolume{Pod: types.UID(a), Plugin: "p/x", Name: b}
			r.Names = []string{a, b}
		}
		if bits&64 != 0 {
			r.Pod = plugins.PodRef{Namespace: c, Name: d, UID: types.UID(a)}
			r.Undo = plugins.Undo{a: b, c: d}
		}
		if r.check() != nil {
			return
		}
		line, err := encode(opPut, &r)
		if err != nil {
			t.Fatal(err)
		}
		text := line[prefix : len(line)-1]
		var plain wire
		if err := json.Unmarshal(text, &plain); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if plain.Op != opPut || !same(&plain.Record, &r) {
			t.Fatalf("encoding/json reads %s as %+v, want %+v", text, plain, r)
		}
		w, _, err := decode(line[:len(line)-1])
		if err != nil || !reflect.DeepEqual(w, plain) {
			t.Fatalf("%s is read as %+v (%v), want %+v", text, w, err, plain)
		}
	})
}

// FuzzParse: what the fast reader takes, encoding/json reads the same.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"op":"put","id":"x","volume":{"pod":"u","plugin":"p/x","name":"n"},"pod":{"namespace":"","name":"","uid":""},"names":["a","b"],"block":true,"durable":true,"storage":"s","undo":{"k":"v","k":"w"}}`,
		`{"op":"del","id":"x"}`, `{"op":"put","id":"x","undo":{}}`, `{"op":"put","id":"x","names":[]}`, `{"op":"put","id":"x"} `,
		`{"op":"put","id":"x","undo":{"a":"b",}}`, `{"op":"put","id":"x`, `{"op":"put","id":"x\u0041"}`, `{"op":"head","version":1}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		op, r, ok := parseRecord(text)
		if !ok || !utf8.ValidString(text) { // encoding/json replaces what is not UTF-8
			return
		}
		var w wire
		if err := json.Unmarshal([]byte(text), &w); err != nil {
			t.Fatalf("encoding/json does not take it: %v", err)
		}
		if w.Op != op || !reflect.DeepEqual(w.Record, r) {
			t.Fatalf("read as %s %+v, encoding/json says %+v", op, r, w)
		}
	})
}
