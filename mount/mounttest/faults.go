package mounttest

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/volumekit/volumekit/mount"
)

// Op names a step at which a fault can happen and that is logged.
type Op string

// The steps, one for each method of the mounter. OpAttach is the moment at
// which a built file system becomes visible.
const (
	OpMount       Op = "mount"
	OpUnmount     Op = "unmount"
	OpInspect     Op = "inspect"
	OpTable       Op = "table"
	OpRemoveAll   Op = "removeAll"
	OpBuild       Op = "build"
	OpAttach      Op = "attach"
	OpPropagation Op = "propagation"
	OpMakeShared  Op = "makeShared"
	OpNamespace   Op = "namespace"
	OpWatch       Op = "watch"
	OpResize      Op = "resize"
	OpSetGroup    Op = "setGroup"
	// AnyOp stands for all of them in a [Fault].
	AnyOp Op = ""
)

// Call is one finished call, for assertions.
type Call struct {
	// Op is the step.
	Op Op
	// Target is the path that the caller gave, empty for steps without one.
	Target string
	// Mount is what was to be mounted, sensitive options included (which its
	// String methods do not show). Set for OpMount, OpBuild and OpAttach.
	Mount mount.Mount
	// Unmount is how, for OpUnmount.
	Unmount mount.UnmountOptions
	// Bytes is how large, for OpResize.
	Bytes int64
	// Ownership is whose the files were to be, for OpSetGroup.
	Ownership mount.Ownership
	// Err is what the caller got.
	Err error
}

// Fault is a failure to come.
type Fault struct {
	// Op is the step that fails, [AnyOp] for all.
	Op Op
	// Target says for which paths: as filepath.Match matches it against the
	// whole path, or against as many of the path's last elements as the
	// pattern has ("vol-*/data"). Empty matches every call.
	Target string
	// Err is what the caller gets.
	Err error
	// Times is how often; zero means until cleared.
	Times int
	// After lets the step take its effect before the caller gets Err, so that
	// nobody can say how it ended. A step that fails by itself keeps its own
	// error.
	After bool

	hold *Hold
}

// Hold is a step that hangs; see [Mounter.Hang].
type Hold struct {
	deaf              bool
	reached, released chan struct{}
	reach, release    sync.Once
	clear             func()
}

// Reached is closed as soon as a call hangs here.
func (h *Hold) Reached() <-chan struct{} { return h.reached }

// Release lets those that hang go on and take their effect, and no later call
// hang. It may be called more than once.
func (h *Hold) Release() {
	h.release.Do(func() {
		h.clear()
		close(h.released)
	})
}

func (h *Hold) wait(ctx context.Context) error {
	h.reach.Do(func() { close(h.reached) })
	done := ctx.Done()
	if h.deaf {
		done = nil
	}
	select {
	case <-h.released:
		return nil
	case <-done:
		return ctx.Err()
	}
}

// faults holds what is to go wrong and what was called.
type faults struct {
	mu    sync.Mutex
	list  []*Fault
	calls []Call
}

// Inject adds a fault and returns what takes it back. Of several faults that
// match, the one injected first is used.
func (m *Mounter) Inject(fault Fault) (clear func()) { return m.faults.add(&fault) }

// Fail makes the step op fail with err for the paths that target matches (see
// [Fault]), before it has any effect, until clear is called.
func (m *Mounter) Fail(op Op, target string, err error) (clear func()) {
	return m.Inject(Fault{Op: op, Target: target, Err: err})
}

// Hang makes the step op hang for the paths that target matches, as on dead
// storage, until it is released or the caller's context ends; in the latter
// case it has no effect.
func (m *Mounter) Hang(op Op, target string) *Hold { return m.hang(op, target, false) }

// HangHard is like [Mounter.Hang] for a system call that the kernel does not
// let go of: the context's end does not help either. Release it before the
// test ends.
func (m *Mounter) HangHard(op Op, target string) *Hold { return m.hang(op, target, true) }

func (m *Mounter) hang(op Op, target string, deaf bool) *Hold {
	h := &Hold{deaf: deaf, reached: make(chan struct{}), released: make(chan struct{})}
	h.clear = m.faults.add(&Fault{Op: op, Target: target, hold: h})
	return h
}

// Calls returns the finished calls of the given steps, of all steps when none
// is given, in the order in which they ended.
func (m *Mounter) Calls(ops ...Op) []Call {
	m.faults.mu.Lock()
	defer m.faults.mu.Unlock()
	var calls []Call
	for _, c := range m.faults.calls {
		if len(ops) == 0 || slices.Contains(ops, c.Op) {
			calls = append(calls, c)
		}
	}
	return calls
}

// ForgetCalls empties the log.
func (m *Mounter) ForgetCalls() {
	m.faults.mu.Lock()
	defer m.faults.mu.Unlock()
	m.faults.calls = nil
}

func (f *faults) add(fault *Fault) (clear func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, fault)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.list = slices.DeleteFunc(f.list, func(x *Fault) bool { return x == fault })
	}
}

func (f *faults) log(call Call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
}

// before waits where the call is to hang, then says whether it is to fail.
func (f *faults) before(ctx context.Context, call Call) error {
	if h := f.holdFor(call); h != nil {
		if err := h.wait(ctx); err != nil {
			return err
		}
	}
	return f.take(call, false)
}

func (f *faults) after(call Call) error { return f.take(call, true) }

func (f *faults) holdFor(call Call) *Hold {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range f.list {
		if fault.hold != nil && fault.matches(call) {
			return fault.hold
		}
	}
	return nil
}

func (f *faults) take(call Call, after bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, fault := range f.list {
		if fault.hold != nil || fault.After != after || !fault.matches(call) {
			continue
		}
		if fault.Times == 1 {
			f.list = slices.Delete(f.list, i, i+1)
		} else if fault.Times > 1 {
			fault.Times--
		}
		return fault.Err
	}
	return nil
}

func (f *Fault) matches(call Call) bool {
	return (f.Op == AnyOp || f.Op == call.Op) && matches(f.Target, call.Target)
}

func matches(pattern, target string) bool {
	if pattern == "" || pattern == target {
		return true
	}
	if ok, err := filepath.Match(pattern, target); ok || err != nil {
		return ok
	}
	sep := string(filepath.Separator)
	want := strings.Count(pattern, sep) + 1
	elements := strings.Split(target, sep)
	if filepath.IsAbs(pattern) || len(elements) <= want {
		return false
	}
	ok, err := filepath.Match(pattern, strings.Join(elements[len(elements)-want:], sep))
	return ok && err == nil
}
