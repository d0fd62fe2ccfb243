package plugintest

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/volumekit/volumekit/mount"
)

// tearDownChecks are those of a TearDown that works.
func tearDownChecks() []check {
	return []check{
		{name: "remove", good: checkRemove,
			rule: "TearDown removes everything, the target and the plugin's own files included"},
		{name: "removeTwice", good: checkRemoveTwice,
			rule: "TearDown is idempotent, and works where nothing was ever set up"},
		{name: "removeLater", good: checkRemoveLater,
			rule: "TearDown works in another process, from the request alone: no spec, no API object, no memory"},
		{name: "neverThrough", good: checkNeverThrough,
			rule: "nothing is deleted through a mount that somebody made inside the volume"},
	}
}

func checkRemove(w *world, v Volume) {
	p := w.part(v, 1)
	before := w.state()
	w.mustUp(p, false)
	if mark, ok := w.mark(p, "left by a container"); ok {
		defer func() { _ = os.Remove(mark) }()
	}
	w.mustDown(p)
	if d := diff(before, w.state()); d != "" {
		w.errorf("left behind: %s", d)
	}
}

func checkRemoveTwice(w *world, v Volume) {
	p := w.part(v, 1)
	before := w.state()
	w.mustDown(p)
	if d := diff(before, w.state()); d != "" {
		w.errorf("TearDown of nothing changed: %s", d)
	}
	w.mustUp(p, false)
	w.mustDown(p)
	w.mustDown(p)
	if d := diff(before, w.state()); d != "" {
		w.errorf("left behind: %s", d)
	}
}

func checkRemoveLater(w *world, v Volume) {
	p := w.part(v, 1)
	before := w.state()
	w.mustUp(p, false)
	w.restart(true)
	w.mustDown(p)
	if d := diff(before, w.state()); d != "" {
		w.errorf("left behind: %s", d)
	}
}

func checkNeverThrough(w *world, v Volume) {
	precious := filepath.Join(w.root, "precious")
	if err := errors.Join(os.Mkdir(precious, 0o755), os.WriteFile(filepath.Join(precious, "file"), []byte("precious"), 0o600)); err != nil {
		w.t.Fatal(err)
	}
	p := w.part(v, 1)
	before := w.state()
	w.mustUp(p, false)
	inside := filepath.Join(p.target.Path, "inside")
	if os.Mkdir(inside, 0o755) != nil {
		return // the target is no folder: nothing can be mounted in it
	}
	err := w.mounts.Mounter.Mount(context.Background(), mount.Mount{Source: precious, Target: inside, Options: mount.Options{Bind: true}})
	if err != nil {
		w.t.Fatalf("bind %s: %v", inside, err)
	}
	content := snapshot(precious)
	if err := w.down(context.Background(), p); err != nil { // it may refuse
		w.unmountInside(inside)
		w.mustDown(p)
	}
	if d := diff(content, snapshot(precious)); d != "" {
		w.errorf("what was mounted inside the volume lost: %s", d)
	}
	if d := diff(before, w.state()); d != "" {
		w.errorf("left behind: %s", d)
	}
}

func (w *world) unmountInside(path string) {
	err := w.mounts.Mounter.Unmount(context.Background(), path, mount.UnmountOptions{})
	if err != nil && !errors.Is(err, mount.ErrNotMounted) {
		w.t.Fatal(err)
	}
}
