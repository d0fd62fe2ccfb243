package migration

import (
	"errors"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"go.uber.org/goleak"

	"github.com/volumekit/volumekit/plugins"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The seven drivers.
const (
	gce       = "pd.csi.storage.gke.io"
	ebs       = "ebs.csi.aws.com"
	cinder    = "cinder.csi.openstack.org"
	azureDisk = "disk.csi.azure.com"
	azureFile = "file.csi.azure.com"
	vsphere   = "csi.vsphere.vmware.com"
	portworx  = "pxd.portworx.com"
)

func parse[T any](t testing.TB, text string) *T {
	t.Helper()
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return object
}

// inline is a spec of a volume "v" with the source, in a pod of namespace ns.
func inline(t testing.TB, source string) (*plugins.Spec, *v1.Pod) {
	t.Helper()
	return podSpec(t, "v", "{name: v, "+source+"}")
}

// podSpec is the spec of the named one of the volumes, and the pod with all of
// them.
func podSpec(t testing.TB, name string, volumes ...string) (*plugins.Spec, *v1.Pod) {
	t.Helper()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
	spec := &plugins.Spec{}
	for _, text := range volumes {
		v := parse[v1.Volume](t, text)
		pod.Spec.Volumes = append(pod.Spec.Volumes, *v)
		if v.Name == name {
			spec.Volume = v
		}
	}
	return spec, pod
}

func translator(t testing.TB, config Config) *Translator {
	t.Helper()
	tr, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// installed is a set of drivers.
type installed struct {
	mu  sync.Mutex
	set map[string]bool
}

func (i *installed) Installed(driver string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.set[driver]
}

func (i *installed) add(driver string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.set == nil {
		i.set = map[string]bool{}
	}
	i.set[driver] = true
}

var errCause = errors.New("the cause")
