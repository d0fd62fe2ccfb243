// Package hostpath provides the volumes of kind hostPath, inline and by
// PersistentVolume: a file or folder of the host, as it is. Nothing is mounted
// and nothing is put into the pod's folder; what the types ...OrCreate made is
// never removed.
//
// # What the path means
//
// The path is opened once, symbolic links are followed by that, and all that
// follows is about what was opened: its resolved path is what the [Policy]
// judges, its type is what is checked, and the resolved path is what SetUp
// returns. The kubelet returns the path as it is written, so that a link which
// is turned between the check and the start of the container leads elsewhere.
// The price: a link that is turned on purpose is seen by SetUp, not by a mere
// restart of a container.
//
// A host path gives the pod whatever the host has there. Use it for what is
// part of the node itself; for data use a volume kind with a life of its own.
package hostpath

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// Name is the plugin's name, the kubelet's for the same kind.
const Name = "kubernetes.io/host-path"

// Options of the plugin. The zero value allows every path.
type Options struct {
	// Policy is asked before anything is made or handed out. Nil allows all.
	Policy Policy
}

// Policy decides whether a pod may use a host path. An error refuses, and is a
// permanent one for the volume. It may be called from several goroutines and
// must return when ctx ends.
type Policy func(ctx context.Context, r Request) error

// Request is what a [Policy] judges.
type Request struct {
	// Pod is the pod that asks. It must not be changed.
	Pod *v1.Pod
	// Volume names the volume.
	Volume plugins.PodVolume
	// Type is the wished type.
	Type v1.HostPathType
	// Path is the path as it is written.
	Path string
	// Resolved is the path free of symbolic links. Judge this one.
	Resolved string
	// Exists is false if nothing is there yet; then Resolved is where it will
	// be made, by this plugin or, for the type "", by the container runtime.
	Exists bool
	// ReadOnly is true if containers get it read-only in any case.
	ReadOnly bool
}

// Under is the policy that allows what lies at or below one of the folders,
// which have to be absolute and free of symbolic links.
func Under(folders ...string) Policy {
	allowed := slices.Clone(folders)
	return func(_ context.Context, r Request) error {
		for _, folder := range allowed {
			if mount.Inside(folder, r.Resolved) {
				return nil
			}
		}
		return fmt.Errorf("%s does not lie in an allowed folder", r.Resolved)
	}
}

// Plugin provides hostPath volumes. It keeps no state and is safe for
// concurrent use.
type Plugin struct {
	policy Policy
	faults plugins.FaultFunc
}

// New returns the plugin. Of host it uses Faults alone.
func New(host *plugins.VolumeHost, o Options) *Plugin {
	return &Plugin{policy: o.Policy, faults: host.Faults}
}

// Name is [Name].
func (*Plugin) Name() string { return Name }

// Supports says yes to hostPath sources, inline and in a PersistentVolume.
func (*Plugin) Supports(spec *plugins.Spec) bool { return sourceOf(spec) != nil }

func sourceOf(spec *plugins.Spec) *v1.HostPathVolumeSource {
	switch {
	case spec == nil:
		return nil
	case spec.PV != nil:
		return spec.PV.Spec.HostPath
	case spec.Volume != nil:
		return spec.Volume.HostPath
	}
	return nil
}

// Identify checks the path (absolute, no element "..") and the type. Every
// error is permanent.
func (p *Plugin) Identify(spec *plugins.Spec) (plugins.Identity, error) {
	w, err := parse(spec)
	if err != nil {
		return plugins.Identity{}, plugins.Permanent(err)
	}
	return plugins.Identity{Storage: w.path, Parallel: true}, nil
}

// wish is a checked source.
type wish struct {
	path string
	typ  v1.HostPathType
	kind
	readOnly bool
}

func parse(spec *plugins.Spec) (wish, error) {
	source := sourceOf(spec)
	if source == nil {
		return wish{}, errors.New("the volume is not a hostPath")
	}
	if err := plugins.CheckName(spec.Name()); err != nil {
		return wish{}, err
	}
	if spec.Mode() != v1.PersistentVolumeFilesystem {
		return wish{}, fmt.Errorf("a hostPath cannot have volumeMode %s", spec.Mode())
	}
	if err := checkPath(source.Path); err != nil {
		return wish{}, err
	}
	w := wish{path: source.Path, readOnly: spec.ReadOnly}
	if source.Type != nil {
		w.typ = *source.Type
	}
	var known bool
	if w.kind, known = kindOf(w.typ); !known {
		return wish{}, fmt.Errorf("hostPath.type %q is unknown", w.typ)
	}
	return w, nil
}

// checkPath accepts an absolute path without an element "..".
func checkPath(p string) error {
	switch {
	case strings.ContainsRune(p, 0):
		return fmt.Errorf("hostPath.path %q holds a NUL", p)
	case !path.IsAbs(filepath.ToSlash(p)) && !filepath.IsAbs(p):
		return fmt.Errorf("hostPath.path %q is not absolute", p)
	case slices.Contains(strings.Split(filepath.ToSlash(p), "/"), ".."):
		return fmt.Errorf("hostPath.path %q holds an element \"..\"", p)
	}
	return nil
}

// SetUp resolves and checks the path, and makes what a type ...OrCreate asks
// for: a folder with mode 0755 and its parents, or an empty file with mode
// 0644 in a folder that exists. What is missing or of another type is a
// transient error: it may appear. So is a path that cannot be examined; it is
// never taken for a missing one.
func (p *Plugin) SetUp(ctx context.Context, req plugins.SetUpRequest) (plugins.SetUpResult, error) {
	if ctx.Err() != nil {
		return plugins.SetUpResult{}, plugins.Transient(context.Cause(ctx))
	}
	w, err := parse(req.Spec)
	if err != nil {
		return plugins.SetUpResult{}, plugins.Permanent(err)
	}
	w.readOnly = w.readOnly || req.Params.ReadOnly
	found, err := resolve(w.path)
	if err != nil {
		return plugins.SetUpResult{}, plugins.Transient(err)
	}
	defer func() { _ = found.Close() }()
	if err := p.judge(ctx, w, req, found); err != nil {
		return plugins.SetUpResult{}, err
	}
	if err := p.faults.At(FaultResolved); err != nil {
		return plugins.SetUpResult{}, plugins.Transient(err)
	}
	made, err := w.provide(found)
	if err != nil {
		return plugins.SetUpResult{}, plugins.Transient(err)
	}
	found = made
	if err := w.check(found); err != nil {
		return plugins.SetUpResult{}, plugins.Transient(err)
	}
	return plugins.SetUpResult{
		Path:       found.full(),
		Attributes: plugins.Attributes{ReadOnly: w.readOnly},
	}, nil
}

// FaultResolved is the fail point between looking at a path and making or
// handing out what is there.
const FaultResolved = "hostpath/resolved"

func (p *Plugin) judge(ctx context.Context, w wish, req plugins.SetUpRequest, found place) error {
	if p.policy == nil {
		return nil
	}
	err := p.policy(ctx, Request{
		Pod: req.Object, Volume: req.Volume, Type: w.typ, Path: w.path,
		Resolved: found.full(), Exists: len(found.missing) == 0, ReadOnly: w.readOnly,
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return plugins.Transient(err)
	}
	return plugins.Permanent(fmt.Errorf("hostPath %s is refused: %w", w.path, err))
}

// TearDown has nothing to undo.
func (*Plugin) TearDown(context.Context, plugins.TearDownRequest) error { return nil }
