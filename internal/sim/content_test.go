//go:build linux

package sim_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/internal/sim"
)

func TestKilledWriterLeavesWholeContent(t *testing.T) {
	for _, point := range []string{"writer.version-made", "writer.data-written", "writer.link-made", "writer.switched",
		"writer.links-made", "writer.links-removed", "writer.old-removed"} {
		t.Run(point, func(t *testing.T) {
			n := sim.New(t)
			n.Apply(configMap("config", map[string]string{"stays": "1", "goes": "1"}), secret("secret", map[string][]byte{"stays": []byte("1"), "goes": nil}))
			pod := sim.Pod("pod", configVolume("config", "config"),
				sim.Volume("secret", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "secret"}}))
			n.Apply(pod)
			n.Start()
			n.AwaitReady(pod)
			n.FailAt(point)
			n.Apply(configMap("config", map[string]string{"stays": "2", "comes": "2"}), secret("secret", map[string][]byte{"stays": []byte("2"), "comes": nil}))
			n.AwaitDeath()
			for _, dir := range []string{n.Path(pod, "kubernetes.io/configmap", "config"), n.Path(pod, "kubernetes.io/secret", "secret")} {
				if got := read(t, filepath.Join(dir, "stays")); got != "1" && got != "2" {
					t.Errorf("%s after the kill: %q", dir, got)
				}
			}
			n.Start()
			n.AwaitReady(pod)
			n.AwaitSteady()
			for _, dir := range []string{n.Path(pod, "kubernetes.io/configmap", "config"), n.Path(pod, "kubernetes.io/secret", "secret")} {
				checkWhole(t, dir, "stays", "comes")
			}
		})
	}
}

// checkWhole checks that a content folder holds the names, one version, and
// nothing else.
func checkWhole(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	versions, seen := 0, map[string]bool{}
	for _, e := range entries {
		switch {
		case e.Name() == "..data":
		case strings.HasPrefix(e.Name(), ".."):
			versions++
		default:
			seen[e.Name()] = true
			if _, err := os.Stat(filepath.Join(dir, e.Name())); err != nil {
				t.Errorf("%s does not resolve: %v", e.Name(), err)
			}
		}
	}
	if versions != 1 || len(seen) != len(names) {
		t.Errorf("%s holds %v", dir, entries)
	}
	for _, name := range names {
		if !seen[name] {
			t.Errorf("%s is missing in %s", name, dir)
		}
	}
}

func TestUpdatesAreQuickAndWhole(t *testing.T) {
	n := sim.New(t)
	content := func(version int) *v1.ConfigMap {
		data := map[string]string{}
		for i := range 20 {
			data[fmt.Sprintf("key-%d", i)] = fmt.Sprint(version)
		}
		data[fmt.Sprintf("odd-%d", version%7)] = fmt.Sprint(version)
		return configMap("config", data)
	}
	n.Apply(content(0))
	pod := sim.Pod("pod", configVolume("config", "config"))
	n.Apply(pod)
	n.Start()
	n.AwaitReady(pod)
	dir := n.Path(pod, "kubernetes.io/configmap", "config")
	for version := 1; version <= 500; version++ {
		n.Apply(content(version))
		deadline := time.Now().Add(time.Second * slack)
		for seen := ""; seen != fmt.Sprint(version); {
			if time.Now().After(deadline) {
				t.Fatalf("version %d did not arrive; %q is there", version, seen)
			}
			seen = oneVersion(t, dir)
		}
	}
	s := n.Await("the callback told of the last update", func(s sim.State) bool {
		return len(s.Changes) > 1 && strings.Contains(s.Changes[len(s.Changes)-1], "odd-3")
	})
	if last := s.Changes[len(s.Changes)-1]; !strings.HasPrefix(last, "pod config: ") || !strings.Contains(last, "odd-2") || !strings.Contains(last, "key-0") {
		t.Errorf("last change: %q", last)
	}
}

// oneVersion opens ..data once and returns the version that all files hold.
func oneVersion(t *testing.T, dir string) string {
	t.Helper()
	for {
		root, err := os.OpenRoot(filepath.Join(dir, "..data"))
		if err != nil {
			t.Fatalf("..data: %v", err)
		}
		version, err := allSame(root)
		_ = root.Close()
		switch {
		case errors.Is(err, fs.ErrNotExist): // this version was removed while it was read: look again
		case err != nil:
			t.Fatal(err)
		default:
			// Every name that has always been there resolves at every moment.
			read(t, filepath.Join(dir, "key-7"))
			return version
		}
	}
}

func allSame(root *os.Root) (version string, err error) {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return "", err
	}
	if len(entries) < 21 {
		return "", fs.ErrNotExist // being removed
	}
	for _, e := range entries {
		text, err := root.ReadFile(e.Name())
		if err != nil {
			return "", err
		}
		if version == "" {
			version = string(text)
		}
		if string(text) != version {
			return "", fmt.Errorf("mixed versions: %s is %s, others %s", e.Name(), text, version)
		}
	}
	return version, nil
}
