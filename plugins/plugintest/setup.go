package plugintest

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/volumekit/volumekit/plugins"
)

// setUpChecks are those of a SetUp that works.
func setUpChecks() []check {
	return []check{
		{name: "promise", good: checkPromise,
			rule: "what SetUp says is there is there: the path, and a mount at it exactly if Mounted is true"},
		{name: "repeat", good: checkRepeat,
			rule: "SetUp is idempotent, in the same process and in the next: same result, nothing stacked, nothing lost"},
		{name: "keep", good: checkKeep,
			rule: "SetUp with Again keeps what is live"},
		{name: "reboot", good: checkReboot,
			rule: "after a reboot the leftovers are not taken for a volume: SetUp makes it anew and TearDown removes it"},
		{name: "requests", good: checkRequests,
			rule: "requests belong to the engine: nothing in them is changed"},
		{name: "ended", good: checkEnded,
			rule: "a call whose context has ended returns soon, SetUp with an error, and its class does not claim more than is true"},
		{name: "secrets", good: checkSecrets, bad: checkSecrets,
			rule: "no secret stands in an error, log line, event, record or content version"},
	}
}

func checkPromise(w *world, v Volume) {
	p := w.part(v, 1)
	w.mustUp(p, false)
}

func checkRepeat(w *world, v Volume) {
	p := w.part(v, 1)
	w.mustUp(p, false)
	first, before := p.result, w.state()
	for i, again := range []bool{true, false, true} {
		if i == 2 {
			w.restart(false)
		}
		w.mustUp(p, again)
		if p.result.Path != first.Path || p.result.Mounted != first.Mounted || p.result.Attributes != first.Attributes {
			w.errorf("SetUp gave %+v first and %+v the next time", first, p.result)
		}
		if d := diff(before, w.state()); d != "" {
			w.fatalf("SetUp number %d (Again: %t) changed: %s", i+2, again, d)
		}
	}
}

func checkKeep(w *world, v Volume) {
	p := w.part(v, 1)
	w.mustUp(p, false)
	mark, marked := w.mark(p, "kept")
	if marked {
		defer func() { _ = os.Remove(mark) }() // it may lie in a folder of the harness
	}
	before := snapshot(p.result.Path)
	w.restart(false)
	w.mustUp(p, true)
	if d := diff(before, snapshot(p.result.Path)); d != "" {
		w.errorf("the live volume changed: %s", d)
	}
}

func checkReboot(w *world, v Volume) {
	p := w.part(v, 1)
	before := w.state()
	w.mustUp(p, false)
	w.unmountAll()
	w.restart(false)
	w.mustUp(p, false)
	w.unmountAll()
	w.restart(false)
	w.mustUp(p, true)
	w.unmountAll()
	w.restart(true)
	w.mustDown(p)
	if d := diff(before, w.state()); d != "" {
		w.errorf("left behind: %s", d)
	}
}

func checkRequests(w *world, v Volume) {
	p := w.part(v, 1)
	if err := w.identify(p); err != nil {
		w.fatalf("Identify: %v", err)
	}
	spec, pod, undo := copySpec(p.Spec), p.Pod.DeepCopy(), fmt.Sprint(p.undo)
	w.mustUp(p, false)
	if r := plugins.CapabilitiesOf(w.plugin).Refresher; r != nil {
		_ = w.call("Refresh", func() error { _, err := r.Refresh(context.Background(), p.request(true)); return err })
	}
	given := fmt.Sprint(p.undo)
	w.mustDown(p)
	if !reflect.DeepEqual(spec, p.Spec) {
		w.errorf("the spec was changed")
	}
	if !reflect.DeepEqual(pod, p.Pod) {
		w.errorf("the pod was changed")
	}
	if !p.ident.Attach && !p.ident.Device && undo != fmt.Sprint(p.undo) || given != fmt.Sprint(p.undo) {
		w.errorf("the record was changed")
	}
}

// soon is how long a call may go on after its context has ended.
const soon = 5 * time.Second

func checkEnded(w *world, v Volume) {
	p := w.part(v, 1)
	before := w.state()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	start := time.Now()
	err := w.up(ctx, p, false)
	if err == nil {
		w.errorf("SetUp succeeds with an ended context")
	}
	w.cleanAfter(err, before)
	w.mustUp(p, true)
	ended := time.Now()
	if err := w.down(ctx, p); err == nil {
		if d := diff(before, w.state()); d != "" {
			w.errorf("TearDown with an ended context says that all is gone, but: %s", d)
		}
	}
	if took := max(time.Since(ended), ended.Sub(start)); took > soon {
		w.errorf("a call with an ended context took %v", took)
	}
}

func checkSecrets(w *world, v Volume) {
	if len(w.h.Secrets) == 0 {
		return
	}
	w.faulty(half, nil, func(w *world, p *part, _ error, _ string) {
		_ = w.down(context.Background(), p)
		w.scan()
	})
	p := w.part(v, 1)
	_ = w.up(context.Background(), p, false)
	if w.h.Break != nil {
		w.h.Break(w.t, w.host)
		_ = w.up(context.Background(), p, true)
	}
	_ = w.down(context.Background(), p)
	w.scan()
}

// scan looks for secrets in all that was said in this world.
func (w *world) scan() {
	w.mu.Lock()
	spoken := slices.Clone(w.spoken)
	w.mu.Unlock()
	for _, text := range spoken {
		for i, secret := range w.h.Secrets {
			if strings.Contains(text, secret) {
				w.errorf("secret %d is in %q", i, strings.ReplaceAll(text, secret, "<the secret>"))
			}
		}
	}
}
