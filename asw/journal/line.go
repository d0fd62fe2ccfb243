package journal

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// version is the version of the format that this package writes, and the only
// one that it reads.
const version = 1

// maxLine is the length of the longest line, its end included. Records are
// small; the limit keeps a damaged file from filling the memory.
const maxLine = 256 << 10

// usualLine is what most lines fit into.
const usualLine = 320

// prefix is the length of the checksum and the space behind it.
const prefix = 9

// The operations of a line.
const (
	opHead = "head" // the version, and the namespace from here on
	opPut  = "put"
	opDel  = "del"
)

// wire is the JSON of a line.
type wire struct {
	Op        string           `json:"op"`
	Version   int              `json:"version,omitempty"`
	Namespace *mount.Namespace `json:"namespace,omitempty"`
	Record
}

// castagnoli is the polynomial of iSCSI and ext4 (RFC 3720), for which
// processors have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode makes a line of a change.
func encode(op string, r *Record) ([]byte, error) {
	line := make([]byte, prefix, prefix+usualLine)
	return seal(appendRecord(line, op, r))
}

// encodeHead makes a header.
func encodeHead(namespace mount.Namespace) ([]byte, error) {
	text, err := json.Marshal(wire{Op: opHead, Version: version, Namespace: &namespace})
	if err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	return seal(append(make([]byte, prefix), text...))
}

// seal completes a line that has room for the checksum before its text.
func seal(line []byte) ([]byte, error) {
	if len(line)+1 > maxLine {
		return nil, fmt.Errorf("record of %d bytes is too long (limit %d)", len(line)-prefix, maxLine-prefix-1)
	}
	line[prefix-1] = ' '
	appendSum(line[:0], line[prefix:])
	return append(line, '\n'), nil
}

// appendSum appends the checksum of text as eight hexadecimal digits.
func appendSum(to, text []byte) []byte {
	sum := crc32.Checksum(text, castagnoli)
	return hex.AppendEncode(to, []byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
}

// decode reads a line without its end. With an error the key is set if it
// could still be told.
func decode(line []byte) (wire, *Key, error) {
	if len(line) <= prefix || line[prefix-1] != ' ' {
		return wire{}, nil, errors.New("not a checksum and a record")
	}
	text := line[prefix:]
	var w wire
	var room [prefix - 1]byte
	if !bytes.Equal(appendSum(room[:0], text), line[:prefix-1]) {
		return wire{}, tellKey(text), errors.New("the checksum does not match")
	}
	if !utf8.Valid(text) {
		return wire{}, nil, errors.New("not UTF-8")
	}
	var canonical bool
	if w.Op, w.Record, canonical = parseRecord(string(text)); !canonical {
		w = wire{}
		if err := json.Unmarshal(text, &w); err != nil {
			return wire{}, tellKey(text), fmt.Errorf("decode: %w", err)
		}
	}
	switch w.Op {
	case opHead:
		return w, nil, nil
	case opPut, opDel:
	default:
		return wire{}, tellKey(text), fmt.Errorf("unknown operation %q", w.Op)
	}
	if err := w.Check(); err != nil {
		return wire{}, nil, err
	}
	return w, nil, nil
}

// tellKey reads the key of a damaged record, if that can be done.
func tellKey(text []byte) *Key {
	var w struct{ Key }
	if !utf8.Valid(text) || json.Unmarshal(text, &w) != nil || w.Check() != nil {
		return nil
	}
	return &w.Key
}

// Check accepts a key that can be recorded, and whose names can be made into
// paths.
func (k Key) Check() error {
	if k.ID == "" {
		return errors.New("record without a volume id")
	}
	if k.Volume == (plugins.PodVolume{}) {
		return nil
	}
	if err := k.Volume.Check(); err != nil {
		return fmt.Errorf("record of %q: %w", k.ID, err)
	}
	return nil
}

// check accepts a record that comes back from the file as it was written:
// JSON holds no text but UTF-8.
func (r *Record) check() error {
	if err := r.Key.Check(); err != nil {
		return err
	}
	for _, s := range []string{
		string(r.ID), string(r.Volume.Pod), r.Volume.Plugin, r.Volume.Name,
		r.Pod.Namespace, r.Pod.Name, string(r.Pod.UID), r.Storage, r.Lane, r.DevicePath, r.DeviceMountPath,
	} {
		if !utf8.ValidString(s) {
			return fmt.Errorf("record of %q: %q is not UTF-8", r.ID, s)
		}
	}
	for _, s := range r.Names {
		if !utf8.ValidString(s) {
			return fmt.Errorf("record of %q: name %q is not UTF-8", r.ID, s)
		}
	}
	for k, v := range r.Undo {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return fmt.Errorf("record of %q: undo %q is not UTF-8", r.ID, k)
		}
	}
	return nil
}

// same reports whether writing b over a would change nothing.
func same(a, b *Record) bool {
	return a.Key == b.Key && a.Pod == b.Pod && a.Block == b.Block &&
		a.Attach == b.Attach && a.Device == b.Device && a.Durable == b.Durable && a.Parallel == b.Parallel &&
		a.Storage == b.Storage && a.Lane == b.Lane && a.DevicePath == b.DevicePath && a.DeviceMountPath == b.DeviceMountPath &&
		slices.Equal(a.Names, b.Names) && maps.Equal(a.Undo, b.Undo)
}
