package memory

import (
	"context"
	"errors"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/volumekit/volumekit/plugins"
)

func TestUpdateClaimStatus(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := NewStore()
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"}, Spec: v1.PersistentVolumeClaimSpec{VolumeName: "v"}}
	if err := s.Apply(claim); err != nil {
		t.Fatal(err)
	}
	var notices int
	defer s.Subscribe(func(plugins.Ref) { notices++ })()
	before, _ := s.Claim(ctx, "ns", "c")
	grow := func(c *v1.PersistentVolumeClaim) error {
		c.Spec.VolumeName = "other"
		c.Status.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
		return nil
	}
	for range 2 {
		if err := s.UpdateClaimStatus(ctx, "ns", "c", grow); err != nil {
			t.Fatal(err)
		}
	}
	after, _ := s.Claim(ctx, "ns", "c")
	if after.Spec.VolumeName != "v" || after.Status.Capacity.Storage().String() != "1Gi" || after.ResourceVersion == before.ResourceVersion {
		t.Errorf("after: %+v", after)
	}
	if notices != 1 || len(before.Status.Capacity) != 0 {
		t.Errorf("%d notices, what was read before: %+v", notices, before.Status)
	}
	own := errors.New("own")
	if err := s.UpdateClaimStatus(ctx, "ns", "c", func(*v1.PersistentVolumeClaim) error { return own }); !errors.Is(err, own) {
		t.Error(err)
	}
	if err := s.UpdateClaimStatus(ctx, "ns", "none", grow); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	if err := s.UpdateClaimStatus(ctx, "ns", "c", func(c *v1.PersistentVolumeClaim) error { return s.Delete(c) }); !apierrors.IsNotFound(err) {
		t.Errorf("deleted meanwhile: %v", err)
	}
}

func TestUpdatesOfAClaimLoseNothing(t *testing.T) {
	t.Parallel()
	s := NewStore()
	if err := s.Apply(&v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}}); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 25 {
				err := s.UpdateClaimStatus(context.Background(), "default", "c", func(c *v1.PersistentVolumeClaim) error {
					size := c.Status.Capacity.Storage().DeepCopy()
					size.Add(resource.MustParse("1"))
					c.Status.Capacity = v1.ResourceList{v1.ResourceStorage: size}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	c, _ := s.Claim(context.Background(), "default", "c")
	if got := c.Status.Capacity.Storage().Value(); got != 200 {
		t.Errorf("%d of 200 updates are there", got)
	}
}
