package plugintest

import (
	"context"
	"errors"
	"sync"

	"github.com/volumekit/volumekit/mount"
)

// fault is how a step goes wrong.
type fault string

const (
	// fails: the step has no effect and an error.
	fails fault = "fails"
	// dies: the context ends, the step takes effect but its caller gets an
	// error, and so does every later step: what is left is what the death of
	// the process would have left.
	dies fault = "is the last thing that happens"
	// cancelled: the context ends just before the step.
	cancelled fault = "comes after the context ended"
)

// errInjected is what a step that goes wrong returns.
var errInjected = errors.New("fault injected by plugintest")

// stepper counts the steps that a plugin takes (calls to the mounter and fail
// points) and makes one of them go wrong.
type stepper struct {
	mount.Mounter

	mu     sync.Mutex // guards what follows
	armed  bool
	left   int
	how    fault
	cancel context.CancelFunc
	dead   bool
	// fired names the step that went wrong.
	fired string
	calls int
}

// arm makes the nth step from now on, counted from 1, go wrong.
func (s *stepper) arm(n int, how fault, cancel context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed, s.left, s.how, s.cancel, s.dead, s.fired = true, n, how, cancel, false, ""
}

// calm lets every step work again and returns which one went wrong.
func (s *stepper) calm() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed, s.dead = false, false
	return s.fired
}

// count returns how many steps there were.
func (s *stepper) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// turn says what becomes of a step.
func (s *stepper) turn(name string) (how fault, dead bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.dead {
		return "", true
	}
	if !s.armed {
		return "", false
	}
	if s.left--; s.left != 0 {
		return "", false
	}
	s.fired = name
	if s.how != fails {
		s.cancel()
	}
	s.dead = s.how == dies
	return s.how, false
}

// at is the fail point hook.
func (s *stepper) at(point string) error {
	if how, dead := s.turn("fail point " + point); dead || how != "" {
		return errInjected
	}
	return nil
}

// step runs one call of the mounter. unheard runs it where nobody hears of its
// success: it tells whether that is possible for the call.
func (s *stepper) step(ctx context.Context, name string, do func(context.Context) error) error {
	switch how, dead := s.turn(name); {
	case dead, how == fails:
		return errInjected
	case how == dies:
		_ = do(context.WithoutCancel(ctx))
		return errors.Join(errInjected, context.Canceled)
	}
	return do(ctx)
}

func (s *stepper) Mount(ctx context.Context, m mount.Mount) error {
	return s.step(ctx, "Mount", func(ctx context.Context) error { return s.Mounter.Mount(ctx, m) })
}

func (s *stepper) Unmount(ctx context.Context, target string, how mount.UnmountOptions) error {
	return s.step(ctx, "Unmount", func(ctx context.Context) error { return s.Mounter.Unmount(ctx, target, how) })
}

func (s *stepper) Inspect(ctx context.Context, path string) (p mount.Point, err error) {
	err = s.step(ctx, "Inspect", func(ctx context.Context) (err error) {
		p, err = s.Mounter.Inspect(ctx, path)
		return err
	})
	return p, err
}

func (s *stepper) Table(ctx context.Context) (t mount.Table, err error) {
	err = s.step(ctx, "Table", func(ctx context.Context) (err error) {
		t, err = s.Mounter.Table(ctx)
		return err
	})
	return t, err
}

func (s *stepper) RemoveAll(ctx context.Context, path string) error {
	return s.step(ctx, "RemoveAll", func(ctx context.Context) error { return s.Mounter.RemoveAll(ctx, path) })
}

// mounter is s with those optional parts of its mounter that plugins use.
func (s *stepper) mounter() mount.Mounter {
	if b, ok := s.Mounter.(mount.Builder); ok {
		return building{s, b}
	}
	return s
}

// building is a stepper over a mounter that can build.
type building struct {
	*stepper
	builder mount.Builder
}

func (b building) Build(ctx context.Context, m mount.Mount) (d mount.Detached, err error) {
	err = b.step(ctx, "Build", func(ctx context.Context) (err error) {
		d, err = b.builder.Build(ctx, m)
		return err
	})
	if err != nil && d != nil { // built, but nobody heard of it
		_ = d.Close()
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	return detached{d, b.stepper}, nil
}

// detached counts the step that makes the file system visible.
type detached struct {
	mount.Detached
	s *stepper
}

func (d detached) Attach(ctx context.Context, target string) error {
	return d.s.step(ctx, "Attach", func(ctx context.Context) error { return d.Detached.Attach(ctx, target) })
}
