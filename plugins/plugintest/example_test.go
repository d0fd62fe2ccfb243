package plugintest_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/emptydir"
	"github.com/volumekit/volumekit/plugins/plugintest"
)

// The test of a volume kind runs every check over it, here with imitated
// mounts.
func ExampleTestPlugin() {
	testConformance := func(t *testing.T) {
		plugintest.TestPlugin(t, plugintest.Harness{
			New: func(_ testing.TB, host *plugins.VolumeHost) plugins.VolumePlugin { return emptydir.New(host) },
			Good: func(testing.TB, *plugins.VolumeHost) []plugintest.Volume {
				return []plugintest.Volume{{Name: "plain", Spec: &plugins.Spec{Volume: &v1.Volume{Name: "scratch"}}}}
			},
		})
	}
	_ = testConformance // in a real test file: func TestConformance(t *testing.T)
}
