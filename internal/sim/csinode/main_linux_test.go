package csinode_test

import (
	"testing"

	"github.com/volumekit/volumekit/internal/nstest"
	"github.com/volumekit/volumekit/internal/sim"
)

func TestMain(m *testing.M) {
	switch {
	case sim.IsAgent():
		sim.RunAgent()
	case sim.IsFuseServer():
		sim.ServeFuse()
	}
	nstest.Main(m)
}
