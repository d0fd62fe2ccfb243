package memory

import (
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/volumekit/volumekit/plugins"
)

// object is what the store keeps.
type object interface {
	runtime.Object
	metav1.Object
}

// kind is what the store knows about a type.
type kind struct {
	name       string
	resource   schema.GroupResource
	namespaced bool
}

// kindOf knows the types that the store keeps. Pods are kept by [Pods].
func kindOf(obj runtime.Object) (kind, error) {
	core := func(name, resource string, namespaced bool) (kind, error) {
		return kind{name, schema.GroupResource{Resource: resource}, namespaced}, nil
	}
	switch obj.(type) {
	case *v1.Secret:
		return core(plugins.KindSecret, "secrets", true)
	case *v1.ConfigMap:
		return core(plugins.KindConfigMap, "configmaps", true)
	case *v1.PersistentVolumeClaim:
		return core(plugins.KindClaim, "persistentvolumeclaims", true)
	case *v1.PersistentVolume:
		return core(plugins.KindPersistentVolume, "persistentvolumes", false)
	case *v1.ServiceAccount:
		return core(plugins.KindServiceAccount, "serviceaccounts", true)
	case *v1.Node:
		return core(plugins.KindNode, "nodes", false)
	case *certificatesv1.ClusterTrustBundle:
		return kind{plugins.KindTrustBundle, schema.GroupResource{Group: certificatesv1.GroupName, Resource: "clustertrustbundles"}, false}, nil
	case *storagev1.CSIDriver:
		return kind{plugins.KindCSIDriver, schema.GroupResource{Group: storagev1.GroupName, Resource: "csidrivers"}, false}, nil
	case *storagev1.VolumeAttachment:
		return kind{plugins.KindAttachment, schema.GroupResource{Group: storagev1.GroupName, Resource: "volumeattachments"}, false}, nil
	}
	return kind{}, plugins.Permanent(fmt.Errorf("objects of type %T are not kept here", obj))
}

// refOf names an object. A namespaced one without namespace is in "default".
func (k kind) refOf(obj metav1.Object) plugins.Ref {
	ref := plugins.Ref{Kind: k.name, Name: obj.GetName()}
	if k.namespaced {
		ref.Namespace = orDefault(obj.GetNamespace())
	}
	return ref
}

func orDefault(namespace string) string {
	if namespace == "" {
		return v1.NamespaceDefault
	}
	return namespace
}

// normal returns a copy of obj as an API server would keep it, all but the
// resource version.
func (k kind) normal(obj runtime.Object) (object, error) {
	var own object
	switch o := obj.DeepCopyObject().(type) {
	case *v1.Secret:
		if len(o.StringData) > 0 && o.Data == nil {
			o.Data = make(map[string][]byte, len(o.StringData))
		}
		for key, value := range o.StringData {
			o.Data[key] = []byte(value)
		}
		o.StringData = nil
		if o.Type == "" {
			o.Type = v1.SecretTypeOpaque
		}
		own = o
	case *v1.PersistentVolume:
		own = plugins.DefaultPV(o)
	case *v1.PersistentVolumeClaim:
		own = plugins.DefaultPVC(o)
	case object:
		own = o
	default:
		return nil, plugins.Permanentf("apply %s: there is no object", k.name)
	}
	if k.namespaced {
		own.SetNamespace(orDefault(own.GetNamespace()))
	} else {
		own.SetNamespace("")
	}
	own.SetManagedFields(nil)
	return own, nil
}

// checkUpdate refuses what an API server refuses: the data of an immutable
// secret or config map never changes, nor can immutable be taken back.
func (k kind) checkUpdate(before, after object) error {
	frozen, same := false, true
	switch b := before.(type) {
	case *v1.Secret:
		a, _ := after.(*v1.Secret)
		frozen = b.Immutable != nil && *b.Immutable
		same = equality.Semantic.DeepEqual(b.Data, a.Data) && equality.Semantic.DeepEqual(b.Immutable, a.Immutable)
	case *v1.ConfigMap:
		a, _ := after.(*v1.ConfigMap)
		frozen = b.Immutable != nil && *b.Immutable
		same = equality.Semantic.DeepEqual(b.Data, a.Data) && equality.Semantic.DeepEqual(b.BinaryData, a.BinaryData) &&
			equality.Semantic.DeepEqual(b.Immutable, a.Immutable)
	}
	if !frozen || same {
		return nil
	}
	return apierrors.NewForbidden(k.resource, after.GetName(), fmt.Errorf("field is immutable when `immutable` is set"))
}
