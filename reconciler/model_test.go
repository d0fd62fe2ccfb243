package reconciler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/volumekit/volumekit/plugins"
)

// model is an engine whose steps fail at random, in every way.
type model struct {
	*fakeEngine
	rand        *rand.Rand // guarded by the fake's lock
	failed      int
	quiet       bool
	wake, reset func(...plugins.VolumeID)
}

func newModel(volumes int, seed uint64) *model {
	m := &model{fakeEngine: newFake(nil), rand: rand.New(rand.NewPCG(seed, 2))}
	m.parallel = true
	m.act = m.misbehave
	for n := range volumes {
		m.todo[volumeOf(fmt.Sprint(n%7), n)] = nil
	}
	return m
}

// change gives a part of the volumes something else to do.
func (m *model) change(round, volumes int) {
	kinds := []Kind{SetUp, TearDown, Refresh, MountDevice, Expand}
	for n := range volumes {
		id := volumeOf(fmt.Sprint(n%7), n)
		var steps []Step
		for pod := range (n + round) % 3 {
			steps = append(steps, stepOf(kinds[(n+pod+round)%len(kinds)], id, fmt.Sprint("pod", pod)))
		}
		m.set(id, steps...)
		switch n % 3 {
		case 0:
			m.wake(id)
		case 1:
			m.reset(id)
		} // the others are found by the safety pass
	}
}

func (m *model) calm() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.quiet = true
}

func (m *model) roll() (int, time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.quiet {
		return 100, time.Millisecond
	}
	n := m.rand.IntN(14)
	if n < 6 {
		m.failed++
	}
	return n, time.Duration(m.rand.IntN(20)) * time.Millisecond
}

func (m *model) misbehave(ctx context.Context, s Step) error {
	what, pause := m.roll()
	elapse(pause)
	switch what {
	case 0:
		return plugins.Permanentf("no")
	case 1:
		return plugins.Transientf("no")
	case 2:
		m.wake(s.ID)
		return plugins.WaitFor(plugins.Ref{Kind: "X", Name: "x"}, errors.New("no"))
	case 3:
		panic("no")
	case 4:
		switch { // does not look at its context
		case s.Lazy:
			elapse(12 * time.Second)
		case s.Kind == TearDown:
			elapse(30 * time.Second)
		}
		return errors.New("no")
	case 5:
		<-ctx.Done()
		return ctx.Err()
	case 6:
		m.wake(s.ID)
	case 7:
		m.reset(s.ID)
	}
	return nil
}
