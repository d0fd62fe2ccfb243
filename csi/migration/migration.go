package migration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"unicode"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
)

// Policy says when volumes of an in-tree kind are translated.
type Policy uint8

const (
	// Always translates, whether or not the driver is there. A volume whose
	// driver is missing waits for it at its first step. It is what a kubelet does.
	Always Policy = iota
	// WhenInstalled translates once the driver is registered on this node;
	// until then the volume waits for it.
	WhenInstalled
	// Never leaves the volumes as they are, for an in-tree plugin of the
	// embedding program's own or to be refused.
	Never
)

// String is the policy in one lowerCamelCase word.
func (p Policy) String() string {
	switch p {
	case Always:
		return "always"
	case WhenInstalled:
		return "whenInstalled"
	case Never:
		return "never"
	}
	return fmt.Sprintf("policy %d", uint8(p))
}

// Drivers knows the CSI drivers of this node. It must be safe for concurrent
// use.
type Drivers interface {
	// Installed reports whether the driver is registered now. It does no I/O.
	// A change is told as a notice about the [plugins.Ref] of kind
	// KindDriverSocket with the driver's name, after Installed has seen it.
	Installed(driver string) bool
}

// Config says what is translated. The zero value translates everything.
type Config struct {
	// Policy is for the drivers that PolicyOf does not name.
	Policy Policy
	// PolicyOf has a policy for each driver that needs its own, by the driver's
	// name ("ebs.csi.aws.com").
	PolicyOf map[string]Policy
	// Drivers is required where a policy is WhenInstalled.
	Drivers Drivers
	// Keep, if set, is asked first about each volume that has a driver,
	// whatever the policy: true leaves the volume as it is, since something else
	// provides it. The answer should be the same for the life of a volume: if it
	// is not, the volume moves to another plugin while in use. It must not change
	// the spec.
	Keep func(*plugins.Spec) bool
	// Log gets the library's remarks. The zero value discards them.
	Log logr.Logger
}

// Translator is a [plugins.Translator]. It has no state that changes and is
// safe for concurrent use.
type Translator struct {
	policies map[string]Policy // one for each driver
	drivers  Drivers
	keep     func(*plugins.Spec) bool
	log      logr.Logger
	kinds    []kind
}

var _ plugins.Translator = (*Translator)(nil)

// New returns a translator. All faults of the configuration are reported
// together, in an error of class permanent: a policy that does not exist, or for a
// driver that replaced nothing, or WhenInstalled without Drivers.
func New(config Config) (*Translator, error) {
	t := &Translator{
		policies: map[string]Policy{}, drivers: config.Drivers, keep: config.Keep,
		log: config.Log, kinds: allKinds(),
	}
	for i := range t.kinds {
		t.policies[t.kinds[i].driver()] = config.Policy
	}
	var faults []error
	for _, driver := range slices.Sorted(maps.Keys(config.PolicyOf)) {
		if _, known := t.policies[driver]; !known {
			faults = append(faults, fmt.Errorf("policy for CSI driver %q, which replaced no in-tree plugin", driver))
			continue
		}
		t.policies[driver] = config.PolicyOf[driver]
	}
	for _, driver := range slices.Sorted(maps.Keys(t.policies)) {
		switch policy := t.policies[driver]; {
		case policy > Never:
			faults = append(faults, fmt.Errorf("CSI driver %s: there is no %v", driver, policy))
		case policy == WhenInstalled && t.drivers == nil:
			faults = append(faults, fmt.Errorf("CSI driver %s: policy %v needs Config.Drivers", driver, policy))
		}
	}
	if len(faults) > 0 {
		return nil, plugins.Permanent(errors.Join(faults...))
	}
	return t, nil
}

// Translate returns the spec of the CSI driver that replaced spec's kind, or
// spec itself if there is none or the policy says so. It asks nobody and never
// waits. The result shares the claim and the pod's volume with spec, neither of
// which is changed.
//
// Errors are permanent, and about this volume alone: a source that is incomplete or
// malformed, a failure of the library, which may be a panic, an inline volume
// without its pod. The exception is a driver that is waited for.
func (t *Translator) Translate(_ context.Context, spec *plugins.Spec, pod *v1.Pod) (*plugins.Spec, error) {
	k, err := t.kindOf(spec)
	if err != nil {
		return nil, refused(spec, err)
	}
	if k == nil || t.keep != nil && t.keep(spec) {
		return spec, nil
	}
	switch driver := k.driver(); t.policies[driver] {
	case Never:
		return spec, nil
	case WhenInstalled:
		if !t.drivers.Installed(driver) {
			return nil, plugins.WaitFor(plugins.Ref{Kind: plugins.KindDriverSocket, Name: driver}, fmt.Errorf(
				"%s volume %q: CSI driver %s is not registered on this node, and there is no in-tree plugin %s",
				spec.Kind(), spec.Name(), driver, k.plugin()))
		}
	}
	out := *spec
	out.Migrated = true
	if spec.PV != nil {
		out.PV, err = t.translatePV(k, spec.PV)
	} else {
		out.PV, err = t.translateInline(k, spec.Volume, pod)
	}
	if err != nil {
		return nil, refused(spec, err)
	}
	if spec.PV == nil {
		out.ReadOnly = spec.ReadOnly || out.PV.Spec.CSI.ReadOnly
	}
	return &out, nil
}

// kindOf finds the kind of a spec, nil if it is none of ours.
func (t *Translator) kindOf(spec *plugins.Spec) (*kind, error) {
	var found []*kind
	for i := range t.kinds {
		k := &t.kinds[i]
		switch {
		case spec == nil:
		case spec.PV != nil && k.lib.CanSupport(spec.PV), spec.PV == nil && k.lib.CanSupportInline(spec.Volume):
			found = append(found, k)
		}
	}
	switch {
	case len(found) == 0:
		return nil, nil
	case len(found) > 1:
		return nil, fmt.Errorf("it has more than one source: %s and %s", found[0].plugin(), found[1].plugin())
	case spec.PV != nil && spec.PV.Spec.CSI != nil, spec.PV == nil && spec.Volume.CSI != nil:
		return nil, fmt.Errorf("it has more than one source: %s and csi", found[0].plugin())
	}
	return found[0], nil
}

func (t *Translator) translatePV(k *kind, pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	if k.pvID(pv) == "" {
		return nil, errors.New("its source does not say which storage is meant")
	}
	out, err := call(k, func() (*v1.PersistentVolume, error) {
		return k.lib.TranslateInTreePVToCSI(t.log, pv.DeepCopy())
	})
	if err == nil && k.pvReadOnly != nil {
		out.Spec.CSI.ReadOnly = k.pvReadOnly(pv)
	}
	return out, err
}

// translateInline also checks what other volumes of the pod say of the same
// storage.
func (t *Translator) translateInline(k *kind, volume *v1.Volume, pod *v1.Pod) (*v1.PersistentVolume, error) {
	if pod == nil {
		return nil, errors.New("it cannot be translated without its pod")
	}
	pv, err := t.inlinePV(k, volume, pod.Namespace)
	if err != nil {
		return nil, err
	}
	for i := range pod.Spec.Volumes {
		other := &pod.Spec.Volumes[i]
		if other.Name == volume.Name || !k.lib.CanSupportInline(other) {
			continue
		}
		same, err := t.inlinePV(k, other, pod.Namespace)
		if err == nil && same.Name == pv.Name && !agree(same.Spec.CSI, pv.Spec.CSI) {
			return nil, fmt.Errorf("volume %q of the pod describes the same storage in another way", other.Name)
		}
	}
	return pv, nil
}

// agree reports whether both say the same, but for readOnly.
func agree(a, b *v1.CSIPersistentVolumeSource) bool {
	x := *a
	x.ReadOnly = b.ReadOnly
	return reflect.DeepEqual(&x, b)
}

// inlinePV makes a persistent volume of a pod's volume.
func (t *Translator) inlinePV(k *kind, volume *v1.Volume, namespace string) (*v1.PersistentVolume, error) {
	if k.inlineID(volume) == "" {
		return nil, errors.New("its source does not say which storage is meant")
	}
	pv, err := call(k, func() (*v1.PersistentVolume, error) {
		return k.lib.TranslateInTreeInlineVolumeToCSI(t.log, volume.DeepCopy(), namespace)
	})
	if err != nil {
		return nil, err
	}
	pv.Name = folderName(k.driver(), pv.Name)
	if k.inlineReadOnly != nil {
		pv.Spec.CSI.ReadOnly = k.inlineReadOnly(volume)
	}
	if pv.Spec.VolumeMode == nil {
		mode := v1.PersistentVolumeFilesystem
		pv.Spec.VolumeMode = &mode
	}
	return pv, nil
}

// call calls the library, which may panic, and checks what comes out.
func call(k *kind, translate func() (*v1.PersistentVolume, error)) (pv *v1.PersistentVolume, err error) {
	defer func() {
		if p := recover(); p != nil {
			pv, err = nil, fmt.Errorf("the translation library panicked: %s", panicText(p))
		}
	}()
	pv, err = translate()
	switch {
	case err != nil:
		return nil, errors.New(printable(err.Error()))
	case pv == nil || pv.Spec.CSI == nil || pv.Spec.CSI.Driver != k.driver() || pv.Spec.CSI.VolumeHandle == "":
		return nil, errors.New("the translation library gave no volume of CSI driver " + k.driver())
	}
	return pv, nil
}

// panicText is the text of a run-time error, and for other values, which may
// hold anything, their type.
func panicText(p any) string {
	if err, ok := p.(runtime.Error); ok {
		return printable(err.Error())
	}
	return fmt.Sprintf("a value of type %T", p)
}

// printable makes one line of bounded length of a text that holds ids from
// objects.
func printable(text string) string {
	const most = 1024
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || unicode.IsControl(r) {
			return '?'
		}
		return r
	}, text)
}

// refused names the volume in a final error.
func refused(spec *plugins.Spec, err error) error {
	return plugins.Permanentf("%s volume %q: %w", spec.Kind(), spec.Name(), err)
}

// MigratedPlugins is the value of the annotation
// storage.alpha.kubernetes.io/migrated-plugins (v1.MigratedPluginsAnnotationKey)
// of this node's CSINode object: the in-tree plugins whose volumes are
// translated now, sorted, separated by commas. With policy WhenInstalled it
// changes as drivers come and go. It does not know of Config.Keep: for an
// in-tree plugin that keeps its whole kind, set policy Never. Where it is
// empty, a kubelet removes the annotation.
func (t *Translator) MigratedPlugins() string {
	var names []string
	for i := range t.kinds {
		driver := t.kinds[i].driver()
		policy := t.policies[driver]
		if policy == Always || policy == WhenInstalled && t.drivers.Installed(driver) {
			names = append(names, t.kinds[i].plugin())
		}
	}
	return strings.Join(names, ",")
}
