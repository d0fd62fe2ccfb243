package csi

import (
	"context"
	"maps"

	"github.com/volumekit/volumekit/plugins"
)

// noAttach is the attacher of [NoAttach].
type noAttach struct{}

// NoAttach attaches nothing: for drivers whose volumes every node reaches as
// they are, although they have no CSIDriver object that says so.
func NoAttach() Attacher { return noAttach{} }

// Attach implements [Attacher].
func (noAttach) Attach(context.Context, Attachable) (Attached, error) { return Attached{}, nil }

// Detach implements [Attacher].
func (noAttach) Detach(context.Context, Attachable) error { return nil }

// byDriver is the attacher of [ByDriver].
type byDriver struct {
	of       map[string]Attacher
	fallback Attacher
}

// ByDriver attaches the volumes of each driver in its own way, and those of
// drivers that the map does not name by fallback. Without a fallback those are
// refused. What was attached in one way is detached by whoever is named for the
// driver then: change it for a driver only while none of its volumes is
// attached.
func ByDriver(attachers map[string]Attacher, fallback Attacher) Attacher {
	return &byDriver{of: maps.Clone(attachers), fallback: fallback}
}

func (b *byDriver) pick(driver string) (Attacher, error) {
	if a := b.of[driver]; a != nil {
		return a, nil
	}
	if b.fallback != nil {
		return b.fallback, nil
	}
	return nil, plugins.Unsupportedf("nothing here attaches volumes of CSI driver %s", driver)
}

// Attach implements [Attacher].
func (b *byDriver) Attach(ctx context.Context, v Attachable) (Attached, error) {
	a, err := b.pick(v.Driver)
	if err != nil {
		return Attached{}, err
	}
	return a.Attach(ctx, v)
}

// Detach implements [Attacher].
func (b *byDriver) Detach(ctx context.Context, v Attachable) error {
	a, err := b.pick(v.Driver)
	if err != nil {
		return err
	}
	return a.Detach(ctx, v)
}
