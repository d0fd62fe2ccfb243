package csinode_test

import (
	"testing"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/internal/sim"
)

func TestMain(m *testing.M) {
	if sim.IsAgent() {
		sim.RunAgent()
	}
	nstest.Main(m)
}
