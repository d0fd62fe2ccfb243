package plugins

import (
	"errors"
	"fmt"

	"github.com/volumekit/volumekit/mount"
)

// Class says what an error means for the volume, and so what happens next. The
// class of an error survives wrapping with %w and errors.Join.
type Class int

// The classes, in the order in which they win when errors are joined.
const (
	// ClassNone is the class of a nil error.
	ClassNone Class = iota
	// ClassWaiting: nothing is wrong yet, something is awaited. No backoff is
	// kept and no slot held; the volume is tried again when the awaited object
	// changes.
	ClassWaiting
	// ClassTransient: it did not work, and nothing was left behind. Tried
	// again with backoff.
	ClassTransient
	// ClassPermanent: it cannot work until something is changed by somebody,
	// and nothing was left behind. Tried again when the pod or an object that
	// the volume refers to changes, and on demand.
	ClassPermanent
	// ClassUnsupported: like ClassPermanent, because this host, platform or
	// plugin cannot do it.
	ClassUnsupported
	// ClassUncertain: nobody can say whether it happened. It is undone like
	// something that did and made again like something that did not. Every
	// error without a class belongs here.
	ClassUncertain
)

// String is the class in one lowerCamelCase word, fit for a label.
func (c Class) String() string {
	switch c {
	case ClassNone:
		return "none"
	case ClassWaiting:
		return "waiting"
	case ClassTransient:
		return "transient"
	case ClassPermanent:
		return "permanent"
	case ClassUnsupported:
		return "unsupported"
	default:
		return "uncertain"
	}
}

// Sentinels for errors.Is, one for each class that an error can be given.
var (
	ErrWaiting     = errors.New("waiting")
	ErrTransient   = errors.New("transient")
	ErrPermanent   = errors.New("permanent")
	ErrUnsupported = errors.New("unsupported")
	ErrUncertain   = errors.New("outcome unknown")
)

// classError gives its cause a class without changing its text.
type classError struct {
	class Class
	cause error
}

func (e *classError) Error() string { return e.cause.Error() }
func (e *classError) Unwrap() error { return e.cause }

// Is matches the sentinel of the class.
func (e *classError) Is(target error) bool { return target == sentinel(e.class) }

func sentinel(c Class) error {
	switch c {
	case ClassWaiting:
		return ErrWaiting
	case ClassTransient:
		return ErrTransient
	case ClassPermanent:
		return ErrPermanent
	case ClassUnsupported:
		return ErrUnsupported
	case ClassUncertain:
		return ErrUncertain
	}
	return nil
}

func withClass(c Class, err error) error {
	if err == nil {
		return nil
	}
	return &classError{c, err}
}

// Permanent marks err as one that trying again will not cure. Nil stays nil,
// here and in Transient, Unsupported and Uncertain.
func Permanent(err error) error { return withClass(ClassPermanent, err) }

// Transient marks err as one that left nothing behind and may not come again.
func Transient(err error) error { return withClass(ClassTransient, err) }

// Unsupported marks err as something that cannot be done here.
func Unsupported(err error) error { return withClass(ClassUnsupported, err) }

// Uncertain marks err as one that does not tell whether anything happened.
func Uncertain(err error) error { return withClass(ClassUncertain, err) }

// Permanentf is Permanent(fmt.Errorf(...)).
func Permanentf(format string, args ...any) error { return Permanent(fmt.Errorf(format, args...)) }

// Transientf is Transient(fmt.Errorf(...)).
func Transientf(format string, args ...any) error { return Transient(fmt.Errorf(format, args...)) }

// Unsupportedf is Unsupported(fmt.Errorf(...)).
func Unsupportedf(format string, args ...any) error {
	return Unsupported(fmt.Errorf(format, args...))
}

// WaitingError says what a volume waits for.
type WaitingError struct {
	// For is the object whose notice ends the wait.
	For Ref
	// Err says why. Nil where there is nothing to add.
	Err error
}

func (e *WaitingError) Error() string {
	if e.Err == nil {
		return "waiting for " + e.For.String()
	}
	return "waiting for " + e.For.String() + ": " + e.Err.Error()
}

func (e *WaitingError) Unwrap() error { return e.Err }

// Is matches [ErrWaiting].
func (e *WaitingError) Is(target error) bool { return target == ErrWaiting }

// WaitFor says that nothing can be done before ref changes. Unlike the
// functions above it returns an error for a nil err too: to wait is never
// success.
func WaitFor(ref Ref, err error) error { return &WaitingError{For: ref, Err: err} }

// WaitsFor lists what err waits for, through wrapping and joining.
func WaitsFor(err error) []Ref {
	var refs []Ref
	walk(err, func(e error) bool {
		w, ok := e.(*WaitingError) //nolint:errorlint // walk visits every layer
		if ok {
			refs = append(refs, w.For)
		}
		return !ok
	})
	return refs
}

// ClassOf returns the class of err. The outermost class of a chain counts; of
// joined errors the highest one. A sentinel that is wrapped or joined side by
// side with other errors speaks for all of them. An error type of a plugin's
// own has the class whose sentinel its Is method matches.
//
// An error that carries no class is uncertain, also when it is a context's:
// whoever knows that nothing happened says so. [mount.ErrUnsupported] counts as
// [ErrUnsupported]: a platform that cannot mount never will. ClassOf decides, not errors.Is:
// the latter also finds the classes of inner layers.
func ClassOf(err error) Class {
	if err == nil {
		return ClassNone
	}
	class := ClassNone
	walk(err, func(e error) bool {
		own := ownClass(e)
		if own == ClassNone && unwraps(e) {
			return true
		}
		if own == ClassNone {
			own = ClassUncertain // a leaf that nobody classified
		}
		class = max(class, own)
		return false
	})
	if class == ClassNone {
		return ClassUncertain
	}
	return class
}

// ownClass is the class that this layer of an error has by itself: it is a
// sentinel, says that it is like one, or wraps one side by side with its cause
// (fmt.Errorf("%w: %w", ErrPermanent, cause)).
func ownClass(err error) Class {
	list := []error{err}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		list = many.Unwrap()
	}
	like, _ := err.(interface{ Is(error) bool })
	for c := ClassUncertain; c > ClassNone; c-- {
		if like != nil && like.Is(sentinel(c)) {
			return c
		}
		for _, e := range list {
			if e == sentinel(c) || c == ClassUnsupported && e == mount.ErrUnsupported { //nolint:errorlint // the sentinel itself
				return c
			}
		}
	}
	return ClassNone
}

// walk visits err and what it wraps, depth first, as long as visit says to go
// deeper.
func walk(err error, visit func(error) bool) {
	if err == nil || !visit(err) {
		return
	}
	switch e := err.(type) { //nolint:errorlint // this is the unwrapping itself
	case interface{ Unwrap() error }:
		walk(e.Unwrap(), visit)
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			walk(inner, visit)
		}
	}
}

func unwraps(err error) bool {
	switch e := err.(type) { //nolint:errorlint // asks for the method itself
	case interface{ Unwrap() error }:
		return e.Unwrap() != nil
	case interface{ Unwrap() []error }:
		return len(e.Unwrap()) > 0
	}
	return false
}

// MissingError says that the embedding program did not supply something that a
// volume needs. Its class is ClassUnsupported.
type MissingError struct {
	// Field is the field of [VolumeHost] that is nil.
	Field string
	// Need says for what it is needed.
	Need string
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("VolumeHost.%s is not set: %s needs it", e.Field, e.Need)
}

// Is matches [ErrUnsupported].
func (e *MissingError) Is(target error) bool { return target == ErrUnsupported }

// FaultFunc is a fail point hook. Code that must survive a crash at a point
// calls it there with the point's name; tests kill the process, block or
// return an error in it. Nil means no faults.
type FaultFunc func(point string) error

// At calls the hook, if there is one.
func (f FaultFunc) At(point string) error {
	if f == nil {
		return nil
	}
	return f(point)
}
