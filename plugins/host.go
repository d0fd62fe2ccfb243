package plugins

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/volumekit/volumekit/mount"
)

// VolumeHost is what the embedding program supplies: the union of small
// interfaces, each of which may be nil. A volume that needs a nil one fails
// with a [MissingError] that names the field; nothing else is affected. Use
// the methods, which check for nil, rather than the fields.
//
// Sources return errors for which k8s.io/apimachinery/pkg/api/errors tells
// NotFound apart from the rest, as client-go does. They return objects that
// nobody changes any more. A source that also implements [Notifier] makes
// changes visible at once; one that implements [Runner] is run by the manager.
type VolumeHost struct {
	// Layout names the places on disk. Required.
	Layout Layout
	// Mounter reaches the kernel. Required.
	Mounter mount.Mounter
	// NodeName is the name of this node.
	NodeName types.NodeName
	// Log takes what the library has to say; the zero value discards it.
	Log logr.Logger
	// Clock tells the time; nil means the real one.
	Clock clock.WithTicker
	// Faults is a hook for tests; nil in production.
	Faults FaultFunc
	// RefreshInterval is how often content is read again whose source cannot
	// notify. Zero means DefaultRefreshInterval.
	RefreshInterval time.Duration

	Secrets           SecretSource
	ConfigMaps        ConfigMapSource
	Claims            ClaimSource
	PersistentVolumes PersistentVolumeSource
	Tokens            TokenSource
	TrustBundles      TrustBundleSource
	PodCertificates   PodCertificateSource
	CSIDrivers        CSIDriverSource
	Attachments       AttachmentSource
	Node              NodeSource
	Events            EventRecorder
}

// DefaultRefreshInterval is how often content is read again whose source
// cannot notify: the kubelet's usual period.
const DefaultRefreshInterval = time.Minute

// SecretSource reads secrets.
type SecretSource interface {
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// ConfigMapSource reads config maps.
type ConfigMapSource interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
}

// ClaimSource reads persistent volume claims.
type ClaimSource interface {
	Claim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error)
}

// PersistentVolumeSource reads persistent volumes.
type PersistentVolumeSource interface {
	PersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error)
}

// TokenSource issues service account tokens (the TokenRequest API).
type TokenSource interface {
	Token(ctx context.Context, req TokenRequest) (Token, error)
}

// TokenRequest asks for a token bound to a pod.
type TokenRequest struct {
	Namespace, ServiceAccount string
	// Audiences is empty for the API server's own audience.
	Audiences []string
	// Lifetime is the wished lifetime.
	Lifetime time.Duration
	// Pod is the pod that the token is bound to.
	Pod PodRef
}

// Token is an issued token. It neither prints nor marshals. Package fmt asks no
// Token that lies in an unexported field of another struct or meets a verb that
// go vet refuses: do not print those.
type Token struct {
	// Value is the token itself.
	Value string
	// Issued and Expires limit its life. A zero Issued means unknown.
	Issued, Expires time.Time
}

// String hides the value.
func (t Token) String() string { return "token until " + t.Expires.Format(time.RFC3339) }

// GoString hides the value.
func (t Token) GoString() string { return t.String() }

// Format hides the value from every verb.
func (t Token) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(t.String())) }

// MarshalText hides the value from JSON, YAML and the like.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// TrustBundleSource reads cluster trust bundles.
type TrustBundleSource interface {
	TrustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error)
	// TrustBundles lists those of a signer whose labels match.
	TrustBundles(ctx context.Context, signer string, selector labels.Selector) ([]*certificatesv1.ClusterTrustBundle, error)
}

// PodCertificateSource obtains certificates for pods.
type PodCertificateSource interface {
	PodCertificate(ctx context.Context, req PodCertificateRequest) (PodCertificate, error)
}

// PodCertificateRequest asks for a certificate for a key that the caller holds.
type PodCertificateRequest struct {
	Pod            PodRef
	ServiceAccount string
	SignerName     string
	// PKCS10 is a certificate request in DER that proves possession of the key.
	PKCS10 []byte
	// Lifetime is the longest wished lifetime.
	Lifetime time.Duration
	// Annotations are the unverified user annotations.
	Annotations map[string]string
}

// PodCertificate is an issued chain.
type PodCertificate struct {
	// ChainPEM holds the leaf first.
	ChainPEM []byte
	// NotBefore, RefreshAt and NotAfter limit its life.
	NotBefore, RefreshAt, NotAfter time.Time
}

// CSIDriverSource reads CSIDriver objects.
type CSIDriverSource interface {
	CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
}

// AttachmentSource reads VolumeAttachment objects.
type AttachmentSource interface {
	Attachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error)
}

// NodeSource reads this node's object: labels for node affinity, allocatable
// resources for limits.
type NodeSource interface {
	Node(ctx context.Context) (*v1.Node, error)
}

// EventRecorder takes events about pods and other objects. client-go's
// record.EventRecorder satisfies it as it is. It is called from the midst of
// steps and must not block.
type EventRecorder interface {
	Event(object runtime.Object, eventtype, reason, message string)
}

// given guards against sources that return neither an object nor an error.
func given[T any](object *T, err error) (*T, error) {
	if err == nil && object == nil {
		return nil, fmt.Errorf("the source returned neither a %T nor an error", object)
	}
	return object, err
}

// Secret reads a secret.
func (h *VolumeHost) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	if h.Secrets == nil {
		return nil, &MissingError{"Secrets", "secret " + namespace + "/" + name}
	}
	return given(h.Secrets.Secret(ctx, namespace, name))
}

// ConfigMap reads a config map.
func (h *VolumeHost) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	if h.ConfigMaps == nil {
		return nil, &MissingError{"ConfigMaps", "configMap " + namespace + "/" + name}
	}
	return given(h.ConfigMaps.ConfigMap(ctx, namespace, name))
}

// Claim reads a claim.
func (h *VolumeHost) Claim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	if h.Claims == nil {
		return nil, &MissingError{"Claims", "persistentVolumeClaim " + namespace + "/" + name}
	}
	return given(h.Claims.Claim(ctx, namespace, name))
}

// PersistentVolume reads a persistent volume.
func (h *VolumeHost) PersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	if h.PersistentVolumes == nil {
		return nil, &MissingError{"PersistentVolumes", "persistentVolume " + name}
	}
	return given(h.PersistentVolumes.PersistentVolume(ctx, name))
}

// Token issues a token.
func (h *VolumeHost) Token(ctx context.Context, req TokenRequest) (Token, error) {
	if h.Tokens == nil {
		return Token{}, &MissingError{"Tokens", "a token of service account " + req.Namespace + "/" + req.ServiceAccount}
	}
	return h.Tokens.Token(ctx, req)
}

// TrustBundle reads a cluster trust bundle.
func (h *VolumeHost) TrustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	if h.TrustBundles == nil {
		return nil, &MissingError{"TrustBundles", "clusterTrustBundle " + name}
	}
	return given(h.TrustBundles.TrustBundle(ctx, name))
}

// TrustBundlesOf lists the cluster trust bundles of a signer whose labels
// match.
func (h *VolumeHost) TrustBundlesOf(
	ctx context.Context, signer string, selector labels.Selector,
) ([]*certificatesv1.ClusterTrustBundle, error) {
	if h.TrustBundles == nil {
		return nil, &MissingError{"TrustBundles", "clusterTrustBundles of signer " + signer}
	}
	return h.TrustBundles.TrustBundles(ctx, signer, selector)
}

// PodCertificate obtains a certificate.
func (h *VolumeHost) PodCertificate(ctx context.Context, req PodCertificateRequest) (PodCertificate, error) {
	if h.PodCertificates == nil {
		return PodCertificate{}, &MissingError{"PodCertificates", "a certificate of signer " + req.SignerName}
	}
	return h.PodCertificates.PodCertificate(ctx, req)
}

// CSIDriver reads a CSIDriver object.
func (h *VolumeHost) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	if h.CSIDrivers == nil {
		return nil, &MissingError{"CSIDrivers", "csiDriver " + name}
	}
	return given(h.CSIDrivers.CSIDriver(ctx, name))
}

// Attachment reads a VolumeAttachment object.
func (h *VolumeHost) Attachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	if h.Attachments == nil {
		return nil, &MissingError{"Attachments", "volumeAttachment " + name}
	}
	return given(h.Attachments.Attachment(ctx, name))
}

// NodeObject reads this node's object.
func (h *VolumeHost) NodeObject(ctx context.Context) (*v1.Node, error) {
	if h.Node == nil {
		return nil, &MissingError{"Node", "a limit or label of the node"}
	}
	return given(h.Node.Node(ctx))
}

// Event records an event, if there is a recorder.
func (h *VolumeHost) Event(object runtime.Object, eventtype, reason, message string) {
	if h.Events != nil && object != nil {
		h.Events.Event(object, eventtype, reason, message)
	}
}

// Time returns the clock, the real one if none is set.
func (h *VolumeHost) Time() clock.WithTicker {
	if h.Clock == nil {
		return clock.RealClock{}
	}
	return h.Clock
}

// RefreshAfter is when content from source has to be read again, counted from
// now: never (zero) if the source notifies, else after the refresh interval.
func (h *VolumeHost) RefreshAfter(now time.Time, source any) time.Time {
	if source == nil {
		return time.Time{}
	}
	if _, ok := source.(Notifier); ok {
		return time.Time{}
	}
	return now.Add(h.Interval())
}

// Interval is RefreshInterval with its default.
func (h *VolumeHost) Interval() time.Duration {
	if h.RefreshInterval <= 0 {
		return DefaultRefreshInterval
	}
	return h.RefreshInterval
}

// Notifying says for each kind of object that the host has a source of whether
// that source notifies.
func (h *VolumeHost) Notifying() map[string]bool {
	kinds := map[string]bool{}
	for kind, source := range map[string]any{
		KindSecret: h.Secrets, KindConfigMap: h.ConfigMaps, KindClaim: h.Claims, KindPersistentVolume: h.PersistentVolumes,
		KindTrustBundle: h.TrustBundles, KindCSIDriver: h.CSIDrivers, KindAttachment: h.Attachments, KindNode: h.Node,
	} {
		if source != nil {
			_, kinds[kind] = source.(Notifier)
		}
	}
	return kinds
}

// Sources lists the host's sources that are set, each once, so that the
// manager can subscribe to and run them.
func (h *VolumeHost) Sources() []any {
	var list []any
	for _, s := range []any{
		h.Secrets, h.ConfigMaps, h.Claims, h.PersistentVolumes, h.Tokens, h.TrustBundles,
		h.PodCertificates, h.CSIDrivers, h.Attachments, h.Node,
	} {
		if s != nil && !containsSame(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// containsSame compares by identity and tolerates sources of types that cannot
// be compared.
func containsSame(list []any, s any) (same bool) {
	defer func() {
		if recover() != nil {
			same = false
		}
	}()
	for _, other := range list {
		if other == s {
			return true
		}
	}
	return false
}
