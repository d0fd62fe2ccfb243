package reconciler

import (
	"context"
	"errors"
	"testing"

	"github.com/volumekit/volumekit/plugins"
)

// startSequential runs s until the test ends.
func startSequential(t *testing.T, s *Sequential, e Engine) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx, e) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := s.Step(context.Background()); !errors.Is(err, ErrStopped) {
			t.Errorf("Step after the end: %v", err)
		}
	})
}

func TestSequentialOrder(t *testing.T) {
	e := newFake(nil)
	other := volumeOf("b", 1)
	e.add(stepOf(SetUp, other, "x"), stepOf(TearDown, vol, "one"), stepOf(SetUp, vol, "two"))
	bad := errors.New("no")
	e.act = func(_ context.Context, s Step) error {
		if s.Volume.Pod == "one" && len(e.calls()) < 4 {
			return bad
		}
		return nil
	}
	s := NewSequential()
	startSequential(t, s, e)
	var order []string
	for {
		did, err := s.Step(t.Context())
		if !did {
			break
		}
		last := e.calls()[len(e.calls())-1]
		if (err != nil) != (last.Volume.Pod == "one" && len(e.calls()) < 4) {
			t.Errorf("error %v", err)
		}
		order = append(order, string(last.Volume.Pod))
	}
	if len(order) != 4 || order[0] != "one" || order[1] != "two" || order[2] != "x" || order[3] != "one" {
		t.Errorf("order %v", order)
	}
}

func TestSequentialParks(t *testing.T) {
	var answer error
	e := newFake(func(context.Context, Step) error { return answer })
	e.add(stepOf(Attach, vol, ""))
	s := NewSequential()
	startSequential(t, s, e)
	step := func(want bool, what string) {
		t.Helper()
		if did, _ := s.Step(t.Context()); did != want {
			t.Errorf("%s: did is %v", what, did)
		}
	}
	answer = plugins.WaitFor(plugins.Ref{Kind: "X", Name: "x"}, errors.New("no"))
	step(true, "first")
	step(false, "while it waits")
	s.Wake(vol)
	answer = plugins.Permanentf("no")
	step(true, "after a wake")
	s.Wake(vol)
	step(false, "failed for good")
	s.Reset(vol)
	step(true, "after a reset")
}

func TestSequentialWaitsForRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if did, err := NewSequential().Step(ctx); did || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", did, err)
	}
}
