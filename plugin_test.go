package volumekit_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/plugins"
	"github.com/volumekit/volumekit/plugins/plugintest"
)

// The example's volume kind passes the suite that it is told to pass.
func TestGreeting(t *testing.T) {
	spec := func(options map[string]string) *plugins.Spec {
		return &plugins.Spec{Volume: &v1.Volume{Name: "hi", VolumeSource: v1.VolumeSource{
			FlexVolume: &v1.FlexVolumeSource{Driver: "example.com/greeting", Options: options},
		}}}
	}
	plugintest.TestPlugin(t, plugintest.Harness{
		New: func(_ testing.TB, host *plugins.VolumeHost) plugins.VolumePlugin { return greeting{host} },
		Good: func(testing.TB, *plugins.VolumeHost) []plugintest.Volume {
			return []plugintest.Volume{{Name: "text", Spec: spec(map[string]string{"text": "Hello"})}}
		},
		Bad: func(testing.TB, *plugins.VolumeHost) []plugintest.Volume {
			return []plugintest.Volume{{Name: "no text", Spec: spec(nil)}}
		},
	})
}
