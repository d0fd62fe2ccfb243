package projection

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/volumekit/volumekit/plugins"
)

func (j *job) configMap(ctx context.Context, s *v1.ConfigMapVolumeSource) error {
	if err := j.defaults(s.DefaultMode, s.DefaultUser); err != nil {
		return err
	}
	return j.configMapKeys(ctx, s.Name, s.Items, isTrue(s.Optional))
}

func (j *job) secret(ctx context.Context, s *v1.SecretVolumeSource) error {
	if err := j.defaults(s.DefaultMode, s.DefaultUser); err != nil {
		return err
	}
	return j.secretKeys(ctx, s.SecretName, s.Items, isTrue(s.Optional))
}

func (j *job) configMapKeys(ctx context.Context, name string, items []v1.KeyToPath, optional bool) error {
	j.again(j.host.ConfigMaps)
	o := object{
		label: "configMap", optional: optional,
		ref: plugins.Ref{Kind: plugins.KindConfigMap, Namespace: j.req.Object.Namespace, Name: name},
	}
	found, err := j.host.ConfigMap(ctx, o.ref.Namespace, name)
	if err == nil {
		o.data, o.text = found.BinaryData, found.Data
	}
	return j.keys(o, items, err)
}

func (j *job) secretKeys(ctx context.Context, name string, items []v1.KeyToPath, optional bool) error {
	j.again(j.host.Secrets)
	o := object{
		label: "secret", optional: optional,
		ref: plugins.Ref{Kind: plugins.KindSecret, Namespace: j.req.Object.Namespace, Name: name},
	}
	found, err := j.host.Secret(ctx, o.ref.Namespace, name)
	if err == nil {
		// The API server merges StringData in; objects made by hand keep it.
		o.data, o.text = found.Data, found.StringData
	}
	return j.keys(o, items, err)
}

// object is a config map or a secret.
type object struct {
	label    string
	ref      plugins.Ref
	optional bool
	data     map[string][]byte
	text     map[string]string // outweighs data
}

// get returns the content of a key.
func (o object) get(key string) ([]byte, bool) {
	if text, there := o.text[key]; there {
		return []byte(text), true
	}
	data, there := o.data[key]
	return data, there
}

// keys lists all keys, sorted.
func (o object) keys() []string {
	keys := make([]string, 0, len(o.text)+len(o.data))
	keys = slices.AppendSeq(slices.AppendSeq(keys, maps.Keys(o.text)), maps.Keys(o.data))
	slices.Sort(keys)
	return slices.Compact(keys)
}

func (o object) key(key string) string {
	return o.label + " " + o.ref.Namespace + "/" + o.ref.Name + " key " + quote(key)
}

// keys adds an object's keys: all of them, or those that items list, each at
// its path. err is what reading the object gave.
func (j *job) keys(o object, items []v1.KeyToPath, err error) error {
	if apierrors.IsNotFound(err) && o.optional {
		return nil
	}
	if err != nil {
		return j.sourceError(o.ref, err)
	}
	if len(items) == 0 {
		var errs []error
		for _, key := range o.keys() {
			data, _ := o.get(key)
			errs = append(errs, j.tree.Add(key, File{Data: data, Mode: j.mode, UID: j.user, Source: j.from + o.key(key)}))
		}
		return errors.Join(errs...)
	}
	var errs []error
	for _, item := range items {
		errs = append(errs, j.item(o, item))
	}
	return errors.Join(errs...)
}

func (j *job) item(o object, item v1.KeyToPath) error {
	data, there := o.get(item.Key)
	if !there {
		if o.optional {
			return nil
		}
		return plugins.WaitFor(o.ref, fmt.Errorf("%s%s does not exist", j.from, o.key(item.Key)))
	}
	mode, err := j.fileMode("mode of "+o.key(item.Key), item.Mode, j.mode)
	if err != nil {
		return err
	}
	f := File{Data: data, Mode: mode, UID: item.User, Source: j.from + o.key(item.Key)}
	if f.UID == nil {
		f.UID = j.user
	}
	return j.tree.Add(item.Path, f)
}
