package rules_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// readmeImports are what the README's snippet needs in front of it.
const readmeImports = `package volumekit_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount/hostmount"
	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/builtin"
	"github.com/volumekit/volumekit/plugins/memory"
	"github.com/volumekit/volumekit/volumemanager"
)

`

// The code that the README shows compiles.
func TestREADMECompiles(t *testing.T) {
	root := moduleRoot(t)
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if word := strings.TrimSpace(line); word != "" && word == strings.ToUpper(word) && strings.ToLower(word) != word && !strings.Contains(word, " ") {
			t.Errorf("a placeholder is left: %s", word)
		}
	}
	_, rest, found := strings.Cut(string(text), "```go\n")
	code, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("the README shows no code")
	}
	dir := t.TempDir()
	file, overlay := filepath.Join(dir, "readme_test.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, []byte(readmeImports+code), 0o600); err != nil {
		t.Fatal(err)
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, "readme_test.go"): file}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		t.Fatal(err)
	}
	vet := exec.Command("go", "vet", "-overlay", overlay, ".")
	vet.Dir = root
	if out, err := vet.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
