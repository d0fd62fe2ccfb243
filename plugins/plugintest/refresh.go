package plugintest

import (
	"context"
	"path"
	"path/filepath"
	"slices"

	"github.com/volumekit/volumekit/plugins"
)

// refreshChecks are those of plugins that renew content; for others they find
// nothing.
func refreshChecks() []check {
	return []check{
		{name: "refreshNothing", good: checkRefreshNothing,
			rule: "a refresh without a change keeps the version, lists no file and touches nothing"},
		{name: "refreshChange", good: checkRefreshChange,
			rule: "a refresh after a change has another version and lists exactly the files that changed"},
		{name: "refreshFails", good: checkRefreshFails,
			rule: "a failed refresh leaves the old content whole and readable"},
		{name: "references", good: checkReferences,
			rule: "References is pure and names the kind of each object"},
	}
}

// refresh runs one refresh.
func (w *world) refresh(ctx context.Context, p *part) (plugins.Content, error) {
	var content plugins.Content
	err := w.call("Refresh", func() (err error) {
		content, err = plugins.CapabilitiesOf(w.plugin).Refresher.Refresh(ctx, p.request(true))
		return err
	})
	return content, err
}

func (w *world) refreshes() bool { return plugins.CapabilitiesOf(w.plugin).Refresher != nil }

func checkRefreshNothing(w *world, v Volume) {
	if !w.refreshes() {
		return
	}
	p := w.part(v, 1)
	w.mustUp(p, false)
	before := snapshot(p.target.Path)
	if p.result.Content.Version == "" {
		w.errorf("SetUp gives no version")
	}
	for range 2 {
		content, err := w.refresh(context.Background(), p)
		if err != nil {
			w.fatalf("Refresh: %v", err)
		}
		if content.Version != p.result.Content.Version || len(content.Changed) > 0 {
			w.errorf("version %q became %q, changed: %q", p.result.Content.Version, content.Version, content.Changed)
		}
		w.restart(false)
	}
	if d := diff(before, snapshot(p.target.Path)); d != "" {
		w.errorf("the volume changed: %s", d)
	}
}

func checkRefreshChange(w *world, v Volume) {
	if !w.refreshes() || w.h.Change == nil {
		return
	}
	p := w.part(v, 1)
	w.mustUp(p, false)
	before := visible(p.target.Path)
	w.h.Change(w.t, w.host, p.Volume)
	content, err := w.refresh(context.Background(), p)
	if err != nil {
		w.fatalf("Refresh: %v", err)
	}
	after := visible(p.target.Path)
	if diff(before, after) == "" {
		w.fatalf("the content is the old one")
	}
	if content.Version == p.result.Content.Version {
		w.errorf("the version is the old one")
	}
	for _, name := range content.Changed {
		if path.IsAbs(name) || name != path.Clean(name) {
			w.errorf("the changed file %q is no clean relative path", name)
		}
	}
	for name := range union(before, after) {
		changed := before[name] != after[name]
		if changed != slices.Contains(content.Changed, filepath.ToSlash(name)) {
			w.errorf("file %q changed: %t; listed as changed: %q", name, changed, content.Changed)
		}
	}
}

func union(a, b tree) map[string]bool {
	all := map[string]bool{}
	for name := range a {
		all[name] = true
	}
	for name := range b {
		all[name] = true
	}
	return all
}

func checkRefreshFails(w *world, v Volume) {
	if !w.refreshes() {
		return
	}
	if w.h.Break != nil {
		p := w.part(v, 1)
		w.mustUp(p, false)
		before := visible(p.target.Path)
		w.h.Break(w.t, w.host)
		_, err := w.refresh(context.Background(), p)
		if d := diff(before, visible(p.target.Path)); d != "" {
			w.errorf("with broken sources (error: %v) the content changed: %s", err, d)
		}
	}
	if w.h.Change == nil {
		return
	}
	var before tree
	prepare := func(w *world, p *part) {
		w.mustUp(p, false)
		before = visible(p.target.Path)
		w.h.Change(w.t, w.host, p.Volume)
	}
	do := func(ctx context.Context, w *world, p *part) error {
		_, err := w.refresh(ctx, p)
		return err
	}
	w.faulty(do, prepare, func(w *world, p *part, err error, step string) {
		between := visible(p.target.Path)
		w.restart(false)
		if _, err := w.refresh(context.Background(), p); err != nil {
			w.errorf("%s: the next refresh: %v", step, err)
			return
		}
		after := visible(p.target.Path)
		if old, new := diff(before, between), diff(after, between); old != "" && new != "" {
			w.errorf("%s (error: %v): the content is neither the old (%s) nor the new one (%s)", step, err, old, new)
		}
		if diff(before, after) == "" {
			w.errorf("%s: the next refresh brings the old content", step)
		}
	})
}

func checkReferences(w *world, v Volume) {
	parts := plugins.CapabilitiesOf(w.plugin)
	if parts.Referrer == nil {
		return
	}
	p := w.part(v, 1)
	first := parts.Referrer.References(p.Spec, p.Pod)
	if !slices.Equal(first, parts.Referrer.References(p.Spec, p.Pod)) {
		w.errorf("two calls differ")
	}
	for _, ref := range first {
		if ref.Kind == "" {
			w.errorf("a reference without a kind: %+v", ref)
		}
	}
}
