package projection

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/plugins"
)

// trustBundle adds the certificates of one bundle, or of all bundles of a
// signer, as one file.
func (j *job) trustBundle(ctx context.Context, s *v1.ClusterTrustBundleProjection) error {
	if (s.Name == nil) == (s.SignerName == nil) {
		return plugins.Permanentf("%sclusterTrustBundle needs either a name or a signerName", j.from)
	}
	j.again(j.host.TrustBundles)
	ref := plugins.Ref{Kind: plugins.KindTrustBundle}
	label := "clusterTrustBundle"
	var bundles []*certificatesv1.ClusterTrustBundle
	var err error
	if s.Name != nil {
		ref.Name, label = *s.Name, label+" "+*s.Name
		var one *certificatesv1.ClusterTrustBundle
		if one, err = j.host.TrustBundle(ctx, *s.Name); err == nil {
			bundles = append(bundles, one)
		}
	} else {
		label += "s of signer " + *s.SignerName
		bundles, err = j.signerBundles(ctx, s)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return j.sourceError(ref, err)
	}
	text := certificates(bundles)
	if len(text) == 0 && !isTrue(s.Optional) {
		if err == nil {
			err = errors.New("no certificates")
		}
		return plugins.WaitFor(ref, fmt.Errorf("%s%s: %w", j.from, label, err))
	}
	mode, uid := j.personal(s.User)
	return j.tree.Add(s.Path, File{Data: text, Mode: mode, UID: uid, Source: j.from + label})
}

// signerBundles lists a signer's bundles. No selector selects nothing, an
// empty one everything.
func (j *job) signerBundles(ctx context.Context, s *v1.ClusterTrustBundleProjection) ([]*certificatesv1.ClusterTrustBundle, error) {
	if s.LabelSelector == nil {
		return nil, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(s.LabelSelector)
	if err != nil {
		return nil, plugins.Permanent(err)
	}
	if len(selector.String()) > maximumSelection {
		return nil, plugins.Permanentf("label selector is longer than %d bytes", maximumSelection)
	}
	return j.host.TrustBundlesOf(ctx, *s.SignerName, selector)
}

// certificates joins the certificates of bundles: each once, ordered by their
// bytes, so that the same trust gives the same file. Whatever is not a
// certificate is left out, keys above all.
func certificates(bundles []*certificatesv1.ClusterTrustBundle) []byte {
	var found [][]byte
	for _, bundle := range bundles {
		for block, rest := pem.Decode([]byte(bundle.Spec.TrustBundle)); block != nil; block, rest = pem.Decode(rest) {
			if block.Type != "CERTIFICATE" {
				continue
			}
			if _, err := x509.ParseCertificate(block.Bytes); err == nil {
				found = append(found, block.Bytes)
			}
		}
	}
	slices.SortFunc(found, bytes.Compare)
	found = slices.CompactFunc(found, bytes.Equal)
	text := make([]byte, 0, len(found)*2048)
	for _, der := range found {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return text
}
