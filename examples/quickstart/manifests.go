package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// object is one document of a manifest.
type object struct {
	runtime.Object
	meta metav1.Object
	kind string
	from string // file:line
}

func (o object) key() string { return o.kind + " " + o.meta.GetNamespace() + "/" + o.meta.GetName() }

// readFolder reads every YAML and JSON file of a folder. What cannot be read is
// reported with file and line, and does not keep the rest from being used.
func readFolder(dir string) (objects []object, faults []error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, []error{err}
	}
	seen := map[string]string{}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			continue
		}
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // an editor renamed it away just now
		}
		if err != nil {
			faults = append(faults, err)
			continue
		}
		for _, doc := range split(text) {
			o, err := decode(doc.text)
			at := fmt.Sprintf("%s:%d", name, doc.line+lineOf(err, doc.text))
			switch {
			case err != nil:
				faults = append(faults, fmt.Errorf("%s: %w", at, err))
			case o.Object == nil: // an empty document
			case seen[o.key()] != "":
				faults = append(faults, fmt.Errorf("%s: %s stands already at %s", at, o.key(), seen[o.key()]))
			default:
				o.from, seen[o.key()] = at, at
				objects = append(objects, o)
			}
		}
	}
	bind(objects)
	return objects, faults
}

// document is one part of a file and the line that it begins on.
type document struct {
	text []byte
	line int
}

func split(text []byte) []document {
	docs := []document{{line: 1}}
	for i, line := range bytes.SplitAfter(text, []byte("\n")) {
		if bytes.HasPrefix(line, []byte("---")) {
			docs = append(docs, document{line: i + 2})
			continue
		}
		last := &docs[len(docs)-1]
		last.text = append(last.text, line...)
	}
	return docs
}

// decode turns a document into an object, strictly: an unknown field is a
// mistake.
func decode(text []byte) (object, error) {
	var head metav1.TypeMeta
	if err := yaml.Unmarshal(text, &head); err != nil {
		return object{}, err
	}
	var o object
	switch head.Kind {
	case "":
		if len(bytes.TrimSpace(withoutComments(text))) == 0 {
			return object{}, nil
		}
		return object{}, errors.New("kind is missing")
	case "Pod":
		p := &v1.Pod{}
		o = object{Object: p, meta: p}
	case "ConfigMap":
		c := &v1.ConfigMap{}
		o = object{Object: c, meta: c}
	case "Secret":
		s := &v1.Secret{}
		o = object{Object: s, meta: s}
	case "PersistentVolume":
		p := &v1.PersistentVolume{}
		o = object{Object: p, meta: p}
	case "PersistentVolumeClaim":
		p := &v1.PersistentVolumeClaim{}
		o = object{Object: p, meta: p}
	default:
		return object{}, fmt.Errorf("kind %q is none that the quickstart reads (Pod, ConfigMap, Secret, PersistentVolume, PersistentVolumeClaim)", head.Kind)
	}
	if err := yaml.UnmarshalStrict(text, o.Object); err != nil {
		return object{}, err
	}
	o.kind = head.Kind
	return o, complete(o)
}

// complete adds what an API server would have added.
func complete(o object) error {
	if o.meta.GetName() == "" {
		return errors.New("metadata.name is missing")
	}
	if o.kind != "PersistentVolume" && o.meta.GetNamespace() == "" {
		o.meta.SetNamespace("default")
	}
	if o.meta.GetUID() == "" {
		sum := sha256.Sum256([]byte(o.key()))
		o.meta.SetUID(types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])))
	}
	if s, ok := o.Object.(*v1.Secret); ok {
		for key, value := range s.StringData {
			if s.Data == nil {
				s.Data = map[string][]byte{}
			}
			s.Data[key] = []byte(value)
		}
		s.StringData = nil
	}
	return nil
}

// bind joins claims to the volumes that they name, which a control plane's
// binder would do.
func bind(objects []object) {
	volumes := map[string]*v1.PersistentVolume{}
	for _, o := range objects {
		if pv, ok := o.Object.(*v1.PersistentVolume); ok {
			volumes[pv.Name] = pv
		}
	}
	for _, o := range objects {
		claim, ok := o.Object.(*v1.PersistentVolumeClaim)
		if !ok {
			continue
		}
		pv := volumes[claim.Spec.VolumeName]
		if pv == nil || (pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID != claim.UID && pv.Spec.ClaimRef.UID != "") {
			claim.Status.Phase = cmp.Or(claim.Status.Phase, v1.ClaimPending)
			continue
		}
		pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
		pv.Status.Phase, claim.Status.Phase = v1.VolumeBound, v1.ClaimBound
		claim.Status.Capacity = pv.Spec.Capacity
	}
}

func withoutComments(text []byte) []byte {
	return regexp.MustCompile(`(?m)^\s*#.*$`).ReplaceAll(text, nil)
}

// lineOf finds the line, counted from 0 within the document, that a decoding
// error is about.
func lineOf(err error, text []byte) int {
	if err == nil {
		return 0
	}
	if m := regexp.MustCompile(`line (\d+)`).FindStringSubmatch(err.Error()); m != nil {
		n, _ := strconv.Atoi(m[1])
		return max(n-1, 0)
	}
	m := regexp.MustCompile(`(?:unknown field "(?:[^"]*\.)?|field \S*?\.?)([A-Za-z0-9]+)"?`).FindStringSubmatch(err.Error())
	if m == nil {
		return 0
	}
	for i, line := range strings.Split(string(text), "\n") {
		if regexp.MustCompile(`(^|[\s{,-])"?` + m[1] + `"?\s*:`).MatchString(line) {
			return i
		}
	}
	return 0
}

// watch calls changed soon after anything in the folder changed, until ctx
// ends.
func watch(ctx context.Context, dir string, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Add(dir); err != nil {
		return err
	}
	// Editors write in several steps: read once they pause.
	const pause = 50 * time.Millisecond
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-w.Events:
			if !ok {
				return nil
			}
			timer.Reset(pause)
		case err, ok := <-w.Errors:
			if !ok {
				return nil
			}
			fmt.Fprintln(os.Stderr, "watching", dir+":", err)
			timer.Reset(pause)
		case <-timer.C:
			changed()
		}
	}
}
