package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/projection"
)

// Keys that are added to the volume context of a publish where the driver asks
// for pod info.
const (
	podNameKey        = "csi.storage.k8s.io/pod.name"
	podNamespaceKey   = "csi.storage.k8s.io/pod.namespace"
	podUIDKey         = "csi.storage.k8s.io/pod.uid"
	serviceAccountKey = "csi.storage.k8s.io/serviceAccount.name"
	ephemeralKey      = "csi.storage.k8s.io/ephemeral"
)

// Annotations in which persistent volumes of 2018 carry their attributes.
var attributeAnnotations = [...]string{
	"csi.volume.kubernetes.io/volume-attributes", "csi.kubernetes.io/volume-attributes",
}

// source is a spec's csi source, of a persistent volume or inline.
type source struct {
	driver, handle, fsType string
	readOnly               bool
	ephemeral              bool
}

// sourceOf reads the csi source of a spec. The handle of an inline volume is
// made from the pod's UID and the volume's name.
func sourceOf(spec *plugins.Spec, pod types.UID) (source, error) {
	switch {
	case spec == nil:
		return source{}, plugins.Permanent(errors.New("there is no spec"))
	case spec.PV != nil && spec.PV.Spec.CSI != nil:
		s := spec.PV.Spec.CSI
		return source{driver: s.Driver, handle: s.VolumeHandle, fsType: s.FSType, readOnly: s.ReadOnly || spec.ReadOnly}, nil
	case spec.PV == nil && spec.Volume != nil && spec.Volume.CSI != nil:
		s := spec.Volume.CSI
		out := source{driver: s.Driver, handle: inlineHandle(pod, spec.Volume.Name), ephemeral: true}
		set(&out.fsType, s.FSType)
		set(&out.readOnly, s.ReadOnly)
		return out, nil
	}
	return source{}, plugins.Permanentf("volume %s has no csi source", spec.Name())
}

// inlineHandle is the volume handle of an inline volume.
func inlineHandle(pod types.UID, volume string) string { return "csi-" + hash(string(pod)+volume) }

// volumeAttributes are those of the spec, which stay as they are: the result is
// the caller's. Attributes in an annotation are those of a persistent volume
// that has none in its source.
func volumeAttributes(spec *plugins.Spec) (map[string]string, error) {
	if spec.PV == nil {
		return maps.Clone(spec.Volume.CSI.VolumeAttributes), nil
	}
	if attributes := spec.PV.Spec.CSI.VolumeAttributes; len(attributes) > 0 {
		return maps.Clone(attributes), nil
	}
	for _, key := range attributeAnnotations {
		text, ok := spec.PV.Annotations[key]
		if !ok {
			continue
		}
		var attributes map[string]string
		if err := json.Unmarshal([]byte(text), &attributes); err != nil {
			return nil, plugins.Permanentf("annotation %s of persistent volume %s is no JSON object of strings", key, spec.PV.Name)
		}
		return attributes, nil
	}
	return nil, nil
}

// podInfo adds what a driver that asks for pod info gets.
func podInfo(to map[string]string, pod *v1.Pod, ephemeral bool) map[string]string {
	if to == nil {
		to = map[string]string{}
	}
	to[podNameKey] = pod.Name
	to[podNamespaceKey] = pod.Namespace
	to[podUIDKey] = string(pod.UID)
	to[serviceAccountKey] = pod.Spec.ServiceAccountName
	to[ephemeralKey] = strconv.FormatBool(ephemeral)
	return to
}

// secretRef names a secret.
type secretRef struct{ namespace, name string }

func (r secretRef) String() string { return r.namespace + "/" + r.name }

// refOf is the reference of a persistent volume's secret, nil if it has none.
func refOf(r *v1.SecretReference) *secretRef {
	if r == nil || r.Name == "" {
		return nil
	}
	return &secretRef{r.Namespace, r.Name}
}

// readSecret reads a secret by reference, each time anew. What is missing is
// waited for.
func readSecret(ctx context.Context, host *plugins.VolumeHost, ref *secretRef) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	object, err := host.Secret(ctx, ref.namespace, ref.name)
	if err != nil {
		return nil, awaited(plugins.Ref{Kind: plugins.KindSecret, Namespace: ref.namespace, Name: ref.name}, err)
	}
	data := make(map[string]string, len(object.Data)+len(object.StringData))
	for key, value := range object.Data {
		if !utf8.Valid(value) {
			return nil, plugins.Permanentf("secret %s cannot go to a CSI driver: what is under key %q is no UTF-8 text", ref, key)
		}
		data[key] = string(value)
	}
	maps.Copy(data, object.StringData) // of objects that no API server has seen
	return data, nil
}

// awaited classifies the failure to read an object: what is not found is waited
// for.
func awaited(ref plugins.Ref, err error) error {
	err = fmt.Errorf("read %s: %w", ref, err)
	if apierrors.IsNotFound(err) {
		return plugins.WaitFor(ref, err)
	}
	return classed(plugins.Transient, err)
}

// mountFlags are the mount options of the persistent volume and the SELinux
// context, the same for stage and publish: drivers may refuse a publish with
// another capability than the stage had. A persistent volume that is read-only
// as a whole has ro after whatever else they say of it; that a pod wants it so
// says the field of the publish.
func mountFlags(spec *plugins.Spec, label string) []string {
	if spec.PV == nil {
		return nil
	}
	readOnly := spec.PV.Spec.CSI.ReadOnly
	flags := slices.Clone(spec.MountOptions())
	says := func(option string) bool { return option == "ro" || option == "rw" }
	if readOnly && slices.ContainsFunc(flags, says) {
		flags = append(slices.DeleteFunc(flags, says), "ro")
	}
	if label != "" {
		flags = append(flags, fmt.Sprintf("context=%q", label))
	}
	return flags
}

// tokens asks for the service account tokens of a publish, and says when they
// have to be asked for again.
type tokens struct {
	cache *projection.TokenCache
}

// encoded is the JSON that drivers get: by audience, token and expiry.
func (t tokens) encoded(ctx context.Context, at plugins.PodVolume, pod *v1.Pod, wishes []TokenWish) (text string, due time.Time, err error) {
	values := make(map[string]tokenValue, len(wishes))
	for i, wish := range wishes {
		req := plugins.TokenRequest{
			Namespace: pod.Namespace, ServiceAccount: serviceAccount(pod), Lifetime: wish.Lifetime,
			Pod: plugins.PodRef{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		}
		if wish.Audience != "" {
			req.Audiences = []string{wish.Audience}
		}
		token, next, err := t.cache.Token(ctx, projection.TokenKey{Volume: at, Source: i}, req)
		if err != nil {
			return "", time.Time{}, classed(plugins.Transient, fmt.Errorf("token for audience %q: %w", wish.Audience, err))
		}
		if due.IsZero() || next.Before(due) {
			due = next
		}
		values[wish.Audience] = tokenValue{Token: token.Value, ExpirationTimestamp: token.Expires.UTC().Format(time.RFC3339)}
	}
	out, err := json.Marshal(values)
	if err != nil {
		return "", time.Time{}, plugins.Permanent(errors.New("encode the tokens"))
	}
	return string(out), due, nil
}

// serviceAccount is the pod's, with the API's default.
func serviceAccount(pod *v1.Pod) string {
	if pod.Spec.ServiceAccountName == "" {
		return plugins.DefaultServiceAccount
	}
	return pod.Spec.ServiceAccountName
}
