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
		o.data = make(map[string][]byte, len(found.Data)+len(found.BinaryData))
		maps.Copy(o.data, found.BinaryData)
		for key, text := range found.Data {
			o.data[key] = []byte(text)
		}
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
		o.data = found.Data
		if len(found.StringData) > 0 { // the API server merges it in; objects made by hand keep it
			o.data = maps.Clone(found.Data)
			if o.data == nil {
				o.data = map[string][]byte{}
			}
			for key, text := range found.StringData {
				o.data[key] = []byte(text)
			}
		}
	}
	return j.keys(o, items, err)
}

// object is a config map or a secret.
type object struct {
	label    string
	ref      plugins.Ref
	optional bool
	data     map[string][]byte
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
		for _, key := range slices.Sorted(maps.Keys(o.data)) {
			errs = append(errs, j.tree.Add(key, File{Data: o.data[key], Mode: j.mode, UID: j.user, Source: j.from + o.key(key)}))
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
	data, there := o.data[item.Key]
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
