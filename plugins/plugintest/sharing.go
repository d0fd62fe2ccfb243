package plugintest

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	"github.com/volumekit/volumekit/mount"
)

// sharingChecks are about several pods.
func sharingChecks() []check {
	return []check{
		{name: "pods", good: checkPods,
			rule: "the volumes of two pods do not disturb each other"},
		{name: "concurrent", good: checkConcurrent,
			rule: "calls for different pods' volumes may run at the same time"},
	}
}

func checkPods(w *world, v Volume) {
	a, b := w.part(v, 1), w.part(v, 2)
	before := w.state()
	w.mustUp(a, false)
	alone := w.state()
	w.mustUp(b, false)
	own := mount.Inside(a.target.Path, a.result.Path) && mount.Inside(b.target.Path, b.result.Path)
	if mark, ok := w.mark(a, "of the first pod"); ok {
		defer func() { _ = os.Remove(mark) }()
		_, err := os.Lstat(filepath.Join(b.result.Path, filepath.Base(mark)))
		if own && !a.ident.Device && !a.ident.Attach && err == nil {
			w.errorf("the second pod sees the first pod's file")
		}
		_ = os.Remove(mark)
	}
	if a.ident.Device || a.ident.Attach {
		b.ident.Device, b.ident.Attach = false, false // the first still uses the device
	}
	w.mustDown(b)
	if d := diff(alone, w.state()); d != "" {
		w.errorf("after the second pod's teardown: %s", d)
	}
	w.mustDown(a)
	if d := diff(before, w.state()); d != "" {
		w.errorf("left behind: %s", d)
	}
}

// crowd is how many pods are set up at once.
const crowd = 8

func checkConcurrent(w *world, v Volume) {
	parts := make([]*part, crowd)
	for i := range parts {
		parts[i] = w.part(v, i+1)
		if err := w.identify(parts[i]); err != nil {
			w.fatalf("Identify: %v", err)
		}
	}
	if id := parts[0].ident; id.Attach || id.Device {
		return // one volume, whose steps run one after another
	}
	before := w.state()
	w.together(parts, func(p *part) error { return w.setUp(context.Background(), p, false) })
	for _, p := range parts {
		if p.result.Path == "" {
			continue
		}
		if err := w.promised(p); err != nil {
			w.errorf("%v", err)
		}
	}
	w.together(parts, func(p *part) error { return w.down(context.Background(), p) })
	if d := diff(before, w.state()); d != "" {
		w.errorf("left behind: %s", d)
	}
}

// together calls f for all parts at the same time.
func (w *world) together(parts []*part, f func(p *part) error) {
	var all sync.WaitGroup
	for _, p := range parts {
		all.Go(func() {
			defer w.recovered()
			if err := f(p); err != nil {
				w.errorf("beside others: %v", err)
			}
		})
	}
	all.Wait()
}
