//go:build !linux

package registration

import (
	"errors"
	"fmt"
)

func openEvents(func()) (events, error) {
	return nil, fmt.Errorf("watching a folder is not supported on this system: %w", errors.ErrUnsupported)
}
