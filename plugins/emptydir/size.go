package emptydir

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/volumekit/volumekit/plugins"
)

// memorySize is the smallest of the volume's limit, the pod's memory limit and
// what the node can give to pods; zero where none of them is known.
func (p *Plugin) memorySize(ctx context.Context, s source, pod *v1.Pod) (int64, error) {
	node, err := p.allocatable(ctx)
	if err != nil {
		return 0, err
	}
	size := s.limit
	for _, bound := range []int64{podMemoryLimit(pod), node} {
		if bound > 0 && (size == 0 || bound < size) {
			size = bound
		}
	}
	return size, nil
}

// allocatable is the node's allocatable memory, zero where it is not known. A
// node that cannot be read is no reason to keep a pod from its volume.
func (p *Plugin) allocatable(ctx context.Context) (int64, error) {
	if p.host.Node == nil {
		return 0, nil
	}
	node, err := p.host.NodeObject(ctx)
	switch {
	case ctx.Err() != nil:
		return 0, plugins.Transient(fmt.Errorf("read the node: %w", context.Cause(ctx)))
	case err != nil:
		p.host.Log.V(1).Info("size of memory volume not bounded by the node", "reason", err.Error())
		return 0, nil
	case node == nil:
		return 0, nil
	}
	return node.Status.Allocatable.Memory().Value(), nil
}

// podMemoryLimit is the memory limit of the pod's cgroup: the pod's own if it
// has one, else, if every container has one, what the containers need at most
// at any one time. Zero means that there is none.
//
// Ordinary containers and restartable init containers (KEP-753) run together;
// each other init container runs with the restartable ones before it.
func podMemoryLimit(pod *v1.Pod) int64 {
	if pod == nil {
		return 0
	}
	overhead := pod.Spec.Overhead.Memory().Value()
	if own := pod.Spec.Resources; own != nil {
		if limit := own.Limits.Memory().Value(); limit > 0 {
			return limit + overhead
		}
	}
	var together, peak int64
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		limit := c.Resources.Limits.Memory().Value()
		if limit <= 0 {
			return 0
		}
		peak = max(peak, together+limit)
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			together += limit
		}
	}
	for i := range pod.Spec.Containers {
		limit := pod.Spec.Containers[i].Resources.Limits.Memory().Value()
		if limit <= 0 {
			return 0
		}
		together += limit
	}
	if peak = max(peak, together); peak == 0 {
		return 0
	}
	return peak + overhead
}

// pageSize finds the size of huge pages in the pod's requests: the one that the
// medium names, or the only one there is.
func pageSize(s source, pod *v1.Pod) (resource.Quantity, error) {
	var found *resource.Quantity
	var asked []string
	for name := range hugePageRequests(pod) {
		text := strings.TrimPrefix(string(name), v1.ResourceHugePagesPrefix)
		size, err := resource.ParseQuantity(text)
		if err != nil || size.Sign() <= 0 {
			return resource.Quantity{}, plugins.Permanentf("resource %q names no size of huge pages", name)
		}
		if s.pageSize != nil && size.Cmp(*s.pageSize) == 0 {
			return size, nil
		}
		found, asked = &size, append(asked, text)
	}
	switch {
	case s.pageSize != nil:
		return resource.Quantity{}, plugins.Permanentf("no container requests huge pages of size %s", s.pageSize)
	case len(asked) == 0:
		return resource.Quantity{}, plugins.Permanentf("no container requests huge pages")
	case len(asked) > 1:
		return resource.Quantity{}, plugins.Permanentf("the pod requests huge pages of %d sizes: the medium must name one, HugePages-<size>", len(asked))
	}
	return *found, nil
}

// hugePageRequests is the set of the huge page resources that the pod requests
// in any amount. A limit counts as a request, since huge pages are never
// overcommitted and the API defaults one to the other.
func hugePageRequests(pod *v1.Pod) map[v1.ResourceName]bool {
	set := map[v1.ResourceName]bool{}
	if pod == nil {
		return set
	}
	add := func(list v1.ResourceList) {
		for name, amount := range list {
			if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) && amount.Sign() > 0 {
				set[name] = true
			}
		}
	}
	if own := pod.Spec.Resources; own != nil {
		add(own.Requests)
		add(own.Limits)
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			add(list[i].Resources.Requests)
			add(list[i].Resources.Limits)
		}
	}
	return set
}

// checkPages refuses a size that the kernel does not know or has no pages of:
// a program that maps such a file is killed at its first access.
func (p *Plugin) checkPages(size resource.Quantity) error {
	dir := filepath.Join(p.hugePages, "hugepages-"+strconv.FormatInt(size.Value()/1024, 10)+"kB")
	var total int64
	for _, name := range []string{"nr_hugepages", "nr_overcommit_hugepages"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return plugins.Unsupportedf("huge pages of size %s: the kernel does not have them: %w", &size, err)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return plugins.Unsupportedf("huge pages of size %s: %s: %w", &size, name, err)
		}
		total += n
	}
	if total == 0 {
		return plugins.Unsupportedf("huge pages of size %s: none are reserved on this node (%s/nr_hugepages is 0)", &size, dir)
	}
	return nil
}
