package plugintest

import (
	"context"
	"fmt"

	"github.com/volumekit/volumekit/plugins"
)

// maxSteps bounds the steps of one call that are made to go wrong in turn.
const maxSteps = 60

// faultChecks make each step go wrong in turn.
func faultChecks() []check {
	return []check{
		{name: "halfSetUp", good: checkHalfSetUp,
			rule: "whatever step of SetUp goes wrong, TearDown in another process removes what is there"},
		{name: "halfSetUpAgain", good: checkHalfSetUpAgain,
			rule: "whatever step of SetUp goes wrong, the next SetUp makes the volume"},
		{name: "classes", good: checkClasses,
			rule: "an error of a class other than uncertain leaves nothing behind"},
		{name: "halfTearDown", good: checkHalfTearDown,
			rule: "whatever step of TearDown goes wrong, the next TearDown removes the rest"},
	}
}

// faulty calls f in a fresh world for each step that do takes in each way in
// which it can go wrong. do has run, faulty, by then.
func (w *world) faulty(do func(ctx context.Context, w *world, p *part) error, prepare func(w *world, p *part), f func(w *world, p *part, err error, step string)) {
	for _, how := range []fault{fails, dies, cancelled} {
		for n := 1; ; n++ {
			if n > maxSteps {
				w.fatalf("more than %d steps", maxSteps)
			}
			other, v := w.another()
			p := other.part(v, 1)
			if prepare != nil {
				prepare(other, p)
			}
			ctx, cancel := context.WithCancel(context.Background())
			other.mounts.arm(n, how, cancel)
			err := do(ctx, other, p)
			cancel()
			fired := other.mounts.calm()
			if fired != "" {
				f(other, p, err, fmt.Sprintf("step %d (%s) %s", n, fired, how))
			}
			failed := len(other.failures) > 0
			w.failures = append(w.failures, other.close()...)
			w.others = w.others[:len(w.others)-1]
			if fired == "" || failed {
				break
			}
		}
	}
}

func half(ctx context.Context, w *world, p *part) error { return w.up(ctx, p, false) }

func checkHalfSetUp(w *world, _ Volume) {
	var before tree
	w.faulty(half, func(w *world, _ *part) { before = w.state() }, func(w *world, p *part, err error, step string) {
		if err == nil {
			if err := w.promised(p); err != nil {
				w.errorf("%s: SetUp succeeded, but: %v", step, err)
			}
		}
		w.restart(true)
		if err := w.down(context.Background(), p); err != nil {
			w.errorf("%s: TearDown: %v", step, err)
			return
		}
		if d := diff(before, w.state()); d != "" {
			w.errorf("%s: TearDown left behind: %s", step, d)
		}
	})
}

func checkHalfSetUpAgain(w *world, _ Volume) {
	w.faulty(half, nil, func(w *world, p *part, _ error, step string) {
		w.restart(false)
		err := w.up(context.Background(), p, true)
		if err == nil {
			err = w.promised(p)
		}
		if err != nil {
			w.errorf("%s: the next SetUp: %v", step, err)
			return
		}
		other, v := w.another()
		whole := other.part(v, 1)
		other.mustUp(whole, false)
		if d := diff(visible(whole.result.Path), visible(p.result.Path)); d != "" {
			w.errorf("%s: after the next SetUp the volume is not like one that was made at once: %s", step, d)
		}
	})
}

func checkClasses(w *world, _ Volume) {
	var before tree
	w.faulty(half, func(w *world, _ *part) { before = w.state() }, func(w *world, _ *part, err error, step string) {
		if !clean(err) {
			return
		}
		if d := diff(before, w.state()); d != "" {
			w.errorf("%s: the error is of class %s, but left: %s (%v)", step, plugins.ClassOf(err), d, err)
		}
	})
}

func checkHalfTearDown(w *world, _ Volume) {
	var before tree
	prepare := func(w *world, p *part) {
		before = w.state()
		w.mustUp(p, false)
	}
	do := func(ctx context.Context, w *world, p *part) error { return w.down(ctx, p) }
	w.faulty(do, prepare, func(w *world, p *part, err error, step string) {
		if d := diff(before, w.state()); err == nil && d != "" {
			w.errorf("%s: TearDown says that all is gone, but: %s", step, d)
		}
		w.restart(true)
		if err := w.down(context.Background(), p); err != nil {
			w.errorf("%s: the next TearDown: %v", step, err)
			return
		}
		if d := diff(before, w.state()); d != "" {
			w.errorf("%s: the next TearDown left behind: %s", step, d)
		}
	})
}
