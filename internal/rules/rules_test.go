// Package rules holds the rules of the module's structure as tests.
package rules_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/volumekit/volumekit"

// allowed says what a package may import of the module. "x/..." is x and all
// below it; lines add up. What no line allows is a breach. The reason stands
// behind each.
var allowed = []struct{ who, may, why string }{
	{"mount/...", "mount mount/...", "the kernel's side knows nothing of volumes"},
	{"plugins/...", "plugins mount projection/...", "a plugin knows the contract and what it mounts with, never another plugin"},
	{"plugins/builtin", "plugins/...", "it collects them"},
	{"plugins/plugintest", "plugins/... mount/...", "it tries them"},
	{"dsw/...", "plugins dsw/...", "what should be knows nothing of what is"},
	{"asw/...", "plugins mount asw/...", "what is knows nothing of what should be"},
	{"projection/...", "plugins mount projection/...", "content is made from host sources and written to files"},
	{"csi", "plugins mount projection/... csi/registration", "the only door to gRPC"},
	{"csi/registration", "csi/registration", "sockets and a protocol, nothing else"},
	{"csi/migration", "plugins", "a translator of specs"},
	{"csi/csitest/...", "csi/csitest/...", "a driver knows nothing of its orchestrator"},
	{"reconciler/...", "plugins dsw/... asw/... reconciler/...", "it stands between the two states"},
	{"volumemanager/...", "plugins plugins/memory mount dsw/... asw/... reconciler/... volumemanager/...", "it wires, and imports no concrete plugin"},
	{"...", "internal/...", "shared by all"},
	{"internal/sim/...", "...", "a whole program for tests"},
}

func TestImportsRunOneWay(t *testing.T) {
	root := moduleRoot(t)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") && rel != "." || d.Name() == "testdata" || nested(path, root) || rel == "examples" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") || strings.HasSuffix(rel, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		from := filepath.ToSlash(filepath.Dir(rel))
		for _, spec := range file.Imports {
			to, ok := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module+"/")
			if ok && to != from && !mayImport(from, to) {
				t.Errorf("%s imports %s, which no rule allows", rel, to)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func mayImport(from, to string) bool {
	for _, rule := range allowed {
		if !matches(rule.who, from) {
			continue
		}
		if slices.ContainsFunc(strings.Fields(rule.may), func(p string) bool { return matches(p, to) }) {
			return true
		}
	}
	return false
}

func matches(pattern, pkg string) bool {
	prefix, tree := strings.CutSuffix(pattern, "...")
	prefix = strings.TrimSuffix(prefix, "/")
	return prefix == "" || pkg == prefix || tree && strings.HasPrefix(pkg, prefix+"/")
}

// denied are dependencies that an embedder of the core must never get.
var denied = map[string]string{
	"k8s.io/client-go":                  "doubles the binary; belongs in a nested module",
	"k8s.io/kubernetes":                 "needs 31 replace lines; belongs in a nested module",
	"github.com/prometheus":             "metrics go through the observer",
	"k8s.io/component-base":             "process-wide state",
	"github.com/stretchr/testify":       "a test library",
	"github.com/onsi/ginkgo":            "a test library",
	"go.opentelemetry.io/otel/exporter": "traces go through the observer",
}

func TestDependenciesStayOut(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := strings.Fields(string(out))
	for _, pkg := range packages {
		for prefix, why := range denied {
			if pkg == prefix || strings.HasPrefix(pkg, prefix+"/") {
				t.Errorf("%s is a dependency: %s", pkg, why)
			}
		}
	}
	t.Logf("%d packages", len(packages))
}

func TestManagerLinksNoGRPC(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"/volumemanager", module+"/plugins/builtin", module+"/mount/hostmount").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	if strings.Contains(string(out), "google.golang.org/grpc") {
		t.Error("a program without CSI would link gRPC")
	}
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// nested reports whether dir is another module.
func nested(dir, root string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil && dir != root
}
