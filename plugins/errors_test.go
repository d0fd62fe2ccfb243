package plugins

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"testing"

	"github.com/volumekit/volumekit/mount"
)

// ownError is a plugin's own error type that says what it is like.
type ownError struct{ like error }

func (e ownError) Error() string        { return "of a plugin's own" }
func (e ownError) Is(target error) bool { return target == e.like }

// sliceError cannot be compared.
type sliceError []string

func (e sliceError) Error() string { return "slice" }

// hollow unwraps to nothing.
type hollow struct{}

func (hollow) Error() string   { return "hollow" }
func (hollow) Unwrap() []error { return []error{nil} }

var errCause = errors.New("the cause")

func TestClassOf(t *testing.T) {
	t.Parallel()
	secret := Ref{Kind: KindSecret, Namespace: "a", Name: "b"}
	for name, c := range map[string]struct {
		err  error
		want Class
	}{
		"nil":                    {nil, ClassNone},
		"no class":               {errCause, ClassUncertain},
		"no class, wrapped":      {fmt.Errorf("x: %w", errCause), ClassUncertain},
		"permanent":              {Permanent(errCause), ClassPermanent},
		"transient":              {Transient(errCause), ClassTransient},
		"unsupported":            {Unsupported(errCause), ClassUnsupported},
		"uncertain":              {Uncertain(errCause), ClassUncertain},
		"waiting":                {WaitFor(secret, errCause), ClassWaiting},
		"waiting, no reason":     {WaitFor(secret, nil), ClassWaiting},
		"f":                      {Permanentf("a %w", errCause), ClassPermanent},
		"f transient":            {Transientf("a"), ClassTransient},
		"f unsupported":          {Unsupportedf("a"), ClassUnsupported},
		"wrapped twice":          {fmt.Errorf("a: %w", fmt.Errorf("b: %w", Transient(errCause))), ClassTransient},
		"mounter":                {fmt.Errorf("mount x: %w (%w)", mount.ErrUnsupported, syscall.ENOSYS), ClassUnsupported},
		"mounter, in doubt":      {Uncertain(mount.ErrUnsupported), ClassUncertain},
		"missing":                {&MissingError{"Secrets", "x"}, ClassUnsupported},
		"missing, wrapped":       {fmt.Errorf("a: %w", &MissingError{"Secrets", "x"}), ClassUnsupported},
		"sentinel":               {ErrPermanent, ClassPermanent},
		"sentinel, wrapped":      {fmt.Errorf("x: %w", ErrTransient), ClassTransient},
		"sentinel, text first":   {fmt.Errorf("open: %w", fmt.Errorf("%w: %w", ErrTransient, errCause)), ClassTransient},
		"sentinel and cause":     {fmt.Errorf("%w: %w", ErrPermanent, errCause), ClassPermanent},
		"cause and sentinel":     {fmt.Errorf("%w (%w)", errCause, ErrPermanent), ClassPermanent},
		"two sentinels":          {fmt.Errorf("%w: %w", ErrTransient, ErrPermanent), ClassPermanent},
		"sentinel over a class":  {fmt.Errorf("%w: %w", ErrTransient, Permanent(errCause)), ClassTransient},
		"sentinel, joined":       {errors.Join(ErrTransient, errCause), ClassTransient},
		"outermost wins":         {Transient(Permanent(errCause)), ClassTransient},
		"outermost over joined":  {Transient(errors.Join(Uncertain(errCause), errCause)), ClassTransient},
		"joined, highest":        {errors.Join(Transient(errCause), Permanent(errCause)), ClassPermanent},
		"joined, order":          {errors.Join(Permanent(errCause), Transient(errCause)), ClassPermanent},
		"joined, unknown":        {errors.Join(Permanent(errCause), errCause), ClassUncertain},
		"joined, wrapped":        {fmt.Errorf("x: %w", errors.Join(Transient(errCause), fmt.Errorf("y: %w", Unsupported(errCause)))), ClassUnsupported},
		"joined with waiting":    {errors.Join(WaitFor(secret, errCause), Transient(errCause)), ClassTransient},
		"%w %w, classes":         {fmt.Errorf("%w, %w", Transient(errCause), Permanent(errCause)), ClassPermanent},
		"waiting for permanent":  {WaitFor(secret, Permanent(errCause)), ClassWaiting},
		"permanent waiting":      {Permanent(WaitFor(secret, errCause)), ClassPermanent},
		"context ended":          {context.Canceled, ClassUncertain},
		"deadline":               {fmt.Errorf("mount: %w", context.DeadlineExceeded), ClassUncertain},
		"deadline, told":         {Transient(context.DeadlineExceeded), ClassTransient},
		"errno":                  {&fs.PathError{Op: "open", Path: "/x", Err: syscall.ENOENT}, ClassUncertain},
		"std's unsupported":      {errors.ErrUnsupported, ClassUncertain},
		"own type":               {ownError{ErrPermanent}, ClassPermanent},
		"own type, wrapped":      {fmt.Errorf("x: %w", ownError{ErrWaiting}), ClassWaiting},
		"own type, like nothing": {ownError{}, ClassUncertain},
		"not comparable":         {fmt.Errorf("%w: %w", sliceError{"a"}, Permanent(errCause)), ClassUncertain},
		"unwraps to nothing":     {hollow{}, ClassUncertain},
	} {
		if got := ClassOf(c.err); got != c.want {
			t.Errorf("%s: ClassOf(%v) = %v, want %v", name, c.err, got, c.want)
		}
	}
}

func TestClassesKeepTextAndCause(t *testing.T) {
	t.Parallel()
	for _, f := range []func(error) error{Permanent, Transient, Unsupported, Uncertain} {
		if f(nil) != nil {
			t.Error("nil did not stay nil")
		}
		if err := f(errCause); err.Error() != errCause.Error() || !errors.Is(err, errCause) {
			t.Errorf("%v lost its cause", err)
		}
	}
	for c := ClassWaiting; c <= ClassUncertain; c++ {
		err := withClass(c, errCause)
		for other := ClassNone; other <= ClassUncertain; other++ {
			if got := errors.Is(err, sentinel(other)); got != (other == c) {
				t.Errorf("an error of class %v is %v: %v", c, other, got)
			}
		}
	}
}

func TestClassString(t *testing.T) {
	t.Parallel()
	want := []string{"none", "waiting", "transient", "permanent", "unsupported", "uncertain", "uncertain"}
	for c := ClassNone; int(c) < len(want); c++ {
		if c.String() != want[c] {
			t.Errorf("class %d is %q, want %q", int(c), c, want[c])
		}
	}
}

func TestWaitsFor(t *testing.T) {
	t.Parallel()
	a, b := Ref{Kind: KindSecret, Namespace: "n", Name: "a"}, Ref{Kind: KindNode, Name: "b"}
	for name, c := range map[string]struct {
		err  error
		want []Ref
	}{
		"nil":     {nil, nil},
		"nothing": {errCause, nil},
		"one":     {WaitFor(a, nil), []Ref{a}},
		"wrapped": {fmt.Errorf("x: %w", WaitFor(a, errCause)), []Ref{a}},
		"joined":  {errors.Join(WaitFor(a, nil), Permanent(WaitFor(b, nil))), []Ref{a, b}},
		"outer":   {WaitFor(a, WaitFor(b, nil)), []Ref{a}},
	} {
		if got := WaitsFor(c.err); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if got, want := WaitFor(a, errCause).Error(), "waiting for Secret n/a: the cause"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	if got, want := WaitFor(b, nil).Error(), "waiting for Node b"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	if !errors.Is(WaitFor(a, errCause), errCause) {
		t.Error("the reason is not wrapped")
	}
}

func TestFaultFunc(t *testing.T) {
	t.Parallel()
	if err := FaultFunc(nil).At("x"); err != nil {
		t.Error(err)
	}
	var point string
	f := FaultFunc(func(p string) error { point = p; return errCause })
	if err := f.At("here"); !errors.Is(err, errCause) || point != "here" {
		t.Errorf("%v at %q", err, point)
	}
}
