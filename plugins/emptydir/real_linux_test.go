package emptydir_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/mount/mounttest"
	"github.com/volumekit/volumekit/plugins"
)

func TestRealMemory(t *testing.T) {
	n := realNode(t)
	req := n.request(specOf(&v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: quantity("16Mi")}), podWith())
	group := int64(os.Getegid())
	req.Params.FSGroup = &group
	n.setUp(req)
	var st unix.Statfs_t
	must(t, unix.Statfs(req.Path, &st))
	if st.Type != unix.TMPFS_MAGIC || st.Blocks*uint64(st.Bsize) != 16<<20 {
		t.Errorf("type %#x, size %d", st.Type, st.Blocks*uint64(st.Bsize))
	}
	if got, want := modeOf(t, req.Path), 0o777|fs.ModeSetgid|fs.ModeSticky; got != want {
		t.Errorf("mode %v, want %v", got, want)
	}
	file := filepath.Join(req.Path, "file")
	must(t, os.WriteFile(file, []byte("live"), 0o600))
	req.Again = true
	n.setUp(req)
	if data, err := os.ReadFile(file); err != nil || string(data) != "live" {
		t.Errorf("content %q, %v", data, err)
	}
	if got := len(n.mounted()); got != 1 {
		t.Errorf("%d mounts", got)
	}
	if err := os.WriteFile(file, make([]byte, 17<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("writing more than the limit: %v", err)
	}
	n.tearDown(req)
}

func hugePod() *v1.Pod {
	pod := podWith()
	pod.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{
		Requests: v1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")},
	}}}
	return pod
}

func TestHugePagesAreMounted(t *testing.T) {
	n := fakeNode(t)
	sys := filepath.Join(t.TempDir(), "hugepages-2048kB")
	must(t, os.Mkdir(sys, 0o755))
	for _, name := range []string{"nr_hugepages", "nr_overcommit_hugepages"} {
		must(t, os.WriteFile(filepath.Join(sys, name), []byte("1\n"), 0o600))
	}
	n.plugin.SetHugePages(filepath.Dir(sys))
	req := n.request(specOf(&v1.EmptyDirVolumeSource{Medium: v1.StorageMediumHugePages}), hugePod())
	group := int64(os.Getegid())
	req.Params.FSGroup = &group
	if result := n.setUp(req); !result.Mounted {
		t.Errorf("result %+v", result)
	}
	calls := n.fake.Calls(mounttest.OpMount)
	if len(calls) != 1 || calls[0].Mount.FSType != "hugetlbfs" {
		t.Fatalf("calls %v", calls)
	}
	data := calls[0].Mount.Options.Data
	if last := data[len(data)-1]; last != "pagesize=2097152" {
		t.Errorf("options %q", data)
	}
	if got := modeOf(t, req.Path); got != 0o777|fs.ModeSetgid { // the bit that hugetlbfs does not take from mode=
		t.Errorf("mode %v", got)
	}
	n.tearDown(req)
}

// TestRealHugePages: where there are no pages, or this user may not mount
// them, the error is one that can be shown as "skipped, because".
func TestRealHugePages(t *testing.T) {
	n := realNode(t)
	req := n.request(specOf(&v1.EmptyDirVolumeSource{Medium: "HugePages-2Mi"}), hugePod())
	result, err := n.plugin.SetUp(t.Context(), req)
	if err != nil {
		if !errors.Is(err, plugins.ErrUnsupported) {
			t.Errorf("error %v is not unsupported", err)
		}
		if _, err := os.Lstat(req.Path); !os.IsNotExist(err) {
			t.Errorf("the folder was left: %v", err)
		}
		return
	}
	var st unix.Statfs_t
	must(t, unix.Statfs(req.Path, &st))
	if !result.Mounted || st.Type != unix.HUGETLBFS_MAGIC || st.Bsize != 2<<20 {
		t.Errorf("result %+v, type %#x, page %d", result, st.Type, st.Bsize)
	}
	n.tearDown(req)
}
