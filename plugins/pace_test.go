package plugins

import (
	"errors"
	"fmt"
	"testing"
)

func TestPace(t *testing.T) {
	cause := errors.New("cause")
	for _, c := range []struct {
		name string
		err  error
		want Pace
	}{
		{"nil", nil, PaceGrowing},
		{"none", cause, PaceGrowing},
		{"given", Paced(PaceSlow, cause), PaceSlow},
		{"nil given", Paced(PaceSlow, nil), PaceGrowing},
		{"wrapped", fmt.Errorf("stage: %w", Transient(Paced(PaceFlat, cause))), PaceFlat},
		{"outermost", Paced(PaceFlat, fmt.Errorf("x: %w", Paced(PaceSlow, cause))), PaceFlat},
		{"joined", errors.Join(cause, Paced(PaceSlow, cause)), PaceSlow},
	} {
		if got := PaceOf(c.err); got != c.want {
			t.Errorf("%s: pace %d, want %d", c.name, got, c.want)
		}
	}
	if err := Paced(PaceSlow, Permanent(cause)); ClassOf(err) != ClassPermanent || err.Error() != "cause" {
		t.Errorf("a pace changed the error: %v, %v", err, ClassOf(err))
	}
}
