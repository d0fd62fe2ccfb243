package plugins

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Errors of a registry.
var (
	// ErrNoPlugin says that no plugin provides a volume or has a name.
	ErrNoPlugin = errors.New("no plugin")
	// ErrAmbiguous says that more than one plugin wants a volume.
	ErrAmbiguous = errors.New("more than one plugin")
)

// Registry is a fixed set of plugins. It is filled by [NewRegistry] alone and
// safe for concurrent use.
type Registry struct {
	byName map[string]VolumePlugin
	names  []string
}

// NewRegistry returns a registry of the given plugins. All faults are
// reported together: a nil plugin, a name that [CheckPlugin] refuses, a name
// given twice.
func NewRegistry(list ...VolumePlugin) (*Registry, error) {
	r := &Registry{byName: make(map[string]VolumePlugin, len(list))}
	var faults []error
	for i, p := range list {
		if p == nil {
			faults = append(faults, fmt.Errorf("plugin %d is nil", i))
			continue
		}
		name := p.Name()
		switch bad := CheckPlugin(name); {
		case bad != nil:
			faults = append(faults, bad)
		case r.byName[name] != nil:
			faults = append(faults, fmt.Errorf("plugin %s is registered twice", name))
		default:
			r.byName[name] = p
			r.names = append(r.names, name)
		}
	}
	slices.Sort(r.names)
	if err := errors.Join(faults...); err != nil {
		return nil, Permanent(err)
	}
	return r, nil
}

// Names lists the plugins, sorted.
func (r *Registry) Names() []string { return slices.Clone(r.names) }

// ByName returns a plugin. The error wraps [ErrNoPlugin] and is of class
// ClassUnsupported.
func (r *Registry) ByName(name string) (VolumePlugin, error) {
	if p := r.byName[name]; p != nil {
		return p, nil
	}
	return nil, Unsupported(fmt.Errorf("%w named %s (registered: %s)", ErrNoPlugin, name, strings.Join(r.names, ", ")))
}

// ForSpec returns the one plugin that supports spec. The error wraps
// [ErrNoPlugin] or [ErrAmbiguous].
func (r *Registry) ForSpec(spec *Spec) (VolumePlugin, error) {
	if spec == nil || (spec.Volume == nil && spec.PV == nil) {
		return nil, Permanent(errors.New("the volume is empty"))
	}
	var found []string
	for _, name := range r.names {
		if r.byName[name].Supports(spec) {
			found = append(found, name)
		}
	}
	switch len(found) {
	case 0:
		return nil, Unsupported(fmt.Errorf("%w for volume %s (%s; registered: %s)",
			ErrNoPlugin, spec.Name(), spec.Kind(), strings.Join(r.names, ", ")))
	case 1:
		return r.byName[found[0]], nil
	}
	return nil, Permanent(fmt.Errorf("%w for volume %s (%s): %s", ErrAmbiguous, spec.Name(), spec.Kind(), strings.Join(found, ", ")))
}
