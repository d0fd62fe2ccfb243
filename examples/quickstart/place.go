package main

import (
	"cmp"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

//go:embed manifests/*.yaml
var shipped embed.FS

// The roles of a process.
const (
	roleKeeper = "keeper"
	roleAgent  = "agent"
)

// stage is what a process tells the one that it starts, through the
// environment.
type stage struct {
	Role string
	place
	// Restarted is true for an agent whose predecessor was killed, Ending if
	// that had been asked to end.
	Restarted, Ending bool
	// UID is who started the command, as the machine knows them.
	UID int
}

const stageVariable = "VOLUMEKIT_QUICKSTART_STAGE"

func stageFromEnvironment() (s stage, err error) {
	if text := os.Getenv(stageVariable); text != "" {
		if err = json.Unmarshal([]byte(text), &s); err != nil {
			err = fmt.Errorf("%s is for the program's own use: %w", stageVariable, err)
		}
	}
	return s, err
}

func (s stage) environment() []string {
	text, _ := json.Marshal(s) // strings and bools
	return append(os.Environ(), stageVariable+"="+string(text))
}

// place is where the program works. All paths are absolute.
type place struct {
	Temporary string // ours as a whole
	Root      string
	MadeRoot  bool
	Manifests string
}

// prepare makes the folders.
func prepare(o options) (p place, err error) {
	if o.manifests != "" {
		if p.Manifests, err = existingFolder(o.manifests); err != nil {
			return p, fmt.Errorf("-manifests: %w", err)
		}
	}
	if p.Temporary, err = os.MkdirTemp("", "volumekit-quickstart-"); err == nil {
		p.Temporary, err = filepath.EvalSymlinks(p.Temporary)
	}
	if err == nil {
		p.Temporary, err = filepath.Abs(p.Temporary)
	}
	if err != nil {
		return p, fmt.Errorf("make a temporary folder (TMPDIR names where, now %s): %w", os.TempDir(), err)
	}
	if o.manifests == "" {
		p.Manifests = filepath.Join(p.Temporary, "manifests")
		if err := copyShipped(p.Manifests); err != nil {
			return p, errors.Join(err, p.cleanUp())
		}
	}
	if err := p.makeRoot(cmp.Or(o.root, filepath.Join(p.Temporary, "root"))); err != nil {
		return p, errors.Join(fmt.Errorf("-root: %w", err), p.cleanUp())
	}
	return p, nil
}

// existingFolder returns the absolute path of a folder that can be read.
func existingFolder(dir string) (string, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("%s is not a folder", dir)
	}
	if _, err := os.ReadDir(dir); err != nil {
		return "", err
	}
	return filepath.Abs(dir)
}

// makeRoot makes the root, or takes one that is empty or that an earlier run
// left. Any other could be a kubelet's: a manager takes away what it finds
// under its root and no pod wants.
func (p *place) makeRoot(dir string) error {
	err := os.Mkdir(dir, 0o755)
	p.MadeRoot = err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if p.Root, err = existingFolder(dir); err == nil {
		p.Root, err = filepath.EvalSymlinks(p.Root)
	}
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(p.Root)
	if err != nil {
		return err
	}
	ours := len(entries) == 0
	for _, e := range entries {
		ours = ours || e.Name() == "volumekit"
	}
	if !ours {
		return fmt.Errorf("%s is not empty, and it is not what an earlier run left: name an empty or a new folder", dir)
	}
	probe, err := os.MkdirTemp(p.Root, ".probe-")
	if err != nil {
		return fmt.Errorf("%s cannot be written to: %w", dir, errors.Unwrap(err))
	}
	return os.Remove(probe)
}

// cleanUp removes the folders, as far as they are still there. A root that is
// not in the temporary folder is removed if this run made it and it is empty.
func (p *place) cleanUp() error {
	var err error
	if p.MadeRoot && filepath.Dir(p.Root) != p.Temporary {
		if err = os.Remove(p.Root); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return errors.Join(err, os.RemoveAll(p.Temporary))
}

func copyShipped(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return fs.WalkDir(shipped, "manifests", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := shipped.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, filepath.Base(path)), text, 0o644)
	})
}
