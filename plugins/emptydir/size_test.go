package emptydir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/plugins"
)

// container has a memory limit, or none for "".
func container(limit string) v1.Container {
	if limit == "" {
		return v1.Container{}
	}
	return v1.Container{Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse(limit)}}}
}

func sidecar(limit string) v1.Container {
	c := container(limit)
	always := v1.ContainerRestartPolicyAlways
	c.RestartPolicy = &always
	return c
}

func TestPodMemoryLimit(t *testing.T) {
	list := func(c ...v1.Container) []v1.Container { return c }
	memory := func(n string) v1.ResourceList { return v1.ResourceList{v1.ResourceMemory: resource.MustParse(n)} }
	for name, test := range map[string]struct {
		pod  *v1.Pod
		want int64
	}{
		"no pod":        {nil, 0},
		"no containers": {&v1.Pod{}, 0},
		"sum":           {&v1.Pod{Spec: v1.PodSpec{Containers: list(container("10"), container("20"))}}, 30},
		"one without":   {&v1.Pod{Spec: v1.PodSpec{Containers: list(container("10"), container(""))}}, 0},
		"init without":  {&v1.Pod{Spec: v1.PodSpec{InitContainers: list(container("")), Containers: list(container("10"))}}, 0},
		"init larger":   {&v1.Pod{Spec: v1.PodSpec{InitContainers: list(container("50"), container("7")), Containers: list(container("10"))}}, 50},
		"sidecar adds":  {&v1.Pod{Spec: v1.PodSpec{InitContainers: list(sidecar("5")), Containers: list(container("10"))}}, 15},
		"init beside earlier sidecar": {&v1.Pod{Spec: v1.PodSpec{
			InitContainers: list(sidecar("5"), container("12"), sidecar("1")), Containers: list(container("10")),
		}}, 17},
		"overhead":       {&v1.Pod{Spec: v1.PodSpec{Containers: list(container("10")), Overhead: memory("3")}}, 13},
		"overhead alone": {&v1.Pod{Spec: v1.PodSpec{Containers: list(container("")), Overhead: memory("3")}}, 0},
		"pod level": {&v1.Pod{Spec: v1.PodSpec{
			Containers: list(container("")), Resources: &v1.ResourceRequirements{Limits: memory("99")},
		}}, 99},
		"pod level without limit": {&v1.Pod{Spec: v1.PodSpec{
			Containers: list(container("10")), Resources: &v1.ResourceRequirements{Requests: memory("99")},
		}}, 10},
	} {
		t.Run(name, func(t *testing.T) {
			if got := podMemoryLimit(test.pod); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

func TestPageSize(t *testing.T) {
	asking := func(names ...string) *v1.Pod {
		pod := &v1.Pod{}
		for _, name := range names {
			pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceName("hugepages-" + name): resource.MustParse("4Mi")},
			}})
		}
		return pod
	}
	initAsking := asking()
	initAsking.Spec.InitContainers = asking("2Mi").Spec.Containers
	podAsking := &v1.Pod{Spec: v1.PodSpec{Resources: &v1.ResourceRequirements{
		Limits: v1.ResourceList{"hugepages-1Gi": resource.MustParse("1Gi")},
	}}}
	nothing := asking()
	nothing.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{"hugepages-2Mi": {}}}}}
	for name, test := range map[string]struct {
		medium v1.StorageMedium
		pod    *v1.Pod
		want   string // empty for an error
	}{
		"one size":                    {"HugePages", asking("2Mi", "2Mi"), "2Mi"},
		"two sizes":                   {"HugePages", asking("2Mi", "1Gi"), ""},
		"two sizes, one named":        {"HugePages-1Gi", asking("2Mi", "1Gi"), "1Gi"},
		"same size otherwise written": {"HugePages-1024Mi", asking("1Gi"), "1Gi"},
		"not requested":               {"HugePages-1Gi", asking("2Mi"), ""},
		"none requested":              {"HugePages", asking(), ""},
		"requested zero":              {"HugePages", nothing, ""},
		"no pod":                      {"HugePages", nil, ""},
		"by init container":           {"HugePages", initAsking, "2Mi"},
		"by pod":                      {"HugePages-1Gi", podAsking, "1Gi"},
		"not a size":                  {"HugePages", asking("x"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := parseMedium(test.medium)
			if err != nil {
				t.Fatal(err)
			}
			size, err := pageSize(s, test.pod)
			if test.want == "" {
				if !errors.Is(err, plugins.ErrPermanent) {
					t.Errorf("error %v is not permanent (size %v)", err, &size)
				}
				return
			}
			if err != nil || size.Cmp(resource.MustParse(test.want)) != 0 {
				t.Errorf("got %v, %v, want %s", &size, err, test.want)
			}
		})
	}
}

func TestCheckPages(t *testing.T) {
	dir := t.TempDir()
	write := func(size, file, text string) {
		path := filepath.Join(dir, "hugepages-"+size, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	write("2048kB", "nr_hugepages", "3\n")
	write("2048kB", "nr_overcommit_hugepages", "0\n")
	write("64kB", "nr_hugepages", "0\n")
	write("64kB", "nr_overcommit_hugepages", "0\n")
	write("32kB", "nr_hugepages", "0\n")
	write("32kB", "nr_overcommit_hugepages", "5\n")
	write("16kB", "nr_hugepages", "many\n")
	p := &Plugin{hugePages: dir}
	for size, want := range map[string]string{
		"2Mi": "", "32Ki": "", "64Ki": "none are reserved", "1Gi": "does not have them", "16Ki": "invalid syntax",
	} {
		err := p.checkPages(resource.MustParse(size))
		if want == "" && err != nil {
			t.Errorf("%s: %v", size, err)
		}
		if want != "" && (!errors.Is(err, plugins.ErrUnsupported) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error %v, want an unsupported one with %q", size, err, want)
		}
	}
}

// FuzzParseMedium: a medium is accepted only if it is one of the known words.
func FuzzParseMedium(f *testing.F) {
	for _, s := range []string{"", "Memory", "HugePages", "HugePages-2Mi", "HugePages-0", "HugePages--1", "HugePages-", "memory", "HugePages-1e400", "x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseMedium(v1.StorageMedium(text))
		if err != nil {
			return
		}
		known := text == "" || text == "Memory" || text == "HugePages"
		if !known && (!strings.HasPrefix(text, "HugePages-") || s.pageSize == nil || s.pageSize.Sign() <= 0) {
			t.Errorf("%q is accepted as %+v", text, s)
		}
	})
}

func TestModeBits(t *testing.T) {
	for bits := range uint32(0o2000) {
		if got := modeBits(fileMode(bits)); got != bits {
			t.Fatalf("%#o became %#o", bits, got)
		}
	}
	if got := modeBits(os.ModeSetgid | 0o770); got != 0o2770 {
		t.Errorf("got %#o", got)
	}
}
