package reconciler

import (
	"time"

	"github.com/volumekit/volumekit/plugins"
)

// record is what is remembered of the failed tries of one step.
type record struct {
	attempts    int
	firstFailed time.Time
	err         error
	class       plugins.Class
	// parked means that only a change brings the next try, else it comes at
	// notBefore.
	parked    bool
	notBefore time.Time
	delay     time.Duration
}

// fail enters a failed try. What waits is no failure: it counts nothing.
func (r *record) fail(now time.Time, err error) {
	r.err, r.class, r.delay = err, plugins.ClassOf(err), 0
	if r.class != plugins.ClassWaiting {
		r.attempts++
	}
	if r.firstFailed.IsZero() {
		r.firstFailed = now
	}
	r.parked = r.class == plugins.ClassWaiting || r.class == plugins.ClassPermanent || r.class == plugins.ClassUnsupported
}

// due reports whether the step may be tried.
func (r *record) due(now time.Time) bool { return !r.parked && !r.notBefore.After(now) }

// waits reports whether any change may end the pause, and not only one that
// gives reason to hope.
func (r *record) waits() bool { return r.parked && r.class == plugins.ClassWaiting }

// pick returns the first step that ready accepts, so that one that has to
// pause keeps nothing else back.
func pick(steps []Step, ready func(*Step) bool) *Step {
	for i := range steps {
		if ready(&steps[i]) {
			return &steps[i]
		}
	}
	return nil
}
