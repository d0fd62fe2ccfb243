package csi

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/volumekit/volumekit/plugins"
)

// namedAttacher fails with its name.
type namedAttacher string

func (n namedAttacher) Attach(context.Context, Attachable) (Attached, error) {
	return Attached{}, errors.New("attach by " + string(n))
}

func (n namedAttacher) Detach(context.Context, Attachable) error {
	return errors.New("detach by " + string(n))
}

func TestNoAttach(t *testing.T) {
	t.Parallel()
	got, err := NoAttach().Attach(t.Context(), Attachable{Driver: "d", Handle: "h"})
	if err != nil || got.PublishContext != nil || got.Undo != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if err := NoAttach().Detach(t.Context(), Attachable{Driver: "d", Handle: "h"}); err != nil {
		t.Error(err)
	}
}

func TestByDriver(t *testing.T) {
	t.Parallel()
	attachers := map[string]Attacher{"one": namedAttacher("first"), "two": namedAttacher("second"), "nil": nil}
	choice := ByDriver(attachers, namedAttacher("fallback"))
	attachers["one"] = namedAttacher("changed")
	for driver, want := range map[string]string{"one": "first", "two": "second", "nil": "fallback", "three": "fallback"} {
		v := Attachable{Driver: driver}
		if _, err := choice.Attach(t.Context(), v); err == nil || err.Error() != "attach by "+want {
			t.Errorf("%s: %v", driver, err)
		}
		if err := choice.Detach(t.Context(), v); err == nil || err.Error() != "detach by "+want {
			t.Errorf("%s: %v", driver, err)
		}
	}
	none := ByDriver(nil, nil)
	_, attach := none.Attach(t.Context(), Attachable{Driver: "three"})
	for _, err := range []error{attach, none.Detach(t.Context(), Attachable{Driver: "three"})} {
		if plugins.ClassOf(err) != plugins.ClassUnsupported || !strings.Contains(err.Error(), "three") {
			t.Error(err)
		}
	}
}
