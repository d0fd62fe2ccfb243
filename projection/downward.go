package projection

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/volumekit/volumekit/plugins"
)

func (j *job) downwardAPI(ctx context.Context, s *v1.DownwardAPIVolumeSource) error {
	if err := j.defaults(s.DefaultMode, s.DefaultUser); err != nil {
		return err
	}
	return j.downwardItems(ctx, s.Items)
}

func (j *job) downwardItems(ctx context.Context, items []v1.DownwardAPIVolumeFile) error {
	var node *v1.Node
	if needsNode(items, j.req.Object) {
		j.again(j.host.Node)
		var err error
		if node, err = j.host.NodeObject(ctx); err != nil {
			return failing(fmt.Errorf("%sallocatable resources: %w", j.from, err))
		}
	}
	var errs []error
	for i := range items {
		errs = append(errs, j.downwardItem(&items[i], node))
	}
	return errors.Join(errs...)
}

func (j *job) downwardItem(item *v1.DownwardAPIVolumeFile, node *v1.Node) error {
	source := j.from + "downwardAPI item " + quote(item.Path)
	var text string
	var err error
	switch {
	case item.FieldRef != nil:
		text, err = podField(j.req.Object, item.FieldRef.FieldPath)
	case item.ResourceFieldRef != nil:
		text, err = containerResource(j.req.Object, item.ResourceFieldRef, node)
	}
	if err != nil {
		return plugins.Permanent(fmt.Errorf("%s: %w", source, err))
	}
	mode, err := j.fileMode("mode of "+source, item.Mode, j.mode)
	if err != nil {
		return err
	}
	f := File{Data: []byte(text), Mode: mode, UID: item.User, Source: source}
	if f.UID == nil {
		f.UID = j.user
	}
	return j.tree.Add(item.Path, f)
}

// podField is the value of one field of the pod, of those that volumes may
// show. Fields of spec and status are for environment variables alone: what a
// file shows has to be able to change while the pod runs.
func podField(pod *v1.Pod, field string) (string, error) {
	if name, key, ok := subscript(field); ok {
		switch name {
		case "metadata.labels":
			if faults := validation.IsQualifiedName(key); len(faults) > 0 {
				return "", fmt.Errorf("label key %s: %s", quote(key), strings.Join(faults, "; "))
			}
			return pod.Labels[key], nil
		case "metadata.annotations":
			if faults := validation.IsQualifiedName(strings.ToLower(key)); len(faults) > 0 {
				return "", fmt.Errorf("annotation key %s: %s", quote(key), strings.Join(faults, "; "))
			}
			return pod.Annotations[key], nil
		}
		return "", fmt.Errorf("field %s cannot be shown in a volume", quote(field))
	}
	switch field {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return lines(pod.Labels), nil
	case "metadata.annotations":
		return lines(pod.Annotations), nil
	}
	return "", fmt.Errorf("field %s cannot be shown in a volume", quote(field))
}

// subscript splits metadata.labels['key'].
func subscript(field string) (name, key string, ok bool) {
	name, rest, ok := strings.Cut(field, "['")
	if !ok {
		return "", "", false
	}
	key, ok = strings.CutSuffix(rest, "']")
	return name, key, ok
}

// lines is key="value" for each key, sorted and quoted as Go strings, without
// a newline at the end.
func lines(m map[string]string) string {
	var b strings.Builder
	for i, key := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(key + "=" + strconv.Quote(m[key]))
	}
	return b.String()
}

// findContainer looks at init and normal containers; ephemeral ones have no
// resources.
func findContainer(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// needsNode reports whether an item asks for a limit that the container lacks,
// which means: what the node can give.
func needsNode(items []v1.DownwardAPIVolumeFile, pod *v1.Pod) bool {
	return slices.ContainsFunc(items, func(item v1.DownwardAPIVolumeFile) bool {
		ref := item.ResourceFieldRef
		if item.FieldRef != nil || ref == nil {
			return false
		}
		container := findContainer(pod, ref.ContainerName)
		kind, name, _ := strings.Cut(ref.Resource, ".")
		if container == nil || kind != "limits" || !fromNode(v1.ResourceName(name)) {
			return false
		}
		limit := quantity(container.Resources.Limits, v1.ResourceName(name))
		return limit.IsZero()
	})
}

// fromNode says for which resources a missing limit means the node's.
func fromNode(name v1.ResourceName) bool {
	return name == v1.ResourceCPU || name == v1.ResourceMemory || name == v1.ResourceEphemeralStorage
}

func quantity(list v1.ResourceList, name v1.ResourceName) resource.Quantity { return list[name] }

// containerResource is one limit or request in units of the divisor, rounded
// up.
func containerResource(pod *v1.Pod, ref *v1.ResourceFieldSelector, node *v1.Node) (string, error) {
	container := findContainer(pod, ref.ContainerName)
	if container == nil {
		return "", fmt.Errorf("container %s not found", quote(ref.ContainerName))
	}
	kind, rest, _ := strings.Cut(ref.Resource, ".")
	name := v1.ResourceName(rest)
	if !fromNode(name) && !strings.HasPrefix(rest, v1.ResourceHugePagesPrefix) {
		return "", fmt.Errorf("resource %s cannot be shown in a volume", quote(ref.Resource))
	}
	var value resource.Quantity
	switch kind {
	case "limits":
		value = quantity(container.Resources.Limits, name)
		if value.IsZero() && fromNode(name) && node != nil {
			value = quantity(node.Status.Allocatable, name)
		}
	case "requests":
		asked := false
		if value, asked = container.Resources.Requests[name]; !asked {
			value = quantity(container.Resources.Limits, name) // the API's default for a request
		}
	default:
		return "", fmt.Errorf("resource %s cannot be shown in a volume", quote(ref.Resource))
	}
	return divide(value, ref.Divisor, name == v1.ResourceCPU)
}

// divide rounds up. A zero divisor stands for one.
func divide(value, divisor resource.Quantity, milli bool) (string, error) {
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	of, by := big.NewInt(value.Value()), big.NewInt(divisor.Value())
	if milli { // thousandths of a large value do not fit into 64 bits
		of, by = thousandths(value), thousandths(divisor)
	}
	if by.Sign() <= 0 {
		return "", fmt.Errorf("divisor %s is not positive", divisor.String())
	}
	result, rest := new(big.Int).QuoRem(of, by, new(big.Int))
	if rest.Sign() > 0 {
		result.Add(result, big.NewInt(1))
	}
	return result.String(), nil
}

// thousandths is q times a thousand, rounded up.
func thousandths(q resource.Quantity) *big.Int {
	dec := q.AsDec()
	value, power := new(big.Int).Set(dec.UnscaledBig()), int64(3)-int64(dec.Scale())
	if power >= 0 {
		return value.Mul(value, tenTo(power))
	}
	value, rest := value.QuoRem(value, tenTo(-power), new(big.Int))
	if rest.Sign() > 0 {
		value.Add(value, big.NewInt(1))
	}
	return value
}

func tenTo(power int64) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(power), nil) }
