package memory

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/plugins"
)

// Config configures a [Store]. The zero value works.
type Config struct {
	// NodeName says which of the nodes applied is this one. Empty means the
	// only one there is.
	NodeName types.NodeName
	// Clock dates tokens and certificates; nil means the real one.
	Clock clock.WithTicker
	// Tokens issues service account tokens; nil means that the store does, see
	// [Store.Token].
	Tokens plugins.TokenSource
	// PodCertificates issues pod certificates; nil means that the store does,
	// see [Store.PodCertificate].
	PodCertificates plugins.PodCertificateSource
}

// FaultFunc is asked before each read, and before [Store.CreateAttachment] and
// [Store.DeleteAttachment]. verb is "get", "list", "delete" or, for tokens and
// certificates too, "create"; ref names the object (for a token the service
// account, for a list by signer the kind alone, for a certificate the signer).
// A non-nil error is returned in place of the object. It may block, then it has
// to watch ctx.
type FaultFunc func(ctx context.Context, verb string, ref plugins.Ref) error

// Store is a small API server in memory. It implements every source of
// [plugins.VolumeHost] and [plugins.Notifier]. It is safe for concurrent use.
//
// Objects are copied on their way in. What is read is shared and must not be
// changed.
type Store struct {
	notices
	config Config
	pods   *Pods
	fault  atomic.Pointer[FaultFunc]
	ca     authority

	mu      sync.RWMutex
	version uint64
	objects map[plugins.Ref]object
}

var _ interface {
	plugins.SecretSource
	plugins.ConfigMapSource
	plugins.ClaimSource
	plugins.PersistentVolumeSource
	plugins.TokenSource
	plugins.TrustBundleSource
	plugins.PodCertificateSource
	plugins.CSIDriverSource
	plugins.AttachmentSource
	plugins.NodeSource
	plugins.Notifier
} = (*Store)(nil)

// NewStore returns an empty store with the zero [Config].
func NewStore() *Store { return New(Config{}) }

// New returns an empty store.
func New(config Config) *Store {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	return &Store{config: config, pods: NewPods(), objects: make(map[plugins.Ref]object)}
}

// Pods is the pod source that Apply and Delete feed with pods.
func (s *Store) Pods() *Pods { return s.pods }

// Host returns a host whose sources are all this store. Events and whatever
// else differs can be set afterwards.
func (s *Store) Host(layout plugins.Layout, mounter mount.Mounter) *plugins.VolumeHost {
	return &plugins.VolumeHost{
		Layout: layout, Mounter: mounter, NodeName: s.config.NodeName, Clock: s.config.Clock,
		Secrets: s, ConfigMaps: s, Claims: s, PersistentVolumes: s, Tokens: s, TrustBundles: s,
		PodCertificates: s, CSIDrivers: s, Attachments: s, Node: s,
	}
}

// SetFault makes reads go through fault, for tests; nil ends that. Reads under
// way are not affected.
func (s *Store) SetFault(fault FaultFunc) { s.fault.Store(&fault) }

// Apply creates the object or replaces it, status included, and tells the
// subscribers before it returns. Kinds: Secret, ConfigMap, ServiceAccount,
// PersistentVolumeClaim, PersistentVolume, Node, ClusterTrustBundle, CSIDriver,
// VolumeAttachment, and Pod, which goes to [Store.Pods].
//
// As in an API server, the resource version grows with each change, an
// unchanged object is no change, stringData of a secret becomes data, defaults
// are filled in, and immutable secrets and config maps stay as they are (the
// error is Forbidden). An object without UID keeps the one it has or gets one
// that follows from its kind, namespace and name, the same in every process;
// one that comes with another UID is another object and replaces the old one.
// An object that has no name or is of another kind is refused with an error of
// class ClassPermanent.
func (s *Store) Apply(obj runtime.Object) error {
	if pod, ok := obj.(*v1.Pod); ok {
		return s.applyPod(pod)
	}
	k, err := kindOf(obj)
	if err != nil {
		return err
	}
	own, err := k.normal(obj)
	if err != nil {
		return err
	}
	ref := k.refOf(own)
	if ref.Name == "" {
		return plugins.Permanentf("apply %s: the object has no name", k.name)
	}
	changed, err := s.put(k, ref, own)
	if err != nil {
		return fmt.Errorf("apply %s: %w", ref, err)
	}
	if changed {
		s.tell(ref)
	}
	return nil
}

// put stores own, which belongs to the store from now on.
func (s *Store) put(k kind, ref plugins.Ref, own object) (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.enter(k, ref, own)
}

// enter is put for callers that hold mu.
func (s *Store) enter(k kind, ref plugins.Ref, own object) (changed bool, err error) {
	before, exists := s.objects[ref]
	if own.GetUID() == "" && exists {
		own.SetUID(before.GetUID())
	}
	if own.GetUID() == "" {
		own.SetUID(uidOf(ref))
	}
	if exists && own.GetUID() == before.GetUID() {
		if own.GetCreationTimestamp().Time.IsZero() {
			own.SetCreationTimestamp(before.GetCreationTimestamp())
		}
		own.SetResourceVersion(before.GetResourceVersion())
		if equality.Semantic.DeepEqual(before, own) {
			return false, nil
		}
		if err := k.checkUpdate(before, own); err != nil {
			return false, err
		}
	}
	if own.GetCreationTimestamp().Time.IsZero() {
		own.SetCreationTimestamp(metav1.NewTime(s.config.Clock.Now()).Rfc3339Copy())
	}
	s.version++
	own.SetResourceVersion(strconv.FormatUint(s.version, 10))
	s.objects[ref] = own
	return true, nil
}

// uidOf makes a UID out of a name.
func uidOf(ref plugins.Ref) types.UID {
	h := sha256.Sum256([]byte(ref.Kind + "/" + ref.Namespace + "/" + ref.Name))
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16]))
}

func (s *Store) applyPod(pod *v1.Pod) error {
	if pod != nil && pod.UID == "" && pod.Name != "" {
		pod = pod.DeepCopy()
		pod.UID = podUID(pod)
	}
	return s.pods.Set(pod)
}

func podUID(pod *v1.Pod) types.UID {
	return uidOf(plugins.Ref{Kind: "Pod", Namespace: orDefault(pod.Namespace), Name: pod.Name})
}

// Delete takes the object of the same kind, namespace and name away at once,
// whatever its finalizers, and tells the subscribers before it returns. The
// error is NotFound if there is none. A pod is removed from [Store.Pods], which
// says that none of its containers runs any more.
func (s *Store) Delete(obj runtime.Object) error {
	if pod, ok := obj.(*v1.Pod); ok {
		return s.deletePod(pod)
	}
	k, err := kindOf(obj)
	if err != nil {
		return err
	}
	named, ok := obj.(object)
	if !ok || reflect.ValueOf(obj).IsNil() {
		return plugins.Permanentf("delete %s: there is no object", k.name)
	}
	ref := k.refOf(named)
	s.mu.Lock()
	_, exists := s.objects[ref]
	delete(s.objects, ref)
	s.mu.Unlock()
	if !exists {
		return apierrors.NewNotFound(k.resource, ref.Name)
	}
	s.tell(ref)
	return nil
}

func (s *Store) deletePod(pod *v1.Pod) error {
	if pod == nil {
		return plugins.Permanentf("the pod is nil")
	}
	if !s.pods.Remove(cmp.Or(pod.UID, podUID(pod))) {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, pod.Name)
	}
	return nil
}

// before runs what precedes each read.
func (s *Store) before(ctx context.Context, verb string, ref plugins.Ref) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s %s: %w", verb, ref, err)
	}
	if fault := s.fault.Load(); fault != nil && *fault != nil {
		return (*fault)(ctx, verb, ref)
	}
	return nil
}

// get reads one object. The type parameter fits the kind.
func get[T object](ctx context.Context, s *Store, namespace, name string) (T, error) {
	var none T
	k, err := kindOf(none)
	if err != nil {
		return none, err
	}
	ref := plugins.Ref{Kind: k.name, Namespace: namespace, Name: name}
	if err := s.before(ctx, "get", ref); err != nil {
		return none, err
	}
	s.mu.RLock()
	found, ok := s.objects[ref].(T)
	s.mu.RUnlock()
	if !ok {
		return none, apierrors.NewNotFound(k.resource, name)
	}
	return found, nil
}

// Secret implements [plugins.SecretSource].
func (s *Store) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return get[*v1.Secret](ctx, s, namespace, name)
}

// ConfigMap implements [plugins.ConfigMapSource].
func (s *Store) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	return get[*v1.ConfigMap](ctx, s, namespace, name)
}

// Claim implements [plugins.ClaimSource].
func (s *Store) Claim(ctx context.Context, namespace, name string) (*v1.PersistentVolumeClaim, error) {
	return get[*v1.PersistentVolumeClaim](ctx, s, namespace, name)
}

// PersistentVolume implements [plugins.PersistentVolumeSource].
func (s *Store) PersistentVolume(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	return get[*v1.PersistentVolume](ctx, s, "", name)
}

// TrustBundle implements [plugins.TrustBundleSource].
func (s *Store) TrustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	return get[*certificatesv1.ClusterTrustBundle](ctx, s, "", name)
}

// TrustBundles implements [plugins.TrustBundleSource]; sorted by name. A nil
// selector matches all.
func (s *Store) TrustBundles(
	ctx context.Context, signer string, selector labels.Selector,
) ([]*certificatesv1.ClusterTrustBundle, error) {
	if err := s.before(ctx, "list", plugins.Ref{Kind: plugins.KindTrustBundle}); err != nil {
		return nil, err
	}
	if selector == nil {
		selector = labels.Everything()
	}
	var list []*certificatesv1.ClusterTrustBundle
	s.mu.RLock()
	for _, obj := range s.objects {
		b, ok := obj.(*certificatesv1.ClusterTrustBundle)
		if ok && b.Spec.SignerName == signer && selector.Matches(labels.Set(b.Labels)) {
			list = append(list, b)
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(list, func(a, b *certificatesv1.ClusterTrustBundle) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// CSIDriver implements [plugins.CSIDriverSource].
func (s *Store) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	return get[*storagev1.CSIDriver](ctx, s, "", name)
}

// Attachment implements [plugins.AttachmentSource].
func (s *Store) Attachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	return get[*storagev1.VolumeAttachment](ctx, s, "", name)
}

// Node implements [plugins.NodeSource]. If the config names this node and it
// was not applied, it is a bare one of that name: a program without an API
// server need not invent a Node before a volume asks for its limits.
func (s *Store) Node(ctx context.Context) (*v1.Node, error) {
	name := string(s.config.NodeName)
	if name == "" {
		name = s.onlyNode()
	}
	if s.config.NodeName == "" || s.has(plugins.Ref{Kind: plugins.KindNode, Name: name}) {
		return get[*v1.Node](ctx, s, "", name)
	}
	if err := s.before(ctx, "get", plugins.Ref{Kind: plugins.KindNode, Name: name}); err != nil {
		return nil, err
	}
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}}}, nil
}

func (s *Store) has(ref plugins.Ref) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.objects[ref]
	return ok
}

// onlyNode is the name of the node if there is exactly one.
func (s *Store) onlyNode() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	name := ""
	for ref := range s.objects {
		if ref.Kind != plugins.KindNode {
			continue
		}
		if name != "" {
			return ""
		}
		name = ref.Name
	}
	return name
}
