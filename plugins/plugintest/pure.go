package plugintest

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/plugins"
)

// pureChecks are those of what a plugin says without touching anything.
func pureChecks() []check {
	return []check{
		{name: "name", once: checkName,
			rule: "a plugin's name is qualified with exactly one slash and is always the same"},
		{name: "supports", good: checkSupports,
			rule: "Supports says yes to every volume of the plugin's kind"},
		{name: "foreign", once: checkForeign,
			rule: "Supports says no to every source that is not the plugin's"},
		{name: "sparse", once: checkSparse,
			rule: "no spec or pod, however sparse, makes a method panic, and what SetUp makes of one can be torn down"},
		{name: "identify", good: checkIdentify,
			rule: "Identify is a function of the spec alone, does no I/O and changes nothing"},
		{name: "storage", good: checkStorage,
			rule: "an identity names the storage of what is attached or has a device mount, and promises only parts that the plugin has"},
		{name: "bad", bad: checkBad,
			rule: "a malformed volume is refused: by Identify with a permanent or unsupported error, or else by SetUp, with nothing left behind after TearDown"},
	}
}

func checkName(w *world) {
	if _, err := plugins.NewRegistry(w.plugin); err != nil {
		w.errorf("%v", err)
	}
	first := w.plugin.Name()
	w.restart(false)
	if again := w.plugin.Name(); again != first {
		w.errorf("first %q, then %q", first, again)
	}
}

func checkSupports(w *world, v Volume) {
	if !w.plugin.Supports(v.Spec) {
		w.errorf("Supports says no")
	}
}

// sourceKind tells sources apart: inline or persistent, and which.
type sourceKind struct {
	persistent bool
	kind       string
}

func kindOf(spec *plugins.Spec) sourceKind { return sourceKind{spec.PV != nil, spec.Kind()} }

func checkForeign(w *world) {
	own := map[sourceKind]bool{}
	for _, v := range w.h.Good(w.t, w.host) {
		own[kindOf(v.Spec)] = true
	}
	for _, spec := range emptySpecs() {
		if spec == nil || own[kindOf(spec)] {
			continue
		}
		_ = w.call("Supports", func() error {
			if w.plugin.Supports(spec) {
				w.errorf("Supports says yes to %+v", kindOf(spec))
			}
			return nil
		})
	}
	if w.plugin.Supports(nil) || w.plugin.Supports(&plugins.Spec{}) {
		w.errorf("Supports says yes to a spec without a volume")
	}
}

// emptySpecs has nil, empty and one spec for each source there is, with nothing
// in it.
func emptySpecs() []*plugins.Spec {
	list := []*plugins.Spec{nil, {}, {Volume: &v1.Volume{}}, {PV: &v1.PersistentVolume{}}, {Claim: &v1.PersistentVolumeClaim{}}}
	inline := reflect.TypeFor[v1.VolumeSource]()
	for i := range inline.NumField() {
		v := &v1.Volume{Name: "vol"}
		setEmpty(reflect.ValueOf(&v.VolumeSource).Elem().Field(i))
		list = append(list, &plugins.Spec{Volume: v})
	}
	persistent := reflect.TypeFor[v1.PersistentVolumeSource]()
	for i := range persistent.NumField() {
		pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
		setEmpty(reflect.ValueOf(&pv.Spec.PersistentVolumeSource).Elem().Field(i))
		list = append(list, &plugins.Spec{PV: pv})
	}
	return list
}

func setEmpty(field reflect.Value) {
	if field.Kind() == reflect.Pointer {
		field.Set(reflect.New(field.Type().Elem()))
	}
}

func checkSparse(w *world) {
	for i, spec := range emptySpecs() {
		what := fmt.Sprintf("for sparse spec %d (%s)", i, spec.Kind())
		usable := false
		_ = w.call("Supports or Identify "+what, func() error {
			supported := w.plugin.Supports(spec)
			_, err := w.plugin.Identify(spec)
			usable = supported && err == nil
			return err
		})
		if !usable || plugins.CheckName(spec.Name()) != nil {
			continue
		}
		w.volume = what
		p := w.part(Volume{Spec: spec, Pod: &v1.Pod{}}, 100+i)
		before := w.state()
		_ = w.up(context.Background(), p, false) // may well fail
		w.mustDown(p)
		if d := diff(before, w.state()); d != "" {
			w.errorf("left behind: %s", d)
		}
	}
}

func copySpec(s *plugins.Spec) *plugins.Spec {
	c := *s
	c.Volume, c.PV, c.Claim = s.Volume.DeepCopy(), s.PV.DeepCopy(), s.Claim.DeepCopy()
	return &c
}

func checkIdentify(w *world, v Volume) {
	before, spec, steps := w.state(), copySpec(v.Spec), w.mounts.count()
	var first, second, fresh plugins.Identity
	err := w.call("Identify", func() (err error) {
		if first, err = w.plugin.Identify(v.Spec); err != nil {
			return err
		}
		if second, err = w.plugin.Identify(v.Spec); err != nil {
			return err
		}
		w.restart(true)
		fresh, err = w.plugin.Identify(v.Spec)
		return err
	})
	if err != nil {
		w.fatalf("Identify: %v", err)
	}
	if !reflect.DeepEqual(first, second) || !reflect.DeepEqual(first, fresh) {
		w.errorf("three calls gave %+v, %+v and %+v", first, second, fresh)
	}
	if !reflect.DeepEqual(spec, v.Spec) {
		w.errorf("the spec was changed")
	}
	if d := diff(before, w.state()); d != "" {
		w.errorf("files or mounts were changed: %s", d)
	}
	if w.mounts.count() != steps {
		w.errorf("the mounter was called")
	}
}

func checkStorage(w *world, v Volume) {
	id, err := w.plugin.Identify(v.Spec)
	if err != nil {
		w.fatalf("Identify: %v", err)
	}
	parts := plugins.CapabilitiesOf(w.plugin)
	if (id.Attach || id.Device) && id.Storage == "" {
		w.errorf("Storage is empty")
	}
	if id.Attach && parts.Attacher == nil {
		w.errorf("Attach is true, but the plugin is no Attacher")
	}
	if id.Device && parts.DeviceMounter == nil {
		w.errorf("Device is true, but the plugin is no DeviceMounter")
	}
}

func checkBad(w *world, v Volume) {
	if !w.plugin.Supports(v.Spec) {
		w.errorf("Supports looks at more than the source's type: it says no")
	}
	p := w.part(v, 1)
	before := w.state()
	if err := w.identify(p); err != nil {
		if c := plugins.ClassOf(err); c != plugins.ClassPermanent && c != plugins.ClassUnsupported {
			w.errorf("Identify's error is of class %s: %v", c, err)
		}
		return
	}
	err := w.setUp(context.Background(), p, false)
	if err == nil {
		w.errorf("neither Identify nor SetUp refuses it")
	}
	w.cleanAfter(err, before)
	w.restart(true)
	w.mustDown(p)
	if d := diff(before, w.state()); d != "" {
		w.errorf("left behind: %s", d)
	}
}

// clean reports whether the class of a failed step's error says that nothing
// was left behind.
func clean(err error) bool {
	return err != nil && !errors.Is(err, errHangs) && plugins.ClassOf(err) != plugins.ClassUncertain
}

// cleanAfter holds SetUp to what the class of its error says.
func (w *world) cleanAfter(err error, before tree) {
	if !clean(err) {
		return
	}
	if d := diff(before, w.state()); d != "" {
		w.errorf("SetUp's error is of class %s, which says that nothing was left behind, but: %s (%v)", plugins.ClassOf(err), d, err)
	}
}
