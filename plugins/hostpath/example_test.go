//go:build unix

package hostpath_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/hostpath"
)

// A policy sees where a path leads, after all symbolic links.
func Example() {
	plugin := hostpath.New(&plugins.VolumeHost{}, hostpath.Options{Policy: hostpath.Under("/var/log")})
	spec := &plugins.Spec{Volume: &v1.Volume{Name: "etc", VolumeSource: v1.VolumeSource{
		HostPath: &v1.HostPathVolumeSource{Path: "/etc"},
	}}}
	_, err := plugin.SetUp(context.Background(), plugins.SetUpRequest{Spec: spec, Object: &v1.Pod{}})
	fmt.Println(plugins.ClassOf(err), err)
	// Output: permanent hostPath /etc is refused: /etc does not lie in an allowed folder
}
