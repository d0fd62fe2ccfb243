package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// kinds are what the quickstart reads, each after those that it refers to.
var kinds = []string{"ConfigMap", "Secret", "PersistentVolume", "PersistentVolumeClaim", "Pod"}

func newObject(kind string) interface {
	runtime.Object
	metav1.Object
} {
	switch kind {
	case "ConfigMap":
		return &v1.ConfigMap{}
	case "Secret":
		return &v1.Secret{}
	case "PersistentVolume":
		return &v1.PersistentVolume{}
	case "PersistentVolumeClaim":
		return &v1.PersistentVolumeClaim{}
	case "Pod":
		return &v1.Pod{}
	}
	return nil
}

// decode turns a document into objects, strictly: an unknown field is a
// mistake. Several come from a List, as `kubectl get -o yaml` prints it.
func (d document) decode() (objects []object, faults []*fault) {
	tree, faults := d.parse()
	if len(faults) > 0 || tree == nil {
		return nil, faults
	}
	return d.objects(tree, nil)
}

// parse turns the text into maps, lists and scalars; nil if it is empty.
func (d document) parse() (tree any, faults []*fault) {
	if len(strings.TrimSpace(string(d.text))) == 0 {
		return nil, nil
	}
	text := d.text
	if !d.json {
		var err error
		if text, err = yaml.YAMLToJSONStrict(d.text); err != nil {
			return nil, d.yamlFaults(err)
		}
	}
	strict, err := kjson.UnmarshalStrict(text, &tree)
	if err != nil {
		return nil, []*fault{{line: d.line + jsonLine(d.text, err), err: errors.New("JSON: " + strings.TrimPrefix(err.Error(), "json: "))}}
	}
	for _, err := range strict {
		faults = append(faults, d.strict(err, nil))
	}
	return tree, faults
}

var (
	lineInYAML    = regexp.MustCompile(`line (\d+): (.*)`)
	ofParser      = regexp.MustCompile(`^did not find expected (<|node|'|key|,)`)
	unknownAnchor = regexp.MustCompile(`unknown anchor '(.*)' referenced`)
)

// yamlFaults takes the errors of the YAML parser apart.
func (d document) yamlFaults(err error) (faults []*fault) {
	end := 1 + strings.Count(strings.TrimRight(string(d.text), " \r\n"), "\n")
	for _, m := range lineInYAML.FindAllStringSubmatch(err.Error(), -1) {
		n, _ := strconv.Atoi(m[1])
		why := m[2]
		if ofParser.MatchString(why) {
			n++ // the library counts these from 0
		}
		if lines := strings.Split(string(d.text), "\n"); n >= 1 && n <= len(lines) && strings.HasPrefix(strings.TrimLeft(lines[n-1], " "), "\t") {
			why += " (YAML is indented by spaces, not by tabs)"
		}
		n = max(1, min(n, end)) // what is missing at the end is missing on the last line
		faults = append(faults, &fault{line: d.line + n - 1, err: errors.New("YAML: " + why)})
	}
	if faults == nil {
		why := err.Error()
		for _, noise := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors:"} {
			why = strings.TrimSpace(strings.ReplaceAll(why, noise, ""))
		}
		line := d.line
		if m := unknownAnchor.FindStringSubmatch(why); m != nil {
			before, _, _ := strings.Cut(string(d.text), "*"+m[1])
			line += strings.Count(before, "\n")
			// The name could be a secret.
			why = "a value that begins with * refers to an anchor, and there is none of that name; quote it to make it text"
		}
		faults = []*fault{{line: line, err: errors.New("YAML: " + why)}}
	}
	return faults
}

// jsonLine is the line, counted from 0, of a syntax error.
func jsonLine(text []byte, err error) int {
	if at := reflect.Indirect(reflect.ValueOf(err)).FieldByName("Offset"); at.IsValid() && at.CanInt() {
		return strings.Count(string(text[:min(max(int(at.Int()), 0), len(text))]), "\n")
	}
	return 0
}

// objects decodes one object, or those of a List. at is where in the document
// it stands.
func (d document) objects(tree any, at path) (objects []object, faults []*fault) {
	fields, ok := tree.(map[string]any)
	if !ok {
		return nil, d.wrong(at, fmt.Errorf("%s stands where an object should", describeValue(tree)))
	}
	kind, isText := fields["kind"].(string)
	if fields["kind"] != nil && !isText {
		return nil, d.wrong(append(at, "kind"), fmt.Errorf("this is %s, not text", describeValue(fields["kind"])))
	}
	if kind == "" {
		return nil, d.wrong(at, errors.New("kind is missing"))
	}
	if items, isList := fields["items"].([]any); isList && strings.HasSuffix(kind, "List") {
		for i, item := range items {
			found, bad := d.objects(item, append(slices.Clone(at), "items", index(i)))
			objects, faults = append(objects, found...), append(faults, bad...)
		}
		return objects, faults
	}
	if newObject(kind) == nil {
		return nil, d.wrong(append(at, "kind"), fmt.Errorf("%s is none of the kinds that the quickstart reads: %s", quoted(kind), strings.Join(kinds, ", ")))
	}
	switch version := fields["apiVersion"]; version {
	case "v1":
	case nil:
		return nil, d.wrong(at, fmt.Errorf("apiVersion is missing; that of a %s is v1", kind))
	default:
		return nil, d.wrong(append(at, "apiVersion"), fmt.Errorf("that of a %s is v1", kind))
	}
	o, faults := d.typed(fields, kind, at)
	if len(faults) == 0 {
		faults = d.check(&o, at)
	}
	if len(faults) > 0 {
		return nil, faults
	}
	return []object{o}, nil
}

// typed decodes one object of a known kind.
func (d document) typed(fields map[string]any, kind string, at path) (o object, faults []*fault) {
	raw, err := json.Marshal(fields)
	if err != nil {
		return o, d.wrong(at, err)
	}
	into := newObject(kind)
	strict, err := kjson.UnmarshalStrict(raw, into)
	if err != nil {
		budget := 16 + 20_000_000/(len(raw)+1)
		where := culprit(fields, func() bool {
			budget--
			raw, _ := json.Marshal(fields)
			again := kjson.UnmarshalCaseSensitivePreserveInts(raw, newObject(kind))
			return budget < 0 || again != nil && again.Error() == err.Error()
		})
		return o, d.wrong(append(slices.Clone(at), where...), explain(err, where.in(fields), kind == "Secret"))
	}
	for _, err := range strict {
		faults = append(faults, d.strict(err, at))
	}
	return object{Object: into, meta: into, kind: kind, line: d.line + locate(string(d.text), at)}, faults
}

// strict is the fault for an unknown field or one that stands twice.
func (d document) strict(err error, at path) *fault {
	var field kjson.FieldError
	if !errors.As(err, &field) {
		return d.wrong(at, err)[0]
	}
	where := append(slices.Clone(at), parsePath(field.FieldPath())...)
	what, _, _ := strings.Cut(err.Error(), " \"")
	return &fault{line: d.line + locate(string(d.text), where), err: fmt.Errorf("%s: %s", where, what)}
}

// wrong is the fault for something at a place in the document.
func (d document) wrong(at path, err error) []*fault {
	if len(at) > 0 {
		err = fmt.Errorf("%s: %w", at, err)
	}
	return []*fault{{line: d.line + locate(string(d.text), at), err: err}}
}

// culprit finds which part of a tree keeps it from being decoded: the deepest
// one without which the error is another. same tells whether it is the same.
func culprit(node any, same func() bool) path {
	try := func(name string, child any, set func(any)) path {
		set(nil)
		still := same()
		set(child)
		if still {
			return nil
		}
		return append(path{name}, culprit(child, same)...)
	}
	switch node := node.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(node)) {
			if found := try(key, node[key], func(v any) { node[key] = v }); found != nil {
				return found
			}
		}
	case []any:
		for i := range node {
			if found := try(index(i), node[i], func(v any) { node[i] = v }); found != nil {
				return found
			}
		}
	}
	return nil
}

// explain says in plain words what is wrong with a value. What a Secret holds
// is not told.
func explain(err error, value any, secret bool) error {
	text, isText := value.(string)
	wrong := reflect.Indirect(reflect.ValueOf(err))
	if wrong.Kind() == reflect.Struct && wrong.FieldByName("Type").IsValid() {
		if t, ok := wrong.FieldByName("Type").Interface().(reflect.Type); ok {
			hint := ""
			if _, isMap := value.(map[string]any); t.Kind() == reflect.String && !isMap && describeValue(value) != "a list" {
				hint = "; put it in quotes"
			}
			return fmt.Errorf("%s stands where %s is wanted%s", describeValue(value), wanted(t), hint)
		}
	}
	switch {
	case isText && strings.Contains(err.Error(), "base64"):
		hint := ""
		if secret {
			hint = "; plain text belongs in stringData"
		}
		return fmt.Errorf("this is not base64%s", hint)
	case secret:
		return errors.New("this cannot be decoded")
	case isText && (errors.Is(err, resource.ErrFormatWrong) || strings.Contains(err.Error(), "quantit")):
		return fmt.Errorf("%s is not a quantity such as 500m or 1Gi", quoted(text))
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Map, reflect.Struct, reflect.Pointer:
		return "a map"
	}
	return "a number"
}

func describeValue(value any) string {
	switch value.(type) {
	case nil:
		return "nothing"
	case bool:
		return "true or false"
	case string:
		return "text"
	case []any:
		return "a list"
	case map[string]any:
		return "a map"
	}
	return "a number"
}

// quoted shortens what a message repeats.
func quoted(text string) string {
	const enough = 40
	if runes := []rune(text); len(runes) > enough {
		text = string(runes[:enough]) + "…"
	}
	return strconv.Quote(cmp.Or(text, ""))
}
