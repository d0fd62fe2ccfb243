package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// object is one object of a manifest.
type object struct {
	runtime.Object
	meta metav1.Object
	kind string
	file string
	line int
}

func (o object) key() string {
	if ns := o.meta.GetNamespace(); ns != "" {
		return o.kind + " " + ns + "/" + o.meta.GetName()
	}
	return o.kind + " " + o.meta.GetName()
}

// name is the key as a sentence would have it.
func (o object) name() string {
	if rest, isPod := strings.CutPrefix(o.key(), "Pod "); isPod {
		return "pod " + rest
	}
	return o.key()
}

// ordered sorts the keys of objects so that what is referred to comes first.
func ordered(objects map[string]object) []string {
	rank := func(key string) int { return slices.Index(kinds, objects[key].kind) }
	keys := make([]string, 0, len(objects))
	for key := range objects {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return keys
}

// fault is a mistake in a manifest. Line 0 means the file as a whole.
type fault struct {
	file string
	line int
	err  error
}

func (f *fault) Error() string {
	if f.line == 0 {
		return f.file + ": " + f.err.Error()
	}
	return fmt.Sprintf("%s:%d: %v", f.file, f.line, f.err)
}

func (f *fault) Unwrap() error { return f.err }

// byPlace orders faults by file and line.
func byPlace(a, b error) int {
	var x, y fault
	for err, into := range map[error]*fault{a: &x, b: &y} {
		if f := (*fault)(nil); errors.As(err, &f) {
			*into = *f
		}
	}
	return cmp.Or(strings.Compare(x.file, y.file), x.line-y.line)
}

// largest is how large a manifest may be. An API server takes 3 MiB at most.
const largest = 4 << 20

// readFolder reads every YAML and JSON file of a folder, as the API server
// would have its objects. What cannot be read is reported with file and line,
// and does not keep the rest from being used.
func readFolder(dir string) (objects []object, faults []error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, []error{err}
	}
	first := map[string]object{}
	for _, e := range entries {
		// Names that begin with a dot are editors' temporary files.
		if strings.HasPrefix(e.Name(), ".") || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		name := filepath.Join(dir, e.Name())
		text, err := readFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // an editor renamed it away just now
		}
		if err != nil {
			faults = append(faults, &fault{file: name, err: err})
			continue
		}
		found, bad := decodeFile(name, text)
		faults = append(faults, bad...)
		for _, o := range found {
			if other, twice := first[o.key()]; twice {
				faults = append(faults, &fault{o.file, o.line, fmt.Errorf("%s stands already at %s:%d", o.key(), other.file, other.line)})
				continue
			}
			first[o.key()] = o
			objects = append(objects, o)
		}
	}
	return objects, faults
}

// readFile reads a regular file of a bearable size; a pipe would hang.
func readFile(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, cause(err)
	case info.IsDir():
		return nil, errors.New("this is a folder; manifests are read from one folder only")
	case !info.Mode().IsRegular():
		return nil, errors.New("this is not a regular file")
	}
	text, err := io.ReadAll(io.LimitReader(f, largest+1))
	switch {
	case err != nil:
		return nil, cause(err)
	case len(text) > largest:
		return nil, fmt.Errorf("larger than %s", bytesText(largest))
	}
	return text, nil
}

// cause drops the path of an error where it is told anyway.
func cause(err error) error {
	if pathError := (*fs.PathError)(nil); errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

// decodeFile decodes all documents of a file.
func decodeFile(name string, text []byte) (objects []object, faults []error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if at := firstInvalid(text); at >= 0 {
		line := 1 + bytes.Count(text[:at], []byte("\n"))
		return nil, []error{&fault{name, line, errors.New("this is not UTF-8 text")}}
	}
	docs := []document{{text: text, line: 1, json: true}}
	if filepath.Ext(name) != ".json" {
		docs = split(text)
	}
	for _, doc := range docs {
		found, bad := doc.decode()
		for _, o := range found {
			o.file = name
			objects = append(objects, o)
		}
		for _, f := range bad {
			f.file = name
			faults = append(faults, f)
		}
	}
	return objects, faults
}

func firstInvalid(text []byte) int {
	for at := 0; at < len(text); {
		r, n := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && n == 1 || r == 0 {
			return at
		}
		at += n
	}
	return -1
}

// document is one part of a file and the line that it begins on.
type document struct {
	text []byte
	line int
	json bool
}

// split cuts a file at the lines that separate documents (YAML 1.2, 9.1.2).
func split(text []byte) []document {
	docs := []document{{line: 1}}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		last := &docs[len(docs)-1]
		switch {
		case marks(line, "---"):
			// What follows on the line belongs to the new document.
			docs = append(docs, document{line: number, text: append([]byte("   "), line[3:]...)})
		case marks(line, "..."):
			docs = append(docs, document{line: number + 1})
		case line[0] == '%' && len(bytes.TrimSpace(last.text)) == 0:
			last.text = append(last.text, '\n') // a directive
		default:
			last.text = append(last.text, line...)
		}
	}
	return docs
}

func marks(line []byte, mark string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(mark))
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t\r\n", rune(rest[0])))
}
