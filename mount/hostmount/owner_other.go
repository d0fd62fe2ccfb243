//go:build !linux

package hostmount

import (
	"context"

	"github.com/volumekit/volumekit/mount"
)

var _ mount.Owner = (*Mounter)(nil)

// SetGroup returns an error that wraps [mount.ErrUnsupported].
func (m *Mounter) SetGroup(context.Context, string, mount.Ownership) error {
	return unsupported("set group")
}
