package plugins

// Pace says how soon a step that failed is worth another try. It survives
// wrapping as the class of an error does, and means nothing for classes that
// are not tried again by time.
type Pace int

const (
	// PaceGrowing is the usual backoff: each pause is longer than the last.
	PaceGrowing Pace = iota
	// PaceFlat is the first pause of the backoff each time: somebody is at it
	// already, and asking again is what ends it.
	PaceFlat
	// PaceSlow is the longest pause of the backoff from the first failure on:
	// it will most likely fail again until something changes, and a change
	// brings the next try at once.
	PaceSlow
)

type pacedError struct {
	pace  Pace
	cause error
}

func (e *pacedError) Error() string { return e.cause.Error() }
func (e *pacedError) Unwrap() error { return e.cause }

// Paced gives err a pace. Nil stays nil.
func Paced(p Pace, err error) error {
	if err == nil {
		return nil
	}
	return &pacedError{p, err}
}

// PaceOf returns the pace of err: the outermost of a chain, of joined errors
// the one of the first that has any.
func PaceOf(err error) Pace {
	pace, found := PaceGrowing, false
	walk(err, func(e error) bool {
		if p, ok := e.(*pacedError); ok && !found { //nolint:errorlint // walk visits every layer
			pace, found = p.pace, true
		}
		return !found
	})
	return pace
}
