package journal

import (
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
)

// This file writes, and reads back, the JSON of a record in the one form that
// this package gives it: a fixed order of fields, no white space, no escapes
// where none are needed. It says the same as the tags in [Record], which
// encoding/json follows for every line that is not in this form; that takes
// five times as long.

// appendRecord appends the JSON of a line.
func appendRecord(to []byte, op string, r *Record) []byte {
	to = append(append(to, `{"op":"`...), op...)
	to = appendString(append(to, `","id":`...), string(r.ID))
	if v := r.Volume; v != (plugins.PodVolume{}) {
		to = appendString(append(to, `,"volume":{"pod":`...), string(v.Pod))
		to = appendString(append(to, `,"plugin":`...), v.Plugin)
		to = appendString(append(to, `,"name":`...), v.Name)
		to = append(to, '}')
	}
	if p := r.Pod; p != (plugins.PodRef{}) {
		to = appendString(append(to, `,"pod":{"namespace":`...), p.Namespace)
		to = appendString(append(to, `,"name":`...), p.Name)
		to = appendString(append(to, `,"uid":`...), string(p.UID))
		to = append(to, '}')
	}
	to = appendNames(to, r.Names)
	for _, f := range r.flags() {
		if *f.value {
			to = append(to, f.text...)
		}
	}
	for _, f := range r.texts() {
		if *f.value != "" {
			to = appendString(append(to, f.text...), *f.value)
		}
	}
	return append(appendUndo(to, r.Undo), '}')
}

func appendNames(to []byte, names []string) []byte {
	if len(names) == 0 {
		return to
	}
	to = append(to, `,"names":[`...)
	for i, name := range names {
		if i > 0 {
			to = append(to, ',')
		}
		to = appendString(to, name)
	}
	return append(to, ']')
}

func appendUndo(to []byte, undo plugins.Undo) []byte {
	if len(undo) == 0 {
		return to
	}
	var room [8]string
	keys := room[:0]
	for k := range undo {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	to = append(to, `,"undo":{`...)
	for i, k := range keys {
		if i > 0 {
			to = append(to, ',')
		}
		to = append(appendString(to, k), ':')
		to = appendString(to, undo[k])
	}
	return append(to, '}')
}

// appendString appends a JSON string.
func appendString(to []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' {
			text, err := json.Marshal(s)
			if err != nil {
				text = []byte(`""`) // a string can always be marshalled
			}
			return append(to, text...)
		}
	}
	return append(append(append(to, '"'), s...), '"')
}

// field is a field and what stands before its value.
type field[T any] struct {
	text  string
	value *T
}

// flags are the fields that are written only when true, value included.
func (r *Record) flags() [5]field[bool] {
	return [...]field[bool]{
		{`,"block":true`, &r.Block},
		{`,"attach":true`, &r.Attach},
		{`,"device":true`, &r.Device},
		{`,"durable":true`, &r.Durable},
		{`,"parallel":true`, &r.Parallel},
	}
}

// texts are the fields that are written only when not empty.
func (r *Record) texts() [4]field[string] {
	return [...]field[string]{
		{`,"storage":`, &r.Storage},
		{`,"lane":`, &r.Lane},
		{`,"devicePath":`, &r.DevicePath},
		{`,"deviceMountPath":`, &r.DeviceMountPath},
	}
}

// parseRecord reads what appendRecord wrote. ok is false for everything else,
// good or bad.
func parseRecord(text string) (op string, r Record, ok bool) {
	c := cursor{rest: text}
	op = c.after(`{"op":`)
	r.ID = plugins.VolumeID(c.after(`,"id":`))
	if c.eat(`,"volume":{`) {
		r.Volume.Pod = types.UID(c.after(`"pod":`))
		r.Volume.Plugin = c.after(`,"plugin":`)
		r.Volume.Name = c.after(`,"name":`)
		c.must("}")
	}
	if c.eat(`,"pod":{`) {
		r.Pod.Namespace = c.after(`"namespace":`)
		r.Pod.Name = c.after(`,"name":`)
		r.Pod.UID = types.UID(c.after(`,"uid":`))
		c.must("}")
	}
	if c.eat(`,"names":[`) {
		for more := true; more; more = c.eat(",") {
			r.Names = append(r.Names, c.after(""))
		}
		c.must("]")
	}
	for _, f := range r.flags() {
		*f.value = c.eat(f.text)
	}
	for _, f := range r.texts() {
		if c.eat(f.text) {
			*f.value = c.after("")
		}
	}
	if c.eat(`,"undo":{`) {
		r.Undo = plugins.Undo{}
		for more := true; more && !c.bad; more = c.eat(",") {
			key := c.after("")
			r.Undo[key] = c.after(":")
		}
		c.must("}")
	}
	c.must("}")
	return op, r, !c.bad && c.rest == ""
}

// cursor walks through a text. Once something was not there it is bad, and
// takes nothing more.
type cursor struct {
	rest string
	bad  bool
}

// eat takes the text if it comes next.
func (c *cursor) eat(text string) bool {
	if c.bad || !strings.HasPrefix(c.rest, text) {
		return false
	}
	c.rest = c.rest[len(text):]
	return true
}

func (c *cursor) must(text string) { c.bad = !c.eat(text) }

// after takes the text, which must come next, and a string without escapes.
func (c *cursor) after(text string) string {
	c.must(text)
	c.must(`"`)
	if c.bad {
		return ""
	}
	for i := range len(c.rest) {
		switch b := c.rest[i]; {
		case b == '"':
			s := c.rest[:i]
			c.rest = c.rest[i+1:]
			return s
		case b == '\\' || b < 0x20:
			c.bad = true
			return ""
		}
	}
	c.bad = true
	return ""
}
