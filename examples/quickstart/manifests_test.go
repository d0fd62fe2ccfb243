package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

func configMap(name string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: " + name + "\n"
}

const podHead = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n"

// bad are texts that are refused, with the line and the message.
var bad = []struct {
	name, file, text string
	want             []string // "line: message"
}{
	{"syntax", "a.yaml", configMap("a") + " data: x\n", []string{"5: YAML: did not find expected key"}},
	{"syntax in the second document", "a.yaml", "---\n---\n" + configMap("a") + "data: {a: b\n", []string{"7: YAML: did not find expected ',' or '}'"}},
	{"unclosed quote", "a.yaml", configMap("a") + "data:\n  a: \"b\n", []string{"6: YAML: found unexpected end of stream"}},
	{"tab", "a.yaml", configMap("a") + "data:\n\ta: b\n", []string{"6: YAML: found character that cannot start any token (YAML is indented by spaces, not by tabs)"}},
	{"key twice", "a.yaml", configMap("a") + "data:\n  a: b\n  a: c\n", []string{`7: YAML: key "a" already set in map`}},
	{"several keys twice", "a.yaml", configMap("a") + "data:\n  a: b\n  a: c\n  a: d\n", []string{`7: YAML: key "a" already set in map`, `8: YAML: key "a" already set in map`}},
	{"unknown field", "a.yaml", configMap("a") + "dta: {}\n", []string{"5: dta: unknown field"}},
	{"unknown field in a list", "a.yaml", podHead + "  containers: [{name: c}]\n  volumes:\n  - name: v\n    configMap:\n      name: x\n  - name: w\n    configMap:\n      colour: x\n", []string{"13: spec.volumes[1].configMap.colour: unknown field"}},
	{"unknown field in braces", "a.yaml", podHead + "  containers:\n    - { name: c, image: i }\n    - {\n        name: d,\n        imgae: i }\n", []string{"10: spec.containers[1].imgae: unknown field"}},
	{"wrong case", "a.yaml", configMap("a") + "Data: {}\n", []string{"5: Data: unknown field"}},
	{"kind of another program", "a.yaml", "# web\napiVersion: apps/v1\nkind: Deployment\n", []string{`3: kind: "Deployment" is none of the kinds that the quickstart reads: ConfigMap, Secret, PersistentVolume, PersistentVolumeClaim, Pod`}},
	{"kind missing", "a.yaml", "apiVersion: v1\nmetadata: {name: a}\n", []string{"1: kind is missing"}},
	{"kind a number", "a.yaml", "apiVersion: v1\nkind: 5\n", []string{"2: kind: this is a number, not text"}},
	{"version missing", "a.yaml", "kind: Pod\n", []string{"1: apiVersion is missing; that of a Pod is v1"}},
	{"version wrong", "a.yaml", "kind: Pod\napiVersion: v2\n", []string{"2: apiVersion: that of a Pod is v1"}},
	{"name missing", "a.yaml", "apiVersion: v1\nkind: Secret\nmetadata:\n  labels: {}\n", []string{"3: metadata.name: this is missing"}},
	{"name generated", "a.yaml", "apiVersion: v1\nkind: Secret\nmetadata:\n  generateName: a-\n", []string{"4: metadata.generateName: only an API server makes names; give metadata.name"}},
	{"name that climbs", "a.yaml", configMap("../a"), []string{"4: metadata.name: \"../a\": a lowercase RFC 1123 subdomain"}},
	{"namespace that climbs", "a.yaml", configMap("a") + "  namespace: a/b\n", []string{"5: metadata.namespace: \"a/b\": a lowercase RFC 1123 label"}},
	{"text", "a.yaml", "\n\nhello\n", []string{"3: text stands where an object should"}},
	{"list", "a.yaml", "- a\n", []string{"1: a list stands where an object should"}},
	{"number for text", "a.yaml", configMap("a") + "data:\n  a: b\n  port: 80\n", []string{"7: data.port: a number stands where text is wanted"}},
	{"no for text", "a.yaml", configMap("no"), []string{"4: metadata.name: true or false stands where text is wanted; put it in quotes"}},
	{"text for list", "a.yaml", podHead + "  volumes: v\n", []string{"6: spec.volumes: text stands where a list is wanted"}},
	{"map for text", "a.yaml", podHead + "  containers:\n  - name: {a: b}\n", []string{"7: spec.containers[0].name: a map stands where text is wanted"}},
	{"text for number", "a.yaml", podHead + "  containers:\n  - name: c\n    ports:\n    - containerPort: 80\n    - containerPort: http\n", []string{"10: spec.containers[0].ports[1].containerPort: text stands where a number is wanted"}},
	{"quantity", "a.yaml", "apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: a}\nspec:\n  capacity:\n    storage: 1Gx\n", []string{`6: spec.capacity.storage: "1Gx" is not a quantity such as 500m or 1Gi`}},
	{"secret not base64", "a.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata:\n  password: hunter2!\n", []string{"5: data.password: this is not base64; plain text belongs in stringData"}},
	{"secret as anchor", "a.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData:\n  password: *hunter2\n", []string{"5: YAML: a value that begins with * refers to an anchor"}},
	{"volume twice", "a.yaml", podHead + "  containers: [{name: c}]\n  volumes:\n  - name: v\n    emptyDir: {}\n  - name: v\n    emptyDir: {}\n", []string{`10: spec.volumes[1]: the name "v" is that of volume 0 already`}},
	{"two sources", "a.yaml", podHead + "  containers: [{name: c}]\n  volumes:\n  - name: v\n    emptyDir: {}\n    secret: {}\n", []string{"8: spec.volumes[0]: more than one source: emptyDir, secret"}},
	{"volume without name", "a.yaml", podHead + "  containers: [{name: c}]\n  volumes:\n  - emptyDir: {}\n", []string{"8: spec.volumes[0].name: "}},
	{"mount of no volume", "a.yaml", podHead + "  containers:\n  - name: c\n    volumeMounts:\n    - {name: v, mountPath: /v}\n    - {name: w, mountPath: /w}\n  volumes:\n  - name: v\n    emptyDir: {}\n", []string{`10: spec.containers[0].volumeMounts[1].name: the pod has no volume "w"`}},
	{"two mounts at one path", "a.yaml", podHead + "  containers:\n  - name: c\n    volumeMounts:\n    - {name: v, mountPath: /v}\n    - {name: v, mountPath: /v}\n  volumes: [{name: v, emptyDir: {}}]\n", []string{"10: spec.containers[0].volumeMounts[1].mountPath: the container mounts another volume at /v"}},
	{"mount without path", "a.yaml", podHead + "  containers:\n  - name: c\n    volumeMounts: [{name: v}]\n  volumes: [{name: v, emptyDir: {}}]\n", []string{"8: spec.containers[0].volumeMounts[0].mountPath: this is missing"}},
	{"no containers", "a.yaml", podHead + "  volumes: []\n", []string{"5: spec.containers: at least one is needed"}},
	{"object twice", "a.yaml", configMap("a") + "---\n" + configMap("b") + "---\n" + configMap("a"), []string{"11: ConfigMap default/a stands already at a.yaml:1"}},
	{"Windows line ends", "a.yaml", strings.ReplaceAll(configMap("a")+"---\n"+configMap("b")+"x: y\n", "\n", "\r\n"), []string{"10: x: unknown field"}},
	{"list element", "a.yaml", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: a}\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: b}\n  dta: {}\n", []string{"10: items[1].dta: unknown field"}},
	{"JSON syntax", "a.json", "{\n  \"kind\": \"Pod\"\n  \"apiVersion\": \"v1\"\n}\n", []string{`3: JSON: invalid character '"' after object key:value pair`}},
	{"JSON unknown field", "a.json", "{\n\t\"kind\": \"ConfigMap\", \"apiVersion\": \"v1\",\n\t\"metadata\": {\"name\": \"dta\"},\n\t\"dta\": {}\n}\n", []string{"4: dta: unknown field"}},
	{"JSON key twice", "a.json", "{\n\"kind\": \"ConfigMap\", \"apiVersion\": \"v1\",\n\"metadata\": {\"name\": \"a\",\n\"name\": \"b\"}\n}\n", []string{"3: metadata.name: duplicate field"}},
	{"not UTF-8", "a.yaml", configMap("a") + "data: {a: \"\xff\"}\n", []string{"5: this is not UTF-8 text"}},
	{"zero byte", "a.yaml", "a\x00b", []string{"1: this is not UTF-8 text"}},
}

func TestBadManifests(t *testing.T) {
	for _, test := range bad {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, test.file, test.text)
			write(t, dir, "good.yaml", configMap("good"))
			objects, faults := readFolder(dir)
			if len(faults) != len(test.want) {
				t.Fatalf("faults: %v, want %v", faults, test.want)
			}
			for i, want := range test.want {
				got := strings.ReplaceAll(faults[i].Error(), dir+string(filepath.Separator), "")
				if !strings.HasPrefix(got, test.file+":"+want) {
					t.Errorf("got  %s\nwant %s:%s", got, test.file, want)
				}
				if strings.Contains(got, "hunter2") {
					t.Errorf("a secret is told: %s", got)
				}
			}
			if !has(objects, "ConfigMap default/good") {
				t.Error("the good file was not used")
			}
		})
	}
}

func has(objects []object, key string) bool {
	for _, o := range objects {
		if o.key() == key {
			return true
		}
	}
	return false
}

func write(t testing.TB, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestGoodManifests(t *testing.T) {
	for name, test := range map[string]struct {
		file, text string
		want       []string
	}{
		"empty":              {"a.yaml", "", nil},
		"comments":           {"a.yaml", "# a\n---\n# b\n...\n---\n", nil},
		"null":               {"a.yaml", "null\n", nil},
		"text on the marker": {"a.yaml", "--- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n--- # b\n" + configMap("b"), []string{"ConfigMap default/a", "ConfigMap default/b"}},
		"no marker":          {"a.yml", configMap("a") + "data:\n  x: |\n    ---\n    ---x\n", []string{"ConfigMap default/a"}},
		"directive":          {"a.yaml", "%YAML 1.1\n---\n" + configMap("a"), []string{"ConfigMap default/a"}},
		"byte order mark":    {"a.yaml", "\ufeff" + configMap("a"), []string{"ConfigMap default/a"}},
		"Windows":            {"a.yaml", strings.ReplaceAll(configMap("a")+"---\n"+configMap("b"), "\n", "\r\n"), []string{"ConfigMap default/a", "ConfigMap default/b"}},
		"JSON with tabs":     {"a.json", "{\n\t\"kind\": \"ConfigMap\", \"apiVersion\": \"v1\",\n\t\"metadata\": {\"name\": \"a\"}}\n", []string{"ConfigMap default/a"}},
		"empty JSON":         {"a.json", "\n", nil},
		"list":               {"a.yaml", "apiVersion: v1\nkind: List\nmetadata: {}\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n- {apiVersion: v1, kind: Secret, metadata: {name: a, namespace: ns}}\n", []string{"ConfigMap default/a", "Secret ns/a"}},
		"good before bad":    {"a.yaml", configMap("a") + "---\nkind: x\n---\n" + configMap("b"), []string{"ConfigMap default/a", "ConfigMap default/b"}},
		"other files":        {"a.txt", "hello", nil},
		"editor's file":      {".a.yaml", "hello", nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, test.file, test.text)
			if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
				t.Fatal(err)
			}
			objects, faults := readFolder(dir)
			if len(faults) > 0 && name != "good before bad" {
				t.Error(faults)
			}
			if len(objects) != len(test.want) {
				t.Errorf("objects: %v", objects)
			}
			for _, key := range test.want {
				if !has(objects, key) {
					t.Errorf("%s is missing", key)
				}
			}
		})
	}
}

func TestFilesThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "large.yaml", strings.Repeat("#", largest+1))
	write(t, dir, "good.yaml", configMap("good"))
	write(t, dir, "locked.yaml", configMap("locked"))
	if err := os.Mkdir(filepath.Join(dir, "folder.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"folder.yaml": "this is a folder", "large.yaml": "larger than 4 MiB"}
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "locked.yaml"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(filepath.Join(dir, "locked.yaml")); err != nil {
		want["locked.yaml"] = "permission denied"
	}
	pipes(t, dir, want)
	objects, faults := readFolder(dir)
	if !has(objects, "ConfigMap default/good") {
		t.Error("the good file was not used")
	}
	if len(faults) != len(want) {
		t.Errorf("faults: %v", faults)
	}
	for _, err := range faults {
		var f *fault
		if !errors.As(err, &f) || !strings.Contains(err.Error(), want[filepath.Base(f.file)]) {
			t.Errorf("unexpected: %v", err)
		}
	}
	if _, faults := readFolder(filepath.Join(dir, "nowhere")); len(faults) != 1 {
		t.Errorf("a missing folder: %v", faults)
	}
}

func TestShippedManifests(t *testing.T) {
	objects, faults := readFolder("manifests")
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	pods, kinds := 0, map[string]bool{}
	for _, o := range objects {
		pod, ok := o.Object.(*v1.Pod)
		if !ok {
			continue
		}
		pods++
		for _, v := range pod.Spec.Volumes {
			kinds[kindOf(pod, v.Name)] = true
		}
	}
	if pods < 6 {
		t.Errorf("%d pods", pods)
	}
	for _, kind := range []string{"configMap", "secret", "downwardAPI", "projected", "emptyDir", "hostPath", "claim"} {
		if !kinds[kind] {
			t.Errorf("no pod has a volume of kind %s", kind)
		}
	}
}

func TestBinding(t *testing.T) {
	pv := func(name, more string) string {
		return "---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {name: " + name + "}\nspec: {capacity: {storage: 1Gi}" + more + "}\n"
	}
	claim := func(name, more string) string {
		return "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: " + name + "}\nspec: {" + more + "}\n"
	}
	for name, test := range map[string]struct {
		text, want, fault string
	}{
		"by the claim":          {pv("v", "") + claim("c", "volumeName: v"), "v", ""},
		"claim first":           {claim("c", "volumeName: v") + pv("v", ""), "v", ""},
		"by the volume":         {pv("v", ", claimRef: {namespace: default, name: c}") + claim("c", ""), "v", ""},
		"released and new":      {pv("v", ", claimRef: {namespace: default, name: c, uid: old}") + claim("c", ""), "v", ""},
		"no volume yet":         {claim("c", "volumeName: v"), "", ""},
		"no name":               {pv("v", "") + claim("c", ""), "", "a.yaml:7: PersistentVolumeClaim default/c: no controller chooses a volume here: set spec.volumeName"},
		"taken by another":      {pv("v", "") + claim("b", "volumeName: v") + claim("c", "volumeName: v"), "", "a.yaml:12: PersistentVolumeClaim default/c: volume v belongs to claim default/b"},
		"meant for another one": {pv("v", ", claimRef: {namespace: other, name: c}") + claim("c", "volumeName: v"), "", "a.yaml:7: PersistentVolumeClaim default/c: volume v belongs to claim other/c"},
	} {
		t.Run(name, func(t *testing.T) {
			read := map[string]object{}
			objects, faults := decodeFile("a.yaml", []byte(test.text))
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			for _, o := range objects {
				read[o.key()] = o
			}
			for range 2 { // binding leaves what was read as it was
				bound, faults := bind(read)
				c := bound["PersistentVolumeClaim default/c"].Object.(*v1.PersistentVolumeClaim)
				if is := c.Status.Phase == v1.ClaimBound; is != (test.want != "") || is && c.Spec.VolumeName != test.want {
					t.Errorf("claim: %v %q", c.Status.Phase, c.Spec.VolumeName)
				}
				if is := errors.Join(faults...); (is == nil) != (test.fault == "") || is != nil && is.Error() != test.fault {
					t.Errorf("faults: %v", is)
				}
			}
		})
	}
}

func TestUIDFollowsTheSpec(t *testing.T) {
	uid := func(text string) string {
		objects, faults := decodeFile("a.yaml", []byte(text))
		if len(faults) > 0 || len(objects) != 1 {
			t.Fatal(objects, faults)
		}
		return string(objects[0].meta.GetUID())
	}
	first := uid(podHead + "  containers: [{name: c}]\n")
	if again := uid("# a comment\n" + podHead + "  containers: [{ name: c }]\n"); again != first {
		t.Error("the same pod has two UIDs")
	}
	if other := uid(podHead + "  containers: [{name: d}]\n"); other == first {
		t.Error("another spec has the same UID")
	}
	if relabelled := uid(strings.Replace(podHead, "name: p", "name: p\n  labels: {a: b}", 1) + "  containers: [{name: c}]\n"); relabelled != first {
		t.Error("a label makes another pod")
	}
}

func TestLocate(t *testing.T) {
	text := `# spec: no
metadata:
  labels: {spec: x}
spec:
  containers:
  - name: a
    env: [{name: x},
      {name: y}]
    # - name: comment
  - env:
      - name: z
    name: b
  "quoted": {
    a: "},{",
    b: 'c: ]', d: [1, {e: f},
      {e: g}] }
`
	for place, want := range map[string]int{
		"":                            2,
		"spec":                        4,
		"spec.containers":             5,
		"spec.containers[0]":          6,
		"spec.containers[0].env[1]":   8,
		"spec.containers[1]":          10,
		"spec.containers[1].name":     12,
		"spec.containers[1].env[0]":   11,
		"spec.quoted.b":               15,
		"spec.quoted.d[2].e":          16,
		"spec.quoted.missing":         13,
		"spec.containers[7].whatever": 5,
		"metadata.labels.spec":        3,
	} {
		var p path
		if place != "" {
			p = parsePath(place)
		}
		if got := locate(text, p) + 1; got != want {
			t.Errorf("%s: line %d, want %d", place, got, want)
		}
		if p.String() != place {
			t.Errorf("%s is read as %s", place, p)
		}
	}
}

// FuzzManifest: whatever a file holds, reading it ends, each fault names a
// line of the file, and what is taken is what the YAML library reads.
func FuzzManifest(f *testing.F) {
	for _, test := range bad {
		f.Add([]byte(test.text), strings.HasSuffix(test.file, ".json"))
	}
	entries, err := os.ReadDir("manifests")
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join("manifests", e.Name()))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, false)
	}
	f.Fuzz(func(t *testing.T, text []byte, isJSON bool) {
		name := "a.yaml"
		if isJSON {
			name = "a.json"
		}
		objects, faults := decodeFile(name, text)
		lines := bytes.Count(text, []byte("\n")) + 2 // a text may end in an empty line
		for _, err := range faults {
			var f *fault
			if !errors.As(err, &f) || f.line < 1 || f.line > lines || f.file != name || f.err.Error() == "" {
				t.Errorf("%v, of %d lines", err, lines)
			}
		}
		for _, o := range objects {
			if o.line < 1 || o.line > lines || o.meta.GetName() == "" || o.meta.GetUID() == "" || strings.ContainsAny(o.meta.GetName(), "/\x00") {
				t.Errorf("%s at line %d of %d", o.key(), o.line, lines)
			}
			if _, err := json.Marshal(o.Object); err != nil {
				t.Error(err)
			}
		}
		if len(objects) == 1 && len(faults) == 0 && !bytes.Contains(text, []byte("List")) && len(split(text)) == 1 {
			var plain struct{ Kind string }
			if err := yaml.Unmarshal(text, &plain); !isJSON && (err != nil || plain.Kind != objects[0].kind) {
				t.Errorf("%s is taken, the library has %q, %v", objects[0].key(), plain.Kind, err)
			}
		}
		read := map[string]object{}
		for _, o := range objects {
			read[o.key()] = o
		}
		bind(read)
	})
}

func FuzzLocate(f *testing.F) {
	f.Add("a:\n- b: {c: [1, 'x'], d: e}\n", "a[0].b.c[1]")
	f.Add("{\"a\": \"\\\"", "a")
	f.Add("- - a\n  - b\n", "[0][1]")
	f.Add("a", "[")
	f.Add("'", "].[")
	f.Fuzz(func(t *testing.T, text, place string) {
		if line := locate(text, parsePath(place)); line < 0 || line > strings.Count(text, "\n") {
			t.Errorf("line %d", line)
		}
	})
}
