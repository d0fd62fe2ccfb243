package projection

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/volumekit/volumekit/plugins"
)

// Defaults of the API that objects made by hand lack.
const (
	defaultMode      = 0o644
	defaultLifetime  = 3600 // seconds, of a service account token
	minimumLifetime  = 600
	defaultAccount   = "default"
	maximumSelection = 100 << 10 // bytes of a label selector's text
)

// Rendered is the content of a volume, ready to be written.
type Rendered struct {
	Tree *Tree
	// RefreshAt is when it has to be rendered again although no source said
	// that something changed: a token comes of age, or a source cannot notify.
	// The zero time means never.
	RefreshAt time.Time
}

// Renderer makes the content of configMap, secret, downwardAPI and projected
// volumes from what the host's sources say. It touches no disk. It is safe for
// concurrent use.
type Renderer struct {
	host   *plugins.VolumeHost
	tokens *TokenCache
}

// NewRenderer returns a renderer over the sources of host.
func NewRenderer(host *plugins.VolumeHost) *Renderer {
	return &Renderer{host: host, tokens: NewTokenCache(host)}
}

// Forget drops what is kept for a volume that is torn down: its tokens.
func (r *Renderer) Forget(volume plugins.PodVolume) { r.tokens.Forget(volume) }

// Render makes the content of the volume in req. Of req it reads Target, Spec,
// Object and Params. An object that is missing and not optional gives a
// waiting error that names it; a faulty pod gives a permanent one; what the
// host lacks, or volumekit cannot do, an unsupported one; anything else that a
// source says is transient. The faults of all sources come joined. It blocks
// as long as the sources do.
func (r *Renderer) Render(ctx context.Context, req plugins.SetUpRequest) (Rendered, error) {
	switch {
	case req.Spec == nil || req.Spec.Volume == nil:
		return Rendered{}, plugins.Permanentf("%s is not an inline volume", req.Volume.Name)
	case req.Object == nil:
		return Rendered{}, plugins.Permanentf("the pod of volume %s is not known", req.Volume.Name)
	}
	j := &job{Renderer: r, req: req, tree: &Tree{}, now: r.host.Time().Now()}
	source := req.Spec.Volume.VolumeSource
	var err error
	switch {
	case source.ConfigMap != nil:
		err = j.configMap(ctx, source.ConfigMap)
	case source.Secret != nil:
		err = j.secret(ctx, source.Secret)
	case source.DownwardAPI != nil:
		err = j.downwardAPI(ctx, source.DownwardAPI)
	case source.Projected != nil:
		err = j.projected(ctx, source.Projected)
	default:
		err = plugins.Permanentf("%s has no content that can be rendered", req.Spec.Kind())
	}
	if err == nil && req.Params.FSGroup != nil {
		err = j.tree.setGroup(*req.Params.FSGroup)
	}
	if err == nil {
		err = addMountPoints(j.tree, req.Spec.Volume.Name, req.Object)
	}
	if err != nil {
		return Rendered{}, err
	}
	return Rendered{Tree: j.tree, RefreshAt: j.refresh}, nil
}

// job is the rendering of one volume.
type job struct {
	*Renderer
	req     plugins.SetUpRequest
	tree    *Tree
	now     time.Time
	refresh time.Time

	mode uint32 // of files that name none
	user *int64 // of files that name none
	from string // "" or which of a projected volume's sources
}

// defaults takes over a volume's defaultMode and defaultUser.
func (j *job) defaults(mode *int32, user *int64) error {
	checked, err := j.fileMode("defaultMode", mode, defaultMode)
	j.mode, j.user = checked, user
	return err
}

// fileMode checks a mode from the API, and gives missing for a nil one.
func (j *job) fileMode(field string, mode *int32, missing uint32) (uint32, error) {
	switch {
	case mode == nil:
		return missing, nil
	case *mode < 0 || *mode > 0o777:
		return 0, plugins.Permanentf("%s%s %d is not within 0 and 0777", j.from, field, *mode)
	}
	return uint32(*mode), nil
}

// again says that the content depends on source, and so how long it holds.
func (j *job) again(source any) { j.before(j.host.RefreshAfter(j.now, source)) }

// before brings the refresh forward to at, if that is earlier.
func (j *job) before(at time.Time) { j.refresh = earlier(j.refresh, at) }

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// personal is the mode and owner of what is made for the pod alone: tokens,
// trust bundles. Where an owner results, nobody else may read it; where a
// group does, setGroup lets it in.
func (j *job) personal(user *int64) (mode uint32, uid *int64) {
	for _, id := range []*int64{user, j.user, j.req.Params.FSUser} {
		if uid == nil {
			uid = id
		}
	}
	if uid != nil || j.req.Params.FSGroup != nil {
		return 0o600, uid
	}
	return j.mode, nil
}

// projected renders each source in turn into one tree.
func (j *job) projected(ctx context.Context, source *v1.ProjectedVolumeSource) error {
	// Projected sources have their default user at the volume.
	if err := j.defaults(source.DefaultMode, source.DefaultUser); err != nil {
		return err
	}
	var errs []error
	for i := range source.Sources {
		j.from = fmt.Sprintf("source %d: ", i)
		errs = append(errs, j.projection(ctx, i, &source.Sources[i]))
	}
	return errors.Join(errs...)
}

// projection renders one source. One that is not known is refused: a pod must
// not start without a file that somebody asked for.
func (j *job) projection(ctx context.Context, index int, s *v1.VolumeProjection) error {
	kinds := 0
	for _, set := range []bool{
		s.ConfigMap != nil, s.Secret != nil, s.DownwardAPI != nil,
		s.ServiceAccountToken != nil, s.ClusterTrustBundle != nil, s.PodCertificate != nil,
	} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds == 0:
		return plugins.Unsupportedf("%sa kind of source that is not known here", j.from)
	case kinds > 1:
		return plugins.Permanentf("%smore than one kind of source", j.from)
	case s.ConfigMap != nil:
		return j.configMapKeys(ctx, s.ConfigMap.Name, s.ConfigMap.Items, isTrue(s.ConfigMap.Optional))
	case s.Secret != nil:
		return j.secretKeys(ctx, s.Secret.Name, s.Secret.Items, isTrue(s.Secret.Optional))
	case s.DownwardAPI != nil:
		return j.downwardItems(ctx, s.DownwardAPI.Items)
	case s.ServiceAccountToken != nil:
		return j.token(ctx, index, s.ServiceAccountToken)
	case s.ClusterTrustBundle != nil:
		return j.trustBundle(ctx, s.ClusterTrustBundle)
	default:
		return plugins.Unsupportedf("%spodCertificate is not supported", j.from)
	}
}

// sourceError gives an error of a source its class: what is absent is awaited.
func (j *job) sourceError(ref plugins.Ref, err error) error {
	err = fmt.Errorf("%s%w", j.from, err)
	if apierrors.IsNotFound(err) {
		return plugins.WaitFor(ref, err)
	}
	return failing(err)
}

// failing makes an error transient that does not say otherwise.
func failing(err error) error {
	if plugins.ClassOf(err) == plugins.ClassUncertain {
		return plugins.Transient(err)
	}
	return err
}

func isTrue(b *bool) bool { return b != nil && *b }

// References lists the objects that the content of a volume depends on. A
// trust bundle reference without a name stands for all bundles: which ones a
// signer has can change.
func (r *Renderer) References(spec *plugins.Spec, pod *v1.Pod) []plugins.Ref {
	if spec == nil || spec.Volume == nil || pod == nil {
		return nil
	}
	var refs []plugins.Ref
	add := func(kind, namespace, name string) {
		refs = append(refs, plugins.Ref{Kind: kind, Namespace: namespace, Name: name})
	}
	downward := func(items []v1.DownwardAPIVolumeFile) {
		if needsNode(items, pod) {
			add(plugins.KindNode, "", string(r.host.NodeName))
		}
	}
	source := spec.Volume.VolumeSource
	switch {
	case source.ConfigMap != nil:
		add(plugins.KindConfigMap, pod.Namespace, source.ConfigMap.Name)
	case source.Secret != nil:
		add(plugins.KindSecret, pod.Namespace, source.Secret.SecretName)
	case source.DownwardAPI != nil:
		downward(source.DownwardAPI.Items)
	case source.Projected != nil:
		for _, s := range source.Projected.Sources {
			switch {
			case s.ConfigMap != nil:
				add(plugins.KindConfigMap, pod.Namespace, s.ConfigMap.Name)
			case s.Secret != nil:
				add(plugins.KindSecret, pod.Namespace, s.Secret.Name)
			case s.DownwardAPI != nil:
				downward(s.DownwardAPI.Items)
			case s.ClusterTrustBundle != nil && s.ClusterTrustBundle.Name != nil:
				add(plugins.KindTrustBundle, "", *s.ClusterTrustBundle.Name)
			case s.ClusterTrustBundle != nil:
				add(plugins.KindTrustBundle, "", "")
			}
		}
	}
	return refs
}
